"""What all backbones have in common: who they are and how they are fed."""

from __future__ import annotations

import pytest
import timm
from torch import nn

from cprompt.vit.backbone import INCEPTION, normalization_of
from cprompt.vit.frozen_model import FrozenModel
from cprompt.vit.loading import load_backbone
from tests.vit.families import FAMILIES, shaken


@pytest.mark.parametrize("key", FAMILIES)
def test_a_fingerprint_is_that_of_the_weights_alone(key: str) -> None:
    size = FAMILIES[key].size
    one, same, other = (load_backbone(f"tiny_{key}", f"random:{s}", size) for s in (0, 0, 1))
    assert one.fingerprint == same.fingerprint != other.fingerprint
    assert one.identity == {
        "name": f"tiny_{key}",
        "weights": "random:0",
        "fingerprint": one.fingerprint,
        "layers": one.layer_widths,
    }
    assert one.difference(same.identity) is None
    assert one.difference(other.identity) == (
        f"this is tiny_{key} with other weights (random:0, {one.fingerprint[:12]})"
    )


def test_the_same_weights_read_by_other_layers_are_another_backbone() -> None:
    """timm learns to read the layers of more models with every version."""
    family = FAMILIES["densenet"]
    model = shaken(family.build(num_classes=0))
    last = FrozenModel(model, "tiny", "random", family.size)
    resnet = FrozenModel(shaken(FAMILIES["resnet"].build(num_classes=0)), "other", "random", 64)
    (width,) = last.layer_widths
    assert width == last.dim
    assert len(resnet.layer_widths) == resnet.depth > 1
    several = last.identity | {"layers": [24, 48]}
    assert last.difference(several) == (
        f"the timm installed here reads other layers of it: of widths [{width}], not [24, 48]"
    )
    older = {name: value for name, value in several.items() if name != "layers"}
    assert last.difference(older) is None


@pytest.mark.parametrize(
    ("name", "mean", "std", "size"),
    [
        ("vit_tiny_patch16_224.augreg_in21k", (0.5, 0.5, 0.5), (0.5, 0.5, 0.5), 224),
        ("test_convnext.r160_in1k", (0.5, 0.5, 0.5), (0.5, 0.5, 0.5), 160),
        ("resnet18.a1_in1k", (0.485, 0.456, 0.406), (0.229, 0.224, 0.225), 224),
        (
            "eva02_tiny_patch14_224.mim_in22k",
            (0.48145466, 0.4578275, 0.40821073),
            (0.26862954, 0.26130258, 0.27577711),
            224,
        ),
        ("efficientnet_b0.ra_in1k", (0.485, 0.456, 0.406), (0.229, 0.224, 0.225), 224),
        (
            "mobilenetv4_conv_small.e1200_r224_in1k",
            (0.485, 0.456, 0.406),
            (0.229, 0.224, 0.225),
            224,
        ),
    ],
)
def test_size_and_normalisation_are_the_models_own(
    name: str, mean: tuple[float, ...], std: tuple[float, ...], size: int
) -> None:
    backbone = load_backbone(name, "random:0")
    assert (backbone.mean, backbone.std) == (mean, std)
    assert backbone.image_size == (size, size)


def test_a_model_that_does_not_say_gets_the_usual_normalisation() -> None:
    assert normalization_of(nn.Identity()) == INCEPTION
    assert normalization_of(timm.create_model("test_resnet")) == INCEPTION
