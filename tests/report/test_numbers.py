"""What figures and tables show, against values worked by hand from counts."""

from __future__ import annotations

import copy

import numpy as np
import pytest

from cprompt.report import numbers
from cprompt.research import metrics
from cprompt.research.record import Record
from cprompt.research.stream import TaskStream

NAN = float("nan")


@pytest.fixture
def pair(hand_record: Record) -> list[Record]:
    """The hand-made run, and one whose first task recovers once and is then lost.

    Right after each task: 8; 7 and 4; 5, 3 and 1 of 10, 5 and 3. The other: 6; 9 and 5; 2, 1, 3.
    """
    other = copy.deepcopy(hand_record)
    for row, selected in zip(other.rows, ([2, 4], [3, 6, 5], [0, 2, 1, 1, 2]), strict=True):
        row.correct["selected"][:] = selected
    return [hand_record, other]


def test_a_curve_is_mean_and_range_over_runs(pair: list[Record]) -> None:
    found = numbers.curve(pair)
    one = [80, 100 * 11 / 15, 50]
    two = [60, 100 * 14 / 15, 100 * 6 / 18]
    np.testing.assert_allclose(found.mean, [70, 100 * 12.5 / 15, (50 + 100 / 3) / 2])
    np.testing.assert_allclose(found.low, np.minimum(one, two))
    np.testing.assert_allclose(found.high, np.maximum(one, two))


def test_the_matrix_is_the_mean_of_accuracies(pair: list[Record]) -> None:
    expected = [[70, NAN, NAN], [80, 90, NAN], [35, 40, 200 / 3]]
    np.testing.assert_allclose(numbers.mean_matrix(pair), expected)


def test_forgetting_is_the_best_before_the_last_task_minus_the_end(pair: list[Record]) -> None:
    found = numbers.forgetting_by_task(pair)
    np.testing.assert_allclose(found.learnt, [(80 + 60) / 2, (80 + 100) / 2])
    np.testing.assert_allclose(found.best, [(80 + 90) / 2, (80 + 100) / 2])
    np.testing.assert_allclose(found.end, [(50 + 20) / 2, (60 + 20) / 2])
    np.testing.assert_allclose(found.forgetting, [50, 50])


def test_the_mean_over_tasks_is_the_metric_of_that_name(pair: list[Record]) -> None:
    found = numbers.forgetting_by_task(pair)
    paper = [metrics.forgetting_paper(r.matrix()) for r in pair]
    transfer = [metrics.backward_transfer(r.matrix()) for r in pair]
    assert found.forgetting.mean() == pytest.approx(np.mean(paper))
    assert (found.end - found.learnt).mean() == pytest.approx(np.mean(transfer))


def test_a_task_that_the_last_one_helped_counts_as_negative(hand_record: Record) -> None:
    hand_record.rows[-1].correct["selected"][:3] = [4, 6, 5]
    found = numbers.forgetting_by_task([hand_record])
    np.testing.assert_allclose(found.best, [80, 80])
    np.testing.assert_allclose(found.forgetting, [-20, -20])


def test_a_single_task_forgets_nothing_that_could_be_shown(hand_record: Record) -> None:
    hand_record.rows = hand_record.rows[:1]
    assert numbers.forgetting_by_task([hand_record]).forgetting.shape == (0,)


def test_picks_are_shares_and_how_often_they_are_right(pair: list[Record]) -> None:
    assert pair[1].rows[-1].picks is not None
    pair[1].rows[-1].picks[:] = [[10, 0, 0], [0, 5, 0], [0, 0, 3]]
    found = numbers.pick_shares(pair)
    assert found is not None
    shares, right = found
    np.testing.assert_allclose(shares, [[80, 10, 10], [10, 80, 10], [0, 50 / 3, 250 / 3]])
    assert right == pytest.approx((100 * 11 / 18 + 100) / 2)


def test_a_method_that_selects_nothing_has_no_picks(hand_record: Record) -> None:
    last = hand_record.rows[-1]
    hand_record.rows[-1] = type(last)(last.count, last.correct, last.top_k, None)
    assert numbers.pick_shares([hand_record]) is None


def test_classes_are_sorted_within_their_task(hand_record: Record) -> None:
    found = numbers.class_accuracy_by_task(hand_record)
    expected = [[100 * 4 / 6, 25], [60], [100, 0]]
    assert len(found) == 3
    for values, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(values, wanted)


def test_a_class_without_test_images_has_no_accuracy(hand_record: Record) -> None:
    last = hand_record.rows[-1]
    last.count[3] = 0
    last.correct["selected"][3] = 0
    assert [len(v) for v in numbers.class_accuracy_by_task(hand_record)] == [2, 1, 1]
    assert [c.name for c in numbers.classes_by_accuracy([hand_record])] == [
        "bee",
        "elk",
        "dog",
        "cat",
    ]


