"""The comparison itself: metrics and tasks of both sides, paired by seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cprompt.report import numbers
from cprompt.report.captions import seeds_of
from cprompt.report.comparison.sides import (
    differing_environment,
    differing_settings,
    finished_runs,
    runs_by_seeds,
    same_tasks,
    shared_settings,
    side_text,
)
from cprompt.report.comparison.statistics import CONFIDENCE, PairedTest, least_p, paired_test
from cprompt.report.definitions import METRIC_TEXTS
from cprompt.report.runs import RecordedRun
from cprompt.research.tables import Cell


@dataclass(frozen=True)
class MetricComparison:
    """One number of A and of B, each over all its finished runs, and the test over the pairs.

    name: that of a metric in `Record.summary`, or `task 1` and so on. Without pairs,
    `test.difference` is the difference of the means. images: number of test images of A and of B,
    where the number is about one task.
    """

    name: str
    a: Cell
    b: Cell
    test: PairedTest | None
    images: tuple[str, str] | None = None


@dataclass(frozen=True)
class Comparison:
    """Everything that `cprompt compare` prints; differing values as (name, A's, B's)."""

    runs: tuple[str, str]
    settings: list[tuple[str, Any, Any]]
    environment: list[tuple[str, str, str]]
    metrics: list[MetricComparison]
    tasks: list[MetricComparison]
    notes: list[str]


def compare(a: Sequence[RecordedRun], b: Sequence[RecordedRun]) -> Comparison:
    """B against A; each side may hold several seeds of the same settings."""
    notes: list[str] = []
    sides = [finished_runs(name, runs, notes) for name, runs in (("A", a), ("B", b))]
    settings = [shared_settings(name, runs) for name, runs in zip("AB", sides, strict=True)]
    of_a, of_b = (runs_by_seeds(name, runs) for name, runs in zip("AB", sides, strict=True))
    pairs = [(of_a[seeds], of_b[seeds]) for seeds in of_a if seeds in of_b]
    notes += _pair_notes(sides, [pair[0] for pair in pairs])
    if not same_tasks(sides):
        notes.append(
            "A and B did not learn the same classes in tasks of the same sizes; their numbers "
            "answer different questions."
        )
    for name, side in zip("AB", sides, strict=True):
        for run in side:
            notes += [f"{name}, {seeds_of([run])}: {warning}." for warning in run.record.warnings]
    return Comparison(
        runs=(side_text(sides[0]), side_text(sides[1])),
        settings=differing_settings(settings, sides),
        environment=differing_environment(sides),
        metrics=_metrics(sides, pairs),
        tasks=_tasks(sides, pairs),
        notes=notes,
    )


def _pair_notes(sides: Sequence[Sequence[RecordedRun]], paired: Sequence[RecordedRun]) -> list[str]:
    """What a reader must know about the tests; `paired` are A's runs that have a pair."""
    notes = []
    n = len(paired)
    if n == 0:
        return ["A and B share no seeds; means are shown without a test."]
    if any(len(side) > n for side in sides):
        notes.append(
            f"Differences and tests are over what both have, {seeds_of(paired)}; the means of "
            "each side are over all its runs."
        )
    if n == 1:
        notes.append("A and B share one seed: a difference, but nothing to test it with.")
    else:
        if least_p(n) > 1 - CONFIDENCE:
            notes.append(
                f"{n} pairs are too few to conclude: the exact test cannot go below "
                f"{least_p(n):g}. It takes six to reach 0.05."
            )
        notes.append("Each p is of its line alone; among many lines some are small by chance.")
    return notes


def _metrics(
    sides: Sequence[Sequence[RecordedRun]], pairs: Sequence[tuple[RecordedRun, RecordedRun]]
) -> list[MetricComparison]:
    """Every metric that a run of either side has."""
    summaries = {run: run.record.summary() for side in sides for run in side}
    return [
        _compared(
            name,
            [[summaries[run].get(name) for run in side] for side in sides],
            [(summaries[x].get(name), summaries[y].get(name)) for x, y in pairs],
        )
        for name in METRIC_TEXTS
        if any(name in summary for summary in summaries.values())
    ]


def _tasks(
    sides: Sequence[Sequence[RecordedRun]], pairs: Sequence[tuple[RecordedRun, RecordedRun]]
) -> list[MetricComparison]:
    """a[t,j] of every task at the end; empty where the sides have different numbers of tasks."""
    ends = {run: numbers.end_by_task(run.record) for side in sides for run in side}
    n_tasks = {len(accuracy) for accuracy, _ in ends.values()}
    if len(n_tasks) > 1:
        return []
    found = []
    for task in range(n_tasks.pop()):
        of_task = {run: float(accuracy[task]) for run, (accuracy, _) in ends.items()}
        one, two = (_range([int(ends[run][1][task]) for run in side]) for side in sides)
        found.append(
            _compared(
                f"task {task + 1}",
                [[of_task[run] for run in side] for side in sides],
                [(of_task[x], of_task[y]) for x, y in pairs],
                (one, two),
            )
        )
    return found


def _compared(
    name: str,
    sides: Sequence[Sequence[float | None]],
    pairs: Sequence[tuple[float | None, float | None]],
    images: tuple[str, str] | None = None,
) -> MetricComparison:
    one, two = (numbers.cell([v for v in values if v is not None]) for values in sides)
    both = [(x, y) for x, y in pairs if x is not None and y is not None]
    test = None
    if both:
        test = paired_test([x for x, _ in both], [y for _, y in both])
    elif one.mean is not None and two.mean is not None:
        test = PairedTest(0, two.mean - one.mean)
    return MetricComparison(name, one, two, test, images)


def _range(counts: Sequence[int]) -> str:
    low, high = min(counts), max(counts)
    return str(low) if low == high else f"{low}–{high}"
