import math
from fractions import Fraction

import numpy as np
import pytest

from cprompt.errors import ConfigError, DataError
from cprompt.research.metrics import (
    AccuracyMatrix,
    accuracy_matrix,
    average_accuracy,
    average_task_mean,
    backward_transfer,
    forgetting_paper,
    forgetting_released,
    forgetting_stepwise,
    last_accuracy,
    last_task_mean,
    learning_accuracy,
    mean_std,
    new_accuracy,
    old_accuracy,
    seen_accuracy,
    summary,
    task_mean_accuracy,
)
from cprompt.research.stream import TaskStream, class_order, task_sizes


def matrix(correct: list[list[int]], count: list[int]) -> AccuracyMatrix:
    """Ragged rows (row i names tasks 0 … i) padded with zeros."""
    padded = [row + [0] * (len(count) - len(row)) for row in correct]
    return AccuracyMatrix(np.array(padded), np.array(count))


# Task 0 drops and half recovers, task 1 drops; the tasks have 10, 20 and 10 test images.
#   a = 90
#       70  80
#       80  60  90
UNEQUAL = matrix([[9], [7, 16], [8, 12, 9]], [10, 20, 10])

# Every old task gets better at every step.
#   a = 60
#       70  80
#       75  85  90
IMPROVING = matrix([[12], [14, 16], [15, 17, 18]], [20, 20, 20])

ONE_TASK = matrix([[7]], [8])


def test_accuracies_are_percentages_and_unseen_tasks_have_none() -> None:
    nan = math.nan
    np.testing.assert_array_equal(
        accuracy_matrix(UNEQUAL), [[90.0, nan, nan], [70.0, 80.0, nan], [80.0, 60.0, 90.0]]
    )


def test_seen_accuracy_weighs_every_image_the_same() -> None:
    # 9/10, (7 + 16)/30, (8 + 12 + 9)/40
    assert seen_accuracy(UNEQUAL) == pytest.approx([90.0, 2300 / 30, 72.5])
    assert last_accuracy(UNEQUAL) == pytest.approx(72.5)
    assert average_accuracy(UNEQUAL) == pytest.approx((90.0 + 2300 / 30 + 72.5) / 3)


def test_task_mean_weighs_every_task_the_same() -> None:
    # 90, (70 + 80)/2, (80 + 60 + 90)/3
    assert task_mean_accuracy(UNEQUAL) == pytest.approx([90.0, 75.0, 230 / 3])
    assert last_task_mean(UNEQUAL) == pytest.approx(230 / 3)
    assert average_task_mean(UNEQUAL) == pytest.approx((90.0 + 75.0 + 230 / 3) / 3)


def test_forgetting_worked_by_hand() -> None:
    # task 0: max(90, 70) - 80 = 10; task 1: 80 - 60 = 20; their mean is 15
    assert forgetting_paper(UNEQUAL) == pytest.approx(15.0)
    assert forgetting_released(UNEQUAL) == pytest.approx(15.0)
    # first step 90 - 70 = 20; second step ((70 - 80) + (80 - 60))/2 = 5; their mean is 12.5
    assert forgetting_stepwise(UNEQUAL) == pytest.approx(12.5)
    # ((80 - 90) + (60 - 80))/2
    assert backward_transfer(UNEQUAL) == pytest.approx(-15.0)
    # (90 + 80 + 90)/3
    assert learning_accuracy(UNEQUAL) == pytest.approx(260 / 3)


def test_the_papers_forgetting_is_negative_where_the_released_code_says_zero() -> None:
    # task 0: max(60, 70) - 75 = -5; task 1: 80 - 85 = -5
    assert forgetting_paper(IMPROVING) == pytest.approx(-5.0)
    # with the last row among the candidates: 75 - 75 and 85 - 85
    assert forgetting_released(IMPROVING) == 0.0
    # first step 60 - 70 = -10; second step ((70 - 75) + (80 - 85))/2 = -5
    assert forgetting_stepwise(IMPROVING) == pytest.approx(-7.5)
    # ((75 - 60) + (85 - 80))/2
    assert backward_transfer(IMPROVING) == pytest.approx(10.0)


def test_the_two_maxima_differ_task_by_task() -> None:
    # task 0 improves by 20 at the last step, task 1 loses 30:
    # paper (-20 + 30)/2 = 5, released (0 + 30)/2 = 15
    mixed = matrix([[5], [5, 9], [7, 6, 10]], [10, 10, 10])
    assert forgetting_paper(mixed) == pytest.approx(5.0)
    assert forgetting_released(mixed) == pytest.approx(15.0)


