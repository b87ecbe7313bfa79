"""Write the results of the committed runs into docs/results.md, the method pages and the README.

    python tools/results_page.py

Every block between `<!-- results:NAME -->` and `<!-- /results -->` is made from the files in
results/, and the curves in docs/assets are drawn from them. Runs that are not there are listed as
missing. A test checks that the pages are up to date.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import re
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from photo_blocks import PHOTO_BLOCKS

from cprompt.files import write_bytes
from cprompt.report import figures, numbers
from cprompt.report.tables import DASH, FORMATS, ours
from cprompt.research.config import RunConfig
from cprompt.research.cost import passes_per_prediction
from cprompt.research.metrics import mean_std
from cprompt.research.recipes import benchmark_recipe
from cprompt.research.record import FILE, Record, load_record
from cprompt.research.tables import (
    PAPER_SEEDS,
    Cell,
    TableRow,
    TableSpec,
    fill,
    finder,
    load_table,
    row_config,
    run_folder,
    select_benchmarks,
    select_rows,
)
from cprompt.research.tuning import Outcome, anywhere, choose, load_grid, outcomes
from cprompt.research.tuning import command as run_command

ROOT = Path(__file__).resolve().parents[1]
RUNS = "results/vit_ti"
TRIES = "results/tune"
"""Where the runs of `cprompt tune` are."""
BACKBONE = "vit_tiny_patch16_224.augreg_in21k_ft_in1k"
WEIGHTS = f"{BACKBONE}.safetensors"
SETTINGS = {
    "backbone.name": BACKBONE,
    "backbone.weights": WEIGHTS,
    "training.precision": "bf16",
}
TITLES = {"cars10": "Split Stanford Cars, 10 tasks", "cifar100": "Split CIFAR-100, 10 tasks"}
ORDER = 1993
"""The class order that every row was run in."""


class Shown(NamedTuple):
    """A table of the page: its name, benchmarks and class orders."""

    table: str
    benchmarks: tuple[str, ...]
    seeds: tuple[int, ...]
    epochs: int | None = None
    """Epochs per task, where the runs had fewer than the benchmark's."""
    normalization: str | None = None
    """How inputs are normalised, where not as the table says."""
    labels: tuple[str, ...] = ()
    """Labels of the rows, where not all are shown."""

    @property
    def changed(self) -> dict[str, Any]:
        asked = {"training.epochs": self.epochs, "data.normalization": self.normalization}
        return {name: value for name, value in asked.items() if value is not None}

    @property
    def settings(self) -> dict[str, Any]:
        return {**SETTINGS, **self.changed}


MAIN = [Shown("cars10", ("cars10",), PAPER_SEEDS), Shown("cifar100", ("cifar100",), PAPER_SEEDS)]
ONE = (ORDER,)
SHORT = 30
"""Epochs per task of the ablation and the analyses: a quarter of the paper's, to save time."""
ANALYSES = [
    Shown(table, ("cars10",), ONE, SHORT)
    for table in (
        "ablation",
        "ccl_given",
        "dualprompt_ccl",
        "pcl_first",
        "dualprompt_pcl",
        "keys",
        "aux",
        "smoothing",
    )
]
AT_FULL_BUDGET = [Shown(table, ("cars10",), ONE) for table in ("ablation", "aux")]
"""With the paper's epochs. Findings are judged by these as soon as both rows were run."""
BESIDE = [
    *(Shown("normalization", (benchmark,), ONE) for benchmark in TITLES),
    *(Shown("official", (benchmark,), ONE) for benchmark in TITLES),
    Shown("others", ("cars10",), ONE),
]
ESN_STUDY = [Shown("esn_study", ("cars10",), ONE)]
PROTOCOL = [Shown("protocol", (benchmark,), PAPER_SEEDS) for benchmark in TITLES]
SEVERAL_ORDERS = ("cprompt", "slca", "ranpac", "strata")
"""Methods that the main tables are to have in all class orders; the others in one."""


TWENTY_TASKS = Shown("protocol", ("cars20",), ONE, labels=("CPrompt", "CODA-Prompt", "Strata"))


def paper_normalization(benchmark: str) -> Shown:
    """The protocol's table with the normalisation that the paper has on the benchmark."""
    own = benchmark_recipe(benchmark)["data"]["normalization"]
    return Shown("protocol", (benchmark,), ONE, normalization=own)


class Finding(NamedTuple):
    """A claim of the paper: in `table`, row `better` is above row `worse` in `metric`.

    Rows are (method, label).
    """

    says: str
    table: str
    better: tuple[str, str]
    worse: tuple[str, str]
    metric: str = "last_accuracy"


