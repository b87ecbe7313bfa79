"""Bars of time, memory and parameters."""

from __future__ import annotations

import pytest

from cprompt.report.figures.costs import any_costs, costs
from cprompt.research.record import Record


def test_costs_show_the_parts_that_are_known(hand_record: Record) -> None:
    hand_record.memory = {"process": 2**30}
    figure = costs({"ours": [hand_record]})
    assert [axes.get_xlabel() for axes in figure.axes] == [
        "seconds per run",
        "peak memory, GiB",
        "parameters learnt, thousands",
    ]
    assert [bar.get_width() for bar in figure.axes[0].patches] == pytest.approx([61.4, 2.6])
    assert figure.axes[0].patches[1].get_x() == pytest.approx(61.4)
    assert [bar.get_width() for bar in figure.axes[1].patches] == [1]
    hand_record.memory = hand_record.parameters = {}
    assert len(costs({"ours": [hand_record]}).axes) == 1
    assert any_costs({"ours": [hand_record]})
    hand_record.seconds = {}
    assert not any_costs({"ours": [hand_record]})
