"""Models of any kind, against a reading of their layers by hooks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from cprompt.errors import BackboneError, ConfigError
from cprompt.vit.frozen_model import FrozenModel
from cprompt.vit.loading import load_backbone
from cprompt.vit.promptable import FrozenViT, Prompts
from tests.vit.common import KINDS, images, small
from tests.vit.families import FAMILIES, Family, naive_layers, shaken


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> Family:
    return FAMILIES[request.param]


def made(family: Family) -> FrozenViT | FrozenModel:
    """The family's model with weights that are all away from their initial values.

    Always the same ones: of some, a small convolutional network sees next to nothing.
    """
    with torch.random.fork_rng():
        torch.manual_seed(1)
        try:
            model = family.build(num_classes=0, img_size=family.size)
        except TypeError:
            model = family.build(num_classes=0)
        shaken(model)
    if family is FAMILIES["dinov2"]:
        return FrozenViT(model, "tiny", "random")
    return FrozenModel(model, "tiny", "random", family.size)


def naive(family: Family, backbone: Any, x: Tensor, layers: list[int], tokens: str) -> Tensor:
    model = backbone.vit if isinstance(backbone, FrozenViT) else backbone.model
    kinds = {"both": (0, 1), "class": (0,), "patch": (1,)}[tokens]
    rows = []
    for image in x:
        found = naive_layers(family, model, image)
        rows.append(torch.cat([found[layer][kind] for layer in layers for kind in kinds]))
    return torch.stack(rows)


def test_taps_are_those_of_the_models_own_modules(family: Family) -> None:
    backbone = made(family)
    count = len(family.layers)
    assert backbone.depth == count
    x = images(2, family.size)
    embedded = backbone.embed(x)
    last = count - 1
    for layers in ([*range(count)], [last], [last, 0], [0]):
        for tokens in ("both", "class", "patch"):
            if tokens == "class" and not family.class_token and set(layers) != {last}:
                with pytest.raises(ConfigError, match="layer 0 of tiny has no class token"):
                    backbone.taps(embedded, layers, tokens)
                continue
            expected = naive(family, backbone, x, layers, tokens)
            with torch.no_grad():
                found = backbone.taps(embedded, layers, tokens)
            torch.testing.assert_close(found, expected, rtol=2e-4, atol=2e-4)
            assert sum(backbone.tap_widths(layers, tokens)) == found.shape[1]


def test_an_image_is_read_on_its_own_and_nothing_is_trained(family: Family) -> None:
    backbone = made(family).train()
    x = images(3, family.size)
    layers = [*range(backbone.depth)]
    assert not any(module.training for module in backbone.modules())
    assert not any(p.requires_grad for p in backbone.parameters())
    together = backbone.taps(backbone.embed(x), layers)
    alone = [backbone.taps(backbone.embed(x[i : i + 1]), layers) for i in range(3)]
    torch.testing.assert_close(together, torch.cat(alone), rtol=1e-4, atol=1e-4)
    assert not torch.allclose(together[0], together[1], atol=1e-3)
    assert not together.requires_grad


def test_bf16_is_near_and_returns_float32(family: Family) -> None:
    backbone = made(family)
    x, layers = images(2, family.size), [0, backbone.depth - 1]
    exact = backbone.taps(backbone.embed(x), layers)
    rough = backbone.taps(backbone.embed(x, "bf16"), layers)
    assert exact.dtype == rough.dtype == torch.float32
    assert not torch.equal(exact, rough)
    assert (exact - rough).norm() < 0.05 * exact.norm()


@pytest.mark.parametrize("norm", [{}, {"fc_norm": True, "final_norm": True}, {"final_norm": False}])
@pytest.mark.parametrize("kind", KINDS)
def test_a_vit_is_read_the_same_on_both_paths(kind: str, norm: dict[str, bool]) -> None:
    vit = small(kind, **norm)
    fast, general = FrozenViT(vit, kind, "random"), FrozenModel(vit, kind, "random", 32)
    assert (fast.depth, fast.dim) == (general.depth, general.dim)
    x = images(3, 32)
    for tokens in ("both", "class", "patch"):
        for layers in ([0, 1, 2], [2], [1]):
            one = fast.taps(fast.embed(x), layers, tokens)
            other = general.taps(general.embed(x), layers, tokens)
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
            assert fast.tap_widths(layers, tokens) == general.tap_widths(layers, tokens)
            assert fast.tap_kinds(layers, tokens) == general.tap_kinds(layers, tokens)


def test_widths_and_kinds_say_what_stands_where() -> None:
    model = made(FAMILIES["convnext"])
    assert model.tap_widths([2, 3, 0]) == [24, 32, 32, 8]
    assert model.tap_kinds([2, 3, 0]) == ["patch", "class", "patch", "patch"]
    assert model.tap_widths([3], "class") == [32]
    wide = made(FAMILIES["mobilenetv4"])
    assert wide.tap_kinds([4]) == ["class", "patch"]
    assert wide.tap_widths([4]) == [1280, wide.dim]  # its head widens what it pooled


@pytest.mark.parametrize(
    ("name", "kinds", "size"),
    [
        ("xcit_nano_12_p8_224", ["patch", "class", "patch"], 32),  # class token in the last layers
        ("pit_ti_224", ["patch", "class", "patch"], 224),  # its head reads the class token only
        ("hiera_tiny_224", ["patch", "class", "patch"], 224),
        ("vit_relpos_small_patch16_224", ["patch", "class", "patch"], 32),
        ("tiny_densenet", ["class", "patch"] * 2, 64),  # one layer
    ],
)
def test_kinds_of_layers_that_differ(name: str, kinds: list[str], size: int) -> None:
    model = load_backbone(name, "random:0", size)
    layers = [0, model.depth - 1]
    assert model.tap_kinds(layers) == kinds
    found = model.taps(model.embed(images(1, size)), layers)
    assert found.shape == (1, sum(model.tap_widths(layers)))
    assert found.isfinite().all()


def test_what_cannot_be_read_is_named() -> None:
    model = made(FAMILIES["siglip"])
    embedded = model.embed(images(1, 48))
    with pytest.raises(ConfigError, match="tiny has no layer 3; it has layers 0 to 2"):
        model.taps(embedded, [3])
    with pytest.raises(ConfigError, match="no layer of tiny is named"):
        model.tap_widths([])
    with pytest.raises(ConfigError, match=r"layer 1 of tiny has no class token.*\(2\)"):
        model.tap_widths([1, 2], "class")
    with pytest.raises(BackboneError, match="VisionTransformer, which cannot be prompted"):
        model.taps(embedded, [0], prompts=Prompts(tokens={0: torch.zeros(1, 32)}))
    with pytest.raises(BackboneError, match=r"cannot read images of 7 x 7.*its own size is 224"):
        load_backbone("convnext_atto", "random:0", 7)
    with pytest.raises(BackboneError, match="CrossVit, whose features are not one tensor"):
        load_backbone("crossvit_tiny_240", "random:0")
