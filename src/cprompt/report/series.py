"""Which runs belong together: sections of one benchmark, series of one method and its settings."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from cprompt.errors import ConfigError
from cprompt.methods.registry import METHODS
from cprompt.report.runs import Run
from cprompt.research.config import config_from_dict, flatten, resolve, what_counts
from cprompt.research.record import Record

METHOD = "method.name"


@dataclass(frozen=True, eq=False)
class Series:
    """Runs that differ in nothing but their seeds; `settings` by dotted name, without the seeds."""

    label: str
    settings: Mapping[str, Any]
    runs: tuple[Run, ...]

    @property
    def finished(self) -> list[Run]:
        """The runs that means are taken over."""
        return [run for run in self.runs if run.record.finished]

    @property
    def shown(self) -> list[Run]:
        """The finished runs or, where none is, the one that got farthest."""
        farthest = max(self.runs, key=lambda run: len(run.record.rows))
        return self.finished or ([farthest] if farthest.record.rows else [])

    @property
    def shown_label(self) -> str:
        """The label, which says so where what is shown is not finished."""
        return self.label if self.finished else f"{self.label} ({self.shown[0].state})"

    @property
    def digest(self) -> str:
        """Eight characters that differ where settings do."""
        return hashlib.sha256(_key(self.settings).encode()).hexdigest()[:8]


@dataclass(frozen=True, eq=False)
class Section:
    """All series on one dataset cut into the same tasks.

    Runs that saw all classes at once (joint training) stand in the sections of their benchmark.
    name: fit for a file's name, and different for every section.
    """

    name: str
    title: str
    benchmark: str
    n_tasks: int
    series: tuple[Series, ...]

    @property
    def runs(self) -> list[Run]:
        """Every run, in the order of the series."""
        return [run for series in self.series for run in series.runs]


def settings_of(record: Record) -> dict[str, Any]:
    """What decides a run's numbers besides its seeds, by dotted name.

    Settings that a record is too old to have are filled in with their defaults. However the tasks
    were asked for, `stream.sizes` are the sizes; the backbone counts by its fingerprint.
    """
    plain: Mapping[str, Any] = record.config
    with suppress(ConfigError):  # a method of somebody else's, or settings since renamed
        plain = config_from_dict(plain).to_dict()
    counts = {k: v for k, v in what_counts(plain).items() if k not in ("seeds", "stream")}
    flat = flatten(counts)
    del flat["backbone.weights"]
    flat["stream.sizes"] = list(record.stream.sizes)
    flat["backbone.fingerprint"] = record.backbone.get("fingerprint")
    return flat


def method_of(record: Record) -> str:
    """The method's name as settings write it."""
    return str(record.config.get("method", {}).get("name", "unknown"))


def benchmark_of(record: Record) -> str:
    """The benchmark's name, or the dataset's where an old record does not say."""
    return str(record.config.get("benchmark", record.dataset))


