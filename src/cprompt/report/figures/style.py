"""How a series looks: its colour, marker and line, also for readers who do not see colours."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import NamedTuple

from cprompt.methods.registry import METHODS
from cprompt.report.numbers import RecordsByLabel
from cprompt.report.settings import method_of

# Okabe and Ito's colours, which people with any common colour blindness can tell apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C564B", "#777777")
MARKERS = "osD^vPX*"
LINES = ("-", "--", "-.", ":")
MOST_VARIANTS = 3
"""Series of one method that share its colour in a figure."""
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

    A method of the package has its own style, another one the next style that is free. Up to
    MOST_VARIANTS labels of a method share its colour; all but the first have other, hollow markers
    and other lines. More would be hard to tell apart, so all but the first have styles that are
    free; where all labels are of one method, each has the style of its position.
    """
    count = Counter(methods.values())
    if len(count) == 1 and len(methods) > MOST_VARIANTS:
        return {label: style_at(i) for i, label in enumerate(methods)}
    free = _free({OF_METHOD[name].color for name in count if name in OF_METHOD})
    own = {name: OF_METHOD[name] if name in OF_METHOD else next(free) for name in count}
    often: Counter[str] = Counter()
    found = {}
    for label, name in methods.items():
        many = count[name] > MOST_VARIANTS and often[name] > 0
        found[label] = next(free) if many else _variant(own[name], often[name])
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


def _free(used: Set[str]) -> Iterator[Style]:
    """Styles that no method of the package has; those in other colours than `used` come first."""
    taken = {(style.color, style.marker) for style in OF_METHOD.values()}
    found = [s for i in range(32) if ((s := style_at(i)).color, s.marker) not in taken]
    return itertools.cycle(sorted(found, key=lambda style: style.color in used))


def _variant(style: Style, number: int) -> Style:
    """The same colour with another marker and line, hollow, but for the first."""
    if number == 0:
        return style
    marker = MARKERS[(MARKERS.index(style.marker) + number) % len(MARKERS)]
    return Style(style.color, marker, LINES[number], hollow=True)
