"""What was tried to choose settings, as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cprompt.report.grid import Grid
from cprompt.research.tuning import Outcome, TunedRow, TuningGrid, choose


def tuning_grid(
    grid: TuningGrid, benchmark: str, found: Mapping[str, tuple[TunedRow, Sequence[Outcome]]]
) -> Grid:
    """Every try of some rows, with its accuracy on held-out training images."""
    rows = []
    for row, tries in found.values():
        best = choose(tries)
        for one in tries:
            state = "chosen" if one is best else _state(one)
            rows.append((row.label, str(one.number), one.one.label(), state, one.accuracy))
    notes = [
        f"Last-acc in percent on {100 * grid.validation:g} % of the training images, held out, of "
        f"the first {grid.first_tasks} tasks; class order {grid.seed}. Test images were not read."
    ]
    notes += [
        f"{row.label}, try {one.number}: {warning}."
        for row, tries in found.values()
        for one in tries
        if one.record is not None
        for warning in one.record.warnings
    ]
    head = ("", "try", "settings", "", "held out")
    return Grid(f"Settings tried on {benchmark}", head, tuple(rows), tuple(notes), texts=4)


def _state(one: Outcome) -> str:
    if one.record is None:
        return "not run"
    if one.record.failure:
        return "diverged"
    return "" if one.record.finished else "under way"