CPROMPT = ("cprompt", "CPrompt")
OTHERS = [
    ("l2p", "L2P"),
    ("dualprompt", "DualPrompt"),
    ("esn", "ESN"),
    ("coda", "CODA-Prompt"),
]
VANILLA = ("cprompt", "vanilla (prompt, head, one key)")
WHOLE = ("cprompt", "CCL + PCL + MK (CPrompt)")
FINDINGS = [
    *(
        Finding(f"CPrompt is better than {label}, {name}", table, CPROMPT, (method, label))
        for table, name in (("cars10", "Cars"), ("cifar100", "CIFAR-100"))
        for method, label in OTHERS
    ),
    *(
        Finding(f"joint training is above CPrompt, {name}", table, ("joint", "UB (joint)"), CPROMPT)
        for table, name in (("cars10", "Cars"), ("cifar100", "CIFAR-100"))
    ),
    Finding("CCL helps alone", "ablation", ("cprompt", "CCL"), VANILLA),
    Finding("PCL helps alone", "ablation", ("cprompt", "PCL w/o MK"), VANILLA),
    Finding("multi-key helps alone", "ablation", ("cprompt", "MK"), VANILLA),
    Finding("all together are best: above CCL", "ablation", WHOLE, ("cprompt", "CCL")),
    Finding("… above PCL without multi-key", "ablation", WHOLE, ("cprompt", "PCL w/o MK")),
    Finding("… above multi-key", "ablation", WHOLE, ("cprompt", "MK")),
    Finding("… above CCL and PCL without it", "ablation", WHOLE, ("cprompt", "CCL + PCL w/o MK")),
    Finding(
        "CCL helps where the right prompt is given", "ccl_given", CPROMPT, ("cprompt", "w/o CCL")
    ),
    Finding(
        "PCL helps where the first prompt is always taken",
        "pcl_first",
        CPROMPT,
        ("cprompt", "w/o PCL"),
    ),
    Finding(
        "CCL helps DualPrompt",
        "dualprompt_ccl",
        ("dualprompt", "+ CCL"),
        ("dualprompt", "DualPrompt"),
    ),
    Finding(
        "PCL helps DualPrompt",
        "dualprompt_pcl",
        ("dualprompt", "+ PCL"),
        ("dualprompt", "DualPrompt"),
    ),
    Finding(
        "a key for each class picks the prompt better",
        "keys",
        ("cprompt", "one key per class"),
        ("cprompt", "one key per task"),
        "selection_accuracy",
    ),
    Finding("the auxiliary loss is needed", "aux", CPROMPT, ("cprompt", "w/o L_aux")),
    Finding("… and its own head", "aux", CPROMPT, ("cprompt", "w/o C_aux")),
    Finding(
        "smoothing by EDL is worse",
        "smoothing",
        ("cprompt", "adaptive (CPrompt)"),
        ("cprompt", "EDL"),
    ),
    Finding(
        "smoothing by ROH is worse",
        "smoothing",
        ("cprompt", "adaptive (CPrompt)"),
        ("cprompt", "ROH"),
    ),
    *(
        Finding(
            f"{part} help{'' if part == 'both' else 's'} {label}",
            "others",
            (method, f"+ {part}"),
            (method, label),
        )
        for method, label in (("coda", "CODA-Prompt"), ("l2p", "L2P"))
        for part in ("CCL", "PCL", "both")
    ),
]


@functools.cache
def read(folder: Path) -> Record | None:
    return load_record(folder) if (folder / FILE).exists() else None


def find(config: RunConfig) -> Record | None:
    return read(run_folder(config, ROOT / RUNS))


def find_finished(config: RunConfig) -> Record | None:
    record = find(config)
    return record if record is not None and record.finished else None


def numbers_of(shown: Shown) -> list[int]:
    """The numbers of its rows in their table, from 1; none if all are shown."""
    rows = enumerate(load_table(shown.table).rows, start=1)
    return [number for number, row in rows if row.label in shown.labels]


def spec_of(shown: Shown) -> TableSpec:
    spec = select_benchmarks(load_table(shown.table), shown.benchmarks)
    return select_rows(spec, numbers_of(shown))


def run_of(
    row: TableRow, benchmark: str, seed: int, settings: Mapping[str, Any] = SETTINGS
) -> Record | None:
    return find_finished(row_config(row, benchmark, seed, overrides=settings))


# --- parts of the page --------------------------------------------------------------------------


def command(shown: Shown) -> str:
    words = [f"cprompt table {shown.table}"]
    if load_table(shown.table).benchmarks != shown.benchmarks:
        words += [f"--benchmark {b}" for b in shown.benchmarks]
    words += [f"--only {number}" for number in numbers_of(shown)]
    if shown.seeds != PAPER_SEEDS:
        words.append(f"--seeds {','.join(map(str, shown.seeds))}")
    return " ".join(words)


