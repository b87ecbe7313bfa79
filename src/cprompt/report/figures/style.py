"""How a series looks: its colour, marker and line, also for readers who do not see colours."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from cprompt.methods.registry import METHODS
from cprompt.report.numbers import RecordsByLabel
from cprompt.report.settings import method_of

# Okabe and Ito's colours, which people with any common colour blindness can tell apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C564B", "#777777")
MARKERS = "osD^vPX*"
LINES = ("-", "--", "-.", ":")
INK = "#010203"
"""Stands for the text colour of the page; `files.to_svg` replaces it."""


class Style(NamedTuple):
    """Colour, marker and line of a series; a hollow marker is only an outline."""

    color: str
    marker: str
    linestyle: str = "-"
    hollow: bool = False

    @property
    def face(self) -> str:
        """What fills the marker."""
        return "none" if self.hollow else self.color


OF_METHOD = {
    "cprompt": Style("#D55E00", "s"),
    "esn": Style("#56B4E9", "P"),
    "l2p": Style("#009E73", "D"),
    "dualprompt": Style("#CC79A7", "^"),
    "coda": Style("#E69F00", "v"),
    "slca": Style("#2F9C95", "X"),
    "hide": Style("#A3355F", "*"),
    "strata": Style("#0072B2", "o"),
    "ranpac": Style("#6A5ACD", "^"),
    "lda": Style("#8F8B2A", "P"),
    "nearest_mean": Style("#8C564B", "v"),
    "finetune": Style("#777777", "X"),
    "joint": Style("#777777", "D"),
    "joint_tuning": Style("#777777", "s"),
}
"""The style of each method of the package: the same in every figure."""


def style_at(index: int) -> Style:
    """The style of the series at that position; the first 32 differ, even without colour."""
    turn, place = divmod(index, len(COLOURS))
    marker = MARKERS[(place + 3 * turn) % len(MARKERS)]
    return Style(COLOURS[place], marker, LINES[turn % len(LINES)])


def styles_of(methods: Mapping[str, str]) -> dict[str, Style]:
    """The style of every label, given the name of its method.

    A method of the package has its own style, another one the next style that is free. Several
    labels of a method share its colour; all but the first have other, hollow markers and other
    lines. Where all labels are of one method, the method tells nothing apart: each has the style
    of its position.
    """
    names = list(dict.fromkeys(methods.values()))
    if len(names) == 1 and len(methods) > 1:
        return {label: style_at(i) for i, label in enumerate(methods)}
    taken = {(style.color, style.marker) for style in OF_METHOD.values()}
    free = (s for i in range(1000) if ((s := style_at(i)).color, s.marker) not in taken)
    own = {name: OF_METHOD[name] if name in OF_METHOD else next(free) for name in names}
    often: Counter[str] = Counter()
    found = {}
    for label, name in methods.items():
        found[label] = _variant(own[name], often[name])
        often[name] += 1
    return found


def styles_of_records(series: RecordsByLabel) -> dict[str, Style]:
    """`styles_of` by the methods of the records."""
    return styles_of({label: method_of(records[0]) for label, records in series.items()})


def styles_of_labels(labels: Sequence[str]) -> dict[str, Style]:
    """`styles_of` by the methods whose titles the labels begin with; other labels are their own."""
    titles = {METHODS.title(name): name for name in METHODS}
    begun = {label: [t for t in titles if label.startswith(t)] for label in labels}
    return styles_of(
        {label: titles[max(fit, key=len)] if fit else label for label, fit in begun.items()}
    )


def _variant(style: Style, number: int) -> Style:
    """The same colour with another marker and line, hollow; the first 32 differ."""
    if number == 0:
        return style
    turn, place = divmod(number, len(MARKERS))
    marker = MARKERS[(MARKERS.index(style.marker) + place) % len(MARKERS)]
    return Style(style.color, marker, LINES[(place + turn) % len(LINES)], hollow=True)
