"""Runs that whole reports are made of, and cheaper figures."""

from __future__ import annotations

import pytest
from matplotlib.figure import Figure

from cprompt.report import figures
from cprompt.report.runs import RecordedRun
from tests.report.records import MakeRun, learnt_at_once

ENDINGS = ("svg", "pdf", "png")


@pytest.fixture
def runs(make_run: MakeRun) -> list[RecordedRun]:
    """Three methods with two seeds, one of them not finished, and joint training."""
    return [
        *(make_run(seed=seed) for seed in (0, 1)),
        *(make_run("l2p", seed, picks=False) for seed in (0, 1)),
        make_run("finetune", 0, picks=False),
        make_run("finetune", 1, picks=False, tasks=2),
        learnt_at_once(make_run("joint", 0)),
    ]


@pytest.fixture
def empty_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures have their files, with nothing inside; tests of figures look into them."""
    monkeypatch.setattr(figures, "to_files", lambda figure: dict.fromkeys(ENDINGS, b""))


@pytest.fixture
def only_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves out the files of the figures, which take most of the time."""
    monkeypatch.setattr(figures, "to_files", lambda figure: {})


@pytest.fixture
def blank_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draws nothing, for tests of what is around the figures."""
    blank = Figure(figsize=(1, 1))
    for name in ("accuracy_curves", "accuracy_heatmaps", "forgetting", "prompt_pick_maps"):
        monkeypatch.setattr(figures, name, lambda series: blank)
    for name in ("class_accuracy", "losses", "costs"):
        monkeypatch.setattr(figures, name, lambda series: blank)
    monkeypatch.setattr(figures, "to_files", lambda figure: {})
