"""The protocol's blocks of the pages: what was tried and chosen, every method at its best, at what
cost, and where a method's first task is not like CPrompt's."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from result_runs import (
    BACKBONE,
    METRICS,
    ORDER,
    ROOT,
    SETTINGS,
    SHORT_TITLES,
    TITLES,
    TRAINING_PASSES,
    TRIES,
    WEIGHTS,
    numbered_otherwise,
    run_of,
)

from cprompt.files import write_bytes
from cprompt.report import figures, numbers
from cprompt.report.tables import DASH, ours
from cprompt.research.config import flatten
from cprompt.research.cost import passes_per_prediction
from cprompt.research.record import Record
from cprompt.research.tables import PAPER_SEEDS, TableRow, finder, load_table, row_config
from cprompt.research.tuning import Outcome, choose, load_grid, outcomes


def chosen() -> str:
    """What was tried and chosen on held-out training images."""
    grid, tried = load_grid(), finder(ROOT / TRIES)
    parts = []
    for benchmark in grid.benchmarks:
        lines = [
            "| | chosen | held out | the other tries |",
            "| --- | --- | ---: | --- |",
        ]
        otherwise = []
        for row in grid.to_choose:
            found = outcomes(grid, row, benchmark, tried, SETTINGS)
            if any(one.record is not None and numbered_otherwise(one.record) for one in found):
                otherwise.append(row.label)
            best = choose(found)
            mine = DASH if best is None else best.one.label()
            percent = DASH if best is None or best.accuracy is None else f"{best.accuracy:.2f}"
            others = "; ".join(f"{o.one.label()}: {_result(o)}" for o in found if o is not best)
            lines.append(f"| {row.label} | {mine} | {percent} | {others} |")
        if otherwise:
            lines += [
                "",
                "In the tries of these rows [the numbers of the classes]"
                "(results.md#how-they-were-made) are those of their sorted names, so their first "
                f"tasks have other classes than those of the rest: {'; '.join(otherwise)}.",
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
    return (
        f"Each of the {grid.tries_of_each} tries of a row:\n\n"
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
    return {row.label: runs_of(row, benchmark) for row in load_table("protocol").rows}


def runs_of(row: TableRow, benchmark: str) -> list[Record]:
    """The finished runs of a row, in whichever of the class orders."""
    each = (run_of(row, benchmark, seed) for seed in PAPER_SEEDS)
    return [run for run in each if run is not None]


def megabytes(record: Record) -> float:
    """What a method keeps beside the backbone, in float32."""
    return 4 * record.parameters["learnt"] / 1e6


def training_seconds(runs: Sequence[Record]) -> float:
    """Of the whole stream, in the mean."""
    return statistics.fmean(run.seconds.get("training", 0.0) for run in runs)


def million_passes(benchmark: str, label: str) -> float:
    """Of training images through the backbone, over the whole stream."""
    counted = json.loads((ROOT / TRAINING_PASSES).read_text("utf-8"))
    return float(counted[benchmark][label]["passes"]) / 1e6


def on_gpu(runs: Sequence[Record]) -> bool:
    """Whether all were made on a GPU."""
    return all("gpu" in run.environment for run in runs)


def cost() -> str:
    """Accuracy, forgetting and what they cost, for every row of the protocol."""
    parts = []
    for benchmark, title in TITLES.items():
        lines = [
            "| | Task 1 | Last-acc | Avg-acc | FF | stored, MB | training, M passes | training, s "
            "| passes per prediction | runs |",
            "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
        ]
        found = rows_run(benchmark)
        for label, runs in found.items():
            if not runs:
                lines.append(f"| {label} | {' | '.join([DASH] * 8)} | 0 |")
                continue
            known = numbers.summary_cells(runs)
            if runs[0].stream.n_tasks == 1:  # its first task is all classes
                del known["first_task_accuracy"]
            columns = ("first_task_accuracy", *METRICS)
            cells = [ours(known[m]) if m in known else DASH for m in columns]
            method = runs[0].config["method"]
            cells += [
                f"{megabytes(runs[-1]):.1f}",
                f"{million_passes(benchmark, label):.2f}",
                f"{training_seconds(runs):.0f}{'' if on_gpu(runs) else ', CPU'}",
                str(passes_per_prediction(method["name"], method)),
                str(len(runs)),
            ]
            lines.append(f"| {label} | {' | '.join(cells)} |")
        picture = ""
        if any(found.values()):
            picture = (
                f"![Accuracy against stored megabytes and passes in training, {title}]"
                f"(assets/cost_{benchmark}.png)\n\n"
            )
        notes = f"{notes_on({benchmark: found})} {note_on_ranpac(found, 'methods')}".strip()
        lines += ["", notes] if notes else []
        parts.append(f"**{title}**\n\n{picture}" + "\n".join(lines) + "\n")
    return "\n".join(parts) + (
        "\nTask 1: accuracy on the first task right after it. "
        "Stored: what is kept beside the frozen backbone after the last task, in float32. "
        "Passes in training: of images through the backbone over the whole stream; a "
        "backward pass counts as another pass, a gradient of the backbone's weights as a third "
        "(`tools/training_passes.py`). "
        "Seconds: wall-clock; one to eight runs shared the device, so compare passes instead. "
        "“CPU”: on two processor cores. "
        "[The protocol](protocol.md) has the settings.\n"
    )


def notes_on(found: Mapping[str, Mapping[str, Sequence[Record]]]) -> str:
    """By benchmark, which rows have no run yet, and which were run without a choice of settings."""
    grid, tried = load_grid(), finder(ROOT / TRIES)
    absent, unchosen = [], []
    for benchmark, rows in found.items():
        where = SHORT_TITLES[benchmark]
        if labels := [label for label, runs in rows.items() if not runs]:
            absent.append(f"{listed(labels)} on {where}")
        if labels := [
            row.label
            for row in grid.to_choose
            if rows.get(row.label)
            and choose(outcomes(grid, row, benchmark, tried, SETTINGS)) is None
        ]:
            unchosen.append(f"on {where} {listed(labels)}")
    notes = {
        "Not run yet": absent,
        "With the recipe's settings, because none were chosen yet": unchosen,
    }
    return " ".join(f"{what}: {'; '.join(rows)}." for what, rows in notes.items() if rows)


def listed(labels: Sequence[str]) -> str:
    """Labels of rows in a sentence; those that have a comma are in quotes.

    >>> listed(["ESN", "Fine-tuning", "Joint, prompts"])
    'ESN, Fine-tuning and “Joint, prompts”'
    """
    told = [f"“{label}”" if "," in label else label for label in labels]
    return " and ".join(filter(None, [", ".join(told[:-1]), told[-1]]))


def note_on_ranpac(found: Mapping[str, Sequence[Record]], folder: str) -> str:
    """That RanPAC has a prompt, if it has; `folder` is that of the methods' pages."""
    runs = found.get("RanPAC", [])
    if not any(run.config["method"].get("adaptation") == "prompt" for run in runs):
        return ""
    return (
        "RanPAC's chosen settings include a prompt of the first task; without it: "
        f"[its page]({folder}/ranpac.md)."
    )


