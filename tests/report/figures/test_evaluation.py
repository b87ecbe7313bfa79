"""Figures of an evaluation show its counts."""

from __future__ import annotations

import numpy as np
import pytest

from cprompt.report.figures.evaluation import confusion, reliability


def test_a_confusion_is_coloured_by_share_and_shows_counts_and_names() -> None:
    figure = confusion(["cat", "d$g"], ["cat", "d$g", "unknown"], [[3, 1, 0], [0, 0, 0]])
    (axes,) = figure.axes
    (mesh,) = axes.collections
    shares = np.asarray(mesh.get_array()).reshape(2, 3)
    assert shares.tolist() == [[75, 25, 0], [0, 0, 0]]
    assert {t.get_position(): t.get_text() for t in axes.texts} == {(0, 0): "3", (1, 0): "1"}
    assert [t.get_text() for t in axes.get_xticklabels()] == ["cat", r"d\$g", "unknown"]
    assert axes.yaxis_inverted()


def test_long_names_are_cut() -> None:
    (axes,) = confusion(["x" * 90], ["x" * 90], [[1]]).axes
    (tick,) = axes.get_yticklabels()
    assert 10 < len(tick.get_text()) < 30
    assert tick.get_text().endswith("…")


def test_reliability_has_a_bar_per_bin_with_photos() -> None:
    bins = [
        {"low": 0.0, "high": 0.5, "photos": 4, "confidence": 0.4, "accuracy": 0.25},
        {"low": 0.5, "high": 0.7, "photos": 0, "confidence": 0.0, "accuracy": 0.0},
        {"low": 0.7, "high": 1.0, "photos": 9, "confidence": 0.9, "accuracy": 1.0},
    ]
    (axes,) = reliability(bins).axes
    bars = [(bar.get_x() + bar.get_width() / 2, bar.get_height()) for bar in axes.patches]
    assert bars == [pytest.approx((25, 25)), pytest.approx((85, 100))]
    assert [text.get_text() for text in axes.texts] == ["4", "9"]
    diagonal, dots = axes.lines
    assert list(diagonal.get_xdata()) == list(diagonal.get_ydata()) == [0, 100]
    assert list(dots.get_xdata()) == pytest.approx([40, 90])


def test_no_photos_make_an_empty_diagram() -> None:
    (axes,) = reliability([]).axes
    assert len(axes.patches) == 0
