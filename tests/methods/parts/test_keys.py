from __future__ import annotations

import math

import pytest
import torch

from cprompt.methods.parts.keys import PromptKeys, orthonormal_rows


def opened(per: str, sizes: tuple[int, ...]) -> PromptKeys:
    keys = PromptKeys(16, per=per)  # type: ignore[arg-type]
    rng = torch.Generator().manual_seed(0)
    for task, size in enumerate(sizes):
        if task:
            keys.close()
        keys.open(task, size, rng)
    return keys


def test_new_keys_are_orthonormal_to_each_other_and_to_the_old_ones() -> None:
    rows = opened("class", (3, 1, 4)).rows.all()
    torch.testing.assert_close(rows @ rows.T, torch.eye(8), atol=1e-6, rtol=0)


def test_keys_that_fill_all_dimensions_are_orthonormal() -> None:
    rng = torch.Generator().manual_seed(0)
    old = orthonormal_rows(10, torch.empty(0, 16), rng)
    for rows in (
        torch.cat([old, orthonormal_rows(6, old, rng)]),
        orthonormal_rows(16, torch.empty(0, 16), rng),
    ):
        torch.testing.assert_close(rows @ rows.T, torch.eye(16), atol=1e-6, rtol=0)


def test_new_keys_are_the_drawn_rows_made_orthonormal_one_after_another() -> None:
    """Gram-Schmidt written out: no direction is preferred, as with a decomposition's own signs."""
    drawn = torch.randn(5, 16, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    expected: list[torch.Tensor] = []
    for row in drawn:
        for done in expected:
            row = row - (row @ done) * done
        expected.append(row / row.norm())
    rows = orthonormal_rows(5, torch.empty(0, 16), torch.Generator().manual_seed(2))
    torch.testing.assert_close(rows.double(), torch.stack(expected), atol=1e-6, rtol=0)


def test_more_keys_than_dimensions_are_still_unit_rows() -> None:
    rng = torch.Generator().manual_seed(0)
    old = orthonormal_rows(14, torch.empty(0, 16), rng)
    more = orthonormal_rows(5, old, rng)
    torch.testing.assert_close(more @ more.T, torch.eye(5), atol=1e-6, rtol=0)
    many = orthonormal_rows(40, old, rng)
    torch.testing.assert_close(many.norm(dim=1), torch.ones(40))


@pytest.mark.parametrize("per", ["class", "task"])
def test_loss_and_gradient_equal_the_formula(per: str) -> None:
    keys = opened(per, (3, 1, 4))
    query = torch.randn(5, 16, generator=torch.Generator().manual_seed(1))
    targets = torch.tensor([4, 7, 5, 4, 6])  # classes of the current task, by position
    rows = keys.rows.all().detach().double().requires_grad_()
    total = torch.zeros((), dtype=torch.float64)
    for q, y in zip(query.double(), targets, strict=True):
        cosines = [q @ k / (q.norm() * k.norm()) for k in rows]
        answer = cosines[y if per == "class" else 2]
        total = total - torch.log(answer.exp() / sum(c.exp() for c in cosines))
    expected = total / 5
    expected.backward()
    loss = keys.loss(query, targets)
    loss.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    new = 4 if per == "class" else 1
    assert keys.rows.current is not None
    torch.testing.assert_close(keys.rows.current.grad, rows.grad[-new:].float(), rtol=0, atol=1e-6)


def test_the_nearest_key_names_the_task_by_table_not_by_division() -> None:
    keys = opened("class", (3, 1, 4))
    nearest_to_each = keys.choose(10 * keys.rows.all())
    assert nearest_to_each.tolist() == [0, 0, 0, 1, 2, 2, 2, 2]
    assert keys.choose(-keys.rows.all()).tolist() != nearest_to_each.tolist()


def test_scale_of_query_and_key_does_not_matter() -> None:
    keys = opened("class", (2, 2))
    query = torch.randn(3, 16, generator=torch.Generator().manual_seed(3))
    before = keys.similarity(query)
    with torch.no_grad():
        keys.rows.current *= 0.01
    torch.testing.assert_close(keys.similarity(100 * query), before)
    assert math.isclose(keys.similarity(keys.rows.all()[:1])[0, 0].item(), 1.0, rel_tol=1e-6)
