"""Statistics against numpy; draws and alignment against loops and formulas written out."""

from __future__ import annotations

import math
from typing import Any

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
    GaussianKeys,
    GaussianSampler,
    RunningMoments,
    SharedGaussians,
    align,
    replace_rows,
    shrinkage,
    task_of_class,
)
from cprompt.methods.parts.growing_rows import GrowingRows

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


# --- one covariance for all classes -------------------------------------------------------------


def shared(batch: int = 7, tasks: tuple[int, ...] = (4,)) -> SharedGaussians:
    """The four classes of `features`, in tasks of these sizes."""
    gaussians = SharedGaussians(DIM)
    x, classes = features()
    known = 0
    for size in tasks:
        gaussians.open(size)
        moments = gaussians.moments(size)
        own = (classes >= known) & (classes < known + size)
        for part in torch.arange(int(own.sum())).split(batch):
            moments.add(x[own][part], classes[own][part] - known)
        gaussians.store(moments)
        known += size
    return gaussians


def numpy_shared() -> tuple[np.ndarray, np.ndarray]:
    """Class means and the covariance within classes, unshrunk."""
    x, classes = (t.double().numpy() for t in features())
    mean = np.stack([x[classes == c].mean(0) for c in range(4)])
    scatter = sum(
        np.outer(a - mean[int(c)], a - mean[int(c)]) for a, c in zip(x, classes, strict=True)
    )
    return mean, scatter / (sum(COUNTS) - 4)


@pytest.mark.parametrize("batch", [1, 7, 48])
@pytest.mark.parametrize("tasks", [(4,), (1, 2, 1)])
def test_shared_statistics_equal_numpys_however_classes_came(
    batch: int, tasks: tuple[int, ...]
) -> None:
    gaussians = shared(batch, tasks)
    mean, covariance = numpy_shared()
    assert gaussians.count.tolist() == list(COUNTS)
    np.testing.assert_allclose(gaussians.mean.numpy(), mean, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(gaussians.scatter.numpy() / 44, covariance, rtol=1e-4, atol=1e-4)


def test_shrinkage_worked_by_hand() -> None:
    # D = 2, S = diag(3, 1), n = 9: tr S² = 10, tr S = 4.
    found = shrinkage(torch.diag(torch.tensor([3.0, 1.0], dtype=torch.float64)), 9)
    assert found == pytest.approx((0 * 10 + 16) / ((9 + 1 - 1) * (10 - 8)))
    assert shrinkage(torch.eye(3, dtype=torch.float64), 5) == 1.0
    assert shrinkage(torch.diag(torch.tensor([9.0, 0.1, 0.1])).double(), 1) == 1.0
    wide = torch.diag(torch.arange(1, 51, dtype=torch.float64))
    assert shrinkage(wide, 10**6) < 1e-3


def test_the_frame_is_the_middle_and_a_root_of_the_shrunk_covariance() -> None:
    centre, root = shared().frame()
    mean, covariance = numpy_shared()
    share = shrinkage(torch.tensor(covariance), 44)
    assert 0.01 < share < 0.9
    expected = (1 - share) * covariance + share * np.trace(covariance) / DIM * np.eye(DIM)
    np.testing.assert_allclose(centre.numpy(), mean.mean(0), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose((root @ root.T).numpy(), expected, rtol=1e-4, atol=1e-4)
    assert torch.equal(root, root.tril())


def test_the_discriminant_gives_the_posterior_of_gaussians() -> None:
    gaussians = shared()
    weight, bias = gaussians.discriminant()
    _, root = gaussians.frame()
    x = torch.randn(5, DIM, generator=torch.Generator().manual_seed(1))
    densities = [
        torch.distributions.MultivariateNormal(m.double(), scale_tril=root).log_prob(x.double())
        for m in gaussians.mean
    ]
    expected = torch.stack(densities, dim=1).softmax(-1)
    posterior = F.linear(x, weight, bias).softmax(-1)
    torch.testing.assert_close(posterior, expected.float(), rtol=1e-3, atol=1e-4)


def test_classes_without_spread_are_compared_by_plain_distance() -> None:
    gaussians = SharedGaussians(DIM)
    gaussians.open(2)
    moments = gaussians.moments(2)
    moments.add(torch.eye(DIM)[:2], torch.tensor([0, 1]))
    gaussians.store(moments)
    centre, root = gaussians.frame()
    assert torch.equal(root, torch.eye(DIM, dtype=torch.float64))
    weight, bias = gaussians.discriminant()
    torch.testing.assert_close(F.linear(centre.float(), weight, bias), torch.full((2,), -0.25))


def test_keys_lead_to_their_own_tasks() -> None:
    keys = GaussianKeys(DIM)
    for task, size in enumerate((1, 2)):
        keys.open(task, size)
        moments = keys.queries.moments(size)
        first = sum((1, 2)[:task])
        for c in range(size):
            x = 5 * torch.eye(DIM)[first + c] + 0.1 * torch.randn(
                4, DIM, generator=torch.Generator().manual_seed(first + c)
            )
            moments.add(x, torch.full((4,), c))
        keys.store(moments)
    assert keys.key_task.tolist() == [0, 1, 1]
    query = 5 * torch.eye(DIM)[:3]
    assert keys.choose(query).tolist() == [0, 1, 1]
    cosines = keys.similarity(query)
    assert cosines.argmax(-1).tolist() == [0, 1, 2]
    assert cosines.abs().max() <= 1 + 1e-5
    assert cosines.diagonal().min() > 0.95


def test_one_class_alone_is_the_middle_and_near_nothing() -> None:
    keys = GaussianKeys(DIM)
    keys.open(0, 1)
    moments = keys.queries.moments(1)
    moments.add(torch.ones(1, DIM), torch.tensor([0]))
    keys.store(moments)
    query = torch.stack([torch.ones(DIM), torch.zeros(DIM)])
    assert keys.choose(query).tolist() == [0, 0]
    assert keys.similarity(query).tolist() == [[0.0], [0.0]]
