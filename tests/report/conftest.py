"""Runs built by hand, so that every number of a report can be worked out."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cprompt.report.runs import RecordedRun
from cprompt.research.config import resolve
from cprompt.research.record import FILE, Record

MakeRun = Callable[..., RecordedRun]


@pytest.fixture
def make_run(hand_record: Record) -> MakeRun:
    """`hand_record` as another run: its method, seed, settings, and how many tasks it finished."""

    def make(
        method: str = "cprompt",
        seed: Any = 0,
        *,
        flavour: str | None = None,
        tasks: int | None = None,
        picks: bool = True,
        folder: str | None = None,
        benchmark: str = "shapes",
        **settings: Any,
    ) -> RecordedRun:
        record = copy.deepcopy(hand_record)
        dotted = {name.replace("__", "."): value for name, value in settings.items()}
        seeds = dict.fromkeys(("seeds.order", "seeds.init", "seeds.data"), seed)
        record.config = resolve(benchmark, method, flavour, overrides=seeds | dotted).public()
        record.rows = record.rows[:tasks]
        if not picks:
            record.rows = [
                type(row)(row.count, {"selected": row.correct["selected"]}, row.top_k, None)
                for row in record.rows
            ]
        return RecordedRun(Path(folder or f"{method}-{seed}") / FILE, record)

    return make
