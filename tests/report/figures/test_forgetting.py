"""Bars of forgetting."""

from __future__ import annotations

import pytest
from matplotlib.colors import to_hex

from cprompt.report.figures.forgetting import forgetting
from cprompt.report.figures.style import style_at
from cprompt.research.record import Record
from tests.report.figures.records import joint


def test_bars_of_forgetting_keep_the_colour_of_their_series(hand_record: Record) -> None:
    figure = forgetting({"joint": [joint(hand_record)], "ours": [hand_record]})
    [axes] = figure.axes
    assert [bar.get_height() for bar in axes.patches] == pytest.approx([30, 20])
    assert to_hex(axes.patches[0].get_facecolor()) == style_at(1).color.lower()
    assert axes.lines[0].get_ydata().tolist() == pytest.approx([30, 20])
