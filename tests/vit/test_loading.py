"""Where a backbone's weights come from."""

from __future__ import annotations

from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file

from cprompt.errors import BackboneError
from cprompt.vit.embedded import EMBEDDED
from cprompt.vit.loading import load_backbone
from cprompt.vit.promptable import FrozenViT
from tests.vit.common import images
from tests.vit.families import FAMILIES

EMBEDDED_NAME = next(iter(EMBEDDED))


def test_random_weights_depend_on_the_seed_alone() -> None:
    state = torch.get_rng_state()
    a = load_backbone("test_vit", weights="random:3")
    assert torch.equal(torch.get_rng_state(), state)
    assert load_backbone("test_vit", weights="random:3").fingerprint == a.fingerprint
    assert load_backbone("test_vit", weights="random:4").fingerprint != a.fingerprint


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
def test_a_local_file_gives_its_weights(tmp_path: Path, suffix: str) -> None:
    source = timm.create_model("test_vit")
    path = tmp_path / f"weights{suffix}"
    if suffix == ".pth":
        torch.save({"state_dict": source.state_dict()}, path)
    else:
        save_file(source.state_dict(), path)
    loaded = load_backbone("test_vit", weights=path)
    assert loaded.weights == f"file:{path.name}"
    for name, tensor in loaded.vit.state_dict().items():
        assert torch.equal(tensor, source.state_dict()[name]), name


def test_another_image_size_resizes_the_position_embedding(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    save_file(timm.create_model("test_vit").state_dict(), path)
    loaded = load_backbone("test_vit", weights=path, image_size=64)
    assert loaded.image_size == (64, 64)
    assert loaded(images(1, 64)).shape == (1, 64)


@pytest.mark.parametrize("key", FAMILIES)
def test_a_file_fits_a_model_of_any_family_whatever_its_classifier(
    tmp_path: Path, key: str
) -> None:
    family = FAMILIES[key]
    one = load_backbone(f"tiny_{key}", "random:0", family.size)
    try:
        source = timm.create_model(f"tiny_{key}", num_classes=7, img_size=family.size)
    except TypeError:
        source = timm.create_model(f"tiny_{key}", num_classes=7)
    path = tmp_path / f"tiny_{key}.safetensors"
    save_file({name: t.contiguous() for name, t in source.state_dict().items()}, path)
    loaded = load_backbone("auto", path, family.size)  # named by the file
    assert (loaded.name, loaded.weights) == (f"tiny_{key}", f"file:{path.name}")
    assert loaded.fingerprint != one.fingerprint
    mine = (loaded.vit if isinstance(loaded, FrozenViT) else loaded.model).state_dict()
    assert mine
    for name, tensor in mine.items():
        assert torch.equal(tensor, source.state_dict()[name]), name


def test_a_file_named_after_a_model_needs_no_name(tmp_path: Path) -> None:
    path = tmp_path / "test_vit.r160_in1k.safetensors"
    save_file(timm.create_model("test_vit").state_dict(), path)
    assert load_backbone(weights=path).name == "test_vit.r160_in1k"
    other = path.rename(tmp_path / "mine.safetensors")
    for weights in (other, "random:0"):
        with pytest.raises(BackboneError, match=r"do not say which model.*--backbone NAME"):
            load_backbone("auto", weights)


def test_which_models_can_be_prompted() -> None:
    for key, family in FAMILIES.items():
        backbone = load_backbone(f"tiny_{key}", "random:0", family.size)
        assert isinstance(backbone, FrozenViT) == (key == "dinov2"), key
        assert backbone.image_size == (family.size, family.size)


def test_a_bare_name_with_several_weight_tags_is_ambiguous() -> None:
    with pytest.raises(BackboneError, match=r"name one.*augreg_in21k_ft_in1k"):
        load_backbone("vit_base_patch16_224")
    with pytest.raises(BackboneError, match=r"no weights 'nonesuch'"):
        load_backbone("vit_base_patch16_224.nonesuch")
    with pytest.raises(BackboneError, match="timm has no model 'vit_imaginary'"):
        load_backbone("vit_imaginary")


@pytest.mark.parametrize("name", ["auto", EMBEDDED_NAME, "test_vit"])
def test_weights_that_are_not_there_are_named_whatever_the_model(name: str) -> None:
    with pytest.raises(BackboneError, match=r"^nofile\.safetensors: does not exist"):
        load_backbone(name, "nofile.safetensors")


def test_an_embedded_backbone_takes_no_other_weights(tmp_path: Path) -> None:
    path = tmp_path / "mine.safetensors"
    save_file(timm.create_model("test_vit").state_dict(), path)
    for weights in (path, "random:0"):
        with pytest.raises(BackboneError, match="is embedded with its weights and takes") as caught:
            load_backbone(EMBEDDED_NAME, weights)
        assert str(weights) in caught.value.message
        assert "--backbone" in str(caught.value.hint)


def test_a_short_name_takes_no_tag() -> None:
    with pytest.raises(BackboneError) as caught:
        load_backbone("small.x")
    said = "small is a short name and takes no tag; use --backbone small"
    assert str(caught.value) == said


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("vit_tny_patch16_224", "vit_tiny_patch16_224"),
        ("vit_tny_patch16_224.augreg_in21k", "vit_tiny_patch16_224"),
        ("vit_mikro_patch8_64", EMBEDDED_NAME),
        ("vit_micro_patch8_64", EMBEDDED_NAME),
        ("smal", "small"),
    ],
)
def test_a_name_that_is_almost_right_is_answered_with_the_right_one(wrong: str, meant: str) -> None:
    with pytest.raises(BackboneError) as caught:
        load_backbone(wrong)
    assert str(caught.value.hint).startswith(f"did you mean '{meant}'? `cprompt backbones`")


def test_a_failed_download_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*args: object, **kwargs: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("cprompt.vit.loading.check_reachable", lambda name: None)
    monkeypatch.setattr("cprompt.vit.loading.fetch", failing)
    with pytest.raises(BackboneError, match=r"not on this machine.*no space left.*--weights"):
        load_backbone("vit_base_patch16_224.augreg_in21k_ft_in1k")
