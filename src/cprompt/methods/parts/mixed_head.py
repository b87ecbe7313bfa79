"""One linear head mixed from several, as far as images left out say that each is right.

Few images of things that the backbone knows need a simple head on its last layer; many images of
new things need all layers and little shrinkage. No fixed choice serves both, so the weights are
fitted to what each head says of images that it leaves out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cprompt.methods.parts.class_moments import shrunk
from cprompt.methods.parts.left_out import LinearHead, Sample, Statistics, gaussian, nearest_mean

STRONG = 1.0
"""Shrinkage of the second head on all columns."""
LAST_LAYER = 0.3
"""Shrinkage of the head on the last layer."""
EXPECTED = 3.0
"""Spread of the logits, summed over heads, before any image speaks."""
ROBUSTNESS = 0.5
"""Exponent of the loss by which heads are weighted: 0 is likelihood, 1 the expected error."""
FEW, MANY = 5, 10
"""Images per class up to which likelihood weighs the heads, and from which on `ROBUSTNESS` does."""
FEWEST_TO_WEIGH = 10
"""Images left out below which nothing is fitted: all heads then have the same weight."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class MixedHead:
    """Logits x·weight + bias, calibrated, and how familiar an image looks."""

    weight: Tensor
    """(C, P)"""
    bias: Tensor
    """(C,)"""
    shares: Tensor
    """(heads,): the spread of each head's part of the logits, in the order of `NAMES`."""
    familiar: Familiarity
    left_out: Tensor
    """(k, C): logits of the sample, each image left out."""
    left_out_familiar: Tensor
    """(k,): how familiar they look."""
    weights: Tensor
    """(heads,): what each head's logits are multiplied by."""
    taus: Sequence[Tensor]
    """(heads,): see `gaussian`."""


NAMES = ("nearest mean", "last layer", "all layers", "all layers, strongly shrunk")
"""The heads that are mixed."""


def mixed_head(statistics: Statistics, sample: Sample, last: slice, shrinkage: float) -> MixedHead:
    """Mix the four heads of `NAMES`.

    `last` are the columns of the last layer's class part; the first two heads read those alone.
    The images of the sample weigh the heads.
    """
    end, few = statistics.part(last), sample.part(last)
    heads = _heads(statistics, sample, last, shrinkage)
    on_last = heads[1]
    scores = [head.left_out for head in heads]
    spreads = _spreads(heads, scores, statistics, last)
    weights = _weights(scores, spreads, sample.position, statistics)
    left_out = _summed(weights, [head.left_out for head in heads])
    bias = _summed(weights, [head.bias for head in heads])
    weight = _summed(weights[2:], [head.weight for head in heads[2:]])
    weight[:, last] += _summed(weights[:2], [head.weight for head in heads[:2]])
    familiar, left_out_familiar = _familiarity(end, few, on_last, left_out)
    taus = [head.tau for head in heads]
    return MixedHead(
        weight, bias, weights * spreads, familiar, left_out, left_out_familiar, weights, taus
    )


def answers_without(
    head: MixedHead, statistics: Statistics, sample: Sample, last: slice, shrinkage: float
) -> Tensor:
    """Logits (k, C) of other learnt images, each left out, by a head that stays as it is mixed."""
    heads = _heads(statistics, sample, last, shrinkage, head.taus)
    return _summed(head.weights, [each.left_out for each in heads])


def _heads(
    statistics: Statistics,
    sample: Sample,
    last: slice,
    shrinkage: float,
    taus: Sequence[Tensor | None] = (None,) * 4,
) -> list[LinearHead]:
    """The heads of `NAMES`, in their order."""
    end, few = statistics.part(last), sample.part(last)
    return [
        nearest_mean(end, few),
        gaussian(end, LAST_LAYER, few, taus[1]),
        gaussian(statistics, shrinkage, sample, taus[2]),
        gaussian(statistics, STRONG, sample, taus[3]),
    ]


def _summed(weights: Tensor, parts: Sequence[Tensor]) -> Tensor:
    summed: Tensor = torch.tensordot(weights, torch.stack(list(parts)), dims=1)
    return summed


