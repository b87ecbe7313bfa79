"""Files of weights: what is read, what fits, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import nn

from cprompt.errors import BackboneError
from cprompt.vit.loading import load_backbone
from cprompt.vit.weight_files import WithoutRandomValues, load_into, read_weights
from tests.vit import families  # noqa: F401  registers tiny models


def test_a_norm_in_the_head_is_loaded_and_the_classifier_is_not(tmp_path: Path) -> None:
    source = timm.create_model("test_convnext", num_classes=5)
    torch.nn.init.normal_(source.head.norm.weight)
    path = tmp_path / "weights.safetensors"
    save_file(source.state_dict(), path)
    model = timm.create_model("test_convnext", num_classes=0)
    load_into(model, read_weights(path), path, "test_convnext")
    assert torch.equal(model.head.norm.weight, source.head.norm.weight)
    state = source.state_dict()
    del state["head.norm.bias"]
    with pytest.raises(BackboneError, match=r"1 tensors are missing.*head\.norm\.bias"):
        load_into(model, state, path, "test_convnext")


def test_timms_own_filter_of_the_model_renames_older_weights(tmp_path: Path) -> None:
    """Swin's stages were numbered from another block before; the masks were in the file."""
    source = timm.create_model("tiny_swin", img_size=64)
    old = {
        name.replace("layers.1.downsample", "layers.0.downsample")
        .replace("layers.2.downsample", "layers.1.downsample")
        .replace("layers.3.downsample", "layers.2.downsample")
        .replace("head.fc", "head"): tensor.contiguous()
        for name, tensor in source.state_dict().items()
    }
    old["layers.0.blocks.0.attn.relative_position_index"] = torch.zeros(1)
    path = tmp_path / "old.safetensors"
    save_file(old, path)
    loaded = load_backbone("tiny_swin", path, 64)
    new = loaded.model.state_dict()
    assert torch.equal(
        new["layers.1.downsample.norm.weight"],
        source.state_dict()["layers.1.downsample.norm.weight"],
    )


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
        assert "weights_only" not in str(caught.value)  # torch's advice to load it unsafely


def test_a_pickle_with_code_in_it_is_not_run(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return (open, (str(tmp_path / "ran"), "w"))

    torch.save({"x": Evil()}, tmp_path / "evil.pth")
    with pytest.raises(BackboneError, match="cannot be read") as caught:
        load_backbone("test_vit", weights=tmp_path / "evil.pth")
    assert "weights_only" not in str(caught.value)
    assert not (tmp_path / "ran").exists()


def test_a_model_made_for_a_file_draws_nothing_and_sets_its_constants() -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    with WithoutRandomValues():
        model = timm.create_model("test_vit", num_classes=0)
    assert torch.equal(torch.get_rng_state(), before)
    norms = [m for m in model.modules() if isinstance(m, nn.LayerNorm)]
    assert norms
    assert all((n.weight == 1).all() and (n.bias == 0).all() for n in norms)
    timm.create_model("test_vit", num_classes=0)
    assert not torch.equal(torch.get_rng_state(), before)
