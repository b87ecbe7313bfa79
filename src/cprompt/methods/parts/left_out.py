"""Linear heads from class moments, and what each says of images that it leaves out.

Leaving out one image changes the mean of its class a little and the covariance by a matrix of rank
one, so its score follows from a few inner products (Sherman-Morrison): no head is fitted twice.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from cprompt.methods.parts.class_moments import shrunk


@dataclass(frozen=True)
class Statistics:
    """Means (C, P), the covariance within classes (P, P) and what they were counted from."""

    means: Tensor
    within: Tensor
    images: Tensor
    """Per class (C,), in float64."""
    views: int
    """Per image."""
    total: float
    """Features that the covariance is the mean of: images times views."""
    _factors: dict[float, Tensor] = field(default_factory=dict, repr=False, compare=False)

    def factor(self, shrinkage: float) -> Tensor:
        """The Cholesky factor (P, P) of the covariance, shrunk; worked out once for each amount."""
        if shrinkage not in self._factors:
            self._factors[shrinkage] = torch.linalg.cholesky(shrunk(self.within, shrinkage))
        return self._factors[shrinkage]

    def part(self, columns: slice) -> Statistics:
        """The same for some columns of the features only."""
        return Statistics(
            self.means[:, columns],
            self.within[columns, columns],
            self.images,
            self.views,
            self.total,
        )


@dataclass(frozen=True)
class Sample:
    """Images to leave out one by one; each is of a class with another image."""

    feature: Tensor
    """(k, P) under the test view."""
    apart: Tensor
    """(k, P): the mean over the image's views, less the mean of its class."""
    position: Tensor
    """(k,)"""

    def __len__(self) -> int:
        return len(self.position)

    def part(self, columns: slice) -> Sample:
        """The same for some columns of the features only."""
        return Sample(self.feature[:, columns], self.apart[:, columns], self.position)


@dataclass(frozen=True)
class LinearHead:
    """Scores x·weight + bias of all classes; `left_out` (k, C): of each image without itself."""

    weight: Tensor
    bias: Tensor
    left_out: Tensor
    half_square: Tensor
    """(k,): ½ (x - m)·Σ⁻¹(x - m), Σ without the image and m the mean of the class means."""
    tau: Tensor
    """(): see `gaussian`; 0 for the nearest mean."""


def gaussian(
    statistics: Statistics, shrinkage: float, sample: Sample, tau: Tensor | None = None
) -> LinearHead:
    """The discriminant of Gaussians with one covariance Σ (P, P): the shrunk `within`.

    score_c(x) = (x - m)·Σ⁻¹(μ_c - m) - ½ (‖μ_c - m‖² - τ / n_c), with m the mean of the means and
    norms under Σ⁻¹. A mean of n_c images is off by noise of squared length τ / n_c, which would
    make classes of few images look far away, and an image's own class too when it is left out. τ
    is the mean of ‖v - μ‖² · n / (n - 1) over the sample, v being the mean over an image's views
    and μ and Σ without it, unless it is given.
    """
    means, n = statistics.means, statistics.images.clamp(min=1)
    centre = means.mean(0)
    factor = statistics.factor(shrinkage)
    rows = torch.cat([means - centre, sample.feature - centre, sample.apart])
    white = torch.linalg.solve_triangular(factor, rows.T, upper=False).T
    m, x, d = white.split([len(means), len(sample), len(sample)])

    y, i = sample.position, torch.arange(len(sample), device=means.device)
    others = (n[y] - 1).clamp(min=1)
    xm, dm, mm = x @ m.T, d @ m.T, (m * m).sum(1)
    xd, dd = (x * d).sum(1), (d * d).sum(1)
    # Σ without image i is Σ - share d dᵀ, and its inverse Σ⁻¹ + gain Σ⁻¹d dᵀΣ⁻¹.
    share = statistics.views * n[y] / (others * statistics.total)
    remaining = (1 - share * dd).clamp(min=1e-6)
    gain = share / remaining
    if tau is None:
        tau = (dd / remaining * n[y] / others).mean() if len(sample) else means.new_zeros(())

    noise = tau / n
    left_out = xm + (gain * xd)[:, None] * dm
    left_out -= 0.5 * (mm + gain[:, None] * dm.square() - noise)
    # The own class has lost the image: its mean moves by -d / (n - 1).
    step = 1 / others
    own_xm, own_dm = xm[i, y] - step * xd, dm[i, y] - step * dd
    own_mm = mm[y] - 2 * step * dm[i, y] + step.square() * dd
    left_out[i, y] = (
        own_xm + gain * xd * own_dm - 0.5 * (own_mm + gain * own_dm.square() - tau * step)
    )

    weight = torch.linalg.solve_triangular(factor.T, m.T, upper=True).T
    bias = -0.5 * (mm - noise) - weight @ centre
    half_square = 0.5 * ((x * x).sum(1) + gain * xd.square())
    return LinearHead(weight, bias, left_out, half_square, tau)


def nearest_mean(statistics: Statistics, sample: Sample) -> LinearHead:
    """Nearest class mean by angle, each column divided by its standard deviation over all images.

    score_c(x) = z(x)·z(μ_c) / ‖z(μ_c)‖ with z(x) = (x - m) / s. Only the means are normalised, so
    that scores are linear in x.
    """
    means, n = statistics.means, statistics.images.clamp(min=1)
    centre = means.mean(0)
    variance = statistics.within.diagonal() + (means - centre).square().mean(0)
    scale = variance.clamp(min=1e-12).rsqrt()
    directions = torch.nn.functional.normalize((means - centre) * scale, dim=1)
    z = (sample.feature - centre) * scale
    left_out = z @ directions.T
    y, i = sample.position, torch.arange(len(sample), device=means.device)
    own = means[y] - sample.apart / (n[y] - 1).clamp(min=1)[:, None]
    left_out[i, y] = (z * torch.nn.functional.normalize((own - centre) * scale, dim=1)).sum(1)
    weight = directions * scale
    half_square, tau = 0.5 * z.square().sum(1), means.new_zeros(())
    return LinearHead(weight, -weight @ centre, left_out, half_square, tau)
