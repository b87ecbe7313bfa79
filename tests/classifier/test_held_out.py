"""Which photos are held out and stored."""

from __future__ import annotations

import numpy as np
import torch

from cprompt.classifier.held_out import choose_held_out, first_of_each, spread


def test_what_is_held_out_of_each_class() -> None:
    targets = np.repeat([5, 6, 7, 8, 9], [1, 3, 4, 10, 100])
    chosen = choose_held_out(targets, 0.15, seed=1)
    assert [int(chosen[targets == t].sum()) for t in (5, 6, 7, 8, 9)] == [0, 0, 1, 2, 15]
    assert np.array_equal(chosen, choose_held_out(targets, 0.15, seed=1))
    assert not np.array_equal(chosen, choose_held_out(targets, 0.15, seed=2))
    assert choose_held_out(targets, 0.9, seed=1)[targets == 7].sum() == 3
    assert not choose_held_out(targets, 0.0, seed=1).any()


def test_the_first_of_each_position_are_kept() -> None:
    positions = torch.tensor([4, 4, 1, 4, 1, 4, 2])
    assert first_of_each(positions, 2) == [0, 1, 2, 4, 6]
    assert first_of_each(positions, 0) == []


def test_a_limited_number_is_spread_over_the_positions() -> None:
    positions = torch.tensor([1] * 4 + [0] * 4 + [2] * 4)
    assert spread(positions, 12).tolist() == list(range(12))
    chosen = spread(positions, 6)
    assert positions[chosen].bincount().tolist() == [2, 2, 2]
    assert len(set(chosen.tolist())) == 6
