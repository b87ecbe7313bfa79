"""The page of `cprompt evaluate --report`: how often a classifier is right, and where it fails.

It is made from the plain values that an evaluation writes as JSON, so it knows no classifier.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup
from matplotlib.figure import Figure

from cprompt.report import figures, html

MOST_PAIRS = 20
"""Most pairs of classes in the list of confusions."""


@dataclass(frozen=True)
class Mistake:
    """A photo that was given a wrong name, with the probability of that name."""

    address: str
    """See `html.square_thumbnail`."""
    name: str
    truth: str
    label: str
    probability: float


def evaluation_page(
    found: Mapping[str, Any], mistakes: Sequence[Mistake], title: str, about: str
) -> str:
    """The page as HTML, in one file.

    found: `Evaluation.to_dict()`. mistakes: the worst first. about: what was evaluated on what.
    """
    confused = found["confusion"]
    drawn = max(len(confused["truth"]), len(confused["answer"])) <= figures.MOST_CLASSES
    return html.render(
        "evaluation",
        title=title,
        about=about,
        percent=_percent,
        found=found,
        learnt=found["photos"] - found["unseen"]["photos"],
        confusion=_drawing(figures.confusion(**confused), "confusion", "Confusion of classes")
        if drawn
        else None,
        pairs=confused_pairs(confused)[:MOST_PAIRS],
        reliability=_drawing(
            figures.reliability(found["bins"]),
            "reliability",
            f"Share right by probability; calibration error {_percent(found['ece'])}",
        ),
        mistakes=[_shown(mistake) for mistake in mistakes],
        classes=[_row(name, counts) for name, counts in found["per_class"].items()],
        batches=[_row(f"batch {n}", counts) for n, counts in found["per_batch"].items()],
    )


def confused_pairs(confusion: Mapping[str, Any]) -> list[tuple[str, str, int, str]]:
    """(class, wrong answer, photos, share of the class), the most frequent first."""
    pairs = []
    for truth, row in zip(confusion["truth"], confusion["counts"], strict=True):
        for answer, count in zip(confusion["answer"], row, strict=True):
            if count and answer != truth:
                pairs.append((truth, answer, count, _percent(count / sum(row))))
    return sorted(pairs, key=lambda pair: -pair[2])


def _row(name: str, counts: Mapping[str, int]) -> list[str]:
    photos = counts["photos"]
    columns = ("right", "right_forced", "unknown")
    return [
        name,
        f"{photos:,}",
        *(_percent(counts[c] / photos if photos else None) for c in columns),
    ]


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f} %"


def _shown(mistake: Mistake) -> tuple[str, list[tuple[str, str]]]:
    """The address of the thumbnail, and the lines below it with their classes."""
    lines = [
        (f"✗ {mistake.label}, {100 * mistake.probability:.0f} %", "wrong"),
        (f"is {mistake.truth}", "right"),
        (mistake.name, "soft"),
    ]
    return mistake.address, lines


def _drawing(figure: Figure, name: str, label: str) -> Markup:
    with _any_script():
        return html.drawing(figures.to_svg(figure, name), label)


@contextmanager
def _any_script() -> Iterator[None]:
    """No warning for names that matplotlib's font lacks: the page's own font shows them."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r".*[Gg]lyph")
        yield