def show(shown: Shown) -> str:
    """The command that prints the table from the records, and what it prints."""
    lines = [
        f"{command(shown)} --only-show --runs {RUNS}",
        f"--backbone {BACKBONE}",
        f"--weights {WEIGHTS}",
        "--training.precision bf16 --format markdown",
    ]
    lines[-1] = " ".join([*(f"--{k} {v}" for k, v in shown.changed.items()), lines[-1]])
    joined = " \\\n    ".join(lines)
    table = fill(spec_of(shown), shown.seeds, find, overrides=shown.settings)
    return f"<!-- test: shown -->\n```sh\n{joined}\n```\n\n{FORMATS['markdown'](table)}"


def value(
    row: TableRow,
    benchmark: str,
    metric: str,
    settings: Mapping[str, Any] = SETTINGS,
    seed: int = ORDER,
) -> float | None:
    record = run_of(row, benchmark, seed, settings)
    if record is None:
        return None
    return record.summary()[metric if row.mode == "selected" else f"{metric}_{row.mode}"]


def printed(row: TableRow, benchmark: str, spec: TableSpec, metric: str) -> float:
    """The paper's number, without its ±."""
    cell = row.paper[benchmark][list(spec.columns).index(metric)]
    return float(str(cell).partition("±")[0])


def shown_of(finding: Finding) -> Shown:
    """The table that it is judged by: the first with both rows, those of full budget before."""
    each = [shown for shown in all_shown() if shown.table == finding.table]
    return next((shown for shown in each if differences_in(shown, finding)), each[-1])


def both_rows(finding: Finding) -> tuple[TableRow, TableRow]:
    rows = {(row.method, row.label): row for row in load_table(finding.table).rows}
    return rows[finding.better], rows[finding.worse]


def claimed(finding: Finding) -> float:
    """How far apart the paper's two numbers are."""
    spec, benchmark = load_table(finding.table), shown_of(finding).benchmarks[0]
    better, worse = (printed(r, benchmark, spec, finding.metric) for r in both_rows(finding))
    return better - worse


def differences(finding: Finding) -> list[float]:
    """How far apart ours are, in each class order that both were run in."""
    return differences_in(shown_of(finding), finding)


def differences_in(shown: Shown, finding: Finding) -> list[float]:
    found = []
    for seed in PAPER_SEEDS:
        rows, benchmark = both_rows(finding), shown.benchmarks[0]
        each = [value(row, benchmark, finding.metric, shown.settings, seed) for row in rows]
        if None not in each and same_classes(rows, benchmark, shown.settings, seed):
            found.append(each[0] - each[1])
    return found


def same_classes(
    rows: Sequence[TableRow], benchmark: str, settings: Mapping[str, Any], seed: int
) -> bool:
    """Whether the runs of these rows number their classes alike: only then is a seed one order."""
    runs = [run_of(row, benchmark, seed, settings) for row in rows]
    return len({tuple(run.classes) for run in runs if run is not None}) < 2


@functools.cache
def spread(benchmark: str, metric: str) -> float | None:
    """How much a difference of two rows varies from one class order to another.

    The pooled standard deviation of all differences that were measured in several class orders.
    Without any, that of CPrompt times √2, as if the two rows were independent.
    """
    squares = freedom = 0.0
    for finding in FINDINGS:
        if shown_of(finding).benchmarks[0] == benchmark and finding.metric == metric:
            found = differences(finding)
            if len(found) > 1:
                squares += (len(found) - 1) * mean_std(found)[1] ** 2
                freedom += len(found) - 1
    if freedom:
        return math.sqrt(squares / freedom)
    row = row_for("cprompt", benchmark)
    alone = [value(row, benchmark, metric, SETTINGS, seed) for seed in PAPER_SEEDS]
    known = [number for number in alone if number is not None]
    return math.sqrt(2) * mean_std(known)[1] if len(known) > 1 else None


def verdict(found: Sequence[float], spread_of_one: float | None) -> str:
    """Whether differences over class orders show what the paper finds.

    Within noise: closer to zero than twice the standard error of their mean.
    """
    if not found:
        return "not run"
    mean = sum(found) / len(found)
    if spread_of_one is None or abs(mean) <= 2 * spread_of_one / math.sqrt(len(found)):
        return "within noise"
    return "agrees" if mean > 0 else "**does not agree**"


