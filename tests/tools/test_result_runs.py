"""tools/result_runs.py: which of the committed runs have other label ids."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cprompt.research.record import Record
from tests.scripts import load_tool


@pytest.mark.parametrize("dataset", ["stanford_cars", "stanford_cars-sorted-labels"])
def test_runs_over_sorted_names_are_numbered_otherwise(hand_record: Record, dataset: str) -> None:
    tool = load_tool("result_runs")
    record = replace(hand_record, dataset=dataset)
    assert tool.numbered_otherwise(record)
    assert not tool.numbered_otherwise(
        replace(record, dataset="stanford_cars", classes=record.classes[::-1])
    )
    assert not tool.numbered_otherwise(replace(record, dataset="cifar100"))


def test_exactly_the_committed_runs_on_cars_over_sorted_names_are() -> None:
    tool = load_tool("result_runs")
    for record in tool.records():
        by_name = list(record.classes) == sorted(record.classes)
        on_cars = record.dataset.startswith("stanford_cars")
        assert tool.numbered_otherwise(record) == (by_name and on_cars)