def test_a_task_may_be_at_its_best_long_after_it_was_learnt() -> None:
    # task 0: 50, then 80, then 60: forgotten 80 - 60 = 20 although it gained 10 since it was learnt
    late = matrix([[5], [8, 9], [6, 9, 9]], [10, 10, 10])
    assert forgetting_paper(late) == pytest.approx((20.0 + 0.0) / 2)
    assert backward_transfer(late) == pytest.approx((10.0 + 0.0) / 2)


def test_new_and_old_classes_are_told_apart() -> None:
    assert new_accuracy(UNEQUAL) == pytest.approx([90.0, 80.0, 90.0])
    # nothing, 7/10, (8 + 12)/30
    assert old_accuracy(UNEQUAL) == pytest.approx([math.nan, 70.0, 2000 / 30], nan_ok=True)


def test_with_one_task_nothing_can_be_forgotten_and_the_metric_says_nan() -> None:
    for forgetting in (forgetting_paper, forgetting_released, forgetting_stepwise):
        assert math.isnan(forgetting(ONE_TASK))
    assert math.isnan(backward_transfer(ONE_TASK))
    assert math.isnan(old_accuracy(ONE_TASK)[0])
    for accuracy in (last_accuracy, average_accuracy, last_task_mean, learning_accuracy):
        assert accuracy(ONE_TASK) == 87.5


def test_a_run_under_way_is_measured_on_the_tasks_done() -> None:
    under_way = matrix([[9], [7, 16]], [10, 20, 10])
    done = matrix([[9], [7, 16]], [10, 20])
    assert (under_way.rows, under_way.n_tasks) == (2, 3)
    assert summary(under_way) == summary(done)
    assert forgetting_paper(under_way) == pytest.approx(90.0 - 70.0)
    assert last_accuracy(under_way) == pytest.approx(2300 / 30)
    assert old_accuracy(under_way)[1] == pytest.approx(70.0)


def test_the_summary_holds_every_single_number_by_its_name() -> None:
    assert summary(UNEQUAL) == pytest.approx(
        {
            "last_accuracy": 72.5,
            "average_accuracy": (90.0 + 2300 / 30 + 72.5) / 3,
            "last_task_mean": 230 / 3,
            "average_task_mean": (90.0 + 75.0 + 230 / 3) / 3,
            "forgetting_paper": 15.0,
            "forgetting_released": 15.0,
            "forgetting_stepwise": 12.5,
            "backward_transfer": -15.0,
            "learning_accuracy": 260 / 3,
            "first_task_accuracy": 90.0,
        }
    )


def naive(correct: list[list[int]], count: list[int]) -> dict[str, float]:
    """The definitions once more, as loops over exact fractions, tasks counted from 1."""
    t = len(correct)

    def a(i: int, j: int) -> Fraction:
        return Fraction(100 * correct[i - 1][j - 1], count[j - 1])

    seen, means = [], []
    for i in range(1, t + 1):
        right = images = 0
        total = Fraction(0)
        for j in range(1, i + 1):
            right += correct[i - 1][j - 1]
            images += count[j - 1]
            total += a(i, j)
        seen.append(Fraction(100 * right, images))
        means.append(total / i)

    paper = released = step = transfer = Fraction(0)
    for j in range(1, t):
        paper += max(a(i, j) for i in range(j, t)) - a(t, j)
        released += max(a(i, j) for i in range(j, t + 1)) - a(t, j)
        transfer += a(t, j) - a(j, j)
    for i in range(2, t + 1):
        for j in range(1, i):
            step += (a(i - 1, j) - a(i, j)) / (i - 1)

    exact = {
        "last_accuracy": seen[-1],
        "average_accuracy": sum(seen, Fraction(0)) / t,
        "last_task_mean": means[-1],
        "average_task_mean": sum(means, Fraction(0)) / t,
        "forgetting_paper": paper / (t - 1),
        "forgetting_released": released / (t - 1),
        "forgetting_stepwise": step / (t - 1),
        "backward_transfer": transfer / (t - 1),
        "learning_accuracy": sum((a(j, j) for j in range(1, t + 1)), Fraction(0)) / t,
        "first_task_accuracy": a(1, 1),
    }
    return {name: float(value) for name, value in exact.items()}


