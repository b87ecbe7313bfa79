"""Calibration against values worked by hand, brute force, and loops written out."""

from __future__ import annotations

import math

import numpy as np
import pytest

from cprompt.classifier.calibration import (
    Bin,
    expected_calibration_error,
    fit_temperature,
    fit_threshold,
    name_probabilities,
    negative_log_likelihood,
    reliability,
)


def test_the_best_of_its_positions_speaks_for_a_name() -> None:
    logits = np.log(np.array([[1.0, 2.0, 5.0], [4.0, 4.0, 2.0]]))
    p = name_probabilities(logits, np.array([0, 1, 0]), 2, 1.0)
    np.testing.assert_allclose(p, [[5 / 7, 2 / 7], [4 / 8, 4 / 8]])


def test_a_name_that_returns_often_does_not_swallow_its_look_alikes() -> None:
    for returns in (0, 1, 9):
        logits, name_of = np.ones((1, 2 + returns)), np.array([0, 1, *[0] * returns])
        assert name_probabilities(logits, name_of, 2, 1.0).tolist() == [[0.5, 0.5]]


def test_names_in_another_order_than_their_positions_get_their_own() -> None:
    logits = np.log(np.array([[1.0, 2.0, 5.0]]))
    p = name_probabilities(logits, np.array([2, 0, 1]), 3, 1.0)
    np.testing.assert_allclose(p, [[2 / 8, 5 / 8, 1 / 8]])


def test_a_temperature_divides_logits() -> None:
    p = name_probabilities(np.array([[2.0, 0.0]]), np.array([0, 1]), 2, 4.0)
    assert p[0, 0] == pytest.approx(1 / (1 + math.exp(-0.5)))


def test_huge_logits_are_no_trouble() -> None:
    p = name_probabilities(np.array([[1e6, -1e6, 0.0]]), np.arange(3), 3, 0.01)
    np.testing.assert_array_equal(p, [[1, 0, 0]])
    assert math.isfinite(
        negative_log_likelihood(np.array([[1e6, -1e6]]), np.array([1]), np.arange(2), 2, 0.01)
    )


def test_probabilities_of_a_photo_do_not_depend_on_the_others() -> None:
    logits = np.random.default_rng(0).normal(size=(9, 7)).astype(np.float32) * 30
    name_of = np.array([0, 1, 0, 2, 3, 1, 3])
    whole = name_probabilities(logits, name_of, 4, 2.5)
    alone = np.concatenate([name_probabilities(row[None], name_of, 4, 2.5) for row in logits])
    np.testing.assert_array_equal(whole, alone)


def naive_loss(
    logits: np.ndarray, names: list[int], name_of: list[int], n: int, temperature: float
) -> float:
    total = 0.0
    for row, name in zip(logits, names, strict=True):
        exps = [math.exp(value / temperature) for value in row]
        best = [max(e for e, o in zip(exps, name_of, strict=True) if o == k) for k in range(n)]
        logs = [math.log(value / sum(best)) for value in best]
        doubt = 1 / (len(names) + 2)
        others = [logs[k] for k in range(n) if k != name]
        total -= (1 - doubt) * logs[name] + doubt * sum(others) / (n - 1)
    return total / len(names)


def test_the_loss_equals_a_loop_over_photos_and_names() -> None:
    rng = np.random.default_rng(1)
    logits, names, name_of = rng.normal(size=(6, 5)), [0, 2, 1, 1, 2, 0], [0, 1, 2, 0, 1]
    for temperature in (0.3, 1.0, 7.0):
        ours = negative_log_likelihood(logits, np.array(names), np.array(name_of), 3, temperature)
        assert ours == pytest.approx(naive_loss(logits, names, name_of, 3, temperature))


@pytest.mark.parametrize("scale", [0.3, 1.0, 12.0])
def test_the_temperature_is_the_best_of_a_fine_grid(scale: float) -> None:
    rng = np.random.default_rng(2)
    names = rng.integers(4, size=60)
    logits = scale * (rng.normal(size=(60, 4)) + 2 * np.eye(4)[names])
    found = fit_temperature(logits, names, np.arange(4), 4)
    grid = np.geomspace(0.1, 100, 200)
    losses = [naive_loss(logits, names.tolist(), [0, 1, 2, 3], 4, t) for t in grid]
    best = grid[int(np.argmin(losses))]
    assert found == pytest.approx(best, rel=0.05)
    assert naive_loss(logits, names.tolist(), [0, 1, 2, 3], 4, found) <= min(losses) + 1e-9


