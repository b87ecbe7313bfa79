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
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from photo_blocks import PHOTO_BLOCKS
from protocol_blocks import PROTOCOL_BLOCKS, PUBLISHED, draw_cost, listed, runs_of
from result_runs import (
    BACKBONE,
    METRICS,
    ORDER,
    ROOT,
    RUNS,
    SETTINGS,
    SHORT_TITLES,
    TITLES,
    WEIGHTS,
    find,
    find_finished,
    numbered_otherwise,
    printed,
    records,
    run_of,
)
from scipy.stats import t as student
from stands_out import stands_out

from cprompt.data.registry import DATASETS
from cprompt.errors import counted
from cprompt.files import write_bytes
from cprompt.report import figures
from cprompt.report.tables import DASH, FORMATS, ours
from cprompt.research.config import RunConfig
from cprompt.research.metrics import mean_std
from cprompt.research.recipes import benchmark_recipe
from cprompt.research.record import Record
from cprompt.research.tables import (
    PAPER_SEEDS,
    Cell,
    TableRow,
    TableSpec,
    fill,
    load_table,
    row_config,
    run_folder,
    select_benchmarks,
    select_rows,
)
from cprompt.research.tuning import anywhere, load_grid
from cprompt.research.tuning import command as run_command


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
    published: bool = False
    """Whether findings take CPrompt as published from the protocol, not as chosen."""

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
"""Methods that the main tables are to have in all class orders; the others, and the protocol's
CPrompt as published, in one."""


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


def numbers_of(shown: Shown) -> list[int]:
    """The numbers of its rows in their table, from 1; none if all are shown."""
    rows = enumerate(load_table(shown.table).rows, start=1)
    return [number for number, row in rows if row.label in shown.labels]


def spec_of(shown: Shown) -> TableSpec:
    spec = select_benchmarks(load_table(shown.table), shown.benchmarks)
    return select_rows(spec, numbers_of(shown))


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


def shown_of(finding: Finding) -> Shown:
    """The table that it is judged by: the first with both rows, those of full budget before.

    One method is compared with another where each is at its best, if both were run so; otherwise
    with CPrompt as published, if that was run.
    """
    best = [shown for shown in PROTOCOL if shown.benchmarks == (finding.table,)]
    best += [shown._replace(published=True) for shown in best]
    each = [*best, *(shown for shown in all_shown() if shown.table == finding.table)]
    return next((shown for shown in each if differences_in(shown, finding)), each[-1])


def both_rows(finding: Finding, shown: Shown | None = None) -> tuple[TableRow, TableRow]:
    """Its rows in its own table, or those of the same methods in the protocol's."""
    every = load_table(shown.table if shown else finding.table).rows
    if shown and shown.table == "protocol":
        by_method = {row.method: row for row in reversed(every)}  # of several, the first
        if shown.published:
            by_method |= {row.method: row for row in every if row.label == PUBLISHED}
        return by_method[finding.better[0]], by_method[finding.worse[0]]
    rows = {(row.method, row.label): row for row in every}
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
        rows, benchmark = both_rows(finding, shown), shown.benchmarks[0]
        each = [value(row, benchmark, finding.metric, shown.settings, seed) for row in rows]
        if None not in each and same_classes(rows, benchmark, shown.settings, seed):
            found.append(each[0] - each[1])
    return found


def same_classes(
    rows: Sequence[TableRow], benchmark: str, settings: Mapping[str, Any], seed: int
) -> bool:
    """Whether the runs of these rows number their classes alike: only then is a seed one order."""
    return same_classes_in([run_of(row, benchmark, seed, settings) for row in rows])


def same_classes_in(runs: Sequence[Record | None]) -> bool:
    """Whether these runs number their classes alike."""
    return len({tuple(run.classes) for run in runs if run is not None}) < 2


class Spread(NamedTuple):
    """How much a difference of two rows varies from one class order to another."""

    std: float
    orders: int
    """The most class orders that one of the differences was measured in."""
    differences: int
    """How many it is pooled over."""

    @property
    def certain(self) -> float:
        """Standard errors that a difference must be away from zero: Student's t, 95 %."""
        return float(student.ppf(0.975, df=self.orders - 1))