def draw_cost(benchmark: str) -> None:
    rows = rows_run(benchmark)
    found = {label: runs for label, runs in rows.items() if runs}
    if not found:
        return
    accuracy = {
        label: statistics.fmean(run.summary()["last_accuracy"] for run in runs) if runs else None
        for label, runs in rows.items()
    }
    costs = {
        "stored, MB": {label: megabytes(runs[-1]) for label, runs in found.items()},
        "passes of images in training, millions": {
            label: million_passes(benchmark, label) for label in found
        },
    }
    image = figures.to_files(figures.accuracy_against_cost(costs, accuracy))["png"]
    write_bytes(ROOT / "docs" / "assets" / f"cost_{benchmark}.png", image)


# --- the first task, which no method can have forgotten yet --------------------------------------

PUBLISHED = "CPrompt, as published"
"""Stands in for CPrompt where what was chosen for it was not run yet."""
NEAR = 3.0
"""Points from CPrompt's that need no reason."""
FIRST = "first_task_accuracy"


def first_task() -> str:
    """The first task of every row beside CPrompt's on each benchmark, and why where it differs."""
    return "\n".join(filter(None, map(_first_task_on, TITLES)))


def _first_task_on(benchmark: str) -> str | None:
    """None if no row can be compared."""
    found = rows_run(benchmark)
    reference = "CPrompt" if found["CPrompt"] else PUBLISHED
    lines = [
        f"| | Task 1 | {reference}, same orders | difference |",
        "| --- | ---: | ---: | ---: |",
    ]
    reasons = []
    for label, runs in found.items():
        pairs = [
            (run.summary()[FIRST], other.summary()[FIRST])
            for run in runs
            for other in found[reference]
            if (run.classes, run.stream.order) == (other.classes, other.stream.order)
            and run.stream.n_tasks > 1
        ]
        if label in ("CPrompt", PUBLISHED) or not pairs:
            continue
        mine, theirs = (statistics.fmean(side) for side in zip(*pairs, strict=True))
        lines.append(f"| {label} | {mine:.2f} | {theirs:.2f} | {mine - theirs:+.2f} |")
        if abs(mine - theirs) > NEAR:
            why = REASONS[benchmark].get(label)
            reasons.append(f"- **{label}**: {why() if why else 'not looked into yet.'}")
    if len(lines) == 2:
        return None
    return (
        f"**{TITLES[benchmark]}**, in the class orders that both were run in:\n\n"
        + "\n".join(lines)
        + (f"\n\nFarther than {NEAR:g} points:\n\n" + "\n".join(reasons) if reasons else "")
        + "\n"
    )


