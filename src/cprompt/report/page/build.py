"""The whole report in memory: the page, and the files beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cprompt.report import html
from cprompt.report.page.parts import SectionBuilder
from cprompt.report.runs import RecordedRun
from cprompt.report.series import sections


@dataclass(frozen=True)
class BuiltReport:
    """`files` by their path below the report's folder; `report.html` needs none of the others.

    series, unfinished: how many there are.
    """

    files: dict[str, bytes]
    series: int
    unfinished: int


def build(runs: Sequence[RecordedRun], title: str, notes: Sequence[str] = ()) -> BuiltReport:
    """The report on these runs; `notes` are at its top."""
    found = sections(runs)
    files: dict[str, bytes] = {}
    pages = [SectionBuilder(section, files).build() for section in found]
    unfinished = sum(not run.record.finished for run in runs)
    page = html.render(
        "report",
        title=title,
        notes=notes,
        n_runs=len(runs),
        n_unfinished=unfinished,
        contents=[(s.name, s.title, [(p.ident, p.heading) for p in s.parts]) for s in pages],
        sections=pages,
    )
    files["report.html"] = page.encode()
    return BuiltReport(files, sum(len(section.series) for section in found), unfinished)