@functools.cache
def spread(benchmark: str, metric: str, one_method: bool) -> Spread | None:
    """The pooled standard deviation of all differences that were measured in several class orders.

    Two variants of one method differ more evenly than two methods, so each kind has its own spread.
    Pooled are the findings' differences and `differences_from_cprompt`.
    """
    measured = differences_from_cprompt(benchmark, metric, one_method)
    for finding in FINDINGS:
        fits = finding.metric == metric and is_of_one_method(finding) == one_method
        if fits and shown_of(finding).benchmarks == (benchmark,):
            measured.append(differences(finding))
    measured = [found for found in measured if len(found) > 1]
    if not measured:
        return None
    freedom = sum(len(found) - 1 for found in measured)
    squares = sum((len(found) - 1) * mean_std(found)[1] ** 2 for found in measured)
    return Spread(math.sqrt(squares / freedom), max(map(len, measured)), len(measured))


def is_of_one_method(finding: Finding) -> bool:
    """Whether it compares two variants of one method, not two methods."""
    return finding.better[0] == finding.worse[0]


def differences_from_cprompt(benchmark: str, metric: str, one_method: bool) -> list[list[float]]:
    """Of CPrompt in the paper's table from rows of the protocol, in each order that both have.

    From CPrompt's own rows with `one_method`, else from other methods'. Rows that are the same in
    every order are left out: no finding compares with such a row.
    """
    found = []
    for row in load_table("protocol").rows:
        if (row.method == "cprompt") != one_method:
            continue
        pairs = []
        for seed in PAPER_SEEDS:
            both = [run_of(r, benchmark, seed) for r in (row_for("cprompt", benchmark), row)]
            if None not in both and same_classes_in(both):
                each = [run.summary().get(metric) for run in both if run is not None]
                pairs += [each] if None not in each else []
        if len(pairs) > 1 and len({theirs for _, theirs in pairs}) > 1:
            found.append([mine - theirs for mine, theirs in pairs])
    return found


def verdict(found: Sequence[float], noise: Spread | None) -> str:
    """Whether differences over class orders show what the paper finds.

    Within noise: closer to zero than `Spread.certain` times the standard error of their mean.
    """
    if not found:
        return "not run"
    mean = sum(found) / len(found)
    if noise is None or abs(mean) <= noise.certain * noise.std / math.sqrt(len(found)):
        return "within noise"
    return "agrees" if mean > 0 else "**does not agree**"


def findings() -> str:
    lines = [
        "| the paper finds | in the paper | here | settings | class orders | |",
        "| --- | ---: | ---: | --- | ---: | --- |",
    ]
    verdicts = []
    for finding in FINDINGS:
        found, shown = differences(finding), shown_of(finding)
        noise = spread(shown.benchmarks[0], finding.metric, is_of_one_method(finding))
        verdicts.append(verdict(found, noise))
        here = f"{sum(found) / len(found):+.2f}" if found else DASH
        lines.append(
            f"| {finding.says} | {claimed(finding):+.2f} | {here} "
            f"| {settings_of(finding, shown) if found else DASH} | {len(found) or DASH} "
            f"| {verdicts[-1]} |"
        )
    summed_up = (
        f"Of {len(FINDINGS)} findings, {verdicts.count('agrees')} agree, "
        f"{verdicts.count('within noise')} are within noise, "
        f"{verdicts.count('**does not agree**')} do not agree, and {verdicts.count('not run')} "
        "could not be checked yet, as a run is missing.\n\n"
        "Within noise is what another class order could turn round. From one order to another, "
        "the difference of two methods in Last-acc varies by "
        f"{varies(one_method=False)}, that of two variants of one method by "
        f"{varies(one_method=True)}. These are standard deviations, pooled over all pairs of rows "
        "that were run in several orders: CPrompt and other methods of "
        "[the protocol](protocol.md), CPrompt in the paper's table and its rows of the protocol, "
        "and those below that were. "
        "A difference counts if it is farther from zero than its standard error times Student's t "
        f"({', '.join(students_t())}; 95 %)."
    )
    return summed_up + "\n\n" + "\n".join(lines) + "\n"


def varies(one_method: bool) -> str:
    """By how many points, on each benchmark."""
    return " and ".join(
        f"{noise.std:.2f} on {SHORT_TITLES[benchmark]} ({counted(noise.differences, 'pair')})"
        for benchmark in TITLES
        if (noise := spread(benchmark, "last_accuracy", one_method))
    )


def students_t() -> list[str]:
    """What the standard errors of the findings are multiplied by."""
    kinds = {(shown_of(f).benchmarks[0], f.metric, is_of_one_method(f)) for f in FINDINGS}
    noises = {noise for kind in kinds if (noise := spread(*kind))}
    each = {noise.orders: f"{noise.certain:.1f} with {noise.orders} orders" for noise in noises}
    return [text for _, text in sorted(each.items())]