def tries_of(row: str, benchmark: str = "cars10") -> dict[str, Record]:
    """The finished tries of a row of the grid, by their labels."""
    grid = load_grid()
    found = outcomes(grid, grid.row(row), benchmark, finder(ROOT / TRIES), SETTINGS)
    return {o.one.label(): o.record for o in found if o.record is not None and o.record.finished}


def _held_out(record: Record) -> str:
    """How many held-out images of the first task there are."""
    return f"{sum(record.rows[0].count)} held-out images"


def _coda() -> str:
    tried = tries_of("coda")
    usual, fast = (tried[f"official, epochs × 2.6{more}"].summary() for more in ("", ", lr × 3"))
    ours = tries_of("cprompt")["as in the recipe"]
    return (
        "the learning rate was chosen for the end of the stream. With three times that rate, "
        f"{fast[FIRST]:.1f} % of the {_held_out(ours)} of task 1 are right after task 1, and "
        f"{fast['last_accuracy']:.1f} % of all at the end; with the chosen rate "
        f"{usual[FIRST]:.1f} % and {usual['last_accuracy']:.1f} %. CPrompt has "
        f"{_first_of(ours)} on task 1."
    )


def _slca() -> str:
    tried = tries_of("slca")
    rates = ("official, lr × 0.3", "official", "official, lr × 3")
    each = ", ".join(f"{tried[rate].summary()[FIRST]:.1f}" for rate in rates)
    return (
        "better, as the whole backbone is trained. The faster it may change, the better it fits "
        f"the first task: {each} % of {_held_out(tried['official'])} with a third of the published "
        "rate, with the rate itself and with three times it, which was chosen."
    )


def _first_in_order(benchmark: str, label: str) -> str:
    """What a row answers of the first task in the class order of all rows."""
    (run,) = (run for run in rows_run(benchmark)[label] if run.config["seeds"]["order"] == ORDER)
    return f"{run.summary()[FIRST]:.1f} %"


def _no_covariance(benchmark: str) -> str:
    lda, deep = (_first_in_order(benchmark, label) for label in ("Streaming LDA", "Strata"))
    return (
        "nothing is trained, only the last block's class token is read, and how its numbers vary "
        f"together is ignored. With their covariance (LDA) the same token answers {lda} in this "
        f"class order, all layers ([Strata](methods/strata.md)) {deep}."
    )


def _one_layer(benchmark: str) -> str:
    return (
        "nothing is trained, and only the last block's class token is read, which was trained for "
        "other classes. Read over all layers ([Strata](methods/strata.md)), the same backbone "
        f"answers {_first_in_order(benchmark, 'Strata')} in this class order."
    )


def _first_of(record: Record) -> str:
    return f"{record.summary()[FIRST]:.1f} %"


def _strata() -> str:
    one, deep = (tries_of(row)["as in the recipe"] for row in ("lda", "strata"))
    mixed = tries_of("strata")["head mixed"]
    return (
        f"better, as all layers are read. Of {_held_out(deep)} LDA over the last one answers "
        f"{_first_of(one)}, one head over all layers {_first_of(deep)}, and the mixture of heads, "
        f"which was chosen, {_first_of(mixed)}."
    )


def _strata_prompt() -> str:
    tried = tries_of("strata")["as in the recipe"], tries_of("strata_prompt")["as in the recipe"]
    without, with_it = map(_first_of, tried)
    return (
        "better, as all layers are read, and under a prompt that was trained for this very task. "
        f"Of {_held_out(tried[0])} one head over all layers answers {without} without the prompt "
        f"and {with_it} with it. (This row has one head; the row above mixes four.)"
    )


REASONS: dict[str, dict[str, Callable[[], str]]] = {
    "cars10": {
        "CODA-Prompt": _coda,
        "SLCA": _slca,
        "Nearest mean": partial(_no_covariance, "cars10"),
        "Streaming LDA": partial(_one_layer, "cars10"),
        "Strata": _strata,
        "Strata, prompt of the first task": _strata_prompt,
    },
    "cifar100": {"Nearest mean": partial(_no_covariance, "cifar100")},
}
"""Why the first task of a row is not like CPrompt's, each with an experiment behind it."""


# --- methods that were repaired -------------------------------------------------------------------

BEFORE = {
    "CODA-Prompt": ("coda", "matched", {}),
    "ESN": ("esn", "matched", {}),
    "SLCA": ("slca", "official", {"method.head_init": "kaiming"}),
    "HiDe-Prompt": ("hide", "official", {"method.head_init": "kaiming"}),
}
"""How rows of the protocol were run at first: method, flavour, settings."""


