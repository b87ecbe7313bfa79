"""Runs with given results."""

from __future__ import annotations

from cprompt.report.comparison import Comparison, MetricComparison
from cprompt.report.runs import RecordedRun


def with_last(run: RecordedRun, right: int) -> RecordedRun:
    """The run with so many of the 18 test images right at the end."""
    counts = run.record.rows[-1].count
    selected = []
    for count in counts:
        selected.append(min(count, right))
        right -= selected[-1]
    run.record.rows[-1].correct["selected"][:] = selected
    return run


def metric(found: Comparison, name: str) -> MetricComparison:
    [line] = [line for line in found.metrics if line.name == name]
    return line
