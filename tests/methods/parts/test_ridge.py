"""Ridge regression against numpy's solver, with every penalty tried by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cprompt.methods.parts.ridge import RIDGES, best_ridge, ridge_head

CLASSES = 3


def drawn(n: int, dim: int, noise: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Features around a middle per class, and one-hot targets."""
    middles = np.random.default_rng(7).normal(size=(CLASSES, dim))
    rng = np.random.default_rng(seed)
    classes = np.arange(n) % CLASSES
    return middles[classes] + noise * rng.normal(size=(n, dim)), np.eye(CLASSES)[classes]


def naive_error(
    ridge: float, x: np.ndarray, y: np.ndarray, x_held: np.ndarray, y_held: np.ndarray
) -> float:
    weight = np.linalg.solve(x.T @ x + ridge * np.eye(x.shape[1]), x.T @ y)
    return float(((x_held @ weight - y_held) ** 2).mean())


@pytest.mark.parametrize("ridge", [1e-8, 1.0, 1e4])
def test_the_head_solves_the_normal_equations(ridge: float) -> None:
    x, y = drawn(40, 6, 1.0)
    expected = np.linalg.solve(x.T @ x + ridge * np.eye(6), x.T @ y).T
    found = ridge_head(torch.from_numpy(x.T @ x), torch.from_numpy(y.T @ x), ridge)
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=1e-9)


def test_a_penalty_too_small_for_float64_still_gives_a_head() -> None:
    """Two images of a million each span two of six directions; 1e-8 is lost beside 1e12."""
    x, y = drawn(2, 6, 1.0)
    x *= 1e6
    found = ridge_head(torch.from_numpy(x.T @ x), torch.from_numpy(y.T @ x), 1e-8).double().numpy()
    np.testing.assert_allclose(x @ found.T, y, atol=1e-3)


@pytest.mark.parametrize(("n", "dim"), [(60, 8), (12, 30)], ids=["many images", "many features"])
@pytest.mark.parametrize("noise", [0.5, 3.0, 30.0])
def test_the_penalty_chosen_has_the_least_error_of_all(n: int, dim: int, noise: float) -> None:
    x, y = drawn(n, dim, noise)
    x_held, y_held = drawn(15, dim, noise, seed=1)
    errors = [naive_error(ridge, x, y, x_held, y_held) for ridge in RIDGES]
    found = best_ridge(*(torch.from_numpy(a) for a in (x, y, x_held, y_held)))
    # Neighbours of the smallest penalties differ by less than a solver's rounding.
    assert errors[RIDGES.index(found)] == pytest.approx(min(errors), rel=1e-6)


def test_noise_asks_for_a_larger_penalty() -> None:
    chosen = []
    for noise in (0.01, 1.0, 30.0):
        images = (*drawn(12, 30, noise), *drawn(15, 30, noise, seed=1))
        chosen.append(best_ridge(*(torch.from_numpy(a) for a in images)))
    assert chosen == sorted(chosen)
    assert chosen[0] < chosen[-1]


def test_the_same_image_twice_does_no_harm() -> None:
    """The smaller matrix is then singular."""
    x, y = drawn(9, 30, 1.0)
    twice = np.concatenate([x, x]), np.concatenate([y, y])
    held = drawn(15, 30, 1.0, seed=1)
    found = best_ridge(*(torch.from_numpy(a) for a in (*twice, *held)))
    errors = [naive_error(ridge, *twice, *held) for ridge in RIDGES[4:]]  # above rounding
    assert naive_error(found, *twice, *held) <= min(errors) * (1 + 1e-6)