def findings() -> str:
    lines = [
        "| the paper finds | in the paper | here | epochs per task | class orders | |",
        "| --- | ---: | ---: | ---: | ---: | --- |",
    ]
    verdicts = []
    for finding in FINDINGS:
        found, shown = differences(finding), shown_of(finding)
        noise = spread(shown.benchmarks[0], finding.metric)
        verdicts.append(verdict(found, noise))
        here = f"{sum(found) / len(found):+.2f}" if found else DASH
        lines.append(
            f"| {finding.says} | {claimed(finding):+.2f} | {here} "
            f"| {epochs_of(finding, shown) if found else DASH} | {len(found) or DASH} "
            f"| {verdicts[-1]} |"
        )
    noises = {
        f"{noise:.2f} points on {TITLES[benchmark]}"
        for benchmark in TITLES
        if (noise := spread(benchmark, "last_accuracy")) is not None
    }
    counted = (
        f"Of {len(FINDINGS)} findings, {verdicts.count('agrees')} agree, "
        f"{verdicts.count('within noise')} are within noise, "
        f"{verdicts.count('**does not agree**')} do not agree, and {verdicts.count('not run')} "
        "could not be checked yet, as a run is missing. From one class order to another a "
        f"difference in Last-acc varies by {' and '.join(sorted(noises))} (standard deviation); "
        "one that is closer to zero than twice its standard error is within noise."
    )
    return counted + "\n\n" + "\n".join(lines) + "\n"


def epochs_of(finding: Finding, shown: Shown) -> str:
    """Epochs per task of both rows; of each if they differ."""
    each = [
        row_config(row, shown.benchmarks[0], ORDER, overrides=shown.settings).training.epochs
        for row in both_rows(finding)
    ]
    return " and ".join(map(str, dict.fromkeys(each)))


def all_shown() -> list[Shown]:
    return [*MAIN, *AT_FULL_BUDGET, *ANALYSES, *BESIDE, *ESN_STUDY, *PROTOCOL]


def all_wanted() -> list[Shown]:
    """All tables, those on the page of the protocol and in twenty tasks included."""
    return [*all_shown(), TWENTY_TASKS, *(paper_normalization(b) for b in TITLES)]


class Wanted(NamedTuple):
    """A run that a table needs, and its record if it was made; `number` is the row's, from 1."""

    shown: Shown
    number: int
    benchmark: str
    label: str
    seed: int
    config: RunConfig
    record: Record | None


def wanted_runs(which: Sequence[Shown]) -> Iterator[Wanted]:
    """Every run that these tables need, once each."""
    met = set()
    for shown in which:
        several = SEVERAL_ORDERS if shown.table == "protocol" else ("cprompt",)
        changed = "".join(f", {name} {value}" for name, value in shown.changed.items())
        every_row = load_table(shown.table).rows
        for row in spec_of(shown).rows:
            for benchmark in shown.benchmarks:
                for seed in shown.seeds if row.method in several or shown.seeds == ONE else ONE:
                    config = row_config(row, benchmark, seed, overrides=shown.settings)
                    folder = run_folder(config, Path())
                    if folder not in met:
                        met.add(folder)
                        title = f"{shown.table}{changed}: {row.method} {row.label}"
                        yield Wanted(
                            shown,
                            every_row.index(row) + 1,
                            benchmark,
                            row.label if shown in MAIN else title,
                            seed,
                            config,
                            find_finished(config),
                        )


def seconds_of(record: Record) -> float:
    return sum(record.seconds.get(part, 0.0) for part in MEASURED_PARTS)


@functools.cache
def like_runs(benchmark: str) -> tuple[Record, ...]:
    found = (record for record in records() if record.config["benchmark"] == benchmark)
    return tuple(record for record in found if record.finished and not record.partial)


def estimated_seconds(config: RunConfig) -> float | None:
    """From runs of the same method on the benchmark, else of any, by their time per epoch.

    A benchmark without runs is taken for the one whose choice of settings it uses.
    """
    like = load_grid().like.get(config.benchmark, config.benchmark)
    every = like_runs(config.benchmark) or like_runs(like)
    alike = [r for r in every if r.config["method"]["name"] == config.method] or every
    epochs = max(config.training.epochs, 1)
    each = [
        seconds_of(record) * epochs / max(record.config["training"]["epochs"], 1)
        for record in alike
    ]
    return statistics.median(each) if each else None


