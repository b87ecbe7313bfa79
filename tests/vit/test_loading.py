"""Where a backbone's weights come from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file

from cprompt.errors import BackboneError
from cprompt.vit.loading import load_backbone
from tests.vit.common import images


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


def test_weights_of_another_model_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    save_file(timm.create_model("vit_tiny_patch16_224").state_dict(), path)
    with pytest.raises(BackboneError, match="does not fit") as caught:
        load_backbone("test_vit", weights=path)
    assert caught.value.file == str(path)
    save_file({"other": torch.zeros(1)}, path)
    with pytest.raises(BackboneError, match="tensors are missing"):
        load_backbone("test_vit", weights=path)


def test_unreadable_weights_are_named(tmp_path: Path) -> None:
    with pytest.raises(BackboneError, match="does not exist") as caught:
        load_backbone("test_vit", weights=tmp_path / "nowhere.pth")
    assert caught.value.file == str(tmp_path / "nowhere.pth")
    for name in ("broken.safetensors", "broken.pth"):
        (tmp_path / name).write_bytes(b"not weights")
        with pytest.raises(BackboneError, match="cannot be read") as caught:
            load_backbone("test_vit", weights=tmp_path / name)
        assert caught.value.file == str(tmp_path / name)
        assert caught.value.hint is not None


def test_a_pickle_with_code_in_it_is_not_run(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return (open, (str(tmp_path / "ran"), "w"))

    torch.save({"x": Evil()}, tmp_path / "evil.pth")
    with pytest.raises(BackboneError, match="cannot be read"):
        load_backbone("test_vit", weights=tmp_path / "evil.pth")
    assert not (tmp_path / "ran").exists()


def test_a_bare_name_with_several_weight_tags_is_ambiguous() -> None:
    with pytest.raises(BackboneError, match=r"name one.*augreg_in21k_ft_in1k"):
        load_backbone("vit_base_patch16_224")
    with pytest.raises(BackboneError, match=r"no weights 'nonesuch'"):
        load_backbone("vit_base_patch16_224.nonesuch")
    with pytest.raises(BackboneError, match="timm has no model 'vit_imaginary'"):
        load_backbone("vit_imaginary")


def test_without_a_network_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*args: object, **kwargs: object) -> None:
        raise OSError("no route to host")

    monkeypatch.setattr("cprompt.vit.loading.timm.create_model", offline)
    with pytest.raises(BackboneError, match=r"not on this machine.*no route to host.*--weights"):
        load_backbone("vit_base_patch16_224.augreg_in21k_ft_in1k")