def _spreads(
    heads: Sequence[LinearHead], left_out: Sequence[Tensor], statistics: Statistics, last: slice
) -> Tensor:
    """How much each head's scores differ between classes (heads,).

    Measured on the images left out; with too few of those, on the class means.
    """
    found = []
    for head, scores in zip(heads, left_out, strict=True):
        if len(scores) < FEWEST_TO_WEIGH:
            whole = head.weight.shape[1] == statistics.means.shape[1]
            read = statistics.means if whole else statistics.means[:, last]
            scores = read @ head.weight.T + head.bias
        found.append((scores - scores.mean(1, keepdim=True)).square().mean().sqrt())
    return torch.stack(found).clamp(min=1e-9)


def _weights(
    scores: Sequence[Tensor], spreads: Tensor, positions: Tensor, statistics: Statistics
) -> Tensor:
    """The weight of each head (heads,), by how the images left out are answered.

    Their mean of (1 - p^q) / q is minimised, p being the probability of the true class
    (generalised cross-entropy, Zhang, Sabuncu 2018). With many images per class, likelihood (q = 0)
    would care most for the few that no head knows; with few, those are the ones to learn from. See
    `robustness`. Weights are positive: w = w₀ exp(v), with a penalty
    ‖v‖² / k that leaves them near w₀ if there are few images. w₀ gives all heads the same spread.
    Then all weights are divided by the temperature of maximal likelihood, with smoothed targets,
    so that probabilities are calibrated. With one image per class nothing can be left out, and the
    nearest mean, which needs no covariance, answers alone.
    """
    start = EXPECTED / len(scores) / spreads
    if len(positions) < FEWEST_TO_WEIGH or scores[0].shape[1] < 2:
        if statistics.images.median() < 3:
            alone = torch.zeros_like(start)
            alone[0] = EXPECTED / 2 / spreads[0]
            return alone
        return start
    z = torch.stack(list(scores)).cpu().numpy()  # (heads, k, C)
    first, y = start.cpu().numpy(), positions.cpu().numpy()
    rows, q = np.arange(len(y)), robustness(float(statistics.images.median()))

    def loss(v: Floats) -> tuple[float, Floats]:
        w = first * np.exp(v)
        p = _softmax(np.tensordot(w, z, axes=1))
        own = p[rows, y].clip(min=1e-12) ** q
        value = float((1 - own).mean() / q + v @ v / len(y))
        slope = (own * (np.einsum("kc,jkc->jk", p, z) - z[:, rows, y])).mean(axis=1)
        return value, w * slope + 2 * v / len(y)

    from scipy.optimize import minimize, minimize_scalar  # 0.2 s, needed for learning only

    bounds = [(-20.0, 5.0)] * len(first)
    found = minimize(loss, np.zeros(len(first)), jac=True, method="L-BFGS-B", bounds=bounds)
    weights = first * np.exp(found.x)
    logits = np.tensordot(weights, z, axes=1)

    # Platt's smoothing: images that are all answered right must not make answers certain.
    doubt = 1 / (len(y) + 2)

    def surprise(log_temperature: float) -> float:
        log_p = np.log(_softmax(logits * np.exp(-log_temperature)).clip(min=1e-300))
        right = log_p[rows, y]
        wrong = (log_p.sum(axis=1) - right) / (log_p.shape[1] - 1)
        return float(-((1 - doubt) * right + doubt * wrong).mean())

    temperature = np.exp(minimize_scalar(surprise, bounds=(-3, 5), method="bounded").x)
    return torch.from_numpy(weights / temperature).to(start)


def robustness(images: float) -> float:
    """The exponent q for classes of so many images: nearly 0 up to `FEW`, 0.5 from `MANY` on.

    >>> [robustness(n) for n in (2, 8, 40)]
    [0.001, 0.3, 0.5]
    """
    share = (images - FEW) / (MANY - FEW)
    return ROBUSTNESS * min(1.0, max(0.002, share))


