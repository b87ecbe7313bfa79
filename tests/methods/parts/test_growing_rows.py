"""Rows that grow task by task."""

from __future__ import annotations

import torch
from torch import Tensor

from cprompt.methods.parts.growing_rows import GrowingRows, growing_without_copies


def rows(*values: float) -> Tensor:
    """Rows of two equal numbers each."""
    return torch.tensor([[v, v] for v in values], dtype=torch.float32)


def test_rows_of_all_tasks_come_in_order_of_arrival() -> None:
    growing = GrowingRows(2)
    assert (len(growing), growing.all().shape) == (0, (0, 2))
    growing.open(rows(1, 2))
    assert torch.equal(growing.all(), rows(1, 2))
    growing.close()
    growing.open(rows(3))
    assert torch.equal(growing.all(), rows(1, 2, 3))
    assert (len(growing), len(growing.frozen)) == (3, 2)
    growing.close()
    assert torch.equal(growing.all(), rows(1, 2, 3))
    assert growing.current is None


def test_rows_may_have_any_shape() -> None:
    scalars, blocks = GrowingRows(), GrowingRows(2, 3)
    for _ in range(2):
        scalars.open(torch.zeros(4))
        blocks.open(torch.zeros(4, 2, 3))
        scalars.close()
        blocks.close()
    assert scalars.all().shape == (8,)
    assert blocks.all().shape == (8, 2, 3)


def test_only_the_current_rows_are_trained() -> None:
    growing = GrowingRows(2)
    growing.open(rows(1, 2))
    growing.close()
    growing.open(rows(3, 4))
    assert growing.current is not None
    assert [n for n, _ in growing.named_parameters()] == ["current"]
    optimizer = torch.optim.SGD(growing.parameters(), lr=0.1, momentum=0.9, weight_decay=0.5)
    for _ in range(2):
        optimizer.zero_grad()
        growing.all().sum().backward()
        assert torch.equal(growing.current.grad, torch.ones(2, 2))  # type: ignore[arg-type]
        optimizer.step()
    assert torch.equal(growing.frozen, rows(1, 2))
    # by hand, for 3: g = 1 + 3/2, 3 - g/10 = 2.75; then 0.9 g + 1 + 2.75/2 = 4.625, 2.2875
    torch.testing.assert_close(growing.current.detach()[0], torch.tensor([2.2875, 2.2875]))


def test_initial_values_are_copied() -> None:
    initial = rows(1)
    growing = GrowingRows(2)
    growing.open(initial)
    with torch.no_grad():
        assert growing.current is not None
        growing.current += 5
    assert torch.equal(initial, rows(1))
    assert torch.equal(growing.all().detach(), rows(6))


def test_new_rows_take_the_type_of_the_old_ones() -> None:
    growing = GrowingRows(2).double()
    growing.open(rows(1))
    assert growing.current is not None
    assert growing.current.dtype == torch.float64
    growing.close()
    assert growing.all().dtype == torch.float64


def test_open_and_closed_rows_are_saved_under_names_of_their_own() -> None:
    growing = GrowingRows(2)
    assert set(growing.state_dict()) == {"frozen"}
    growing.open(rows(1))
    assert set(growing.state_dict()) == {"frozen", "current"}
    growing.close()
    state = growing.state_dict()
    assert set(state) == {"frozen"}
    again = GrowingRows(2)
    again.open(torch.zeros(1, 2))
    again.close()
    again.load_state_dict(state)
    assert torch.equal(again.all(), rows(1))


def test_without_copies_rows_have_their_shape_and_then_room_for_values() -> None:
    growing = GrowingRows(2)
    with growing_without_copies(growing):
        for _ in range(3):
            growing.open(rows(1, 2))
            growing.close()
        assert growing.frozen.shape == (6, 2)
        assert growing.frozen.untyped_storage().nbytes() == 4
    growing.load_state_dict({"frozen": rows(1, 2, 3, 4, 5, 6)})
    assert torch.equal(growing.all(), rows(1, 2, 3, 4, 5, 6))
    growing.open(rows(7))
    growing.close()
    assert torch.equal(growing.all(), rows(1, 2, 3, 4, 5, 6, 7))