def differing(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names whose values are not the same everywhere, the method's own first."""
    names = sorted({name for one in settings for name in one}, key=lambda n: (n != METHOD, n))
    return [name for name in names if len({_key(one.get(name)) for one in settings}) > 1]


def sections(runs: Iterable[Run]) -> list[Section]:
    """The runs as sections of series; the same runs in any order give the same."""
    places: dict[str, dict[tuple[int, ...], list[Run]]] = {}
    for run in runs:
        record = run.record
        where = _key([benchmark_of(record), record.dataset, list(record.classes)])
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
            name = _slug(f"{benchmark}-{len(sizes)}-tasks")
            names[name] += 1
            built.append(
                Section(
                    name=name if names[name] == 1 else f"{name}-{names[name]}",
                    title=f"{benchmark}: {sum(sizes)} classes of {record.dataset} in "
                    + ("one task" if len(sizes) == 1 else f"{len(sizes)} tasks")
                    + ("" if len(sizes) == 1 else f" ({_sizes_text(sizes)})"),
                    benchmark=benchmark,
                    n_tasks=len(sizes),
                    series=_series(members),
                )
            )
    return built


def _series(runs: Sequence[Run]) -> tuple[Series, ...]:
    """The runs of a section by their settings, labelled."""
    groups: dict[str, tuple[dict[str, Any], list[Run]]] = {}
    for run in runs:
        settings = settings_of(run.record)
        groups.setdefault(_key(settings), (settings, []))[1].append(run)
    by_method: dict[str, list[tuple[dict[str, Any], list[Run]]]] = {}
    for _, (settings, members) in sorted(groups.items()):
        by_method.setdefault(method_of(members[0].record), []).append((settings, members))
    order = list(METHODS)
    found = []
    for method in sorted(by_method, key=lambda m: (order.index(m) if m in order else 99, m)):
        alike = by_method[method]
        labels = _labels(method, [(settings, runs[0].record) for settings, runs in alike])
        labelled = zip(labels, alike, strict=True)
        for label, (settings, members) in sorted(labelled, key=lambda one: one[0]):
            found.append(Series(label, settings, tuple(by_seed(members))))
    return tuple(found)


def _labels(method: str, alike: Sequence[tuple[Mapping[str, Any], Record]]) -> list[str]:
    """One label for each of a method's settings: no longer than needed to tell them apart."""
    name = METHODS.title(method)
    flavours = [record.config.get("flavour") for _, record in alike]
    labels = []
    for (settings, record), flavour in zip(alike, flavours, strict=True):
        peers = [s for (s, _), f in zip(alike, flavours, strict=True) if f == flavour]
        names = [n for n in differing(peers) if n != "flavour"]
        if "backbone.name" in names:
            names.remove("backbone.fingerprint")
        usual = _recipe(record) if names else {}
        unusual = {n: settings.get(n) for n in names if usual.get(n, ...) != settings.get(n)}
        short = {n: _short(n) for n in names}
        often = Counter(short.values())
        parts = [str(flavour)] if flavour and len(set(flavours)) > 1 else []
        for n, value in unusual.items():
            text = str(value)[:8] if n == "backbone.fingerprint" else value_text(value)
            parts.append(f"{n if often[short[n]] > 1 else short[n]} {text}")
        if len(parts) > 4:
            parts = [*parts[:3], f"{len(parts) - 3} more"]
        labels.append(", ".join([name, *parts]))
    seen: Counter[str] = Counter()
    for i, label in enumerate(labels):
        seen[label] += 1
        if seen[label] > 1:
            labels[i] = f"{label} #{seen[label]}"
    return labels


def _short(name: str) -> str:
    """A dotted setting in as few words as a reader needs."""
    special = {"backbone.name": "backbone", "backbone.fingerprint": "weights"}
    last = name.rpartition(".")[2]
    return special.get(name, f"data {last}" if name.startswith("data.options.") else last)


def by_seed(runs: Iterable[Run]) -> list[Run]:
    """The runs in order of their seeds."""
    return sorted(runs, key=lambda run: (_natural(run.seeds), run.name, run.state))


def value_text(value: Any) -> str:
    """A setting's value, short: on and off for yes and no."""
    if value is None or isinstance(value, bool):
        return {None: "none", True: "on", False: "off"}[value]
    if isinstance(value, list):
        text = "+".join(map(value_text, value))
    else:
        text = f"{value:g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 24 else f"{text[:21]}…"


def seeds_of(runs: Sequence[Run]) -> str:
    """`seed 0`, or `seeds 0, 1, 2`; order/init/data where they differ."""
    texts = [run.seeds_text for run in runs]
    return f"seed{'s' if len(texts) > 1 else ''} {', '.join(texts)}"


def backbones_of(runs: Sequence[Run]) -> str:
    """Every backbone of the runs: its name, its weights and the start of their fingerprint."""
    return ", ".join(sorted({backbone_text(run.record) for run in runs}))


def backbone_text(record: Record) -> str:
    """`name (weights, fingerprint)`."""
    about = record.backbone
    known = [about.get("weights"), about.get("fingerprint", "")[:12]]
    return f"{about.get('name', 'unknown')} ({', '.join(k for k in known if k) or 'unknown'})"


def hardware_of(record: Record) -> str:
    """The GPU, or the processor and its cores; a dash where an old record does not say."""
    about = record.environment
    if about.get("gpu"):
        return str(about["gpu"])
    cores = f", {about['cpu_count']} cores" if about.get("cpu_count") else ""
    return f"{about['cpu']}{cores}" if about.get("cpu") else "–"


def repeated_seeds(series: Series) -> list[str]:
    """Seeds that more than one finished run of the series has."""
    counts = Counter(run.seeds_text for run in series.finished)
    return [seeds for seeds, count in counts.items() if count > 1]


def _recipe(record: Record) -> dict[str, Any]:
    """The settings that the benchmark's recipe gives the method, by dotted name."""
    method, flavour = method_of(record), record.config.get("flavour")
    with suppress(ConfigError):
        return flatten(what_counts(resolve(benchmark_of(record), method, flavour).public()))
    with suppress(ConfigError):
        return flatten(what_counts(config_from_dict({"method": {"name": method}}).to_dict()))
    return {}


def _key(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def _natural(seeds: Sequence[Any]) -> list[tuple[int, int, str]]:
    """Sorts numbers as numbers, before anything else."""
    return [(0, s, "") if isinstance(s, int) else (1, 0, _key(s)) for s in seeds]


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def _sizes_text(sizes: Sequence[int]) -> str:
    """`4 classes each`, or the sizes with repeats counted: `9 × 20, 16 classes`."""
    runs: list[list[int]] = []
    for size in sizes:
        if runs and runs[-1][0] == size:
            runs[-1][1] += 1
        else:
            runs.append([size, 1])
    if len(runs) == 1:
        return f"{sizes[0]} class{'es' if sizes[0] > 1 else ''} each"
    shown = [f"{count} × {size}" if count > 1 else str(size) for size, count in runs]
    return ", ".join(shown if len(shown) <= 6 else [*shown[:5], f"… {shown[-1]}"]) + " classes"
