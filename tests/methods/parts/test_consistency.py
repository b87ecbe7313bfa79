from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from cprompt.methods.parts.consistency import adaptive_temperature, ccl_loss, split_by_task

SIZES = (3, 1, 4)


def softmax(row: list[float]) -> list[float]:
    exps = [math.exp(v - max(row)) for v in row]
    return [e / sum(exps) for e in exps]


def naive_ccl(
    old: Tensor, current: Tensor, tau: float, margin: float, alpha: float
) -> tuple[float, Tensor]:
    """Loss and gradient with respect to the old logits, by loops over images and tasks.

    The gradient of -<g, log softmax(l)> with fixed g is softmax(l) - g.
    """
    total, gradient = 0.0, torch.zeros_like(old)
    for b in range(len(old)):
        start = 0
        for size in SIZES:
            logits = old[b, start : start + size].tolist()
            needed = max(logits) + margin >= max(current[b].tolist())
            g = softmax([v / (tau if needed else 1.0) for v in logits])
            p = softmax(logits)
            total += -sum(gj * math.log(pj) for gj, pj in zip(g, p, strict=True))
            for j in range(size):
                gradient[b, start + j] = p[j] - g[j]
            start += size
    scale = alpha / len(SIZES) / len(old)
    return total * scale, gradient * scale


def logits(seed: int = 0) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    return (
        3 * torch.randn(6, sum(SIZES), generator=rng, dtype=torch.float64),
        3 * torch.randn(6, 5, generator=rng, dtype=torch.float64),
    )


@pytest.mark.parametrize(("tau", "margin", "alpha"), [(1.15, 0.1, 1.0), (2.0, 0.0, 0.5)])
def test_ccl_equals_the_naive_loops(tau: float, margin: float, alpha: float) -> None:
    old, current = logits()
    expected, gradient = naive_ccl(old, current, tau, margin, alpha)
    old.requires_grad_()
    current.requires_grad_()
    loss = ccl_loss(old, SIZES, current, tau=tau, margin=margin, alpha=alpha)
    loss.backward()
    assert loss.item() == pytest.approx(expected, rel=1e-12)
    torch.testing.assert_close(old.grad, gradient, rtol=0, atol=1e-14)
    assert current.grad is None


def test_the_gradient_is_exactly_zero_where_tau_is_one() -> None:
    old, current = logits()
    current = current + 100  # the current task is far above every old one
    old.requires_grad_()
    ccl_loss(old, SIZES, current, tau=1.5, margin=0.1).backward()
    assert torch.equal(old.grad, torch.zeros_like(old))


def test_temperature_by_hand() -> None:
    old_max = torch.tensor([[1.0, 2.0, 2.2], [5.0, 0.0, 1.9]])
    current_max = torch.tensor([2.1, 2.0])
    expected = torch.tensor([[1.0, 1.2, 1.2], [1.2, 1.0, 1.2]])
    torch.testing.assert_close(adaptive_temperature(old_max, current_max, 1.2, 0.125), expected)
    at_the_edge = adaptive_temperature(torch.tensor([[1.0]]), torch.tensor([1.5]), 1.2, 0.5)
    assert at_the_edge.item() == pytest.approx(1.2)  # max(l_i) + m >= max(l_t): equality counts


def test_evenly_distributed_label_by_hand() -> None:
    old = torch.tensor([[0.0, 0.0, math.log(2.0), 1.0, 0.0, 0.0, 0.0, 0.0]])
    # task 1: p = 1/4, 1/4, 1/2; task 2: one class, p = 1; task 3: p = 1/4 each
    expected = ((math.log(4) + math.log(4) + math.log(2)) / 3 + 0 + math.log(4)) / 3
    loss = ccl_loss(old, SIZES, old, tau=1.2, margin=0, smoothing="edl")
    assert loss.item() == pytest.approx(expected, rel=1e-6)


def test_random_one_hot_is_cross_entropy_with_classes_drawn_evenly() -> None:
    old = torch.randn(1, sum(SIZES), generator=torch.Generator().manual_seed(2)).double()
    old = old.expand(30_000, -1)
    p = [softmax(old[0, a:b].tolist()) for a, b in ((0, 3), (3, 4), (4, 8))]
    even = sum(-sum(math.log(v) for v in row) / len(row) for row in p) / len(p)
    options = {"tau": 1.2, "margin": 0, "smoothing": "roh"}
    uniforms = torch.rand(30_000, 3, generator=torch.Generator().manual_seed(0))
    drawn = ccl_loss(old, SIZES, old, uniforms=uniforms, **options).item()
    assert drawn == pytest.approx(even, abs=0.01)
    u = torch.tensor([[0.7, 0.999, 0.25]])  # third of 3 classes, the only one, second of 4
    one = ccl_loss(old[:1], SIZES, old[:1], uniforms=u, **options).item()
    expected = -(math.log(p[0][2]) + math.log(p[1][0]) + math.log(p[2][1])) / 3
    assert one == pytest.approx(expected, rel=1e-6)


def test_very_peaked_logits_stay_finite() -> None:
    old = torch.tensor([[1e4, -1e4, 0.0, 5.0, 1e4, 0.0, 0.0, -1e4]], requires_grad=True)
    loss = ccl_loss(old, SIZES, torch.zeros(1, 2), tau=1.15, margin=0.1)
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(old.grad).all()


def test_splitting_by_task_pads_small_tasks() -> None:
    rows = split_by_task(torch.arange(8.0)[None], SIZES)[0]
    inf = float("-inf")
    assert rows.tolist() == [[0, 1, 2, inf], [3, inf, inf, inf], [4, 5, 6, 7]]


def test_splitting_by_tasks_of_one_size_keeps_each_tasks_classes_together() -> None:
    rows = split_by_task(torch.arange(12.0).view(2, 6), (2, 2, 2))
    assert rows.tolist() == [[[0, 1], [2, 3], [4, 5]], [[6, 7], [8, 9], [10, 11]]]


def test_what_was_first_used_in_inference_mode_can_be_trained_with() -> None:
    sizes = (2, 5, 1)  # a table of columns that no other test has made
    with torch.inference_mode():
        split_by_task(torch.zeros(1, 8), sizes)
    old = torch.randn(2, 8, generator=torch.Generator().manual_seed(0)).requires_grad_()
    ccl_loss(old, sizes, torch.zeros(2, 2), tau=2.0, margin=9.0).backward()
    assert old.grad is not None
    assert old.grad.any()
