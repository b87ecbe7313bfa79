"""The tables of a report, against numbers worked out by hand."""

from __future__ import annotations

import pytest

from cprompt.report.grid import Grid
from cprompt.report.page.grids import (
    class_grid,
    class_lines,
    cost_grid,
    movement_grid,
    run_grid,
    summary_grid,
    without_common,
)
from cprompt.report.series import sections
from cprompt.research.stream import TaskStream
from cprompt.training.movement import Movement
from tests.report.records import MakeRun


def test_the_summary_is_by_hand(make_run: MakeRun) -> None:
    better = make_run(seed=1)
    better.record.rows[-1].correct["selected"][:] = [4, 6, 5, 1, 2]
    [section] = sections([make_run(), better])
    grid, metrics = summary_grid(section)
    head, line = grid.lines()
    shown = dict(zip(head, line, strict=True))
    assert shown["n"] == "2"
    assert shown["Last-acc"] == "75.00±35.36"
    assert shown["FF (paper's formula)"] == "2.50±31.82"  # 25 and -20
    assert shown["Old classes, at the end"] == "76.67±33.00"  # 8 and 15 of 15
    assert shown["New classes, at the end"] == "66.67±47.14"
    assert shown["Prompt picked right"] == "61.11±0.00"
    assert shown["Last-acc, right prompt given"] == "72.22±0.00"
    assert "last_accuracy_first" in metrics


def test_the_best_and_worst_classes_are_named_and_none_is_both(make_run: MakeRun) -> None:
    head, best = class_lines({"ours": [make_run().record]})
    assert head == ["", "", "1.", "2.", "3.", "4.", "5."]
    named = ["ant: 100 %", "bee: 67 %", "elk: 60 %", "dog: 25 %", "cat: 0 %"]
    assert best == ["ours", "all, best first", *named]  # and no line of worst ones
    many = make_run().record
    n = 12
    many.stream = TaskStream(tuple(range(n)), (n,))
    many.classes = tuple(f"c{i}" for i in range(n))
    many.rows = [type(many.rows[0])([20] * n, {"selected": list(range(n))}, None, None)]
    _, best, worst = class_lines({"ours": [many]})
    assert best[2:] == ["c11: 55 %", "c10: 50 %", "c9: 45 %", "c8: 40 %", "c7: 35 %"]
    assert worst[2:] == ["c0: 0 %", "c1: 5 %", "c2: 10 %", "c3: 15 %", "c4: 20 %"]


def test_what_all_runs_share_is_said_once() -> None:
    rows = (("r1", "done", "cpu", None, 1.0), ("r2", "under way", "cpu", None, 1.0))
    grid = Grid("Runs", ("run", "state", "device", "weights", "%"), rows, texts=4)
    shown = without_common(grid, 1)
    assert shown.head == ("run", "state", "%")
    assert shown.rows == (("r1", "done", 1.0), ("r2", "under way", 1.0))
    assert shown.texts == 2
    assert shown.notes == ("In every row: device cpu.",)


def test_classes_are_counted_over_all_runs(make_run: MakeRun) -> None:
    grid = class_grid({"ours": [make_run().record, make_run(seed=1).record]})
    assert grid.head == ("", "class", "%", "images")
    assert grid.rows[0] == ("ours", "ant", 100.0, 2)
    assert grid.rows[-1] == ("ours", "cat", 0.0, 4)


def test_costs_of_a_series_are_in_its_row(make_run: MakeRun) -> None:
    record = make_run().record
    record.memory = {"device": 3 * 2**30}
    record.test_passes = {"prompted": 36}
    grid = cost_grid({"ours": [record]})
    shown = dict(zip(grid.head, grid.rows[0], strict=True))
    assert (shown["training, s"], shown["evaluation, s"]) == (61.4, 2.6)
    assert (shown["peak process, GiB"], shown["peak device, GiB"]) == (None, 3)
    assert (shown["parameters learnt"], shown["prompted passes"]) == (1000, 2)


def test_a_run_is_listed_with_what_its_numbers_depend_on(make_run: MakeRun) -> None:
    [section] = sections([make_run(seed=7, folder="mine")])
    grid = run_grid(section)
    shown = dict(zip(grid.head, grid.rows[0], strict=True))
    assert (shown["run"], shown["seeds"], shown["state"]) == ("mine", "7", "finished")
    assert shown["settings"] == section.series[0].digest
    assert (shown["fingerprint"], shown["versions"]) == ("0123456789ab", "cprompt 0, torch 2")
    assert (shown["Last-acc"], shown["test images"]) == (50, 18)


def test_movement_is_over_all_tasks_and_runs(make_run: MakeRun) -> None:
    one, two = make_run().record, make_run(seed=1).record
    one.movement = [{"prompts": Movement(2.0, 1.0, 0.5)}, {"prompts": Movement(2.0, 0.4, 0.1)}]
    two.movement = [{"prompts": Movement(1.0, 0.1, 0.1)}, {}]
    [row] = movement_grid({"CPrompt": [one, two]}).rows
    assert row[:2] == ("CPrompt", "prompts")
    assert row[2:] == pytest.approx(((50 + 10) / 2, 10, 50, 5))
