"""Runs for tests of grouping, and what they are called."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cprompt.report.runs import RecordedRun
from cprompt.report.series import sections
from cprompt.research.stream import TaskStream

MakeRun = Callable[..., RecordedRun]
"""The fixture `make_run`."""


def learnt_at_once(run: RecordedRun) -> RecordedRun:
    """The same run with all classes in one task."""
    record = run.record
    record.stream = TaskStream(record.stream.order, (5,))
    row = record.rows[-1]
    record.rows = [type(row)(row.count, {"selected": row.correct["selected"]}, row.top_k, None)]
    record.losses = record.losses[:1]
    return run


def labels(runs: Sequence[RecordedRun]) -> list[str]:
    """The labels of the series of the runs' one section."""
    [section] = sections(runs)
    return [series.label for series in section.series]
