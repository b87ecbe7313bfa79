"""What `cprompt doctor --model` says of labels, as lines and as a page."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cprompt.errors import counted, plural, some
from cprompt.files import shown_path

if TYPE_CHECKING:
    from cprompt.classifier.label_check import LabelCheck

MOST_ON_PAGE = 200
CANNOT_TELL = (
    "this model cannot tell which photos it has learnt, because it keeps too few of their "
    "features, has a single head, or was trained, so wrong labels that it has learnt look right; "
    "judge them with a model of strata as it is by default"
)
"""What is said of a check that photos were judged in as if they were new."""


def lines(check: LabelCheck, files: Sequence[Path], show: int | None) -> list[str]:
    """The doubtful labels, at most `show` of them, and what could not be judged."""
    found = check.doubtful
    told = [f"{len(found)} of {check.judged} {_in_doubt(len(found), check.judged)}"]
    if not check.without_themselves:
        told.insert(0, f"warning: {CANNOT_TELL}")
    for each in found[:show]:
        told.append(
            f"    {files[each.index]}: {each.label} {100 * each.probability:.1f} %, "
            f"{each.other} {100 * each.other_probability:.0f} %"
        )
    if show is not None and len(found) > show:
        told.append(f"    and {len(found) - show} more; --all names them")
    if check.unknown_labels:
        number = len(check.unknown_labels)
        told.append(
            f"{counted(number, 'class is', 'classes are')} not in the model, so "
            f"{plural(number, 'its', 'their')} photos were not judged: {some(check.unknown_labels)}"
        )
    return told


def _in_doubt(number: int, of: int) -> str:
    return f"{plural(of, 'label')} {plural(number, 'is', 'are')} in doubt"


def page(check: LabelCheck, files: Sequence[Path], alike: Sequence[str], folder: Path) -> str:
    """One page with the photos in doubt, and those that look the same.

    alike: groups of paths, joined by " = ".
    """
    from cprompt.classifier.photos import load_photo
    from cprompt.report import html
    from cprompt.report.sheet import Shelf, Thumbnail, sheet_page

    def thumbnail(file: str | Path, lines: Sequence[tuple[str, str]]) -> Thumbnail:
        name = shown_path(os.path.relpath(file, folder))
        image = html.whole_thumbnail(load_photo(file, str(file)))
        return Thumbnail(image, [*lines, (name, "soft")])

    doubtful = [
        thumbnail(
            files[each.index],
            [
                (f"✗ {each.label}, {100 * each.probability:.1f} %", "wrong"),
                (f"{each.other}, {100 * each.other_probability:.0f} %?", "right"),
            ],
        )
        for each in check.doubtful[:MOST_ON_PAGE]
    ]
    repeated = [
        thumbnail(file, [(f"group {number}", "")])
        for number, group in enumerate(alike[:MOST_ON_PAGE], 1)
        for file in group.split(" = ")
    ]
    shelves = [
        Shelf(
            f"{counted(len(check.doubtful), 'label')} in doubt",
            "The worst first. Each photo was judged as if the model had not learnt it."
            if check.without_themselves
            else f"The worst first. Warning: {CANNOT_TELL}.",
            doubtful,
        )
    ]
    if repeated:
        shelves.append(
            Shelf(
                f"{counted(len(alike), 'group looks', 'groups look')} the same",
                "Photos of a group follow one another.",
                repeated,
            )
        )
    about = (
        f"{counted(check.judged, 'photo')} in {shown_path(folder)} "
        f"{plural(check.judged, 'was', 'were')} judged."
    )
    return sheet_page("Labels to look at", about, shelves)