def missing() -> str:
    absent = [
        wanted
        for wanted in wanted_runs(all_wanted())
        if wanted.record is None or numbered_otherwise(wanted.record)
    ]
    if not absent:
        return "Every run that a table above needs was made.\n"
    backbone = f"--backbone {BACKBONE} --weights {BACKBONE}.safetensors --training.precision bf16"
    lines = ["| benchmark | row | order | minutes | command |", "| --- | --- | ---: | ---: | --- |"]
    total = 0.0
    for wanted in absent:
        seconds = estimated_seconds(wanted.config)
        total += seconds or 0.0
        minutes = DASH if seconds is None else f"{seconds / 60:.0f}"
        told = f"`{run_command(anywhere(wanted.config)).replace(backbone, '$BACKBONE')}`"
        again = "" if wanted.record is None else ", again"
        lines.append(
            f"| {wanted.benchmark} | {wanted.label}{again} | {wanted.seed} | {minutes} | {told} |"
        )
    return (
        f"{len(absent)} runs, about {total / 3600:.0f} hours one after another. Minutes are those "
        "of runs that were made: the median of the same method's on the benchmark, or of all "
        "methods', scaled by the epochs. “Again”: made in another class order than the others "
        "([above](#how-they-were-made)). `$BACKBONE` stands for "
        f"`{backbone}`.\n\n" + "\n".join(lines) + "\n"
    )


# --- the protocol -------------------------------------------------------------------------------


def chosen() -> str:
    """What was tried and chosen on held-out training images."""
    grid, tried = load_grid(), finder(ROOT / TRIES)
    parts = []
    for benchmark in grid.benchmarks:
        lines = [
            "| | chosen | held out | the other tries |",
            "| --- | --- | ---: | --- |",
        ]
        for row in grid.rows:
            found = outcomes(grid, row, benchmark, tried, SETTINGS)
            best = choose(found)
            mine = DASH if best is None else best.one.label()
            percent = DASH if best is None or best.accuracy is None else f"{best.accuracy:.2f}"
            others = "; ".join(f"{o.one.label()}: {_result(o)}" for o in found if o is not best)
            lines.append(f"| {row.label} | {mine} | {percent} | {others} |")
        made = [load_record(path) for path in (ROOT / TRIES / benchmark).rglob(FILE)]
        if any(map(numbered_otherwise, made)):
            lines += [
                "",
                "Here too [the numbers of the classes](results.md#how-they-were-made) are "
                "those of their sorted names, so the first tasks have other classes.",
            ]
        parts.append(f"**{TITLES[benchmark]}**\n\n" + "\n".join(lines) + "\n")
    return "\n".join(parts)


def _result(one: Outcome) -> str:
    if one.accuracy is not None:
        return f"{one.accuracy:.2f}"
    return "diverged" if one.done else "not run"


def tries() -> str:
    """How a try is made, from the grid."""
    grid = load_grid()
    (count,) = {len(row.tries) for row in grid.rows}
    return (
        f"Each of the {count} tries of a row:\n\n"
        f"- learns the first {grid.first_tasks} tasks in class order {grid.seed};\n"
        f"- without {100 * grid.validation:g} % of the training images, which are held out, drawn "
        "per class;\n"
        "- and is judged by its Last-acc on those. Test images are not read.\n"
    )


def tune_command() -> str:
    lines = [
        f"cprompt tune --runs {TRIES}",
        f"--backbone {BACKBONE}",
        f"--weights {WEIGHTS}",
        "--training.precision bf16",
        "--data stanford_cars=CARS --data cifar100=CIFAR",
        "--write src/cprompt/research/recipes/tables/protocol.yaml",
    ]
    return "<!-- test: parse -->\n```sh\n" + " \\\n    ".join(lines) + "\n```\n"


def rows_run(benchmark: str) -> dict[str, list[Record]]:
    """The finished runs of every row of the protocol, by its label."""
    return {
        row.label: [r for seed in PAPER_SEEDS if (r := run_of(row, benchmark, seed)) is not None]
        for row in load_table("protocol").rows
    }


def megabytes(record: Record) -> float:
    """What a method keeps beside the backbone, in float32."""
    return 4 * record.parameters["learnt"] / 1e6


def cost() -> str:
    """Accuracy, forgetting and what they cost, for every row of the protocol."""
    parts = []
    for benchmark, title in TITLES.items():
        lines = [
            "| | Task 1 | Last-acc | Avg-acc | FF | stored, MB | training, s "
            "| passes per prediction | runs |",
            "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
        ]
        found = rows_run(benchmark)
        for label, runs in found.items():
            if not runs:
                lines.append(f"| {label} | {' | '.join([DASH] * 7)} | 0 |")
                continue
            known = numbers.summary_cells(runs)
            if runs[0].stream.n_tasks == 1:  # its first task is all classes
                del known["first_task_accuracy"]
            columns = ("first_task_accuracy", *METRICS)
            cells = [ours(known[m]) if m in known else DASH for m in columns]
            method = runs[0].config["method"]
            seconds = statistics.fmean(run.seconds.get("training", 0.0) for run in runs)
            cells += [
                f"{megabytes(runs[-1]):.1f}",
                f"{seconds:.0f}",
                str(passes_per_prediction(method["name"], method)),
                str(len(runs)),
            ]
            lines.append(f"| {label} | {' | '.join(cells)} |")
        picture = ""
        if any(found.values()):
            picture = (
                f"![Accuracy against training time and stored megabytes, {title}]"
                f"(assets/cost_{benchmark}.png)\n\n"
            )
        untuned = load_table("protocol").notes_on.get(benchmark)
        lines += ["", untuned] if untuned else []
        parts.append(f"**{title}**\n\n{picture}" + "\n".join(lines) + "\n")
    return "\n".join(parts) + (
        "\nTask 1: accuracy on the first task right after it. "
        "Stored: what is kept beside the frozen backbone after the last task, in float32. "
        "Training: wall-clock seconds of the whole stream, several runs at a time on the device. "
        "[The protocol](protocol.md) has the settings.\n"
    )


