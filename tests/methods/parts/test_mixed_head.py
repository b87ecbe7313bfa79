"""How heads are mixed: weights at a minimum of their loss, and what they do in plain cases."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from cprompt.methods.parts.left_out import Sample, Statistics, gaussian, nearest_mean
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


def with_views(sizes: tuple[int, ...], seed: int = 0) -> tuple[Statistics, Sample]:
    """Classes of unequal size, images of two views that differ: every image is in the sample."""
    rng = torch.Generator().manual_seed(seed)
    y = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    centres = torch.randn(len(sizes), P, generator=rng, dtype=torch.float64)
    x = centres[y] + torch.randn(len(y), P, generator=rng, dtype=torch.float64)
    views = x + 0.5 * torch.randn(2, *x.shape, generator=rng, dtype=torch.float64)
    means = torch.stack([views[:, y == c].mean((0, 1)) for c in range(len(sizes))])
    rows, total = (views - means[y]).flatten(0, 1), 2 * len(y)
    counts = torch.tensor(sizes, dtype=torch.float64)
    statistics = Statistics(means, rows.T @ rows / total, counts, 2, float(total))
    return statistics, Sample(views[0], views.mean(0) - means[y], y)


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


def four_heads(statistics: Statistics, sample: Sample, x: Tensor) -> Tensor:
    """Scores (heads, k, C) of x; the shrinkage is 0.3 on the last layer, then 0.01, then 1."""
    end, few = statistics.part(LAST), sample.part(LAST)
    heads = [
        (nearest_mean(end, few), x[:, LAST]),
        (gaussian(end, 0.3, few), x[:, LAST]),
        (gaussian(statistics, 0.01, sample), x),
        (gaussian(statistics, 1.0, sample), x),
    ]
    return torch.stack([read @ head.weight.T + head.bias for head, read in heads])


def test_logits_are_the_sum_of_the_four_heads_each_times_its_weight() -> None:
    statistics, sample = with_views((9, 4, 6, 5))
    head = mixed_head(statistics, sample, LAST, shrinkage=0.01)
    x = torch.randn(7, P, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    expected = torch.einsum("j,jkc->kc", head.weights, four_heads(statistics, sample, x))
    torch.testing.assert_close(x @ head.weight.T + head.bias, expected, rtol=1e-9, atol=1e-9)


def test_shares_are_how_much_each_heads_part_of_the_logits_differs_between_classes() -> None:
    statistics, sample = with_views((9, 4, 6, 5))
    head = mixed_head(statistics, sample, LAST, shrinkage=0.01)
    for j, only in enumerate(torch.eye(len(NAMES), dtype=torch.float64)):
        alone = dataclasses.replace(head, weights=head.weights * only)
        part = answers_without(alone, statistics, sample, LAST, shrinkage=0.01)
        apart = part - part.mean(1, keepdim=True)
        spread = float(apart.square().mean().sqrt())
        assert float(head.shares[j]) == pytest.approx(spread, rel=1e-9)


def test_before_an_image_can_speak_all_heads_differ_between_classes_alike() -> None:
    """With nine images, three of each class, nothing is fitted: four spreads add up to 3."""
    statistics, sample = with_views((3, 3, 3))
    head = mixed_head(statistics, sample, LAST, shrinkage=0.01)
    on_means = four_heads(statistics, sample, statistics.means)
    for weight, scores in zip(head.weights, on_means, strict=True):
        apart = weight * (scores - scores.mean(1, keepdim=True))
        assert float(apart.square().mean().sqrt()) == pytest.approx(3 / 4, rel=1e-9)


def test_two_images_per_class_are_still_answered_by_the_nearest_mean() -> None:
    statistics, sample = with_views((2, 2, 2, 2))
    head = mixed_head(statistics, sample, LAST, shrinkage=0.01)
    assert head.shares.tolist() == pytest.approx([1.5, 0, 0, 0])


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


def naive_signs(statistics: Statistics, sample: Sample, head: MixedHead, known: bool) -> Tensor:
    """(k, 2): the two signs of each image without itself; unknown: without its class as well."""
    means, n = statistics.means[:, LAST], statistics.images
    centre = means.mean(0)
    within = statistics.within[LAST, LAST]
    overall = within + sum(
        k * torch.outer(mean - centre, mean - centre) for mean, k in zip(means, n, strict=True)
    ) / float(n.sum())
    one = torch.eye(len(within), dtype=torch.float64)
    scores = gaussian(statistics.part(LAST), 0.3, sample.part(LAST)).left_out
    signs = []
    for i, c in enumerate(sample.position.tolist()):
        others = [each for each in range(len(means)) if known or each != c]
        x, own = sample.feature[i, LAST] - centre, sample.apart[i, LAST]
        far = overall + 0.3 * overall.diagonal().mean() * one
        all_views = own + means[c] - centre
        far -= statistics.views / statistics.total * torch.outer(all_views, all_views)
        # The scatter of n images around their mean loses n / (n - 1) dd' with one of them.
        near = within + 0.3 * within.diagonal().mean() * one
        lost = statistics.views * n[c] / (n[c] - 1) / statistics.total
        near -= lost * torch.outer(own, own)
        half = 0.5 * x @ (torch.linalg.inv(far) - torch.linalg.inv(near)) @ x
        top = head.left_out[i, others].log_softmax(0).max()
        signs.append(torch.stack([top, scores[i, others].max() + half]))
    return torch.stack(signs)


def test_the_familiarity_of_images_left_out_is_that_of_distances_without_them() -> None:
    statistics, sample = with_views((9, 4, 6, 5))
    head = mixed_head(statistics, sample, LAST, shrinkage=0.01)
    at = naive_signs(statistics, sample, head, True) @ head.familiar.scale[:2]
    expected = (at + head.familiar.scale[2]).sigmoid()
    assert 0.1 < float(expected.min()) < float(expected.max()) < 1
    torch.testing.assert_close(head.left_out_familiar, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_signs_are_combined_as_images_whose_class_is_left_out_say(seed: int) -> None:
    """At the minimum of a penalised logistic regression, on signs of unit deviation."""
    statistics, sample = with_views((9, 4, 6, 5), seed)
    head = mixed_head(statistics, sample, LAST, shrinkage=0.01)
    signs = torch.cat([naive_signs(statistics, sample, head, known) for known in (True, False)])
    truth = torch.tensor([1.0, 0.0], dtype=torch.float64).repeat_interleave(len(sample))
    mean, deviation = signs.mean(0), signs.std(0, unbiased=False)
    scale = head.familiar.scale
    weights = torch.cat([scale[:2] * deviation, (scale[2] + scale[:2] @ mean)[None]])
    weights.requires_grad_()
    at = (signs - mean) / deviation @ weights[:2] + weights[2]
    penalty = 1e-3 * weights[:2].square().sum()
    loss = F.binary_cross_entropy_with_logits(at, truth) + penalty
    (slope,) = torch.autograd.grad(loss, weights)
    for weight, change in zip(weights[:2].tolist(), slope[:2].tolist(), strict=True):
        assert weight >= 0
        assert abs(change) < 1e-4 if weight > 0 else change > -1e-4
    assert abs(float(slope[2])) < 1e-4
    assert float(scale[:2].max()) > 0


def test_fewer_than_ten_images_left_out_combine_no_signs() -> None:
    statistics, sample = with_views((3, 3, 3))
    head = mixed_head(statistics, sample, LAST, shrinkage=0.01)
    assert head.familiar.scale.tolist() == [1.0, 0.0, 0.0]
    top = head.left_out.log_softmax(1).amax(1)
    torch.testing.assert_close(head.left_out_familiar, top.sigmoid())


def test_an_image_answered_later_is_as_familiar_as_distances_say() -> None:
    """Half its squared distance from all images less that from its nearest class."""
    statistics, sample = with_views((9, 4, 6, 5))
    head = mixed_head(statistics, sample, LAST, shrinkage=0.01)
    end, f = statistics.part(LAST), head.familiar
    centre = end.means.mean(0)
    spread = end.within + sum(
        n * torch.outer(mean - centre, mean - centre)
        for mean, n in zip(end.means, end.images, strict=True)
    ) / float(end.images.sum())
    one = torch.eye(len(centre), dtype=torch.float64)
    overall, within = (
        torch.linalg.inv(each + 0.3 * each.diagonal().mean() * one) for each in (spread, end.within)
    )
    x = torch.randn(5, P, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    logits = x @ head.weight.T + head.bias
    found = f(x[:, LAST], logits)
    for i, row in enumerate(x[:, LAST]):
        nearest = min(
            float((row - mean) @ within @ (row - mean) - head.taus[1] / n)
            for mean, n in zip(end.means, end.images, strict=True)
        )
        relative = 0.5 * (float((row - centre) @ overall @ (row - centre)) - nearest)
        top = float(logits[i].log_softmax(0).max())
        at = float(f.scale[0]) * top + float(f.scale[1]) * relative + float(f.scale[2])
        assert float(found[i]) == pytest.approx(1 / (1 + np.exp(-at)), rel=1e-9)


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
