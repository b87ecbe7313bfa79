"""Loss terms over the stream."""

from __future__ import annotations

import copy

from cprompt.report.figures.losses import losses
from cprompt.research.record import Record


def test_losses_have_a_log_scale_where_they_span_a_lot(hand_record: Record) -> None:
    wide = copy.deepcopy(hand_record)
    wide.losses = [[{"ce": 100.0}, {"ce": 1.0}]] * 3
    zero = copy.deepcopy(hand_record)
    zero.losses = [[{"ce": 100.0, "ccl": 0.0}]] * 3
    figure = losses({"narrow": [hand_record], "wide": [wide], "zero": [zero]})
    assert [axes.get_yscale() for axes in figure.axes] == ["linear", "log", "linear"]
    [legend] = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["ce", "ccl"]
    assert [list(line.get_xdata()) for line in figure.axes[0].lines[1:]] == [[2.5] * 2, [4.5] * 2]


def test_series_without_losses_have_no_panel(hand_record: Record) -> None:
    untrained = copy.deepcopy(hand_record)
    untrained.losses = [[], [], []]
    [axes] = losses({"untrained": [untrained], "ours": [hand_record]}).axes
    assert axes.get_title(loc="left") == "ours"


def test_losses_that_are_no_numbers_are_not_drawn(hand_record: Record) -> None:
    hand_record.losses = [[{"ce": float("nan")}]] * 3
    [axes] = losses({"ours": [hand_record]}).axes
    assert axes.get_yscale() == "linear"
