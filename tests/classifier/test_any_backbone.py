"""A classifier on models of many families: learn, predict, save, load, export."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import timm

from cprompt import ContinualClassifier
from cprompt.classifier.onnx_export import export_onnx
from cprompt.errors import BackboneError, ModelError
from cprompt.vit.catalogue import SHORT_NAMES, ShortName
from tests.classifier.common import batch, photos, tiny
from tests.vit.families import FAMILIES

EXPORTED = ("dinov3", "siglip", "naflex", "swin", "convnext")
"""One of each kind of operation, since tracing takes seconds: rotary positions, attention pooling,
positions resized in the pass, windows, convolutions."""


def on(key: str, **params: object) -> ContinualClassifier:
    usual = {"method": "strata", "weights": "random:0", "image_size": FAMILIES[key].size}
    settings = {"settings": {"views": 1, "shrinkage": 0.1}, "transform": "plain", "device": "cpu"}
    return ContinualClassifier(f"tiny_{key}", **{**usual, **settings, **params})  # type: ignore[arg-type]


@pytest.mark.parametrize("key", FAMILIES)
def test_learnt_in_two_batches_saved_and_loaded(key: str, tmp_path: Path) -> None:
    classifier = on(key)
    classifier.learn(*batch(0, apple=6, plum=6))
    classifier.learn(*batch(1, pear=6))
    shown = photos("apple", 3, 7) + photos("pear", 3, 7) + photos("plum", 3, 7)
    assert classifier.predict(shown, unknown=False) == ["apple"] * 3 + ["pear"] * 3 + ["plum"] * 3
    classifier.save(tmp_path / "model")
    loaded = ContinualClassifier.load(tmp_path / "model", device="cpu")
    expected = classifier.predict_proba(shown)
    np.testing.assert_allclose(loaded.predict_proba(shown), expected, atol=1e-6)


def test_a_timm_that_reads_other_layers_is_refused_before_it_answers_wrongly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    classifier = on("resnet").learn(*batch(0, apple=6, plum=6))
    classifier.save(tmp_path / "model")
    monkeypatch.setattr(timm.models.ResNet, "forward_intermediates", None)
    with pytest.raises(ModelError, match=r"other layers of it: of widths \[\d+\], not") as error:
        ContinualClassifier.load(tmp_path / "model", device="cpu")
    assert error.value.file == str(tmp_path / "model")
    assert "the same version of timm" in str(error.value)


@pytest.mark.parametrize("key", EXPORTED)
def test_exported_to_one_file(key: str, tmp_path: Path) -> None:
    classifier = on(key).learn(*batch(0, apple=6, plum=6))
    info = export_onnx(classifier, tmp_path / "model.onnx", check=photos("apple", 2, 7))
    assert info.checked == 2
    about = json.loads(info.metadata["normalization"])
    backbone = classifier.method_.backbone
    assert (tuple(about["mean"]), tuple(about["std"])) == (backbone.mean, backbone.std)


def test_the_normalisation_is_the_models_own_though_it_has_no_name(tmp_path: Path) -> None:
    classifier = on("eva02").learn(*batch(0, apple=3, plum=3))
    clip = (0.48145466, 0.4578275, 0.40821073)
    assert classifier.preparation_.mean == clip
    classifier.save(tmp_path / "model")
    loaded = ContinualClassifier.load(tmp_path / "model", device="cpu")
    assert loaded.preparation_ == classifier.preparation_
    assert on("eva02", normalization="imagenet").preparation_.mean == (0.485, 0.456, 0.406)


@pytest.mark.parametrize("method", ["esn", "cprompt", "l2p", "finetune", "slca"])
def test_a_method_that_prompts_says_at_once_what_it_needs(method: str) -> None:
    classifier = on("siglip", method=method, settings=None)
    with pytest.raises(BackboneError, match=rf"{method} needs a backbone that can be.*strata"):
        classifier.learn(*batch(0, apple=3, plum=3))


def test_a_model_on_a_short_name_is_loaded_at_the_same_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The short name may stand for something else when the model is loaded."""
    monkeypatch.setitem(SHORT_NAMES, "small", ShortName("test_vit", 48))
    classifier = tiny(backbone="small", image_size=None).learn(*batch(red=3, blue=3))
    classifier.save(tmp_path / "model")
    monkeypatch.delitem(SHORT_NAMES, "small")
    loaded = ContinualClassifier.load(tmp_path / "model")
    assert loaded.preparation_.size == 48
    asked = photos("red", 2, seed=4)
    assert loaded.predict_proba(asked) == pytest.approx(classifier.predict_proba(asked))
