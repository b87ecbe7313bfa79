"""Gaussians of each class's features, and heads trained on samples of them.

SLCA and HiDe-Prompt store mean and covariance of each class's features after a task, in place of
its images. Then linear heads are trained again, on features drawn for all classes seen, so that
heads of different tasks become comparable. This is called alignment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cprompt.methods.parts.growing_rows import GrowingRows, grown
from cprompt.methods.parts.heads import HeadConfig
from cprompt.ranks import Ranks
from cprompt.settings import check, setting

Covariance = Literal["full", "variance"]

RIDGE = 1e-4
"""Added to every variance before sampling, as both papers' code does."""


@dataclass(frozen=True)
class AlignmentConfig(HeadConfig):
    """What is stored per class, and how heads are trained on it; the defaults are SLCA's."""

    covariance: Covariance = setting(
        "full", "stored per class: the full covariance, or only its diagonal (variance)"
    )
    samples: int = setting(256, "features drawn per class in every epoch of alignment")
    align_epochs: int = setting(5, "epochs of alignment after each task but the first")
    align_lr: float = setting(0.01, "initial learning rate of alignment; a cosine takes it to zero")
    align_weight_decay: float = setting(5e-4, "L2 penalty on the heads during alignment")
    seed: int = setting(0, "seed of the drawn features")

    def __post_init__(self) -> None:
        check(self.samples >= 1, f"samples {self.samples} must be at least 1")
        check(self.align_epochs >= 1, f"align_epochs {self.align_epochs} must be at least 1")
        check(self.align_lr > 0, f"align_lr {self.align_lr} must be positive")
        check(
            self.align_weight_decay >= 0,
            f"align_weight_decay {self.align_weight_decay} must not be negative",
        )


class RunningMoments:
    """Count, mean and scatter of the features of each class, added batch by batch in one pass.

    Stored in float64 on the CPU, so that the result does not depend on the device or the batch
    size. The scatter Σ (x - μ)(x - μ)ᵀ is (n, D, D) for "full", its diagonal (n, D) for
    "variance", and its sum over classes (D, D) for "shared".
    """

    def __init__(self, n_classes: int, dim: int, kind: Covariance | Literal["shared"]) -> None:
        self.kind = kind
        self.count = torch.zeros(n_classes, dtype=torch.long)
        self.mean = torch.zeros(n_classes, dim, dtype=torch.float64)
        per_class = (dim,) if kind == "variance" else (dim, dim)
        shape = per_class if kind == "shared" else (n_classes, *per_class)
        self.scatter = torch.zeros(shape, dtype=torch.float64)

    def add(self, features: Tensor, classes: Tensor) -> None:
        """Add features (B, D) of `classes` (B,), numbered from 0 to n - 1.

        Two sets of n and m features together have the scatter S = S₁ + S₂ + nm/(n+m) δδᵀ, where δ
        is the difference of their means (Chan, Golub, LeVeque 1983).
        """
        features, classes = features.detach().cpu().double(), classes.cpu()
        for c in torch.unique(classes).tolist():
            x = features[classes == c]
            n, m = int(self.count[c]), len(x)
            mean = x.mean(0)
            delta = mean - self.mean[c]
            weight = n * m / (n + m)
            if self.kind == "variance":
                self.scatter[c] += (x - mean).square().sum(0) + weight * delta.square()
            else:
                scatter = self.scatter if self.kind == "shared" else self.scatter[c]
                scatter += (x - mean).T @ (x - mean) + weight * torch.outer(delta, delta)
            self.mean[c] += delta * m / (n + m)
            self.count[c] += m

    def add_over_ranks(self, ranks: Ranks) -> None:
        """Add what each rank counted of its own images.

        Scatters are first taken around the mean over all ranks: then they add up.
        """
        if ranks.alone:
            return
        own, mean = self.count.double()[:, None], self.mean
        total = own * mean
        ranks.sum_(total, self.count)
        self.mean = total / self.count.clamp(min=1)[:, None]
        delta = own.sqrt() * (mean - self.mean)
        if self.kind == "variance":
            self.scatter += delta.square()
        else:
            moved = torch.einsum("ci,cj->cij", delta, delta)
            self.scatter += moved.sum(0) if self.kind == "shared" else moved
        ranks.sum_(self.scatter)

    def covariance(self) -> Tensor:
        """The scatter divided by count - 1; zero for a class with one image or none."""
        divisor = (self.count - 1).clamp(min=1)
        return self.scatter / divisor.view(-1, *[1] * (self.scatter.dim() - 1))


