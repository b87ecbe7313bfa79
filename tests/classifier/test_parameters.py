"""Parameters of the classifier."""

from __future__ import annotations

from typing import Any

import pytest

from cprompt import ContinualClassifier
from cprompt.classifier.parameters import epochs_for
from cprompt.errors import ConfigError
from tests.classifier.common import batch, learnt, tiny


def test_large_batches_are_gone_through_less_often() -> None:
    assert [epochs_for(n) for n in (1, 80, 500, 750, 1000, 1500, 10**6)] == [6, 6, 6, 4, 3, 2, 2]
    trained = tiny(method="cprompt", settings={"length": 2}, training={"batch_size": 4})
    # One of nine is held out; eight are two steps an epoch.
    assert trained.learn(*batch(0, red=9)).history_[0].steps == 6 * 2


def test_by_default_photos_are_gone_through_once_without_a_step() -> None:
    (only,) = tiny(training={"batch_size": 4}).learn(*batch(0, red=9)).history_
    assert (only.steps, only.held_out) == (0, 0)


def test_where_nothing_is_held_out_keeping_nothing_is_a_setting_of_the_method() -> None:
    assert "keep" not in tiny().method_settings()
    assert tiny(keep_held_out=0).method_settings()["keep"] == 0
    assert tiny(keep_held_out=0, settings={"keep": 9}).method_settings()["keep"] == 9
    assert "keep" not in tiny(method="cprompt", keep_held_out=0).method_settings()


def test_parameters_are_as_given_so_that_it_can_be_cloned() -> None:
    classifier = tiny(accept=0.9, settings={"views": 2})
    params = classifier.get_params()
    assert set(params) == {
        "backbone", "method", "weights", "image_size", "settings", "training", "transform",
        "normalization", "hold_out", "accept", "keep_held_out", "seed", "device", "precision",
    }  # fmt: skip
    clone = ContinualClassifier(**params)
    assert all(clone.get_params()[name] is value for name, value in params.items())
    classifier.set_params(seed=3, transform="photo")
    assert (classifier.seed, classifier.transform) == (3, "photo")


def test_what_was_learnt_forbids_another_backbone_or_method() -> None:
    classifier = learnt({"red": 3})
    with pytest.raises(ConfigError, match="image_size cannot change after a batch was learnt"):
        classifier.set_params(image_size=64)
    classifier.set_params(accept=0.5)
    with pytest.raises(ConfigError, match="no parameter 'accpt'"):
        classifier.set_params(accpt=0.5)
    with pytest.raises(ConfigError, match=r"hold_out 1.5 must be in"):
        classifier.set_params(accept=0.7, hold_out=1.5)
    assert (classifier.accept, classifier.hold_out) == (0.5, 0.15)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"method": "magic"}, "no method is called 'magic'"),
        ({"settings": {"veiws": 1}}, "did you mean 'views'"),
        ({"method": "cprompt", "settings": {"lenght": 1}}, "did you mean 'length'"),
        ({"method": "aligned"}, "no method is called 'aligned'"),
        ({"training": {"epochs": -1}}, "epochs -1 must not be negative"),
        ({"training": {"batch_size": "x"}}, "'x' is not a whole number"),
        ({"transform": "magic"}, "transform 'magic' is not one of photo"),
        ({"normalization": "magic"}, "normalization 'magic' is not auto or one of none"),
        ({"hold_out": 1.0}, "hold_out 1.0 must be in"),
        ({"accept": 0.0}, "accept 0.0 must be in"),
        ({"keep_held_out": -1}, "keep_held_out -1 must be 0 or more"),
        ({"precision": "fp8"}, "'fp8' is not one of 'fp32', 'bf16'"),
    ],
)
def test_parameters_that_make_no_sense_are_named_at_once(
    params: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        tiny(**params)


def test_normalization_is_the_backbones_own() -> None:
    assert tiny().preparation_.mean == (0.5, 0.5, 0.5)
    assert tiny(normalization="none").preparation_.mean == (0.0, 0.0, 0.0)
    other = tiny(backbone="vit_small_patch14_dinov2", image_size=28)
    assert other.preparation_.mean == (0.485, 0.456, 0.406)
    assert other.preparation_.std == (0.229, 0.224, 0.225)