@pytest.mark.parametrize("seed", range(20))
def test_random_matrices_agree_with_plain_loops(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n_tasks = int(rng.integers(2, 12))
    rows = int(rng.integers(2, n_tasks + 1))
    count = rng.integers(1, 300, n_tasks).tolist()
    correct = [[int(rng.integers(0, count[j] + 1)) for j in range(i + 1)] for i in range(rows)]
    # abs: with percentages up to 100, sums of rounded terms may leave 1e-13 where the truth is 0
    assert summary(matrix(correct, count)) == pytest.approx(naive(correct, count), abs=1e-9)


def test_a_stream_of_200_classes_in_20_tasks_agrees_with_counting_images() -> None:
    stream = TaskStream(class_order(200, 1993), task_sizes(200, tasks=20))
    rng = np.random.default_rng(7)
    labels = np.repeat(np.arange(200), rng.integers(3, 40, 200))
    targets = stream.targets(labels)
    count = [len(stream.indices(labels, task)) for task in range(20)]
    assert len(set(count)) > 1

    correct, overall, on_old = [], [], []
    for task in range(20):
        # a model that is right more rarely the more classes it knows
        known = stream.positions(task).stop
        guesses = rng.integers(0, known, len(labels))
        answers = np.where(rng.random(len(labels)) < 0.9 - task / 40, targets, guesses)
        right = answers == targets
        correct.append([int(right[stream.indices(labels, j)].sum()) for j in range(task + 1)])
        overall.append(100 * right[stream.seen_indices(labels, task)].mean())
        if task:
            on_old.append(100 * right[stream.seen_indices(labels, task - 1)].mean())

    table = matrix(correct, count)
    assert seen_accuracy(table) == pytest.approx(overall)
    assert old_accuracy(table)[1:] == pytest.approx(on_old)
    assert average_accuracy(table) == pytest.approx(sum(overall) / 20)
    assert summary(table) == pytest.approx(naive(correct, count), abs=1e-9)
    assert last_accuracy(table) != pytest.approx(last_task_mean(table), abs=1e-3)


@pytest.mark.parametrize(
    ("correct", "count", "message"),
    [
        ([[1, 0], [1, 1], [1, 1]], [2, 2], r"1 <= rows <= T; got \(2,\) and \(3, 2\)"),
        ([[1, 0, 0]], [2, 2], r"got \(2,\) and \(1, 3\)"),
        ([1, 0], [2, 2], r"got \(2,\) and \(2,\)"),
        ([[1]], [[2]], r"got \(1, 1\) and \(1, 1\)"),
        (np.zeros((0, 2), dtype=int), [2, 2], r"got \(2,\) and \(0, 2\)"),
        ([[1, 0], [1, 0]], [2, 0], "task 1 has 0 test images, so its accuracy is undefined"),
        ([[1, 1], [1, 1]], [2, 2], "not learnt yet"),
        ([[1, 0], [3, 1]], [2, 2], r"correct\[1, 0\] is 3, but task 0 has 2 test images"),
        ([[1, 0], [3, 1]], [2, 5], r"correct\[1, 0\] is 3, but task 0 has 2 test images"),
        ([[-1, 0], [1, 1]], [2, 2], r"correct\[0, 0\] is -1"),
        ([[0.5, 0.0]], [2, 2], "`correct` must hold image counts"),
        ([[1, 0]], [2.0, 2.0], "`count` must hold image counts"),
    ],
)
def test_counts_that_cannot_be_are_refused(correct: object, count: object, message: str) -> None:
    with pytest.raises(DataError, match=message):
        AccuracyMatrix(np.array(correct), np.array(count))


def test_a_matrix_keeps_its_own_copy_of_the_counts() -> None:
    correct = np.array([[3]])
    table = AccuracyMatrix(correct, np.array([4]))
    correct[0, 0] = 0
    assert last_accuracy(table) == 75.0
    with pytest.raises(ValueError, match="read-only"):
        table.correct[0, 0] = 0


def test_the_standard_deviation_says_which_divisor_it_uses() -> None:
    # mean 4, squared distances 4 + 0 + 4 = 8: over n - 1 = 2 and over n = 3
    assert mean_std([2.0, 4.0, 6.0]) == pytest.approx((4.0, 2.0))
    assert mean_std([2.0, 4.0, 6.0], ddof=0) == pytest.approx((4.0, math.sqrt(8 / 3)))


def test_one_run_has_a_mean_but_no_sample_deviation() -> None:
    mean, spread = mean_std([66.77])
    assert mean == 66.77
    assert math.isnan(spread)
    assert mean_std([66.77], ddof=0) == (66.77, 0.0)


def test_a_mean_over_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least one value"):
        mean_std([])
    with pytest.raises(ConfigError, match=r"1 \(sample\) or 0 \(population\); got 2"):
        mean_std([1.0, 2.0, 3.0], ddof=2)