def repaired() -> str:
    """Rows before and after, in one class order, and every setting that changed."""
    benchmark, *_ = TITLES
    rows = {row.label: row for row in load_table("protocol").rows}
    lines = [
        "| | Task 1 before | now | Last-acc before | now | what changed |",
        "| --- | ---: | ---: | ---: | ---: | --- |",
    ]
    for label, (method, flavour, settings) in BEFORE.items():
        both = (TableRow(label, method, flavour, "selected", settings, {}), rows[label])
        runs = [run_of(row, benchmark, ORDER) for row in both]
        if None in runs:
            continue
        pairs = [(r.summary()[FIRST], r.summary()["last_accuracy"]) for r in runs if r is not None]
        cells = [f"{percent:.2f}" for pair in zip(*pairs, strict=True) for percent in pair]
        cells.append(
            "; ".join(f"`{n}` {a} → {b}" for n, a, b in changed_settings(*both, benchmark))
        )
        lines.append(f"| {label} | {' | '.join(cells)} |")
    return f"{TITLES[benchmark]}, class order {ORDER}.\n\n" + "\n".join(lines) + "\n"


def changed_settings(old: TableRow, new: TableRow, benchmark: str) -> list[tuple[str, Any, Any]]:
    """Name, old and new value of what differs; records of then do not name every setting of now."""
    before, after = (
        flatten(row_config(row, benchmark, ORDER, overrides=SETTINGS).to_dict())
        for row in (old, new)
    )
    return [(n, v, after[n]) for n, v in before.items() if n in after and v != after[n]]


# --- the README ---------------------------------------------------------------------------------


def readme_table() -> str:
    """Every method at its best, on the benchmarks of which most rows were run."""
    runs = {benchmark: rows_run(benchmark) for benchmark in TITLES}
    shown = {b: found for b, found in runs.items() if sum(map(bool, found.values())) > 10}
    columns = ("Last-acc", "Avg-acc", "FF", "stored, MB")
    heads = [f"{SHORT_TITLES[b]} {what}" for b in shown for what in columns]
    lines = [
        f"| | {' | '.join(heads)} | passes |",
        f"| --- |{' ---: |' * (len(heads) + 1)}",
    ]
    for label in next(iter(shown.values())):
        cells = []
        for found in shown.values():
            known = numbers.summary_cells(found[label]) if found[label] else {}
            cells += [ours(known[m]) if m in known else DASH for m in METRICS]
            cells.append(f"{megabytes(found[label][-1]):.1f}" if found[label] else DASH)
        made = next((found[label] for found in shown.values() if found[label]), None)
        if made:
            method = made[0].config["method"]
            cells.append(str(passes_per_prediction(method["name"], method)))
        else:
            cells.append(DASH)
        lines.append(f"| {label} | {' | '.join(cells)} |")
    pictures = [
        f"![Accuracy against stored megabytes and passes in training, {TITLES[b]}]"
        f"(docs/assets/cost_{b}.png)\n\n"
        for b in shown
    ]
    notes = notes_on(shown)
    ranpac = next(filter(None, (note_on_ranpac(f, "docs/methods") for f in shown.values())), "")
    counts = {len(runs) for found in shown.values() for runs in found.values()}
    several = sorted(counts - {0, 1})
    left = [title for b, title in TITLES.items() if b not in shown]
    return (
        "\n## Results\n\nTen tasks on real photos with a small backbone (ViT-Ti/16). The same "
        "images and backbone for all. Numbers with ± are means over "
        f"{' or '.join(map(str, several))} class orders; the others are one run, in class order "
        f"{ORDER}. Each method has its own optimiser, and settings "
        "[chosen on held-out training images](docs/protocol.md):\n\n"
        + "\n".join(lines)
        + "\n\nFrom the records in [results/vit_ti](results/vit_ti)"
        + ("; a dash is a run not made or not defined" if any(DASH in x for x in lines) else "")
        + ". FF: forgetting. Stored: beside the backbone. Passes: through the backbone, for a "
        "prediction. "
        + " ".join(filter(None, (notes, ranpac)))
        + (f" Most runs on {' and '.join(left)} are not made yet." if left else "")
        + " More: [accuracy and cost](docs/results.md#accuracy-and-cost), and "
        "[what agrees with the paper](docs/results.md#what-agrees-with-the-paper).\n\n"
        + "".join(pictures)
    )


PROTOCOL_BLOCKS: dict[str, Callable[[], str]] = {
    "chosen": chosen,
    "tries": tries,
    "tune": tune_command,
    "cost": cost,
    "first_task": first_task,
    "repaired": repaired,
    "readme": readme_table,
}
"""What makes the block of each name."""
