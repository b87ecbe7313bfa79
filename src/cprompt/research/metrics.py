"""Continual-learning metrics, each named by its definition.

All metrics are pure functions of one table: how many test images of task j are answered right
after task i, among all classes seen by then. Accuracies are percentages and are never rounded (the
released code rounds each A_i to two decimals before averaging).

In the formulas, as in the papers, tasks count from 1, and t is the last task learnt so far, which
is the number of rows of the table. a[i,j] is the accuracy on task j after task i, n_j the number of
test images of task j. In an unfinished run, metrics cover the tasks done.

Metrics of *earlier* tasks (forgetting, backward transfer, `old_accuracy`) are NaN after the first
task: they are means over nothing, to be printed as a dash and not as "0.0".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cprompt.errors import ConfigError, DataError

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class AccuracyMatrix:
    """Counts behind a[i,j].

    correct: (rows, T) integers; correct[i, j] images of task j are right after task i, zero for
        j > i. rows is T for a finished run, and from 1 to T - 1 before.
    count: (T,) integers; test images of each task.
    """

    correct: NDArray[np.int64]
    count: NDArray[np.int64]

    def __post_init__(self) -> None:
        for name in ("correct", "count"):
            given = np.asarray(getattr(self, name))
            if not np.issubdtype(given.dtype, np.integer):
                raise DataError(f"`{name}` must hold image counts, whole numbers; got {given!r}")
            owned = given.astype(np.int64)
            owned.flags.writeable = False
            object.__setattr__(self, name, owned)
        self._check()

    def _check(self) -> None:
        if (
            self.count.ndim != 1
            or self.correct.ndim != 2
            or self.correct.shape[1] != len(self.count)
            or not 1 <= len(self.correct) <= len(self.count)
        ):
            raise DataError(
                "an accuracy matrix needs `count` of shape (T,) and `correct` of shape (rows, T) "
                f"with 1 <= rows <= T; got {self.count.shape} and {self.correct.shape}"
            )
        if self.count.min() < 1:
            task = int(self.count.argmin())
            raise DataError(
                f"task {task} has {self.count[task]} test images, so its accuracy is undefined"
            )
        if np.triu(self.correct, k=1).any():
            raise DataError("`correct` counts images of tasks that were not learnt yet (j > i)")
        wrong = np.argwhere((self.correct < 0) | (self.correct > self.count))
        if len(wrong):
            row, task = wrong[0]
            raise DataError(
                f"correct[{row}, {task}] is {self.correct[row, task]}, "
                f"but task {task} has {self.count[task]} test images"
            )

    @property
    def n_tasks(self) -> int:
        """T, including tasks still to come."""
        return len(self.count)

    @property
    def rows(self) -> int:
        """t, the tasks learnt so far."""
        return len(self.correct)


def accuracy_matrix(matrix: AccuracyMatrix) -> Floats:
    """a[i,j] = 100 · correct[i,j] / n_j, shape (rows, T); NaN for j > i."""
    seen = np.tri(matrix.rows, matrix.n_tasks, dtype=bool)
    return np.where(seen, 100.0 * matrix.correct / matrix.count, np.nan)


def seen_accuracy(matrix: AccuracyMatrix) -> Floats:
    """A_i = 100 · Σ_{j≤i} correct[i,j] / Σ_{j≤i} n_j, shape (rows,).

    Every seen test image has the same weight. CPrompt, released code.
    """
    accuracy: Floats = 100.0 * matrix.correct.sum(axis=1) / np.cumsum(matrix.count)[: matrix.rows]
    return accuracy


def last_accuracy(matrix: AccuracyMatrix) -> float:
    """A_t. "Last-acc" of the CPrompt paper, as its released code computes it."""
    return float(seen_accuracy(matrix)[-1])


def average_accuracy(matrix: AccuracyMatrix) -> float:
    """(1/t) Σ_i A_i. "Avg-acc" of the CPrompt paper, as its released code computes it."""
    return float(seen_accuracy(matrix).mean())


def task_mean_accuracy(matrix: AccuracyMatrix) -> Floats:
    """(1/i) Σ_{j≤i} a[i,j], shape (rows,).

    Every task has the same weight; differs from `seen_accuracy` if tasks have different numbers of
    test images. L2P, DualPrompt and CODA-Prompt.
    """
    accuracy: Floats = np.nanmean(accuracy_matrix(matrix), axis=1)
    return accuracy


def last_task_mean(matrix: AccuracyMatrix) -> float:
    """(1/t) Σ_j a[t,j]. The final accuracy of L2P, DualPrompt and CODA-Prompt."""
    return float(task_mean_accuracy(matrix)[-1])


def average_task_mean(matrix: AccuracyMatrix) -> float:
    """(1/t) Σ_i (1/i) Σ_{j≤i} a[i,j]. `average_accuracy` with the same weight for every task."""
    return float(task_mean_accuracy(matrix).mean())


def forgetting_paper(matrix: AccuracyMatrix) -> float:
    """FF_t = (1/(t-1)) Σ_{j<t} ( max_{j≤i≤t-1} a[i,j] - a[t,j] ).

    CPrompt paper, supplement, "Analysis of the FF score". The maximum excludes the last row, so a
    task that improved in the last step counts as negative forgetting. NaN for t = 1.
    """
    return _forgetting(matrix, best_among=matrix.rows - 1)


def forgetting_released(matrix: AccuracyMatrix) -> float:
    """(1/(t-1)) Σ_{j<t} ( max_{j≤i≤t} a[i,j] - a[t,j] ).

    CPrompt, released code. The maximum includes the last row, so no term is negative, and the
    value is never below `forgetting_paper`. NaN for t = 1.
    """
    return _forgetting(matrix, best_among=matrix.rows)


def forgetting_stepwise(matrix: AccuracyMatrix) -> float:
    """(1/(t-1)) Σ_{i=2..t} (1/(i-1)) Σ_{j<i} ( a[i-1,j] - a[i,j] ).

    CODA-Prompt, released code: the mean loss on the old tasks at one step, averaged over steps.
    NaN for t = 1.
    """
    if matrix.rows == 1:
        return math.nan
    a = accuracy_matrix(matrix)
    return float(np.mean(np.nanmean(a[:-1] - a[1:], axis=1)))


def backward_transfer(matrix: AccuracyMatrix) -> float:
    """(1/(t-1)) Σ_{j<t} ( a[t,j] - a[j,j] ).

    Gradient Episodic Memory (Lopez-Paz and Ranzato, 2017). Negative when tasks got worse since
    they were learnt. NaN for t = 1.
    """
    if matrix.rows == 1:
        return math.nan
    a = accuracy_matrix(matrix)
    return float(np.mean(a[-1, : matrix.rows - 1] - a.diagonal()[:-1]))


def learning_accuracy(matrix: AccuracyMatrix) -> float:
    """(1/t) Σ_j a[j,j]: how well each task did right after it was learnt, among all seen classes.

    Riemer et al., 2019.
    """
    return float(accuracy_matrix(matrix).diagonal().mean())


def first_task_accuracy(matrix: AccuracyMatrix) -> float:
    """a[1,1]: accuracy on the first task right after it, before anything can be forgotten."""
    return float(accuracy_matrix(matrix)[0, 0])


def new_accuracy(matrix: AccuracyMatrix) -> Floats:
    """a[i,i], shape (rows,): accuracy on the task just learnt."""
    return accuracy_matrix(matrix).diagonal()


def old_accuracy(matrix: AccuracyMatrix) -> Floats:
    """100 · Σ_{j<i} correct[i,j] / Σ_{j<i} n_j, shape (rows,): accuracy on all earlier tasks.

    Every image has the same weight. The first entry is NaN: there is no earlier task.
    """
    accuracy = np.full(matrix.rows, np.nan, dtype=np.float64)
    right = np.tril(matrix.correct, k=-1).sum(axis=1)
    accuracy[1:] = 100.0 * right[1:] / np.cumsum(matrix.count)[: matrix.rows - 1]
    return accuracy


def summary(matrix: AccuracyMatrix) -> dict[str, float]:
    """Every metric that is one number, by the name of its function."""
    metrics = (
        last_accuracy,
        average_accuracy,
        last_task_mean,
        average_task_mean,
        forgetting_paper,
        forgetting_released,
        forgetting_stepwise,
        backward_transfer,
        learning_accuracy,
        first_task_accuracy,
    )
    return {metric.__name__: metric(matrix) for metric in metrics}


def mean_std(values: Sequence[float], *, ddof: int = 1) -> tuple[float, float]:
    """Mean and standard deviation over runs.

    The divisor is n - ddof: 1 is the sample standard deviation, 0 the population's. The paper does
    not say which it reports; over three runs the first is larger by √(3/2). With no more than
    `ddof` values the standard deviation is NaN.
    """
    if len(values) == 0:
        raise ConfigError("mean and standard deviation need at least one value; got none")
    if ddof not in (0, 1):
        raise ConfigError(f"ddof is 1 (sample) or 0 (population); got {ddof}")
    array = np.asarray(values, dtype=np.float64)
    spread = float(array.std(ddof=ddof)) if len(array) > ddof else math.nan
    return float(array.mean()), spread


def _forgetting(matrix: AccuracyMatrix, best_among: int) -> float:
    """Mean drop of each earlier task from its best among the first `best_among` rows."""
    if matrix.rows == 1:
        return math.nan
    a = accuracy_matrix(matrix)[:, : matrix.rows - 1]
    return float(np.mean(np.nanmax(a[:best_among], axis=0) - a[-1]))
