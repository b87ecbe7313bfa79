"""How heads are mixed: weights at a minimum of their loss, and what they do in plain cases."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from cprompt.methods.parts.left_out import Sample, Statistics
from cprompt.methods.parts.mixed_head import (
    EXPECTED,
    NAMES,
    ROBUSTNESS,
    MixedHead,
    answers_without,
    mixed_head,
)

P, LAST, CLASSES = 12, slice(3, 7), 6


def data(per_class: int, informative: slice, seed: int = 0) -> tuple[Statistics, Sample, Tensor]:
    """Features whose classes differ in the columns of `informative` alone."""
    rng = torch.Generator().manual_seed(seed)
    y = torch.arange(CLASSES).repeat_interleave(per_class)
    centres = torch.zeros(CLASSES, P, dtype=torch.float64)
    width = informative.stop - informative.start
    centres[:, informative] = torch.randn(CLASSES, width, generator=rng, dtype=torch.float64)
    x = centres[y] + torch.randn(len(y), P, generator=rng, dtype=torch.float64)
    means = torch.stack([x[y == c].mean(0) for c in range(CLASSES)])
    apart = x - means[y]
    counts = torch.full((CLASSES,), float(per_class), dtype=torch.float64)
    statistics = Statistics(means, apart.T @ apart / len(x), counts, 1, float(len(x)))
    few = slice(0, len(x)) if per_class > 1 else slice(0, 0)
    return statistics, Sample(x[few], apart[few], y[few]), centres


def found(per_class: int, informative: slice) -> tuple[MixedHead, Sample, Tensor]:
    statistics, sample, centres = data(per_class, informative)
    return mixed_head(statistics, sample, LAST, shrinkage=0.01), sample, centres


def test_the_last_layer_speaks_if_it_alone_tells() -> None:
    head, _, _ = found(8, LAST)
    assert float(head.shares[:2].sum()) > float(head.shares[2:].sum())


def test_all_layers_speak_if_the_last_one_tells_nothing() -> None:
    head, _, _ = found(8, slice(7, 12))
    assert float(head.shares[2:].sum()) > 5 * float(head.shares[:2].sum())


def test_logits_are_linear_and_calibrated() -> None:
    head, sample, centres = found(20, slice(2, 9))
    rng = torch.Generator().manual_seed(1)
    y = torch.arange(CLASSES).repeat(300)
    x = centres[y] + torch.randn(len(y), P, generator=rng, dtype=torch.float64)
    p, best = (x @ head.weight.T + head.bias).softmax(1).max(1)
    right = (best == y).double()
    assert abs(float(p.mean() - right.mean())) < 0.04
    left_out = (head.left_out.argmax(1) == sample.position).double().mean()
    assert abs(float(left_out - right.mean())) < 0.08


def test_the_temperature_is_that_of_maximal_likelihood() -> None:
    head, sample, _ = found(10, slice(2, 9))

    doubt = 1 / (len(sample) + 2)
    targets = torch.full((len(sample), CLASSES), doubt / (CLASSES - 1), dtype=torch.float64)
    targets[torch.arange(len(sample)), sample.position] = 1 - doubt

    def surprise(scale: float) -> float:
        return -float((targets * (scale * head.left_out).log_softmax(1)).sum(1).mean())

    assert surprise(1.0) <= min(surprise(0.98), surprise(1.02)) + 1e-9


def test_weights_minimise_the_robust_loss() -> None:
    """Scaled back by the temperature, no single weight can be changed for the better."""
    statistics, sample, _ = data(10, slice(2, 9))
    from cprompt.methods.parts import mixed_head as module

    heads: list[Tensor] = []
    plain = module._weights

    def keep(scores, spreads, positions, given):  # type: ignore[no-untyped-def]
        heads.extend(scores)
        return plain(scores, spreads, positions, given)

    module._weights = keep
    try:
        head = mixed_head(statistics, sample, LAST, shrinkage=0.01)
    finally:
        module._weights = plain
    z = torch.stack(heads)
    spread = torch.stack([(h - h.mean(1, keepdim=True)).square().mean().sqrt() for h in heads])
    first = EXPECTED / len(NAMES) / spread
    k, rows = len(sample), torch.arange(len(sample))

    def loss(weights: Tensor) -> float:
        p = torch.einsum("j,jkc->kc", weights, z).softmax(1)[rows, sample.position]
        penalty = (weights / first).log().square().sum() / k
        return float(((1 - p**ROBUSTNESS) / ROBUSTNESS).mean() + penalty)

    directions = head.shares / spread
    scales = np.exp(np.linspace(-2, 4, 2000))
    best = min(scales, key=lambda scale: loss(scale * directions))
    weights = best * directions
    for j in range(len(NAMES)):
        for factor in (0.9, 1.1):
            changed = weights.clone()
            changed[j] *= factor
            assert loss(changed) >= loss(weights) - 1e-5


def test_one_image_per_class_is_answered_by_the_nearest_mean() -> None:
    head, _, _ = found(1, LAST)
    assert head.shares[1:].tolist() == [0, 0, 0]
    assert float(head.shares[0]) > 0
    outside = [i for i in range(P) if not LAST.start <= i < LAST.stop]
    assert not head.weight[:, outside].any()


def test_familiarity_tells_classes_that_were_never_seen() -> None:
    statistics, sample, centres = data(20, LAST)
    head = mixed_head(statistics, sample, LAST, shrinkage=0.01)
    rng = torch.Generator().manual_seed(2)
    y = torch.arange(CLASSES).repeat(50)
    known = centres[y] + torch.randn(len(y), P, generator=rng, dtype=torch.float64)
    unknown = known.clone()
    unknown[:, LAST] += 5 * torch.randn(1, 4, generator=rng, dtype=torch.float64).sign()
    scores = []
    for x in (known, unknown):
        logits = x @ head.weight.T + head.bias
        scores.append(head.familiar(x[:, LAST], logits))
        assert bool(((scores[-1] >= 0) & (scores[-1] <= 1)).all())
    above = (scores[0][:, None] > scores[1][None]).double().mean()
    assert float(above) > 0.9
    threshold = head.left_out_familiar.quantile(0.1)
    assert float((scores[0] >= threshold).double().mean()) == pytest.approx(0.9, abs=0.07)


def test_familiarity_is_the_two_signs_written_out() -> None:
    head, _, _ = found(8, LAST)
    f = head.familiar
    x = torch.randn(3, P, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    logits = x @ head.weight.T + head.bias
    for row, answer in zip(x, logits, strict=True):
        z = row[LAST] - f.centre
        relative = max(float(z @ w + b) for w, b in zip(f.weight, f.bias, strict=True))
        relative += float(z @ f.curve @ z)
        top = float(answer.softmax(0).max().log())
        at = f.scale[0] * top + f.scale[1] * relative + f.scale[2]
        expected = 1 / (1 + np.exp(-float(at)))
        found_one = f(row[None, LAST], answer[None])
        assert float(found_one) == pytest.approx(expected, rel=1e-9)


def test_two_classes_are_enough_to_tell_a_third() -> None:
    rng = torch.Generator().manual_seed(0)
    y = torch.arange(2).repeat_interleave(15)
    centres = torch.zeros(2, P, dtype=torch.float64)
    centres[0, 3], centres[1, 3] = -3, 3
    x = centres[y] + torch.randn(30, P, generator=rng, dtype=torch.float64)
    means = torch.stack([x[y == c].mean(0) for c in range(2)])
    apart = x - means[y]
    counts = torch.full((2,), 15.0, dtype=torch.float64)
    statistics = Statistics(means, apart.T @ apart / 30, counts, 1, 30.0)
    head = mixed_head(statistics, Sample(x, apart, y), LAST, shrinkage=0.01)
    far = torch.zeros(1, P, dtype=torch.float64)
    far[0, 4] = 8
    near = centres[:1]
    found = [float(head.familiar(z[:, LAST], z @ head.weight.T + head.bias)) for z in (near, far)]
    assert found[0] > 0.5 > found[1]


def test_other_images_left_out_are_answered_as_those_that_weighed_the_heads() -> None:
    statistics, sample, _ = data(6, slice(0, 8))
    head = mixed_head(statistics, sample, LAST, shrinkage=0.01)
    again = answers_without(head, statistics, sample, LAST, shrinkage=0.01)
    torch.testing.assert_close(again, head.left_out, rtol=1e-9, atol=1e-9)
    some = torch.tensor([3, 0])
    part = Sample(sample.feature[some], sample.apart[some], sample.position[some])
    few = answers_without(head, statistics, part, LAST, shrinkage=0.01)
    torch.testing.assert_close(few, head.left_out[some], rtol=1e-9, atol=1e-9)
