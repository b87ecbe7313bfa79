"""The two sides of a comparison: finished runs of one setting each, and what differs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from cprompt.errors import ConfigError
from cprompt.report.captions import backbone_text, seeds_of
from cprompt.report.runs import RecordedRun
from cprompt.report.series import by_seed
from cprompt.report.settings import benchmark_of, differing, method_of, settings_of
from cprompt.report.tables import DASH

MOST_NAMED = 5
"""Most settings that an error names."""


def finished_runs(name: str, runs: Sequence[RecordedRun], notes: list[str]) -> list[RecordedRun]:
    """The finished runs of side `name`, by seed; a note says which were left out."""
    finished = by_seed(run for run in runs if run.record.finished)
    if not finished:
        states = ", ".join(f"{run.name}: {run.state}" for run in runs)
        raise ConfigError(
            f"{name} has no finished run ({states})",
            hint="finish it with `cprompt run … --resume`",
        )
    if len(finished) < len(runs):
        left = [f"{run.name} ({run.state})" for run in runs if not run.record.finished]
        notes.append(f"Left out of {name}: {', '.join(left)}.")
    return finished


def shared_settings(name: str, runs: Sequence[RecordedRun]) -> dict[str, Any]:
    """The settings that all runs of side `name` have in common; an error if any differ."""
    found = [settings_of(run.record) for run in runs]
    mixed = differing(found)
    if mixed:
        values = [
            f"{n} is {' and '.join(sorted({value_text(s.get(n, DASH)) for s in found}))}"
            for n in mixed[:MOST_NAMED]
        ]
        more = f", and {len(mixed) - MOST_NAMED} more" if len(mixed) > MOST_NAMED else ""
        raise ConfigError(
            f"{name} mixes runs of different settings: {', '.join(values)}{more}",
            hint="give runs that differ in their seeds only",
        )
    return found[0]


def runs_by_seeds(name: str, runs: Sequence[RecordedRun]) -> dict[str, RecordedRun]:
    """Runs by their seeds; runs of old records without seeds are left out."""
    found: dict[str, RecordedRun] = {}
    for run in runs:
        if all(seed is None for seed in run.seeds):
            continue
        key = json.dumps(run.seeds)
        if key in found:
            raise ConfigError(
                f"{name} has two runs with seed {run.seeds_text}: {found[key].path} and {run.path}",
                hint="leave one of them out",
            )
        found[key] = run
    return found


def side_text(runs: Sequence[RecordedRun]) -> str:
    """Method, benchmark, seeds and backbone of a side."""
    record = runs[0].record
    flavour = record.config.get("flavour")
    method = method_of(record) + (f" ({flavour})" if flavour else "")
    on = f"{method} on {benchmark_of(record)}"
    return f"{on}, {seeds_of(runs)}, {backbone_text(record)}"


def differing_settings(
    settings: Sequence[Mapping[str, Any]], sides: Sequence[Sequence[RecordedRun]]
) -> list[tuple[str, Any, Any]]:
    """(name, A's value, B's value); a dash where a side has no such setting."""
    one, two = settings
    found: list[tuple[str, Any, Any]] = []
    for name in differing(settings):
        if name == "backbone.fingerprint":
            first, second = (backbone_text(runs[0].record) for runs in sides)
            found.append(("backbone", first, second))
        else:
            found.append((name, one.get(name, DASH), two.get(name, DASH)))
    return found


def differing_environment(
    sides: Sequence[Sequence[RecordedRun]],
) -> list[tuple[str, str, str]]:
    """Versions and hardware that are not the same on both sides: (name, A's, B's)."""
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


def same_tasks(sides: Sequence[Sequence[RecordedRun]]) -> bool:
    """Whether both sides learnt the same classes in tasks of the same sizes."""
    one, two = (side[0].record for side in sides)
    return (one.dataset, one.classes, one.stream.sizes) == (
        two.dataset,
        two.classes,
        two.stream.sizes,
    )


def value_text(value: Any) -> str:
    """A setting's value as text: strings as they are, anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
