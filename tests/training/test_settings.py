"""Settings of training."""

from __future__ import annotations

from typing import Any

import pytest

from cprompt.errors import ConfigError
from cprompt.settings import from_mapping
from cprompt.training.settings import Seeds, TrainingConfig


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("epochs", -1),
        ("batch_size", 0),
        ("lr", 0.0),
        ("momentum", 1.0),
        ("weight_decay", -0.1),
        ("clip", 0.0),
    ],
)
def test_a_value_out_of_range_is_named(setting: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"{setting} {value} must"):
        from_mapping(TrainingConfig, {setting: value}, "training")


@pytest.mark.parametrize(
    "settings",
    [{"milestones": [2]}, {"schedule": "step"}, {"schedule": "coda", "milestones": [2]}],
)
def test_milestones_belong_to_the_step_schedule(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="milestones"):
        from_mapping(TrainingConfig, settings, "training")
    step = {"schedule": "step", "milestones": [2, 4]}
    assert from_mapping(TrainingConfig, step, "training").milestones == (2, 4)


@pytest.mark.parametrize("order", [7, "natural", [2, 0, 1]])
def test_a_class_order_is_a_seed_a_word_or_a_list(order: Any) -> None:
    expected = tuple(order) if isinstance(order, list) else order
    assert from_mapping(Seeds, {"order": order}, "seeds").order == expected
