"""The table of tries, by hand."""

from __future__ import annotations

import copy

from cprompt.report.tuning import tuning_grid
from cprompt.research.config import resolve
from cprompt.research.record import Record
from cprompt.research.tuning import Outcome, load_grid
from cprompt.training.movement import Movement


def test_the_best_try_is_marked_and_the_others_say_how_far_they_are(hand_record: Record) -> None:
    grid = load_grid()
    row = grid.row("slca")
    worse, diverged, begun = (copy.deepcopy(hand_record) for _ in range(3))
    worse.rows[-1].correct["selected"][0] = 0
    worse.movement = [{"heads": Movement(1.0, 0.0, 0.0)}]
    diverged.rows.pop()
    diverged.failure = "training of task 3 diverged"
    begun.rows = []
    records = [worse, hand_record, diverged, diverged]
    tries = [
        Outcome(n, one, resolve("shapes"), record)
        for n, (one, record) in enumerate(zip(row.tries, records, strict=True), start=1)
    ]
    shown = tuning_grid(grid, "cars10", {"slca": (row, tries)})
    assert [line[1:] for line in shown.lines()[1:]] == [
        ["1", "official", "", "44.44"],
        ["2", "official, head_init kaiming", "chosen", "50.00"],
        ["3", "official, lr × 0.3", "diverged", "–"],
        ["4", "official, lr × 3", "diverged", "–"],
    ]
    assert "SLCA, try 1: heads hardly moved" in shown.notes[1]
    tries[2:] = [
        Outcome(3, row.tries[2], resolve("shapes"), begun),
        Outcome(4, row.tries[3], resolve("shapes"), None),
    ]
    shown = tuning_grid(grid, "cars10", {"slca": (row, tries)})
    assert [line[3] for line in shown.lines()[1:]] == ["", "", "under way", "not run"]
