"""Which runs belong together: sections of one benchmark, series of one method and its settings."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cprompt.methods.registry import METHODS
from cprompt.report.labels import labels_of
from cprompt.report.runs import RecordedRun
from cprompt.report.settings import benchmark_of, method_of, settings_of, sort_key


@dataclass(frozen=True, eq=False)
class Series:
    """Runs that differ only in their seeds; `settings` by dotted name, without the seeds."""

    label: str
    settings: Mapping[str, Any]
    runs: tuple[RecordedRun, ...]

    @property
    def finished(self) -> list[RecordedRun]:
        """The runs that means are taken over."""
        return [run for run in self.runs if run.record.finished]

    @property
    def shown(self) -> list[RecordedRun]:
        """The finished runs; if there are none, the run with most tasks done."""
        farthest = max(self.runs, key=lambda run: len(run.record.rows))
        return self.finished or ([farthest] if farthest.record.rows else [])

    @property
    def shown_label(self) -> str:
        """The label, with the state of the run where what is shown is not finished."""
        return self.label if self.finished else f"{self.label} ({self.shown[0].state})"

    @property
    def digest(self) -> str:
        """Eight characters that differ where settings do."""
        return hashlib.sha256(sort_key(self.settings).encode()).hexdigest()[:8]


@dataclass(frozen=True, eq=False)
class Section:
    """All series on one dataset cut into the same tasks, of which they learn the same.

    Runs that learnt all classes at once (joint training) are in every section of their benchmark.
    name: usable as the name of a file, and different for every section.
    """

    name: str
    title: str
    n_tasks: int
    series: tuple[Series, ...]


def sections(runs: Iterable[RecordedRun]) -> list[Section]:
    """The runs as sections of series; their order does not matter."""
    places: dict[str, dict[tuple[int, ...], list[RecordedRun]]] = {}
    for run in runs:
        record = run.record
        few = record.n_planned if record.partial else 0
        where = sort_key([benchmark_of(record), record.dataset, list(record.classes), few])
        places.setdefault(where, {}).setdefault(record.stream.sizes, []).append(run)
    built: list[Section] = []
    names: Counter[str] = Counter()
    for _, by_sizes in sorted(places.items()):
        at_once = [runs for sizes, runs in by_sizes.items() if len(sizes) == 1]
        cut = {sizes: runs for sizes, runs in by_sizes.items() if len(sizes) > 1}
        if cut:
            by_sizes = {sizes: sum(at_once, runs) for sizes, runs in cut.items()}
        for sizes, members in sorted(by_sizes.items(), key=lambda item: (len(item[0]), item[0])):
            record = members[0].record
            benchmark = benchmark_of(record)
            n_tasks = record.n_planned
            name = _slug(f"{benchmark}-{len(sizes)}-tasks")
            if record.partial:
                name += f"-first-{n_tasks}"
            names[name] += 1
            built.append(
                Section(
                    name=name if names[name] == 1 else f"{name}-{names[name]}",
                    title=f"{benchmark}: {sum(sizes)} classes of {record.dataset} in "
                    + ("one task" if len(sizes) == 1 else f"{len(sizes)} tasks")
                    + ("" if len(sizes) == 1 else f" ({_sizes_text(sizes)})")
                    + (f", the first {n_tasks} only" if record.partial else ""),
                    n_tasks=n_tasks if record.partial else len(sizes),
                    series=_series(members),
                )
            )
    return built


def by_seed(runs: Iterable[RecordedRun]) -> list[RecordedRun]:
    """The runs in order of their seeds."""
    return sorted(runs, key=lambda run: (_natural(run.seeds), run.name, run.state))


def repeated_seeds(series: Series) -> list[str]:
    """Seeds that more than one finished run of the series has."""
    counts = Counter(run.seeds_text for run in series.finished)
    return [seeds for seeds, count in counts.items() if count > 1]


def _series(runs: Sequence[RecordedRun]) -> tuple[Series, ...]:
    """The runs of a section grouped by settings; methods in the registry's order."""
    groups: dict[str, tuple[dict[str, Any], list[RecordedRun]]] = {}
    for run in runs:
        settings = settings_of(run.record)
        groups.setdefault(sort_key(settings), (settings, []))[1].append(run)
    by_method: dict[str, list[tuple[dict[str, Any], list[RecordedRun]]]] = {}
    for _, (settings, members) in sorted(groups.items()):
        by_method.setdefault(method_of(members[0].record), []).append((settings, members))
    order = {name: place for place, name in enumerate(METHODS)}
    found = []
    for method in sorted(by_method, key=lambda m: (order.get(m, len(order)), m)):
        alike = by_method[method]
        labels = labels_of(method, [(settings, runs[0].record) for settings, runs in alike])
        labelled = zip(labels, alike, strict=True)
        for label, (settings, members) in sorted(labelled, key=lambda one: one[0]):
            found.append(Series(label, settings, tuple(by_seed(members))))
    return tuple(found)


def _natural(seeds: Sequence[Any]) -> list[tuple[int, int, str]]:
    """Sorts numbers as numbers, before anything else."""
    return [(0, s, "") if isinstance(s, int) else (1, 0, sort_key(s)) for s in seeds]


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def _sizes_text(sizes: Sequence[int]) -> str:
    """`4 classes each`, or the sizes with repeats counted: `9 × 20, 16 classes`."""
    counted: list[list[int]] = []
    for size in sizes:
        if counted and counted[-1][0] == size:
            counted[-1][1] += 1
        else:
            counted.append([size, 1])
    if len(counted) == 1:
        return f"{sizes[0]} class{'es' if sizes[0] > 1 else ''} each"
    shown = [f"{count} × {size}" if count > 1 else str(size) for size, count in counted]
    return ", ".join(shown if len(shown) <= 6 else [*shown[:5], f"… {shown[-1]}"]) + " classes"
