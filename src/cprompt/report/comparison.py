"""Two series side by side: what differs between them, and whether the results do."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from cprompt.errors import ConfigError
from cprompt.report import numbers
from cprompt.report.definitions import DEFINITIONS
from cprompt.report.runs import Run
from cprompt.report.series import (
    backbone_text,
    benchmark_of,
    by_seed,
    differing,
    method_of,
    seeds_of,
    settings_of,
)
from cprompt.report.tables import DASH, Grid, Value, ours
from cprompt.report.terminal import LABELS
from cprompt.research.metrics import Floats
from cprompt.research.tables import Cell

HEADINGS = LABELS | {name: heading for name, (heading, _) in DEFINITIONS.items()}
"""Metrics by name; short where a report has a heading for them."""

CONFIDENCE = 0.95
MOST_EXACT = 20
"""Up to so many pairs the exact test goes through all signs, a million at the most."""


@dataclass(frozen=True)
class PairedTest:
    """What the differences B - A of n pairs say; None where it cannot be said.

    low, high: 95 % interval of the mean difference under Student's t. p_t: two-sided paired
    t-test. p_exact: two-sided sign-flip test, which assumes only that A and B could be swapped
    within a pair.
    """

    pairs: int
    difference: float
    low: float | None = None
    high: float | None = None
    p_t: float | None = None
    p_exact: float | None = None


@dataclass(frozen=True)
class Compared:
    """One number of A and of B, each over all its finished runs, and the test over the pairs.

    name: a metric's, as in `Record.summary`, or `task 1` and so on. Without pairs
    `test.difference` is that of the means. images: test images of A and of B where the number
    is a task's.
    """

    name: str
    a: Cell
    b: Cell
    test: PairedTest | None
    images: tuple[str, str] | None = None


@dataclass(frozen=True)
class Comparison:
    """Everything that `cprompt compare` says; differing values as (name, A's, B's)."""

    runs: tuple[str, str]
    settings: list[tuple[str, Any, Any]]
    environment: list[tuple[str, str, str]]
    metrics: list[Compared]
    tasks: list[Compared]
    notes: list[str]


def compare(a: Sequence[Run], b: Sequence[Run]) -> Comparison:
    """B against A; each side may hold several seeds of the same settings."""
    notes: list[str] = []
    sides = [_finished(name, runs, notes) for name, runs in (("A", a), ("B", b))]
    settings = [_settings(name, runs) for name, runs in zip("AB", sides, strict=True)]
    one, two = sides
    keys = [_by_seeds(name, runs) for name, runs in zip("AB", sides, strict=True)]
    shared = [key for key in keys[0] if key in keys[1]]
    pairs = [(keys[0][key], keys[1][key]) for key in shared]
    notes += _about_pairs(sides, [pair[0] for pair in pairs])
    first, other = one[0].record, two[0].record
    if (first.dataset, first.classes, first.stream.sizes) != (
        other.dataset,
        other.classes,
        other.stream.sizes,
    ):
        notes.append(
            "A and B did not learn the same classes in tasks of the same sizes; their numbers "
            "answer different questions."
        )
    summaries = {run: run.record.summary() for run in (*one, *two)}
    names = [n for n in HEADINGS if any(n in s for s in summaries.values())]
    metrics = [
        _compared(
            n,
            [[summaries[run].get(n) for run in side] for side in sides],
            [(summaries[x].get(n), summaries[y].get(n)) for x, y in pairs],
        )
        for n in names
    ]
    return Comparison(
        runs=(_side_text(one), _side_text(two)),
        settings=_differing_settings(settings, sides),
        environment=_environment(sides),
        metrics=metrics,
        tasks=_tasks(sides, pairs),
        notes=notes,
    )


def paired_test(a: Sequence[float], b: Sequence[float]) -> PairedTest:
    """B against A, value by value; with one pair there is only its difference.

    The t-test needs differences that are not all the same.
    """
    differences = np.asarray(b, dtype=np.float64) - np.asarray(a, dtype=np.float64)
    n, mean = len(differences), float(differences.mean())
    if n < 2:
        return PairedTest(n, mean)
    exact = sign_flip_p(differences.tolist()) if n <= MOST_EXACT else None
    if np.ptp(differences) <= 1e-12 * max(1.0, float(np.abs(differences).max())):
        return PairedTest(n, mean, p_exact=exact)
    from scipy import stats

    found = stats.ttest_rel(b, a)
    interval = found.confidence_interval(CONFIDENCE)
    return PairedTest(
        n, mean, float(interval.low), float(interval.high), float(found.pvalue), exact
    )


def sign_flip_p(differences: Sequence[float]) -> float:
    """Share of all 2^n choices of signs whose sum is at least as far from 0 as the one found."""
    sums: Floats = np.zeros(1)
    for difference in differences:
        sums = np.concatenate([sums + difference, sums - difference])
    found = abs(math.fsum(differences))
    slack = 1e-9 * max(1.0, sum(map(abs, differences)))
    return float(np.mean(np.abs(sums) >= found - slack))


# --- the sides ------------------------------------------------------------------------------------


def _finished(name: str, runs: Sequence[Run], notes: list[str]) -> list[Run]:
    finished = by_seed(run for run in runs if run.record.finished)
    if not finished:
        raise ConfigError(
            f"{name} has no finished run ({', '.join(f'{r.name}: {r.state}' for r in runs)}); "
            "finish it with `cprompt run … --resume`"
        )
    if len(finished) < len(runs):
        left = [f"{run.name} ({run.state})" for run in runs if not run.record.finished]
        notes.append(f"Left out of {name}: {', '.join(left)}.")
    return finished


def _settings(name: str, runs: Sequence[Run]) -> dict[str, Any]:
    """The settings that all runs of a side share."""
    found = [settings_of(run.record) for run in runs]
    mixed = differing(found)
    if mixed:
        values = [
            f"{n} is {' and '.join(sorted({_text(s.get(n, DASH)) for s in found}))}"
            for n in mixed[:5]
        ]
        more = f", and {len(mixed) - 5} more" if len(mixed) > 5 else ""
        raise ConfigError(
            f"{name} mixes runs of different settings: {', '.join(values)}{more}; give runs that "
            "differ in their seeds only"
        )
    return found[0]


def _by_seeds(name: str, runs: Sequence[Run]) -> dict[str, Run]:
    """Runs by their seeds; those of an old record without seeds have no pair."""
    found: dict[str, Run] = {}
    for run in runs:
        if all(seed is None for seed in run.seeds):
            continue
        key = json.dumps(run.seeds)
        if key in found:
            raise ConfigError(
                f"{name} has two runs with seed {run.seeds_text}: {found[key].path} and "
                f"{run.path}; leave one of them out"
            )
        found[key] = run
    return found


def _side_text(runs: Sequence[Run]) -> str:
    record = runs[0].record
    flavour = record.config.get("flavour")
    method = method_of(record) + (f" ({flavour})" if flavour else "")
    on = f"{method} on {benchmark_of(record)}"
    return f"{on}, {seeds_of(runs)}, {backbone_text(record)}"


def _differing_settings(
    settings: Sequence[Mapping[str, Any]], sides: Sequence[Sequence[Run]]
) -> list[tuple[str, Any, Any]]:
    one, two = settings
    found: list[tuple[str, Any, Any]] = []
    for name in differing(settings):
        if name == "backbone.fingerprint":
            first, second = (backbone_text(runs[0].record) for runs in sides)
            found.append(("backbone", first, second))
        else:
            found.append((name, one.get(name, DASH), two.get(name, DASH)))
    return found


def _environment(sides: Sequence[Sequence[Run]]) -> list[tuple[str, str, str]]:
    """Versions and hardware that are not the same on both sides."""
    names = list(dict.fromkeys(n for side in sides for r in side for n in r.record.environment))
    found = []
    for name in names:
        one, two = (
            ", ".join(sorted({str(run.record.environment.get(name, DASH)) for run in side}))
            for side in sides
        )
        if one != two:
            found.append((name, one, two))
    return found


def _about_pairs(sides: Sequence[Sequence[Run]], paired: Sequence[Run]) -> list[str]:
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
        notes.append("One seed in common: a difference, but nothing to test it with.")
    else:
        least = 2.0 ** (1 - n)
        if least > 1 - CONFIDENCE:
            notes.append(
                f"{n} pairs are too few to conclude: the exact test cannot go below {least:g}. "
                "It takes six to reach 0.05."
            )
        notes.append("Each p is of its line alone; among many lines some are small by chance.")
    return notes


# --- the numbers ----------------------------------------------------------------------------------


def _compared(
    name: str,
    sides: Sequence[Sequence[float | None]],
    pairs: Sequence[tuple[float | None, float | None]],
    images: tuple[str, str] | None = None,
) -> Compared:
    one, two = (numbers.cell([v for v in values if v is not None]) for values in sides)
    both = [(x, y) for x, y in pairs if x is not None and y is not None]
    test = None
    if both:
        test = paired_test([x for x, _ in both], [y for _, y in both])
    elif one.mean is not None and two.mean is not None:
        test = PairedTest(0, two.mean - one.mean)
    return Compared(name, one, two, test, images)


def _tasks(sides: Sequence[Sequence[Run]], pairs: Sequence[tuple[Run, Run]]) -> list[Compared]:
    """a[t,j] of every task at the end; none where the sides have different numbers of tasks."""
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


def _range(counts: Sequence[int]) -> str:
    low, high = min(counts), max(counts)
    return str(low) if low == high else f"{low}–{high}"


# --- as text --------------------------------------------------------------------------------------


def grids(found: Comparison) -> list[Grid]:
    """What differs, the metrics and the tasks, as tables."""
    tables = []
    if found.settings:
        settings = tuple((name, _text(x), _text(y)) for name, x, y in found.settings)
        tables.append(Grid("Settings that differ", ("setting", "A", "B"), settings, texts=3))
    if found.environment:
        title = "Versions and hardware that differ"
        tables.append(Grid(title, ("", "A", "B"), tuple(found.environment), texts=3))
    both = ("A", "B", "B - A", "95 % interval", "p (t)", "p (exact)", "pairs")
    metrics = tuple(
        (HEADINGS[c.name], ours(c.a), ours(c.b), *_test_texts(c.test)) for c in found.metrics
    )
    tables.append(Grid("Metrics in %, mean±std", ("", *both), metrics))
    if found.tasks:
        tasks = tuple(
            (c.name, *(c.images or (DASH, DASH)), ours(c.a), ours(c.b), *_test_texts(c.test))
            for c in found.tasks
        )
        head = ("", "images A", "pictures B", *both)
        tables.append(Grid("Accuracy at the end by task in %", head, tasks))
    return tables


def _test_texts(test: PairedTest | None) -> tuple[Value, ...]:
    if test is None:
        return (DASH,) * 5
    interval = DASH if test.low is None else f"{test.low:+.2f} to {test.high:+.2f}"
    ps = [DASH if p is None else f"{p:.3g}" for p in (test.p_t, test.p_exact)]
    return f"{test.difference:+.2f}", interval, *ps, test.pairs


def to_markdown(found: Comparison) -> str:
    """Both sides, tables and notes."""
    sides = "\n".join(f"{name}: {text}  " for name, text in zip("AB", found.runs, strict=True))
    notes = "\n".join(f"{note}  " for note in found.notes)
    parts = [sides, *(grid.to_markdown().rstrip("\n") for grid in grids(found)), notes]
    return "\n\n".join(part for part in parts if part) + "\n"


def to_json(found: Comparison) -> str:
    """Everything, unrounded."""
    plain = asdict(found)
    for kind in ("settings", "environment"):
        plain[kind] = [{"name": n, "a": x, "b": y} for n, x, y in getattr(found, kind)]
    for line in (*plain["metrics"], *plain["tasks"]):
        for side in ("a", "b"):
            del line[side]["paper"]
    plain["runs"] = dict(zip("ab", found.runs, strict=True))
    return json.dumps(plain, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def to_csv(found: Comparison) -> str:
    """One line for each value that differs, each metric and each task; numbers unrounded."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    sides = ("a", "a std", "a runs", "b", "b std", "b runs")
    test = ("difference", "low", "high", "p t", "p exact", "pairs")
    writer.writerow(["kind", "name", *sides, *test, "an images", "b pictures"])
    for kind, lines in (("setting", found.settings), ("environment", found.environment)):
        for name, x, y in lines:
            writer.writerow([kind, name, _text(x), "", "", _text(y), *[""] * 10])
    for kind, compared in (("metric", found.metrics), ("task", found.tasks)):
        for c in compared:
            t = c.test
            values = [t.difference, t.low, t.high, t.p_t, t.p_exact, t.pairs] if t else [None] * 6
            cells = [c.a.mean, c.a.std, c.a.runs, c.b.mean, c.b.std, c.b.runs]
            writer.writerow([kind, c.name, *cells, *values, *(c.images or ("", ""))])
    return buffer.getvalue()


FORMATS = {"markdown": to_markdown, "csv": to_csv, "json": to_json}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
