"""Statistics against numpy; draws and alignment against loops and formulas written out."""

from __future__ import annotations

import math
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from cprompt.errors import ConfigError
from cprompt.methods.parts.gaussians import (
    RIDGE,
    AlignmentConfig,
    ClassGaussians,
    Covariance,
    GaussianSampler,
    RunningMoments,
    align,
    replace_rows,
    task_of_class,
)
from cprompt.methods.parts.growing_rows import GrowingRows
from cprompt.ranks import Ranks

KINDS = ["full", "variance"]
DIM = 6
COUNTS = (5, 1, 40, 2)


def features(seed: int = 0, offset: float = 0.0) -> tuple[Tensor, Tensor]:
    """Correlated features of four classes, with 5, 1, 40 and 2 images, in shuffled order."""
    rng = torch.Generator().manual_seed(seed)
    classes = torch.arange(len(COUNTS)).repeat_interleave(torch.tensor(COUNTS))
    mix = torch.randn(DIM, DIM, generator=rng)
    x = torch.randn(len(classes), DIM, generator=rng) @ mix + classes[:, None] + offset
    order = torch.randperm(len(classes), generator=rng)
    return x[order], classes[order]


def counted(kind: Covariance, batch: int, offset: float = 0.0) -> RunningMoments:
    moments = RunningMoments(len(COUNTS), DIM, kind)
    x, classes = features(offset=offset)
    for part in torch.arange(len(x)).split(batch):
        moments.add(x[part], classes[part])
    return moments


