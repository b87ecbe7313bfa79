"""Tables for the terminal: the right numbers in the right places."""

from __future__ import annotations

import copy

from rich.console import Console
from rich.table import Table

from cprompt.report.definitions import METRIC_TEXTS
from cprompt.report.terminal import learners_table, matrix_table, summary_table
from cprompt.research.record import Record


def lines(table: Table) -> list[str]:
    console = Console(width=200, color_system=None)
    with console.capture() as capture:
        console.print(table)
    return [line.rstrip() for line in capture.get().splitlines()]


def words(table: Table) -> list[list[str]]:
    return [line.split() for line in lines(table)]


def test_rows_are_tasks_learnt_and_columns_tasks_tested(
    hand_record: Record,
) -> None:
    title, head, *rows = words(matrix_table(hand_record, "Accuracy in %"))
    assert title == ["Accuracy", "in", "%"]
    assert head == ["after", "task", "on", "1", "on", "2", "on", "3", "all", "seen"]
    assert rows == [
        ["1", "80.0", "80.0"],
        ["2", "70.0", "80.0", "73.3"],
        ["3", "50.0", "60.0", "33.3", "50.0"],
    ]


def test_cells_stand_under_their_task(hand_record: Record) -> None:
    _, head, first, second, third = lines(matrix_table(hand_record, "t"))
    for name, line, value in (
        ("on 1", first, "80.0"),
        ("all seen", first, "80.0"),
        ("on 2", second, "80.0"),
        ("on 3", third, "33.3"),
        ("all seen", third, "50.0"),
    ):
        end = head.index(name) + len(name)
        assert line[:end].endswith(value), (name, line)


def test_the_matrix_of_another_mode(hand_record: Record) -> None:
    rows = words(matrix_table(hand_record, "t", "first"))[2:]
    assert rows == [
        ["1", "30.0", "30.0"],
        ["2", "40.0", "40.0", "40.0"],
        ["3", "30.0", "20.0", "33.3", "27.8"],
    ]


def test_a_run_under_way_shows_the_tasks_done(hand_record: Record) -> None:
    hand_record.rows = hand_record.rows[:1]
    assert words(matrix_table(hand_record, "t"))[1:] == [
        ["after", "task", "on", "1", "all", "seen"],
        ["1", "80.0", "80.0"],
    ]


def test_a_cell_is_darker_the_better_it_is_and_never_off_the_scale(hand_record: Record) -> None:
    hand_record.rows[0].correct["selected"][:] = [0, 0]
    hand_record.rows[1].correct["selected"][:] = [4, 6, 3]
    table = matrix_table(hand_record, "t")
    shades = [str(cell.style).rpartition(" ")[2] for cell in table.columns[1]._cells]
    blue = [int(shade[1:3], 16) for shade in shades]  # less red is a deeper blue
    assert blue[0] > blue[2] > blue[1]  # 0 %, 50 %, 100 %


def test_learners_have_a_row_each_with_a_curve_and_the_accuracy_so_far(
    hand_record: Record,
) -> None:
    perfect = copy.deepcopy(hand_record)
    for row in perfect.rows:
        row.correct["selected"][:] = row.count
    head, *rows = words(learners_table({"one": hand_record, "two": perfect}))
    assert head == ["1", "2", "3"]
    assert rows == [
        ["one", "▇▆▅", "80.0", "73.3", "50.0"],
        ["two", "███", "100.0", "100.0", "100.0"],
    ]


def test_the_summary_has_every_metric_under_its_name(hand_record: Record) -> None:
    head, *rows = lines(summary_table(hand_record))
    assert head.split() == ["metric", "%"]
    summary = hand_record.summary()
    shown = [" ".join(row.split()) for row in rows]
    assert shown == [f"{METRIC_TEXTS[name].title} {value:.2f}" for name, value in summary.items()]
    assert shown[:2] == ["Last-acc 50.00", "Avg-acc 67.78"]
    assert "FF (stepwise, as CODA-Prompt) 15.00" in shown
    assert "Backward transfer -25.00" in shown
    assert "Prompt picked right 61.11" in shown
    assert "Last-acc, first prompt always (tasks 2 to T) 25.00" in shown


def test_a_metric_that_is_undefined_has_no_line(hand_record: Record) -> None:
    hand_record.rows = hand_record.rows[:1]
    text = "\n".join(lines(summary_table(hand_record, "After one task")))
    assert text.startswith("After one task\n")
    assert "FF" not in text
    assert "nan" not in text


def test_tables_leave_the_record_alone(hand_record: Record) -> None:
    before = hand_record.to_dict()
    matrix_table(hand_record, "t")
    summary_table(hand_record)
    assert hand_record.to_dict() == before
