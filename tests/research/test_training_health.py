"""What is worth a warning, with the movements and losses that were measured."""

from __future__ import annotations

import pytest

from cprompt.research.training_health import is_inert, loss_grew, training_warnings
from cprompt.training.movement import Movement


@pytest.mark.parametrize(
    ("movement", "inert"),
    [
        # CODA-Prompt's components: 0.12 % in 20 steps under SGD, half of it by weight decay; 17 %
        # in 10 steps under Adam. A whole task of weight decay shrinks them by 14 % all the same.
        (Movement(10.0, 0.012, 0.0104), True),
        (Movement(10.0, 1.4, 0.05), True),
        (Movement(10.0, 1.7, 1.7), False),
        # SLCA's backbone is meant to go slowly.
        (Movement(10.0, 0.002, 0.002, lr_scale=0.01), False),
        (Movement(10.0, 0.002, 0.0005, lr_scale=0.01), True),
        (Movement(10.0, 0.5, 0.05, lr_scale=5.0), True),
        # Heads that begin at zero.
        (Movement(0.0, 0.3, 0.3), False),
        (Movement(0.0, 0.0, 0.0), True),
    ],
)
def test_a_group_is_inert_if_it_hardly_turned(movement: Movement, inert: bool) -> None:
    assert is_inert(movement) == inert


@pytest.mark.parametrize(
    ("sums", "grew"),
    [([], False), ([2.0], False), ([2.0, 0.1], False), ([2.0, 2.1], False), ([2.0, 2.3], True)],
)
def test_a_loss_that_ends_above_its_beginning_grew(sums: list[float], grew: bool) -> None:
    assert loss_grew([{"ce": value - 0.5, "aux": 0.5} for value in sums]) == grew


def test_a_loss_below_zero_that_falls_has_not_grown() -> None:
    """A pull towards keys is a negative term."""
    assert not loss_grew([{"pull": -0.5}, {"pull": -0.9}])
    assert loss_grew([{"pull": -0.9}, {"pull": -0.5}])


def test_warnings_count_tasks_and_name_the_largest_movement() -> None:
    well, still, stiller = (Movement(1.0, m, m) for m in (0.2, 0.004, 0.001))
    tasks = [{"keys": still, "heads": well}, {"keys": stiller}, {"keys": well}, {}]
    found = training_warnings(tasks, [[{"ce": 1.0}, {"ce": 0.5}], [{"ce": 1.0}, {"ce": 3.0}]])
    assert list(found) == ["keys", "loss"]
    assert found["keys"].startswith("keys hardly moved in 2 of 3 tasks: by 0.4 % at most")
    assert "in task 2:" in found["loss"]
    assert training_warnings(tasks[2:], []) == {}