def draw_cost(benchmark: str) -> None:
    found = {label: runs for label, runs in rows_run(benchmark).items() if runs}
    if not found:
        return
    accuracy = {
        label: statistics.fmean(run.summary()["last_accuracy"] for run in runs)
        for label, runs in found.items()
    }
    costs = {
        "training, seconds": {
            label: statistics.fmean(run.seconds.get("training", 0.0) for run in runs)
            for label, runs in found.items()
        },
        "stored, MB": {label: megabytes(runs[-1]) for label, runs in found.items()},
    }
    image = figures.to_files(figures.accuracy_against_cost(costs, accuracy))["png"]
    write_bytes(ROOT / "docs" / "assets" / f"cost_{benchmark}.png", image)


def records() -> list[Record]:
    return [load_record(path) for path in sorted((ROOT / RUNS).rglob(FILE))]


@functools.cache
def usual_classes(dataset: str) -> tuple[str, ...]:
    """The classes by label, as in most runs; empty if there are none."""
    found = Counter(tuple(r.classes) for r in records() if r.dataset == dataset)
    return max(found, key=found.__getitem__, default=())


def numbered_otherwise(record: Record) -> bool:
    """Whether its label ids, over which class orders are drawn, are not those of most runs."""
    return tuple(record.classes) != (usual_classes(record.dataset) or tuple(record.classes))


def how() -> str:
    made = records()
    first = {r.dataset: r for r in made}
    images = "; ".join(
        f"{name} {r.images['train']:,} to learn from and {r.images['test']:,} to test on"
        for name, r in sorted(first.items())
    )
    places = sorted({str(r.environment.get("gpu", r.environment["device"])) for r in made})
    each = [record.environment for record in made]
    versions = sorted({f"torch {e['torch']}, timm {e['timm']}" for e in each})
    size = made[0].parameters["backbone"] / 1e6
    short = sum(wanted.record is not None for wanted in wanted_runs(ANALYSES))
    others = sum(map(numbered_otherwise, made))
    otherwise = (
        f"- In {others} runs on Cars the classes have the numbers of their sorted names, not the "
        "official ones, because the images had been copied under new names. So their class orders "
        "are other ones, drawn by the same seeds; tables that mix them say so. Those that are "
        "wanted again are among the runs listed below.\n"
    )
    return (
        f"- {len(made)} runs, each with its record in `{RUNS}`.\n"
        f"- Backbone: `{BACKBONE}`, {size:.1f} million parameters; every record has the "
        "fingerprint of its weights.\n"
        f"- Images: {images}.\n"
        "- Every benchmark's own settings, epochs and normalisation; bf16. The exceptions are the "
        f"{short} runs of the ablation and the analyses, which have {SHORT} epochs per task.\n"
        f"{otherwise if others else ''}"
        f"- {', '.join(places)}; {'; '.join(versions)}. Three or four runs shared the device at a "
        "time, so the seconds in these records do not measure speed; see [Speed](speed.md).\n"
    )


def heads_alone() -> str:
    """What tools/heads_alone.py found: Last-acc by training settings, tap and initial heads."""
    about = json.loads((ROOT / "results" / "heads_alone" / "cars10.json").read_text("utf-8"))
    found = {(r["flavour"], r["tap"], r["head_init"]): r["last_accuracy"] for r in about["rows"]}
    columns = [(f, t) for f in ("matched", "official") for t in ("pre_norm", "post_norm")]
    where = {"pre_norm": "before the norm", "post_norm": "after it"}
    lines = [
        "| `head_init` | " + " | ".join(f"{f}, {where[t]}" for f, t in columns) + " |",
        "| --- |" + " ---: |" * len(columns),
    ]
    for init in dict.fromkeys(row["head_init"] for row in about["rows"]):
        numbers = " | ".join(f"{found[f, t, init]:.1f}" for f, t in columns)
        lines.append(f"| {init} | {numbers} |")
    length = about["mean_length"]
    return (
        "\n".join(lines) + "\n\n"
        f"Last-acc on {TITLES[about['benchmark']]}, class order {about['seed']}, with the training "
        "settings of CODA-Prompt's two flavours and no prompts at all. The class token has a mean "
        f"length of {length['pre_norm']:.1f} before this backbone's final norm and of "
        f"{length['post_norm']:.1f} after it (`tools/heads_alone.py`).\n\n"
        "CODA-Prompt itself, with its prompts, has a Last-acc of "
        f"{coda_with_kaiming_heads():.2f} there with its official settings but `head_init "
        "kaiming`.\n"
    )


