"""A comparison as tables, Markdown, CSV and JSON."""

from __future__ import annotations

import csv
import io
import json

import pytest

from cprompt.report.comparison import Comparison, compare, grids
from cprompt.report.comparison.text import to_csv, to_json, to_markdown
from tests.report.comparison.records import with_last
from tests.report.records import MakeRun


@pytest.fixture
def found(make_run: MakeRun) -> Comparison:
    a = [with_last(make_run(seed=s), n) for s, n in ((1, 9), (2, 12), (3, 6))]
    b = [with_last(make_run("finetune", s, picks=False), n) for s, n in ((1, 6), (2, 6), (3, 3))]
    return compare(a, b)


def test_the_tables_say_difference_interval_and_tests(found: Comparison) -> None:
    settings, metrics, tasks = grids(found)
    assert settings.head == ("setting", "A", "B")
    assert settings.lines()[1] == ["method.name", "cprompt", "finetune"]
    head, last, *_ = metrics.lines()
    assert head == ["", "A", "B", "B - A", "95 % interval", "p (t)", "p (exact)", "pairs"]
    # differences of 3, 6 and 3 images of 18: mean -22.22, std 9.62, t(0.975, 2) = 4.303
    assert last == [
        "Last-acc",
        "50.00±16.67",
        "27.78±9.62",
        "-22.22",
        "-46.13 to +1.68",
        "0.0572",
        "0.25",
        "3",
    ]
    assert tasks.lines()[1][:3] == ["task 1", "10", "10"]


def test_markdown_has_both_sides_every_table_and_the_notes(found: Comparison) -> None:
    text = to_markdown(found)
    assert text.startswith("A: cprompt on shapes, seeds 1, 2, 3, test_vit")
    assert "| Last-acc | 50.00±16.67 | 27.78±9.62 | -22.22 | -46.13 to +1.68 | 0.0572 |" in text
    assert "3 pairs are too few to conclude" in text
    assert "**Accuracy at the end by task in %**" in text


def test_csv_parsed_back_gives_every_number_in_full(found: Comparison) -> None:
    rows = list(csv.DictReader(io.StringIO(to_csv(found))))
    by_name = {row["name"]: row for row in rows}
    last = by_name["last_accuracy"]
    assert float(last["difference"]) == pytest.approx(-100 * 12 / 54, abs=1e-12)
    assert (last["a runs"], last["pairs"], last["p exact"]) == ("3", "3", "0.25")
    assert (by_name["method.name"]["a"], by_name["method.name"]["b"]) == ("cprompt", "finetune")
    assert by_name["selection_accuracy"]["difference"] == ""
    assert {row["kind"] for row in rows} == {"setting", "metric", "task"}
    assert by_name["task 2"]["a images"] == "5"


def test_json_has_everything_by_name(found: Comparison) -> None:
    plain = json.loads(to_json(found))
    assert set(plain) == {"runs", "settings", "environment", "metrics", "tasks", "notes"}
    [last] = [line for line in plain["metrics"] if line["name"] == "last_accuracy"]
    assert last["a"] == {"mean": 50.0, "std": pytest.approx(100 / 6), "runs": 3}
    assert last["test"]["p_exact"] == 0.25
    assert plain["tasks"][2]["images"] == ["3", "3"]
    assert plain["settings"][0] == {"name": "method.name", "a": "cprompt", "b": "finetune"}
