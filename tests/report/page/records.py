"""Reports of tests, and how they are read."""

from __future__ import annotations

from cprompt.report.page import build
from cprompt.report.runs import RecordedRun
from tests.report.reader import Reader

NASTY = "<script>alert('1')</script> & \"$x_1$\""


class Page(Reader):
    """A whole document: nothing is left open."""

    def __init__(self, document: bytes) -> None:
        super().__init__(document.decode())
        assert self.open == []


def page_of(runs: list[RecordedRun]) -> Page:
    return Page(build(runs, "Title").files["report.html"])