def test_scaling_all_logits_scales_the_temperature() -> None:
    rng = np.random.default_rng(3)
    names = rng.integers(3, size=40)
    logits = rng.normal(size=(40, 3)) + np.eye(3)[names]
    one = fit_temperature(logits, names, np.arange(3), 3)
    assert fit_temperature(5 * logits, names, np.arange(3), 3) == pytest.approx(5 * one, rel=1e-3)


def test_a_temperature_between_two_points_of_the_grid_is_found_whichever_is_better() -> None:
    rng = np.random.default_rng(3)
    names = rng.integers(3, size=40)
    logits = rng.normal(size=(40, 3)) + np.eye(3)[names]
    one = fit_temperature(logits, names, np.arange(3), 3)
    for scale in np.geomspace(1, 1.26, 12):  # the grid's points are a factor of 1.26 apart
        found = fit_temperature(scale * logits, names, np.arange(3), 3)
        assert found == pytest.approx(scale * one, rel=1e-3)


@pytest.mark.parametrize("scale", [0.02, 0.07, 17.0, 50.0])
def test_temperatures_far_from_one_are_found_as_well(scale: float) -> None:
    rng = np.random.default_rng(3)
    names = rng.integers(3, size=40)
    logits = rng.normal(size=(40, 3)) + np.eye(3)[names]
    one = fit_temperature(logits, names, np.arange(3), 3)
    found = fit_temperature(scale * logits, names, np.arange(3), 3)
    assert found == pytest.approx(scale * one, rel=1e-3)


def test_a_few_photos_that_are_all_right_do_not_ask_for_certainty() -> None:
    names = np.array([0, 1, 0, 1, 0, 1])
    logits = 3.0 * np.eye(2)[names]
    p = name_probabilities(logits, np.arange(2), 2, fit_temperature(logits, names, np.arange(2), 2))
    # Platt's target of six photos: 7/8.
    np.testing.assert_allclose(p[np.arange(6), names], 7 / 8, atol=1e-4)


def test_one_name_needs_no_temperature() -> None:
    logits = np.array([[3.0, 1.0], [0.0, 9.0]])
    assert fit_temperature(logits, np.array([0, 0]), np.array([0, 0]), 1) == 1.0


def test_the_threshold_accepts_the_share_asked_for() -> None:
    top = np.arange(1, 101) / 100
    assert fit_threshold(top, 0.95) == 0.05
    assert (top >= fit_threshold(top, 0.95)).mean() >= 0.95
    assert fit_threshold(top, 1.0) == 0.01
    assert fit_threshold(np.array([0.9, 0.3, 0.5, 0.8, 0.7]), 0.95) == 0.3
    for n in (5, 19, 20, 21, 40, 41):
        values = np.random.default_rng(n).random(n)
        assert (values >= fit_threshold(values, 0.95)).mean() >= 0.95


def test_bins_and_error_worked_by_hand() -> None:
    top = np.array([0.1, 0.55, 0.6, 0.95, 1.0, 0.0])
    right = np.array([True, False, True, True, True, False])
    bins = reliability(top, right)
    assert [b.photos for b in bins] == [2, 0, 0, 0, 0, 2, 0, 0, 0, 2]
    assert bins[0] == Bin(0.0, 0.1, 2, pytest.approx(0.05), 0.5)
    assert bins[5] == Bin(0.5, 0.6, 2, pytest.approx(0.575), 0.5)
    assert bins[9] == Bin(0.9, 1.0, 2, pytest.approx(0.975), 1.0)
    assert bins[3] == Bin(0.3, 0.4, 0, 0.0, 0.0)
    expected = (2 * 0.45 + 2 * 0.075 + 2 * 0.025) / 6
    assert expected_calibration_error(bins) == pytest.approx(expected)


def test_no_photo_has_no_error() -> None:
    bins = reliability(np.zeros(0), np.zeros(0, dtype=bool))
    assert sum(b.photos for b in bins) == 0
    assert expected_calibration_error(bins) == 0.0


def test_answers_as_right_as_they_are_sure_have_no_error() -> None:
    top = np.full(10, 0.7)
    right = np.arange(10) < 7
    assert expected_calibration_error(reliability(top, right)) == pytest.approx(0.0)
