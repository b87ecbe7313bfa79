"""Figures of an evaluation: which classes are confused, and how honest probabilities are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from cprompt.report.figures.layout import new_figure, wrapped
from cprompt.report.figures.style import COLOURS, INK

MOST_CLASSES = 20
"""Most classes, or answers, of a confusion that is drawn; names and numbers stay readable."""

_LONGEST = 22


def confusion(
    truth: Sequence[str], answer: Sequence[str], counts: Sequence[Sequence[int]]
) -> Figure:
    """A row per true class, a column per answer: number of photos, coloured by share of the row."""
    values = np.asarray(counts, dtype=np.float64).reshape(len(truth), len(answer))
    shares = 100 * values / np.maximum(values.sum(axis=1, keepdims=True), 1)
    figure, axes = new_figure(0.5 * len(answer) + 2.4, 0.36 * len(truth) + 1.9)
    edges = (np.arange(len(answer) + 1) - 0.5, np.arange(len(truth) + 1) - 0.5)
    axes.pcolormesh(*edges, shares, cmap="cividis", vmin=0, vmax=100, edgecolors="face")
    axes.invert_yaxis()
    for (i, j), value in np.ndenumerate(values):
        if value:
            ink = "white" if shares[i, j] < 55 else "black"
            axes.text(j, i, f"{value:.0f}", ha="center", va="center", color=ink, fontsize=9)
    axes.set_xticks(range(len(answer)), [_short(n) for n in answer], rotation=40, ha="right")
    axes.set_yticks(range(len(truth)), [_short(n) for n in truth])
    axes.tick_params(length=0, labelsize=9)
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.set_xlabel("answer")
    axes.set_ylabel("class of the photo")
    return figure


def reliability(bins: Sequence[Mapping[str, Any]]) -> Figure:
    """Share right by probability, beside the diagonal where both are equal.

    bins: as `low`, `high`, `photos`, `confidence` and `accuracy`; those without photos are left
    out. The number above a bar is that of its photos.
    """
    figure, axes = new_figure(5.6, 4.0)
    axes.plot([0, 100], [0, 100], "--", color=INK, linewidth=1, label="honest: both are equal")
    shown = [each for each in bins if each["photos"]]
    axes.bar(
        [50 * (each["low"] + each["high"]) for each in shown],
        [100 * each["accuracy"] for each in shown],
        width=[96 * (each["high"] - each["low"]) for each in shown],
        color=COLOURS[0],
        label="answers that were right",
    )
    for each in shown:
        above = (50 * (each["low"] + each["high"]), 100 * each["accuracy"])
        axes.annotate(
            str(each["photos"]),
            above,
            xytext=(0, 5),
            textcoords="offset points",
            ha="center",
            color=INK,
            fontsize=8,
        )
    axes.plot(
        [100 * each["confidence"] for each in shown],
        [100 * each["accuracy"] for each in shown],
        "o",
        color=COLOURS[1],
        markersize=5,
        label="mean probability of the bar's photos",
    )
    axes.set_xlim(0, 100)
    axes.set_ylim(0, 112)
    axes.set_yticks(range(0, 101, 20))
    axes.set_xlabel("probability of the best name, %")
    axes.set_ylabel("right, %")
    axes.legend(frameon=False, labelcolor=INK, fontsize=8, loc="upper left")
    return figure


def _short(name: str) -> str:
    """The name on one line, cut where it is long."""
    cut = name if len(name) <= _LONGEST else name[: _LONGEST - 1] + "…"
    return wrapped(cut, _LONGEST) or cut
