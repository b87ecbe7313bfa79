"""Pairs by seed, metrics and tasks, worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from cprompt.report.comparison import compare, paired_test
from cprompt.training.movement import Movement
from tests.report.comparison.records import metric, with_last
from tests.report.records import MakeRun


def test_runs_are_paired_by_their_seeds_in_any_order(make_run: MakeRun) -> None:
    a = [with_last(make_run(seed=s), n) for s, n in ((1, 9), (2, 12), (3, 6))]
    b = [with_last(make_run("l2p", s), n) for s, n in ((3, 9), (1, 10), (2, 15))]
    last = metric(compare(a, b), "last_accuracy")
    ours = [100 * n / 18 for n in (9, 12, 6)]
    theirs = [100 * n / 18 for n in (10, 15, 9)]
    assert last.a.mean == pytest.approx(50)
    assert last.b.mean == pytest.approx(100 * 34 / 54)
    assert last.a.std == pytest.approx(np.std(ours, ddof=1))
    assert last.test == paired_test(ours, theirs)
    assert last.test is not None
    assert last.test.difference == pytest.approx(100 * 7 / 54)
    assert last.test.p_exact == 0.25


def test_seeds_that_one_side_lacks_are_in_its_mean_and_in_no_pair(make_run: MakeRun) -> None:
    a = [with_last(make_run(seed=s), n) for s, n in ((1, 9), (2, 12), (3, 6))]
    b = [with_last(make_run("l2p", s), 9) for s in (2, 3, 4)]
    found = compare(a, b)
    last = metric(found, "last_accuracy")
    assert last.test is not None
    assert (last.a.runs, last.b.runs, last.test.pairs) == (3, 3, 2)
    assert last.a.mean == pytest.approx(50)
    assert last.test.difference == pytest.approx(0)
    assert "seeds 2, 3;" in found.notes[0]


def test_without_a_shared_seed_there_are_means_and_no_test(make_run: MakeRun) -> None:
    found = compare([with_last(make_run(), 9)], [with_last(make_run("l2p", 1), 12)])
    last = metric(found, "last_accuracy")
    assert last.test is not None
    assert (last.test.pairs, last.test.p_t, last.test.p_exact) == (0, None, None)
    assert last.test.difference == pytest.approx(100 * 3 / 18)
    [note] = found.notes
    assert "no seeds" in note


def test_records_without_seeds_are_not_taken_for_pairs(make_run: MakeRun) -> None:
    sides = [make_run(), make_run("l2p")]
    for run in sides:
        del run.record.config["seeds"]
    assert "no seeds" in compare(sides[:1], sides[1:]).notes[0]


@pytest.mark.parametrize(("pairs", "least"), [(2, "0.5"), (3, "0.25"), (5, "0.0625"), (6, None)])
def test_too_few_pairs_to_conclude_is_said(
    make_run: MakeRun, pairs: int, least: str | None
) -> None:
    found = compare(
        [make_run(seed=s) for s in range(pairs)], [make_run("l2p", s) for s in range(pairs)]
    )
    said = [note for note in found.notes if "too few to conclude" in note]
    if least is None:
        assert said == []
    else:
        assert said[0].startswith(f"{pairs} pairs")
        assert f" {least}." in said[0]


def test_one_shared_seed_is_said_to_prove_nothing(make_run: MakeRun) -> None:
    found = compare([make_run()], [make_run("l2p")])
    [note] = found.notes
    assert "one seed" in note
    last = metric(found, "last_accuracy")
    assert last.test is not None
    assert (last.test.pairs, last.test.p_t, last.test.p_exact) == (1, None, None)


def test_a_metric_of_one_side_only_has_no_difference(make_run: MakeRun) -> None:
    found = compare([make_run()], [make_run("l2p", picks=False)])
    picked = metric(found, "selection_accuracy")
    assert picked.a.mean == pytest.approx(100 * 11 / 18)
    assert (picked.b.mean, picked.test) == (None, None)


def test_tasks_at_the_end_with_their_test_images(make_run: MakeRun) -> None:
    a = [make_run(seed=s) for s in (1, 2)]
    b = [with_last(make_run("l2p", s), 18) for s in (1, 2)]
    for row in a[1].record.rows:
        row.count[0] = 5
    found = compare(a, b)
    assert [line.name for line in found.tasks] == ["task 1", "task 2", "task 3"]
    assert [line.images for line in found.tasks] == [("10–11", "10"), ("5", "5"), ("3", "3")]
    first = found.tasks[0]
    assert first.a.mean == pytest.approx((50 + 100 * 5 / 11) / 2)
    assert first.b.mean == 100
    assert first.test == paired_test([50, 100 * 5 / 11], [100, 100])


def test_different_tasks_are_said_to_answer_different_questions(make_run: MakeRun) -> None:
    other = make_run("l2p")
    other.record.classes = ("1", "2", "3", "4", "5")
    assert any(
        "did not learn the same classes" in note for note in compare([make_run()], [other]).notes
    )


def test_a_side_whose_prompts_hardly_moved_is_named(make_run: MakeRun) -> None:
    a, b = with_last(make_run(seed=1), 9), with_last(make_run("l2p", 1), 12)
    b.record.movement = [{"pool": Movement(1.0, 0.001, 0.001)}]
    notes = [note for note in compare([a], [b]).notes if "hardly moved" in note]
    assert len(notes) == 1
    assert notes[0].startswith("B, seed 1: pool hardly moved")