def settings_of(finding: Finding, shown: Shown) -> str:
    """How both rows were trained: epochs per task, of each if they differ."""
    if shown.table == "protocol":
        return "CPrompt as published" if shown.published else "each at its best"
    each = [
        row_config(row, shown.benchmarks[0], ORDER, overrides=shown.settings).training.epochs
        for row in both_rows(finding)
    ]
    return f"{' and '.join(map(str, dict.fromkeys(each)))} epochs"


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
                in_all = row.method in several and row.label != PUBLISHED
                for seed in shown.seeds if in_all or shown.seeds == ONE else ONE:
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
    usual = {
        "$BACKBONE": f"--backbone {BACKBONE} --weights {WEIGHTS}",
        "$PRECISION": "--training.precision bf16",
    }
    lines = ["| benchmark | row | order | minutes | command |", "| --- | --- | ---: | ---: | --- |"]
    total = 0.0
    for wanted in absent:
        seconds = estimated_seconds(wanted.config)
        total += seconds or 0.0
        minutes = DASH if seconds is None else f"{seconds / 60:.0f}"
        told = run_command(anywhere(wanted.config))
        for name, words in usual.items():
            told = told.replace(words, name)
        again = "" if wanted.record is None else ", again"
        lines.append(
            f"| {wanted.benchmark} | {wanted.label}{again} | {wanted.seed} | {minutes} | `{told}` |"
        )
    labels = {row.method: row.label for row in reversed(load_table("protocol").rows)}
    ours, *others = (labels[method] for method in SEVERAL_ORDERS)  # the first row of each
    return (
        f"{len(absent)} runs are still wanted, about {total / 3600:.0f} hours one after another: "
        f"every row in class order {ORDER}, {ours} in all {len(PAPER_SEEDS)} orders, and in the "
        f"protocol {listed(others)} in all {len(PAPER_SEEDS)} too. The other class orders that "
        "the tables count as unfinished are not planned. Minutes are those "
        "of runs that were made: the median of the same method's on the benchmark, or of all "
        "methods', scaled by the epochs. “Again”: made in another class order than the others "
        "([above](#how-they-were-made)). "
        + ", ".join(f"`{name}` stands for `{words}`" for name, words in usual.items())
        + ". `python tools/missing_runs.py` makes all that were never made.\n\n"
        + "\n".join(lines)
        + "\n"
    )


def incomplete(runs: Mapping[str, Record]) -> str:
    """Which datasets lacked images, by their official counts."""
    lacking = ""
    for name, run in sorted(runs.items()):
        whole = DATASETS[name].expected if name in DATASETS else None
        if whole is not None:
            train, test = whole.train - run.images["train"], whole.test - run.images["test"]
            if train or test:
                lacking += f" Of {name}, {train} and {test} could not be read in the copy used."
    return lacking


