"""Random signs against a matrix written out by hand, and what they promise."""

from __future__ import annotations

import numpy as np
import torch

from cprompt.methods.parts.random_signs import AT_ONCE, RandomSigns

SIGNS = [[-1, 1], [-1, 1], [1, 1], [1, 1]]


def test_kept_columns_come_first_and_others_are_signed_sums() -> None:
    project = RandomSigns(10, 6, slice(4, 7))
    x = torch.randn(5, 10, generator=torch.Generator().manual_seed(0))
    found = project(x)
    assert found.dtype == torch.float64
    assert found.shape == (5, 6)
    torch.testing.assert_close(found[:, :3], x[:, 4:7].double(), rtol=0, atol=0)
    bits = np.unpackbits(
        np.random.PCG64(0).random_raw(1).astype("<u8").view(np.uint8), count=7 * 3
    ).reshape(7, 3)
    others = x[:, [0, 1, 2, 3, 7, 8, 9]].double().numpy()
    expected = others @ (2.0 * bits - 1) / np.sqrt(3)
    np.testing.assert_allclose(found[:, 3:].numpy(), expected, rtol=1e-12)


def test_many_columns_are_summed_a_part_at_a_time() -> None:
    features, width = AT_ONCE * 2 + 30, 13
    project = RandomSigns(features, width, slice(100, 103))
    x = torch.randn(4, features, generator=torch.Generator().manual_seed(2)).double()
    assert project.signs is not None
    others = np.delete(x.numpy(), [100, 101, 102], axis=1)
    expected = others @ project.signs.numpy().astype(float) / np.sqrt(10)
    np.testing.assert_allclose(project(x)[:, 3:].numpy(), expected, rtol=1e-11, atol=1e-12)


def test_a_folded_head_answers_alike() -> None:
    rng = torch.Generator().manual_seed(1)
    project = RandomSigns(40, 17, slice(30, 35))
    weight = torch.randn(3, 17, generator=rng).double()
    x = torch.randn(6, 40, generator=rng).double()
    torch.testing.assert_close(x @ project.fold(weight).T, project(x) @ weight.T)


def test_nothing_changes_if_all_numbers_fit() -> None:
    project = RandomSigns(8, 8, slice(2, 4))
    x = torch.randn(3, 8)
    assert torch.equal(project(x), x.double())
    assert project.fold(x) is x
    assert project.state_dict() == {}


def test_inner_products_are_kept_on_average() -> None:
    features, width = 2000, 500
    project = RandomSigns(features, width, slice(0, 10))
    x = torch.randn(30, features, generator=torch.Generator().manual_seed(0)).double()
    exact, found = x @ x.T, project(x) @ project(x).T
    # The error of a product of unit vectors has standard deviation of about 1 / sqrt(width).
    relative = (found - exact) / features
    assert abs(float(relative.mean())) < 0.01
    assert float(relative.std()) < 1.5 / width**0.5


def test_signs_never_change() -> None:
    """Models do not store them, so other signs would make every old model useless."""
    signs = RandomSigns(6, 4, slice(0, 2)).signs
    assert signs is not None
    assert signs.tolist() == SIGNS