def test_classes_are_counted_by_name_whatever_their_order_of_arrival(
    hand_record: Record,
) -> None:
    other = copy.deepcopy(hand_record)
    other.stream = TaskStream((0, 1, 2, 3, 4), (2, 1, 2))  # ant, bee, cat, dog, elk
    found = numbers.classes_by_accuracy([hand_record, other])
    assert [(c.name, c.right, c.images) for c in found] == [
        ("bee", 8, 12),
        ("cat", 3, 7),
        ("elk", 3, 7),
        ("ant", 2, 5),
        ("dog", 2, 5),
    ]
    assert found[0].percent == pytest.approx(100 * 8 / 12)


def test_losses_follow_one_another_task_by_task(hand_record: Record) -> None:
    other = copy.deepcopy(hand_record)
    other.losses = [[{"ce": 4.0}, {"ce": 5.0}] for _ in range(3)]
    hand_record.losses[1:] = [[{"ce": 2.0, "ccl": 8.0}, {"ce": 1.0, "ccl": 6.0}]] * 2
    found = numbers.loss_curves([hand_record, other])
    assert found is not None
    np.testing.assert_allclose(found.epochs, [1, 2, NAN, 3, 4, NAN, 5, 6])
    np.testing.assert_allclose(found.terms["ce"], [3, 3, NAN, 3, 3, NAN, 3, 3])
    np.testing.assert_allclose(found.terms["ccl"], [NAN, NAN, NAN, 8, 6, NAN, 8, 6])
    assert found.ends == [2, 4, 6]
    assert found.together == 1


def test_many_epochs_are_averaged_within_their_task(hand_record: Record) -> None:
    hand_record.losses = [[{"ce": float(e)} for e in range(5)], [{"ce": 7.0}] * 2]
    found = numbers.loss_curves([hand_record], most=3)
    assert found is not None
    assert found.together == 3
    np.testing.assert_allclose(found.epochs, [2, 4.5, NAN, 6.5])
    np.testing.assert_allclose(found.terms["ce"], [1, 3.5, NAN, 7])
    assert found.ends == [5, 7]


@pytest.mark.parametrize("losses", [[], [[]], [[], []], [[{}], [{}, {}]]])
def test_a_record_without_losses_has_no_curves(
    hand_record: Record, losses: list[list[dict[str, float]]]
) -> None:
    hand_record.losses = losses
    assert numbers.loss_curves([hand_record]) is None


def test_runs_without_a_common_epoch_have_no_curves(hand_record: Record) -> None:
    other = copy.deepcopy(hand_record)
    hand_record.losses, other.losses = [[{"ce": 1.0}], []], [[], [{"ce": 1.0}]]
    assert numbers.loss_curves([hand_record, other]) is None
    untrained = copy.deepcopy(hand_record)
    untrained.losses = [[], []]
    alone = numbers.loss_curves([hand_record, untrained])
    assert alone is not None
    assert alone.terms["ce"].tolist()[0] == 1


def test_costs_are_means_and_largest_peaks(hand_record: Record) -> None:
    other = copy.deepcopy(hand_record)
    hand_record.seconds = {"training": 10.0, "waiting": 4.0, "evaluation": 2.0}
    other.seconds = {"training": 8.0}
    hand_record.memory, other.memory = {"process": 100}, {"process": 300, "device": 50}
    hand_record.test_passes = {"query": 18, "prompted": 36}
    found = numbers.measured_cost([hand_record, other])
    assert found.seconds == {"training": 7.0, "waiting": 4.0, "evaluation": 2.0}
    assert found.memory == {"process": 300, "device": 50}
    assert found.passes == {"query": 1.0, "prompted": 2.0}
    assert found.parameters == {"learnt": 1000, "backbone": 100000}
    assert found.hardware == "abacus, 2 cores"


def test_an_old_record_has_the_costs_that_it_has(hand_record: Record) -> None:
    hand_record.seconds = hand_record.parameters = hand_record.environment = {}
    found = numbers.measured_cost([hand_record])
    assert (found.seconds, found.memory, found.passes) == ({}, {}, {})
    assert (found.parameters, found.hardware) == ({}, "–")


def test_a_summary_is_mean_sample_std_and_number_of_runs(pair: list[Record]) -> None:
    cells = numbers.summary_cells(pair)
    last = cells["last_accuracy"]
    assert last.mean == pytest.approx((50 + 100 / 3) / 2)
    assert last.std == pytest.approx((50 - 100 / 3) / np.sqrt(2))
    assert last.runs == 2
    alone = numbers.summary_cells(pair[:1])["last_accuracy"]
    assert (alone.mean, alone.std, alone.runs) == (50, None, 1)
    assert numbers.summary_cells([]) == {}


def test_the_end_by_task_is_the_last_row(hand_record: Record) -> None:
    accuracy, count = numbers.end_by_task(hand_record)
    np.testing.assert_allclose(accuracy, [50, 60, 100 / 3])
    assert count.tolist() == [10, 5, 3]