def numpy_statistics(offset: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    x, classes = (t.numpy() for t in features(offset=offset))
    each = [x[classes == c].astype(np.float64) for c in range(len(COUNTS))]
    mean = np.stack([e.mean(0) for e in each])
    none = np.zeros((DIM, DIM))
    return mean, np.stack([np.cov(e.T) if len(e) > 1 else none for e in each])


def kept(kind: Covariance) -> ClassGaussians:
    """Two classes of an earlier task, without images, then the four."""
    gaussians = ClassGaussians(DIM, kind)
    gaussians.open(2)
    gaussians.open(len(COUNTS))
    gaussians.store(counted(kind, 7))
    return gaussians


@pytest.mark.parametrize("batch", [1, 7, 48])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_running_moments_equal_numpys(kind: Covariance, batch: int, offset: float) -> None:
    moments = counted(kind, batch, offset)
    mean, covariance = numpy_statistics(offset)
    assert moments.count.tolist() == list(COUNTS)
    np.testing.assert_allclose(moments.mean.numpy(), mean, rtol=1e-12, atol=1e-12)
    if kind == "variance":
        covariance = np.diagonal(covariance, axis1=1, axis2=2)
    np.testing.assert_allclose(moments.covariance().numpy(), covariance, rtol=1e-9, atol=1e-9)


class Pair(Ranks):
    """One of two ranks that run as threads of this process."""

    meeting = threading.Barrier(2, timeout=60)
    brought: ClassVar[dict[int, Tensor]] = {}

    def sum_(self, *tensors: Tensor) -> None:
        for tensor in tensors:
            self.brought[self.rank] = tensor.clone()
            self.meeting.wait()
            total = self.brought[0] + self.brought[1]
            self.meeting.wait()
            tensor.copy_(total)


@pytest.mark.parametrize("kind", [*KINDS, "shared"])
def test_two_ranks_have_the_moments_of_all_images(kind: Any) -> None:
    """Each has counted its own images; of some classes it has one or none."""
    x, classes = features()
    whole = RunningMoments(len(COUNTS), DIM, kind)
    whole.add(x, classes)
    each = [RunningMoments(len(COUNTS), DIM, kind) for _ in range(2)]
    for moments, part in zip(each, torch.arange(len(x)).split(30), strict=True):
        moments.add(x[part], classes[part])
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda rank: each[rank].add_over_ranks(Pair(rank, 2)), range(2)))
    for moments in each:
        assert torch.equal(moments.count, whole.count)
        torch.testing.assert_close(moments.mean, whole.mean, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(moments.scatter, whole.scatter, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_stored_belongs_to_the_latest_classes(kind: Covariance) -> None:
    gaussians = kept(kind)
    mean, covariance = numpy_statistics()
    assert gaussians.count.tolist() == [0, 0, *COUNTS]
    torch.testing.assert_close(gaussians.mean[2:], torch.tensor(mean).float())
    if kind == "variance":
        covariance = np.diagonal(covariance, axis1=1, axis2=2).copy()
    torch.testing.assert_close(gaussians.covariance[2:], torch.tensor(covariance).float())
    assert not gaussians.mean[:2].any()
    gaussians.open(1)
    assert [len(b) for b in gaussians.buffers()] == [7, 7, 7]
    torch.testing.assert_close(gaussians.mean[2:6], torch.tensor(mean).float())


@pytest.mark.parametrize("kind", KINDS)
def test_a_draw_is_the_mean_and_the_covariances_root_times_noise(kind: Covariance) -> None:
    gaussians = kept(kind)
    scale = torch.tensor([9.0, 9.0, 0.9, 0.8, 1.0, 0.7])
    drawn, classes = gaussians.sampler(scale).draw(3, torch.Generator().manual_seed(4))

    noise = torch.randn(4, 3, DIM, generator=torch.Generator().manual_seed(4)).numpy()
    mean, covariance = numpy_statistics()
    for c in range(4):
        sigma = covariance[c] + RIDGE * np.eye(DIM)
        if kind == "variance":
            sigma = np.diag(np.diag(sigma))
        root = np.linalg.cholesky(sigma)
        for i in range(3):
            expected = mean[c] * scale[2 + c].item() + root @ noise[c, i]
            np.testing.assert_allclose(drawn[3 * c + i].numpy(), expected, rtol=1e-4, atol=1e-4)
            assert classes[3 * c + i] == 2 + c


def test_draws_have_the_mean_and_covariance_that_were_kept() -> None:
    drawn, classes = kept("full").sampler().draw(40_000, torch.Generator().manual_seed(0))
    mean, covariance = numpy_statistics()
    for c in (0, 2):  # of rank 4 of 6, and of full rank
        x = drawn[classes == 2 + c].numpy().astype(np.float64)
        size = np.sqrt(np.trace(covariance[c]))
        assert np.abs(x.mean(0) - mean[c]).max() < 0.02 * size
        assert np.abs(np.cov(x.T) - covariance[c]).max() < 0.02 * size**2


@pytest.mark.parametrize("kind", KINDS)
def test_the_only_image_of_a_class_is_drawn_with_the_ridges_noise(kind: Covariance) -> None:
    drawn, classes = kept(kind).sampler().draw(20_000, torch.Generator().manual_seed(0))
    x, own = features()
    around = drawn[classes == 3] - x[own == 1]
    assert around.std().item() == pytest.approx(math.sqrt(RIDGE), rel=0.02)
    assert around.mean().abs().item() < 1e-3


def test_the_ridge_is_that_of_both_papers_code() -> None:
    assert RIDGE == 1e-4


@pytest.mark.parametrize("kind", KINDS)
def test_a_class_without_images_is_never_drawn(kind: Covariance) -> None:
    _, classes = kept(kind).sampler().draw(2, torch.Generator())
    assert classes.tolist() == [2, 2, 3, 3, 4, 4, 5, 5]


# --- alignment ----------------------------------------------------------------------------------


def some_sampler() -> GaussianSampler:
    rng = torch.Generator().manual_seed(3)
    mean = torch.randn(3, DIM, generator=rng)
    return GaussianSampler(torch.tensor([0, 1, 3]), mean, torch.rand(3, DIM, generator=rng) + 0.2)


def head() -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(8)
    return torch.randn(4, DIM, generator=rng), torch.randn(4, generator=rng)


def test_alignment_equals_sgd_written_out() -> None:
    config = AlignmentConfig(samples=5, align_epochs=3, align_lr=0.3, align_weight_decay=0.02)
    sampler = some_sampler()
    weight, bias = head()
    aligned = align(
        weight, bias, sampler, config, F.cross_entropy, torch.Generator().manual_seed(2)
    )

    rng = torch.Generator().manual_seed(2)
    w, b = weight.double().numpy(), bias.double().numpy()
    velocity_w, velocity_b = np.zeros_like(w), np.zeros_like(b)
    for epoch in range(3):
        lr = 0.3 * (1 + math.cos(math.pi * epoch / 3)) / 2
        noise = torch.randn(3, 5, DIM, generator=rng)
        x = [sampler.mean[k] + sampler.factor[k] * noise[k, i] for k in range(3) for i in range(5)]
        y = [c for c in (0, 1, 3) for _ in range(5)]
        order = torch.randperm(15, generator=rng).tolist()
        for step in range(3):
            gradient_w, gradient_b = 0.02 * w, 0.02 * b
            for i in order[5 * step : 5 * step + 5]:
                row = x[i].double().numpy()
                p = np.exp(w @ row + b)
                p /= p.sum()
                p[y[i]] -= 1
                gradient_w, gradient_b = gradient_w + np.outer(p, row) / 5, gradient_b + p / 5
            velocity_w, velocity_b = 0.9 * velocity_w + gradient_w, 0.9 * velocity_b + gradient_b
            w, b = w - lr * velocity_w, b - lr * velocity_b
    np.testing.assert_allclose(aligned[0].numpy(), w, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(aligned[1].numpy(), b, rtol=1e-5, atol=1e-5)


def test_alignment_leaves_its_inputs_and_the_global_generator_alone() -> None:
    weight, bias = head()
    state = torch.get_rng_state()
    new, _ = align(
        weight, bias, some_sampler(), AlignmentConfig(), F.cross_entropy, torch.Generator()
    )
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(weight, head()[0])
    assert torch.equal(bias, head()[1])
    assert not torch.allclose(new, weight)
    assert not new.requires_grad


def test_tasks_of_classes_come_from_the_sizes() -> None:
    assert task_of_class((3, 1, 2)).tolist() == [0, 0, 0, 1, 2, 2]
    assert task_of_class((20,) * 9 + (16,))[[0, 19, 20, 179, 180, 195]].tolist() == [
        *(0, 0, 1),
        *(8, 9, 9),
    ]


def test_frozen_and_trained_rows_are_replaced_in_place() -> None:
    rows = GrowingRows(2)
    rows.open(torch.zeros(1, 2))
    rows.close()
    rows.open(torch.zeros(2, 2))
    trained = rows.current
    values = torch.arange(6.0).view(3, 2)
    replace_rows(rows, values)
    assert rows.current is trained
    assert torch.equal(rows.frozen, values[:1])
    assert torch.equal(rows.all(), values)
    rows.close()
    replace_rows(rows, 2 * values)
    assert torch.equal(rows.all(), 2 * values)


@pytest.mark.parametrize(
    "wrong",
    [{"samples": 0}, {"align_epochs": 0}, {"align_lr": 0.0}, {"align_weight_decay": -1.0}],
)
def test_settings_that_make_no_sense_are_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        AlignmentConfig(**wrong)