def coda_with_kaiming_heads() -> float:
    row = next(row for row in load_table("official").rows if row.method == "coda")
    found = value(row, "cars10", "last_accuracy", {**SETTINGS, "method.head_init": "kaiming"})
    assert found is not None, "the record is gone"
    return found


def row_for(method: str, benchmark: str) -> TableRow:
    return next(row for row in load_table(benchmark).rows if row.method == method)


def cells(method: str, benchmark: str, metrics: Sequence[str]) -> list[Cell]:
    """Mean and std of each metric over the finished runs."""
    row = dataclasses.replace(row_for(method, benchmark), paper={})
    columns = {metric: metric for metric in metrics}
    spec = dataclasses.replace(load_table(benchmark), columns=columns, rows=(row,))
    ((_, found),) = fill(spec, PAPER_SEEDS, find, overrides=SETTINGS).rows
    return list(found)


METRICS = ("last_accuracy", "average_accuracy", "forgetting_released")


def method_rows(method: str) -> str:
    rows = []
    for benchmark, title in TITLES.items():
        found = cells(method, benchmark, METRICS)
        numbers = [*map(ours, found), str(found[0].runs)]
        rows.append(f"| {title} | {' | '.join(numbers)} |")
    return (
        "\n## On real photos\n\n"
        "| benchmark | Last-acc | Avg-acc | FF | runs |\n| --- | ---: | ---: | ---: | ---: |\n"
        + "\n".join(rows)
        + f"\n\nViT-Ti/16 (`{BACKBONE}`), not the paper's ViT-B/16; a dash: not run, or not "
        "defined for one task. [All results](../results.md).\n\n"
    )


def closed_form_rows(*labels: str) -> str:
    """Rows of the table closed_form, over class orders, for the page of a method."""
    rows = []
    for benchmark, title in TITLES.items():
        for row in load_table("closed_form").rows:
            if row.label not in labels:
                continue
            runs = [run_of(row, benchmark, seed) for seed in PAPER_SEEDS]
            found = [run for run in runs if run is not None]
            if not found:
                continue
            cells = []
            for metric in METRICS:
                mean, std = mean_std([record.summary()[metric] for record in found])
                cells.append(f"{mean:.2f}±{std:.2f}")
            seconds = [sum(r.seconds[part] for part in MEASURED_PARTS) for r in found]
            cells += [f"{min(seconds):.0f} to {max(seconds):.0f}", str(len(found))]
            rows.append(f"| {title}, {row.label} | {' | '.join(cells)} |")
    return (
        "\n## On real photos\n\n"
        "| benchmark | Last-acc | Avg-acc | FF | seconds | class orders |\n"
        "| --- | ---: | ---: | ---: | ---: | ---: |\n"
        + "\n".join(rows)
        + f"\n\nViT-Ti/16 (`{BACKBONE}`), inputs normalised as its weights were trained. Seconds "
        "are for the whole stream on an H200 that other runs shared: decoding where it was not "
        "done before, learning, evaluation. [All results](../results.md).\n\n"
    )


MEASURED_PARTS = ("preparation", "training", "evaluation")