def _softmax(logits: Floats) -> Floats:
    p: Floats = np.exp(logits - logits.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    return p


# --- how familiar an image looks ------------------------------------------------------------------


@dataclass(frozen=True)
class Familiarity:
    """From logits and the last layer's class part to a number in [0, 1]: 1 is surely known.

    Two signs are combined: the log of the top probability, and the relative Mahalanobis distance
    (Ren et al. 2021), ½ ‖x - μ‖² under the covariance of all images less ½ ‖x - μ_c‖² under the one
    within classes, c being the nearest class.
    """

    weight: Tensor
    """(C, D), `bias` (C,): scores of the last layer alone, of what it is from `centre`."""
    bias: Tensor
    centre: Tensor
    """(D,)"""
    curve: Tensor
    """(D, D): half the difference of the two inverse covariances."""
    scale: Tensor
    """(3,): of the log probability, of the distance, and what is added."""

    def __call__(self, last: Tensor, logits: Tensor) -> Tensor:
        """(B,) of class parts (B, D) and logits (B, C)."""
        z = last - self.centre
        relative = (z @ self.weight.T + self.bias).amax(1) + ((z @ self.curve) * z).sum(1)
        return self.of_signs(logits.log_softmax(1).amax(1), relative)

    def of_signs(self, top: Tensor, relative: Tensor) -> Tensor:
        """(B,) of the two signs (B,)."""
        return (self.scale[0] * top + self.scale[1] * relative + self.scale[2]).sigmoid()


def _familiarity(
    end: Statistics, sample: Sample, head: LinearHead, logits: Tensor
) -> tuple[Familiarity, Tensor]:
    """Fit how the signs are combined, without any unknown image.

    What an unknown image looks like is learnt from the sample itself: if the class of an image is
    left out as a whole, the image is unknown.
    """
    n = end.images
    centre = end.means.mean(0)
    apart = end.means - centre
    spread = end.within + (apart * n[:, None]).T @ apart / n.sum().clamp(min=1)
    overall = torch.linalg.cholesky(shrunk(spread, LAST_LAYER))
    within = end.factor(LAST_LAYER)
    curve = 0.5 * (torch.cholesky_inverse(overall) - torch.cholesky_inverse(within))

    y, i = sample.position, torch.arange(len(sample), device=apart.device)
    x = sample.feature - centre
    d = sample.apart + end.means[y] - centre
    white = torch.linalg.solve_triangular(overall, torch.cat([x, d]).T, upper=False).T
    x_, d_ = white.split([len(x), len(d)])
    share = end.views / end.total
    gain = share / (1 - share * (d_ * d_).sum(1)).clamp(min=1e-6)
    half_overall = 0.5 * ((x_ * x_).sum(1) + gain * (x_ * d_).sum(1).square())

    def signs(known: bool) -> Tensor:
        scores, answers = head.left_out, logits
        if not known:
            scores, answers = scores.clone(), answers.clone()
            scores[i, y] = answers[i, y] = -torch.inf
        relative = scores.amax(1) + half_overall - head.half_square
        return torch.stack([answers.log_softmax(1).amax(1), relative], dim=1)

    scale = curve.new_tensor([1.0, 0.0, 0.0])
    if len(sample) >= FEWEST_TO_WEIGH and logits.shape[1] > 1:
        scale = _logistic(signs(True), signs(False))
    bias = head.bias + head.weight @ centre  # large numbers would cancel out in float32
    found = Familiarity(head.weight, bias, centre, curve, scale)
    seen = signs(True)
    return found, found.of_signs(seen[:, 0], seen[:, 1])


def _logistic(known: Tensor, unknown: Tensor) -> Tensor:
    """Logistic regression of known against unknown on two signs: two weights >= 0, a constant."""
    x = torch.cat([known, unknown]).cpu().numpy()
    y = np.repeat([1.0, 0.0], [len(known), len(unknown)])
    mean, std = x.mean(0), x.std(0).clip(min=1e-9)
    z = (x - mean) / std

    def loss(w: Floats) -> tuple[float, Floats]:
        at = z @ w[:2] + w[2]
        value = (np.logaddexp(0, at) - y * at).mean() + 1e-3 * float(w[:2] @ w[:2])
        error = 1 / (1 + np.exp(-at)) - y
        slope = np.array([*(z * error[:, None]).mean(0) + 2e-3 * w[:2], error.mean()])
        return float(value), slope

    from scipy.optimize import minimize

    bounds = [(0.0, None), (0.0, None), (None, None)]
    w = minimize(loss, np.zeros(3), jac=True, method="L-BFGS-B", bounds=bounds).x
    weights = w[:2] / std
    return known.new_tensor([*weights, w[2] - weights @ mean])
