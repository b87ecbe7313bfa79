"""docs/scale.md says what its record says."""

from __future__ import annotations

import pytest

from tests.scripts import load_tool

page = load_tool("scale_page")

RECORD = {
    "rates": {"read_seconds": 0.01, "pass_seconds": 0.02},
    "points": {
        "strata": [
            {"tasks": 10, "classes": 100, "begin_seconds": 1, "end_seconds": 2, "bytes": 1e6}
            | {"count_seconds_per_image": 0.001, "keys_and_heads_seconds": 0.003}
            | {"load_seconds": 0.5, "peak_bytes": 2**20},
            {"tasks": 100, "classes": 1000, "begin_seconds": 2, "end_seconds": 34, "bytes": 1e7}
            | {"count_seconds_per_image": 0.01, "keys_and_heads_seconds": 0.03}
            | {"load_seconds": 0.5, "peak_bytes": 2**30},
        ],
        "cprompt": [
            {"tasks": 100, "classes": 1000, "begin_seconds": 0, "end_seconds": 0, "bytes": 5e6}
            | {"step_seconds_per_image": 0.2, "predict_seconds": 0.05, "peak_bytes": None}
        ],
    },
}


def test_the_page_is_up_to_date() -> None:
    text = page.PAGE.read_text("utf-8")
    assert page.render(text) == text


def test_every_block_is_on_the_page() -> None:
    text = page.PAGE.read_text("utf-8")
    for name in page.BLOCKS:
        assert text.count(f"<!-- {name} -->") == 1


def test_growth_worked_by_hand() -> None:
    last = page.sizes(RECORD, "strata").splitlines()[-1].split(" | ")
    grown = [float(cell.strip("× |")) for cell in last[1:]]
    assert grown == [10, 2, 10, 17, 10, 10, 1, 1024]


def test_costs_of_many_images_worked_by_hand() -> None:
    cost = page.per_image(RECORD)
    assert cost["learn with Strata, one view"] == pytest.approx(0.04)
    assert cost["learn with CPrompt, per epoch"] == pytest.approx(0.21)
    row = page.images(RECORD).splitlines()[2]
    assert row == "| learn with Strata, one view | 40 ms | 5 core-days | 463 core-days |"


def test_limits_worked_by_hand() -> None:
    strata, cprompt = page.limits(RECORD).splitlines()[2:]
    assert strata == "| Strata | 10.0 kB | 64,000 | 0.5 core-hours |"
    assert cprompt == "| CPrompt | 5.0 kB | – | 0.0 core-minutes |"


def test_minutes_are_shown_where_hours_would_be_none() -> None:
    assert [page.core_time(s) for s in (66, 359, 360, 7200)] == [
        "1.1 core-minutes",
        "6.0 core-minutes",
        "0.1 core-hours",
        "2.0 core-hours",
    ]