def readme_table() -> str:
    head = [
        "| | Cars Last-acc | Cars Avg-acc | CIFAR-100 Last-acc | CIFAR-100 Avg-acc |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    spec = load_table("cars10")
    rows = []
    for row in spec.rows:
        parts = [
            ours(cell) for benchmark in TITLES for cell in cells(row.method, benchmark, METRICS[:2])
        ]
        rows.append(f"| {row.label} | {' | '.join(parts)} |")
    closed = load_table("closed_form")
    for row in closed.rows:
        parts = []
        for benchmark in TITLES:
            only = dataclasses.replace(closed, benchmarks=(benchmark,), rows=(row,))
            ((_, found),) = fill(only, PAPER_SEEDS, find, overrides=SETTINGS).rows
            parts += [ours(cell) for cell in found[:2]]
        if any(part != DASH for part in parts):
            rows.append(f"| {row.label} (closed form) | {' | '.join(parts)} |")
    otherwise = [
        row.label
        for row in (*spec.rows, *closed.rows)
        if any(
            numbered_otherwise(run)
            for benchmark in TITLES
            for seed in PAPER_SEEDS
            if (run := run_of(row, benchmark, seed)) is not None
        )
    ]
    orders = (
        " Run in other class orders on Cars than the rest "
        f"([why](docs/results.md#how-they-were-made)): {'; '.join(otherwise)}."
    )
    return (
        "\n## Results\n\nTen tasks on real photos, with a small backbone (ViT-Ti/16), the same "
        "images and metrics for all:\n\n"
        + "\n".join([*head, *rows])
        + "\n\nFrom the records in [results/vit_ti](results/vit_ti); ± is over three class "
        "orders, a number without it is one run"
        + (", a dash is a run not made" if any(DASH in row for row in rows) else "")
        + ". CODA-Prompt, SLCA and HiDe-Prompt are trained as in their own code, the others as in "
        "the paper; closed forms use the normalisation of the backbone."
        f"{orders if otherwise else ''} More: [what agrees with the paper, and what does "
        "not](docs/results.md), and [every method at its best](docs/protocol.md), which is not "
        "complete yet.\n\n"
    )


def tables(which: Sequence[Shown]) -> str:
    return "\n".join(show(shown) for shown in which)


def tables_once_run(which: Sequence[Shown]) -> str:
    """The tables of which at least one run was made."""
    ran = [s for s in which if any(wanted.record is not None for wanted in wanted_runs([s]))]
    return tables(ran) or "None of these runs was made yet; their commands are listed below.\n"


def full_commands() -> str:
    """The commands for the same tables with the paper's backbone."""
    lines = []
    for shown in all_shown():
        datasets = {"cars10": "stanford_cars=CARS", "cifar100": "cifar100=CIFAR"}
        data = " ".join(f"--data {datasets[b]}" for b in shown.benchmarks)
        three = shown._replace(seeds=PAPER_SEEDS)
        lines.append(f"{command(three)} {data} --training.precision bf16")
    once = dict.fromkeys(lines)  # a table may be shown with fewer epochs as well
    return "<!-- test: dry-run -->\n```sh\n" + "\n".join(once) + "\n```\n"


PARTS = {
    **PHOTO_BLOCKS,
    "how": how,
    "findings": findings,
    "main": lambda: tables(MAIN),
    "analyses": lambda: tables(ANALYSES),
    "full_budget": lambda: tables_once_run(AT_FULL_BUDGET),
    "twenty_tasks": lambda: tables_once_run([TWENTY_TASKS]),
    "esn_study": lambda: tables_once_run(ESN_STUDY),
    "beside": lambda: tables(BESIDE),
    "missing": missing,
    "chosen": chosen,
    "tries": tries,
    "tune": tune_command,
    "protocol": lambda: tables(PROTOCOL),
    "paper_normalization": lambda: tables([paper_normalization(b) for b in TITLES]),
    "cost": cost,
    "heads_alone": heads_alone,
    "commands": full_commands,
    "readme": readme_table,
    "strata": lambda: closed_form_rows("Strata", "Strata, prompt of the first task"),
    "ranpac": lambda: closed_form_rows("RanPAC", "RanPAC, prompt of the first task"),
    "lda": lambda: closed_form_rows("Streaming LDA"),
    "nearest_mean": lambda: closed_form_rows("Nearest mean"),
    **{row.method: functools.partial(method_rows, row.method) for row in load_table("cars10").rows},
}
"""What makes the block of each name; a method of the main table has one on its own page."""

BLOCK = re.compile(r"(<!-- results:(\w+) -->\n).*?(<!-- /results -->)", re.DOTALL)


def pages() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def up_to_date(page: str) -> str:
    """The page with every block up to date."""

    def fresh(found: re.Match[str]) -> str:
        block = PARTS[found[2]]().strip("\n")  # and no spaces, which break lines
        return f"{found[1]}\n{block}\n\n{found[3]}"

    return BLOCK.sub(fresh, page)


def draw(benchmark: str) -> None:
    """Draw the curves of the main table's methods."""
    rows = load_table(benchmark).rows
    runs = {
        row.label: [r for seed in PAPER_SEEDS if (r := run_of(row, benchmark, seed)) is not None]
        for row in rows
    }
    shown = {label: found for label, found in runs.items() if found}
    image = figures.to_files(figures.accuracy_curves(shown))["png"]
    write_bytes(ROOT / "docs" / "assets" / f"results_{benchmark}.png", image)


def main() -> None:
    for benchmark in TITLES:
        draw(benchmark)
        draw_cost(benchmark)
    for path in pages():
        old = path.read_text("utf-8")
        new = up_to_date(old)
        if new != old:
            path.write_text(new, "utf-8")
            print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