class ClassGaussians(nn.Module):
    """Mean (C, D) and covariance (C, D, D), or variance (C, D), of each class's features.

    For a ViT-B (D = 768) in float32, a class takes 2.36 MB with the full covariance (462 MB for the
    196 classes of Cars), or 6 KB with variances. A class with one image has covariance zero, so
    its samples are that image's feature plus noise of variance `RIDGE`. A class without images has
    no samples.
    """

    count: Tensor
    mean: Tensor
    covariance: Tensor

    def __init__(self, dim: int, kind: Covariance) -> None:
        super().__init__()
        self.dim = dim
        self.kind = kind
        self.register_buffer("count", torch.zeros(0, dtype=torch.long))
        self.register_buffer("mean", torch.zeros(0, dim))
        shape = (0, dim, dim) if kind == "full" else (0, dim)
        self.register_buffer("covariance", torch.zeros(shape))

    def open(self, n_classes: int) -> None:
        """Make room for the classes of a new task, without images so far."""
        for name, rows in list(self.named_buffers()):
            setattr(self, name, grown(rows, rows.new_zeros(n_classes, *rows.shape[1:])))

    def moments(self, n_classes: int) -> RunningMoments:
        """Empty moments for the `n_classes` classes of the latest task."""
        return RunningMoments(n_classes, self.dim, self.kind)

    def store(self, moments: RunningMoments) -> None:
        """Store the moments as the Gaussians of the latest task's classes."""
        n = len(moments.count)
        self.count[-n:] = moments.count.to(self.count)
        self.mean[-n:] = moments.mean.to(self.mean)
        self.covariance[-n:] = moments.covariance().to(self.covariance)

    def sampler(self, scale: Tensor | None = None) -> GaussianSampler:
        """A sampler of features; `scale` (C,) multiplies each class's mean.

        Factors are computed in float64 on the CPU: with fewer images than D, a covariance is
        invertible only thanks to the ridge, which float32 may round away.
        """
        classes = (self.count > 0).nonzero()[:, 0]
        mean, covariance = self.mean[classes], self.covariance[classes]
        if scale is not None:
            mean = mean * scale.to(mean)[classes, None]
        if self.kind == "variance":
            return GaussianSampler(classes, mean, (covariance + RIDGE).sqrt())
        ridge = RIDGE * torch.eye(self.dim, dtype=torch.float64)
        factors = [torch.linalg.cholesky(c.cpu().double() + ridge).float() for c in covariance]
        return GaussianSampler(classes, mean, torch.stack(factors).to(mean))


@dataclass(frozen=True)
class GaussianSampler:
    """Draws features from Gaussians.

    `classes` (K,), `mean` (K, D), and `factor`: lower triangles L with LLᵀ the covariance
    (K, D, D), or standard deviations (K, D).
    """

    classes: Tensor
    mean: Tensor
    factor: Tensor

    def draw(self, n: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """`n` features per class, class by class: (K·n, D) and their classes (K·n,)."""
        K, D = self.mean.shape
        noise = torch.randn(K, n, D, generator=rng).to(self.mean)
        full = self.factor.dim() == 3
        spread = noise @ self.factor.mT if full else noise * self.factor[:, None]
        features = self.mean[:, None] + spread
        return features.reshape(K * n, D), self.classes.repeat_interleave(n)


def align(
    weight: Tensor,
    bias: Tensor,
    sampler: GaussianSampler,
    config: AlignmentConfig,
    loss: Callable[[Tensor, Tensor], Tensor],
    rng: torch.Generator,
) -> tuple[Tensor, Tensor]:
    """Train one linear head over all classes on drawn features: new weight (C, D) and bias (C,).

    Every epoch draws `samples` features per class, shuffles them and takes as many steps as there
    are classes, each on `samples` features. `loss(logits, classes)` is minimised by SGD with
    momentum 0.9 and a learning rate that follows a cosine to zero, epoch by epoch.
    """
    weight, bias = (nn.Parameter(t.detach().clone()) for t in (weight, bias))
    optimizer = torch.optim.SGD(
        [weight, bias], config.align_lr, momentum=0.9, weight_decay=config.align_weight_decay
    )
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, config.align_epochs)
    for _ in range(config.align_epochs):
        features, classes = sampler.draw(config.samples, rng)
        order = torch.randperm(len(classes), generator=rng).to(classes.device)
        for part in torch.split(order, config.samples):
            optimizer.zero_grad(set_to_none=True)
            value = loss(F.linear(features[part], weight, bias), classes[part])
            torch.autograd.backward(value)
            optimizer.step()
        schedule.step()
    return weight.detach(), bias.detach()


def task_of_class(sizes: Sequence[int]) -> Tensor:
    """The task (C,), from 0, of every class in order of arrival; tasks may differ in size."""
    return torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))


def replace_rows(rows: GrowingRows, values: Tensor) -> None:
    """Replace the values of all rows, frozen ones included, as alignment does with old heads."""
    n = len(rows.frozen)
    rows.frozen = values[:n].clone()
    if rows.current is not None:
        rows.current.data.copy_(values[n:])