def how() -> str:
    made = records()
    first = {r.dataset: r for r in made}
    images = "; ".join(
        f"{name} {r.images['train']:,} to learn from and {r.images['test']:,} to test on"
        for name, r in sorted(first.items())
    )
    places = sorted({str(r.environment.get("gpu", "two processor cores")) for r in made})
    each = [record.environment for record in made]
    versions = sorted({f"torch {e['torch']}, timm {e['timm']}" for e in each})
    size = made[0].parameters["backbone"] / 1e6
    short = sum(wanted.record is not None for wanted in wanted_runs(ANALYSES))
    others = sum(map(numbered_otherwise, made))
    otherwise = (
        f"- In {others} runs on Cars the classes have the numbers of their sorted names, not the "
        "official ones, because the images had been copied under new names. So their class orders "
        "are other ones, drawn by the same seeds; tables with such runs say so. Those that are "
        "wanted again are among the runs listed below.\n"
    )
    return (
        f"- {len(made)} runs, each with its record in `{RUNS}`.\n"
        f"- Backbone: `{BACKBONE}`, {size:.1f} million parameters; every record has the "
        "fingerprint of its weights.\n"
        f"- Images: {images}.{incomplete(first)}\n"
        "- Every benchmark's own settings, epochs and normalisation; bf16. The exceptions are the "
        f"{short} runs of the ablation and the analyses, which have {SHORT} epochs per task, and "
        "the rows of [the protocol](protocol.md), which have what was chosen there.\n"
        f"{otherwise if others else ''}"
        f"- {', '.join(places)}; {'; '.join(versions)}. Up to eight runs shared the device at a "
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


def cells_of(row: TableRow, benchmark: str, metrics: Sequence[str]) -> list[Cell]:
    """Mean and std of each metric over the finished runs of a row."""
    row = dataclasses.replace(row, paper={})
    columns = {metric: metric for metric in metrics}
    spec = dataclasses.replace(load_table(benchmark), columns=columns, rows=(row,))
    ((_, found),) = fill(spec, PAPER_SEEDS, find, overrides=SETTINGS).rows
    return list(found)


def method_rows(method: str) -> str:
    """The method's runs for the main tables and for the protocol."""
    rows, otherwise = [], []
    for benchmark, title in TITLES.items():
        in_main = any(row.method == method for row in load_table(benchmark).rows)
        each = {"the paper's tables": row_for(method, benchmark)} if in_main else {}
        for row in load_table("protocol").rows:
            if row.method == method:
                published = ", as published" if row.label == PUBLISHED else ""
                each[f"the protocol{published}"] = row
        for settings, row in each.items():
            found = cells_of(row, benchmark, METRICS)
            numbers = [*map(ours, found), str(found[0].runs)]
            told = settings.replace("the protocol", "[the protocol](../protocol.md)")
            rows.append(f"| {title} | {told} | {' | '.join(numbers)} |")
            if any(map(numbered_otherwise, runs_of(row, benchmark))):
                otherwise.append(settings)
    return (
        "\n## On real photos\n\n"
        "| benchmark | settings of | Last-acc | Avg-acc | FF | runs |\n"
        "| --- | --- | ---: | ---: | ---: | ---: |\n"
        + "\n".join(rows)
        + f"\n\nViT-Ti/16 (`{BACKBONE}`), not the paper's ViT-B/16; a dash: not run, or not "
        f"defined for one task. {note_on_numbers(otherwise)}[All results](../results.md).\n\n"
    )


def note_on_numbers(rows: Sequence[str]) -> str:
    """That the runs of these rows on Cars number their classes otherwise; empty without any."""
    if not rows:
        return ""
    return (
        f"On Cars, in the runs of {listed(rows)} the classes have the numbers of their sorted "
        "names, so the same seed is another class order than elsewhere "
        "([why](../results.md#how-they-were-made)). "
    )


def closed_form_rows(*labels: str) -> str:
    """Rows of the table closed_form, over class orders, for the page of a method."""
    rows, otherwise = [], []
    for benchmark, title in TITLES.items():
        for row in load_table("closed_form").rows:
            if row.label not in labels:
                continue
            found = runs_of(row, benchmark)
            if not found:
                continue
            if any(map(numbered_otherwise, found)):
                otherwise.append(row.label)
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
        f"done before, learning, evaluation. {note_on_numbers(otherwise)}"
        "[All results](../results.md).\n\n"
    )


MEASURED_PARTS = ("preparation", "training", "evaluation")


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
    **PROTOCOL_BLOCKS,
    "how": how,
    "stands_out": stands_out,
    "findings": findings,
    "main": lambda: tables(MAIN),
    "analyses": lambda: tables(ANALYSES),
    "full_budget": lambda: tables_once_run(AT_FULL_BUDGET),
    "twenty_tasks": lambda: tables_once_run([TWENTY_TASKS]),
    "esn_study": lambda: tables_once_run(ESN_STUDY),
    "beside": lambda: tables(BESIDE),
    "missing": missing,
    "protocol": lambda: tables(PROTOCOL),
    "paper_normalization": lambda: tables([paper_normalization(b) for b in TITLES]),
    "heads_alone": heads_alone,
    "commands": full_commands,
    "strata": lambda: closed_form_rows("Strata", "Strata, prompt of the first task"),
    "ranpac": lambda: closed_form_rows("RanPAC", "RanPAC, prompt of the first task"),
    "lda": lambda: closed_form_rows("Streaming LDA"),
    "nearest_mean": lambda: closed_form_rows("Nearest mean"),
    **{
        method: functools.partial(method_rows, method)
        for method in (*(row.method for row in load_table("cars10").rows), "joint_tuning")
    },
}
"""What makes the block of each name; a method has one on its own page."""

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
    runs = {row.label: runs_of(row, benchmark) for row in load_table(benchmark).rows}
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
