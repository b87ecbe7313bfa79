"""What stands out in the results, in sentences whose numbers come from the records."""

from __future__ import annotations

import statistics

from protocol_blocks import PUBLISHED, megabytes, million_passes, rows_run, tries_of
from result_runs import ORDER, SHORT_TITLES, TITLES, printed, run_of

from cprompt.research.record import Record
from cprompt.research.tables import load_table

CARS, CIFAR = TITLES
COMPARED = ("L2P", "DualPrompt", "CODA-Prompt", "ESN")
"""Beside CPrompt, in the paper's tables."""


def cprompt_row(benchmark: str) -> str:
    """CPrompt at its best, or as published where that was not run."""
    return "CPrompt" if rows_run(benchmark)["CPrompt"] else PUBLISHED


def last(benchmark: str, label: str) -> float:
    """Last-acc, the mean over the class orders that were run."""
    return statistics.fmean(r.summary()["last_accuracy"] for r in rows_run(benchmark)[label])


def on_both(label: str) -> str:
    """Last-acc on both benchmarks."""
    each = (last(b, cprompt_row(b) if label == "CPrompt" else label) for b in TITLES)
    return " and ".join(f"{percent:.1f}" for percent in each)


def times_fewer(label: str) -> str:
    """How many times fewer passes a row trains with than CPrompt, on both benchmarks."""
    return " and ".join(
        f"{million_passes(b, cprompt_row(b)) / million_passes(b, label):.0f}" for b in TITLES
    )


def stored(label: str) -> str:
    """Megabytes beside the backbone, on Cars."""
    return f"{megabytes(rows_run(CARS)[label][-1]):.1f} MB"


def in_one_order(benchmark: str, label: str) -> Record:
    """The run in the class order of all rows."""
    runs = rows_run(benchmark)[label]
    return next(run for run in runs if run.config["seeds"]["order"] == ORDER)


def right_prompt() -> str:
    """How often CPrompt picks it, and what it would be worth."""
    cars, cifar = (in_one_order(b, cprompt_row(b)).summary() for b in TITLES)
    gains = (
        f"{about['last_accuracy_given']:.1f} instead of {about['last_accuracy']:.1f}"
        for about in (cars, cifar)
    )
    return (
        f"CPrompt picks the right prompt for {cars['selection_accuracy']:.0f} % of the test images "
        f"on Cars and for {cifar['selection_accuracy']:.0f} % on CIFAR-100. With the right one "
        f"given, its Last-acc would be {' and '.join(gains)} (class order {ORDER})."
    )


def normalization() -> str:
    """What the checkpoint's own mean and std are worth to CPrompt as published."""
    gains = []
    for benchmark in TITLES:
        row = next(row for row in load_table(benchmark).rows if row.method == "cprompt")
        papers = run_of(row, benchmark, ORDER)
        assert papers is not None, "the record is gone"
        own = in_one_order(benchmark, PUBLISHED).summary()["last_accuracy"]
        gains.append(f"{own - papers.summary()['last_accuracy']:+.1f}")
    return (
        "Inputs normalised as the checkpoint was trained, instead of as in the paper, change "
        f"CPrompt's Last-acc by {gains[0]} points on Cars and {gains[1]} on CIFAR-100 (class order "
        f"{ORDER})."
    )


def with_what_is_missing() -> str:
    """Which runs of the methods that the paper compares would have to be made first, if any."""
    notes = [
        f"on {SHORT_TITLES[b]} as published, as its chosen settings were not run there yet"
        for b in TITLES
        if cprompt_row(b) == PUBLISHED
    ]
    pairs = [(label, b) for b in TITLES for label in COMPARED if not rows_run(b)[label]]
    absent = [f"{label} on {SHORT_TITLES[b]}" for label, b in pairs]
    notes += [f"not run yet: {', '.join(absent)}"] if absent else []
    return f" ({'; '.join(notes)})" if notes else ""


def in_paper(method: str) -> float:
    """The paper's Last-acc on Cars."""
    spec = load_table(CARS)
    row = next(row for row in spec.rows if row.method == method)
    return printed(row, CARS, spec, "last_accuracy")


def gain_by_width(benchmark: str) -> float:
    """Points that ESN gains on held-out images from blocks that start as strongly as at ViT-B."""
    tried = tries_of("esn", benchmark)
    wide, fixed = (tried[f"matched{how}"].summary() for how in (", block_init width", ""))
    return wide["last_accuracy"] - fixed["last_accuracy"]


def stands_out() -> str:
    """The list, for the page."""
    points = [
        "**Strata, a closed form over all layers, is far above CPrompt**: "
        f"{on_both('Strata')} % on Cars and CIFAR-100 against {on_both('CPrompt')} %, with "
        f"{times_fewer('Strata')} times fewer passes of training. On Cars no other method that "
        "learns task after task comes near it. On CIFAR-100 RanPAC with a prompt of the first task "
        f"({last(CIFAR, 'RanPAC'):.1f}) and SLCA ({last(CIFAR, 'SLCA'):.1f}) are above it, and "
        f"HiDe-Prompt ({last(CIFAR, 'HiDe-Prompt'):.1f}) is near. RanPAC reads the last layer "
        f"only, through thousands of random features, and stores {stored('RanPAC')} on Cars, "
        f"Strata {stored('Strata')}.",
        "What a closed form has counted is not lost, in whatever order tasks come. Its forgetting "
        "(FF) is above zero all the same, as images of old classes are mistaken for new ones.",
        f"**Why would one still use CPrompt?** It stores {stored(cprompt_row(CARS))} beside the "
        f"backbone on Cars, Strata {stored('Strata')}. It keeps no statistics of images at all, "
        "which may matter where even means are too much. And it is the method of the paper, whose "
        "parts can be studied.",
        "Among the methods that the paper compares, CPrompt has the highest Last-acc on both "
        f"benchmarks{with_what_is_missing()}. DualPrompt comes near it on CIFAR-100 "
        f"({last(CIFAR, 'DualPrompt'):.1f} against {last(CIFAR, cprompt_row(CIFAR)):.1f}).",
        f"HiDe-Prompt ({on_both('HiDe-Prompt')}) and SLCA ({on_both('SLCA')}), which its tables do "
        "not have, are above it on both. They keep statistics of the old classes and train their "
        "heads anew with them; SLCA also trains the whole backbone.",
        right_prompt(),
        normalization(),
        f"ESN is far behind L2P and DualPrompt on Cars ({last(CARS, 'ESN'):.1f} against "
        f"{last(CARS, 'L2P'):.1f} and {last(CARS, 'DualPrompt'):.1f}). In the paper it is a little "
        f"behind them ({in_paper('esn')} against {in_paper('l2p')} and {in_paper('dualprompt')}), "
        "and ahead of them in Avg-acc. In the flavour `matched` its attention blocks start with a "
        "deviation of 0.02, which is weak at this backbone's width. If they start as strongly as "
        "at ViT-B's (`method.block_init width`), "
        f"ESN gains {gain_by_width(CARS):.0f} points on the held-out images of Cars and "
        f"{gain_by_width(CIFAR):.0f} on those of CIFAR-100.",
    ]
    return "\n".join(f"- {point}" for point in points) + "\n"
