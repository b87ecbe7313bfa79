"""A comparison as tables, Markdown, JSON and CSV."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from dataclasses import asdict

from cprompt.report.comparison.compare import Comparison
from cprompt.report.comparison.sides import value_text
from cprompt.report.comparison.statistics import PairedTest
from cprompt.report.definitions import METRIC_TEXTS
from cprompt.report.grid import Grid, Value
from cprompt.report.tables import DASH, ours


def grids(found: Comparison) -> list[Grid]:
    """What differs, the metrics and the tasks, as tables."""
    tables = []
    if found.settings:
        settings = tuple((name, value_text(x), value_text(y)) for name, x, y in found.settings)
        tables.append(Grid("Settings that differ", ("setting", "A", "B"), settings, texts=3))
    if found.environment:
        title = "Versions and hardware that differ"
        tables.append(Grid(title, ("", "A", "B"), tuple(found.environment), texts=3))
    both = ("A", "B", "B - A", "95 % interval", "p (t)", "p (exact)", "pairs")
    metrics = tuple(
        (METRIC_TEXTS[c.name].title, ours(c.a), ours(c.b), *_test_texts(c.test))
        for c in found.metrics
    )
    tables.append(Grid("Metrics in %, mean±std", ("", *both), metrics))
    if found.tasks:
        tasks = tuple(
            (c.name, *(c.images or (DASH, DASH)), ours(c.a), ours(c.b), *_test_texts(c.test))
            for c in found.tasks
        )
        head = ("", "images A", "images B", *both)
        tables.append(Grid("Accuracy at the end by task in %", head, tasks))
    return tables


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
    writer.writerow(["kind", "name", *sides, *test, "a images", "b images"])
    for kind, lines in (("setting", found.settings), ("environment", found.environment)):
        for name, x, y in lines:
            writer.writerow([kind, name, value_text(x), "", "", value_text(y), *[""] * 10])
    for kind, compared in (("metric", found.metrics), ("task", found.tasks)):
        for c in compared:
            t = c.test
            values = [t.difference, t.low, t.high, t.p_t, t.p_exact, t.pairs] if t else [None] * 6
            cells = [c.a.mean, c.a.std, c.a.runs, c.b.mean, c.b.std, c.b.runs]
            writer.writerow([kind, c.name, *cells, *values, *(c.images or ("", ""))])
    return buffer.getvalue()


FORMATS: dict[str, Callable[[Comparison], str]] = {
    "markdown": to_markdown,
    "csv": to_csv,
    "json": to_json,
}


def _test_texts(test: PairedTest | None) -> tuple[Value, ...]:
    if test is None:
        return (DASH,) * 5
    interval = DASH if test.low is None else f"{test.low:+.2f} to {test.high:+.2f}"
    ps = [DASH if p is None else f"{p:.3g}" for p in (test.p_t, test.p_exact)]
    return f"{test.difference:+.2f}", interval, *ps, test.pairs
