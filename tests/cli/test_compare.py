"""`cprompt compare`: what it prints in each format, and what it refuses."""

from __future__ import annotations

import copy
import csv
import io
import json
from pathlib import Path

import pytest

from cprompt.errors import CheckpointError, ConfigError
from cprompt.research.record import Record
from tests.cli import common


@pytest.fixture
def sides(tmp_path: Path, hand_record: Record) -> tuple[str, str]:
    """Three seeds with 9 of 18 right at the end, and the same without CCL with 10, 11 and 12."""
    for seed in range(3):
        record = copy.deepcopy(hand_record)
        record.config["seeds"] = dict.fromkeys(("order", "init", "data"), seed)
        record.save(tmp_path / "with" / f"seed{seed}")
        record.config["method"]["ccl"] = False
        record.environment["torch"] = "9"
        record.rows[-1].correct["selected"][1] += min(seed + 1, 2)
        record.rows[-1].correct["selected"][4] += max(seed - 1, 0)
        record.save(tmp_path / "without" / f"seed{seed}")
    return str(tmp_path / "with"), str(tmp_path / "without")


def ok(*arguments: str) -> str:
    return common.ok("compare", *arguments)


def lines(printed: str) -> list[list[str]]:
    return [line.split() for line in printed.splitlines()]


def test_the_terminal_shows_what_differs_the_metrics_and_the_tasks(sides: tuple[str, str]) -> None:
    printed = ok(*sides)
    assert printed.startswith("A: cprompt on shapes, seeds 0, 1, 2, test_vit (random:0, 01234567")
    rows = lines(printed)
    assert ["method.ccl", "true", "false"] in rows
    assert ["torch", "2", "9"] in rows
    # 1, 2 and 3 images of 18 more: mean 11.11, std 5.56, t(0.975, 2) = 4.3027
    assert [
        "Last-acc",
        "50.00±0.00",
        "61.11±5.56",
        "+11.11",
        "-2.69",
        "to",
        "+24.91",
        "0.0742",
        "0.25",
        "3",
    ] in rows
    assert any(row[:3] == ["task", "1", "10"] for row in rows)
    assert "3 pairs are too few to conclude: the exact test cannot go below 0.25." in printed


def test_the_same_run_twice_differs_in_nothing(sides: tuple[str, str]) -> None:
    printed = ok(f"{sides[0]}/seed0", f"{sides[0]}/seed0/record.json")
    assert "No setting differs" in printed
    assert ["Last-acc", "50.00", "50.00", "+0.00", "–", "–", "–", "1"] in lines(printed)
    assert "nothing to test it with" in printed


def test_every_format_has_the_same_numbers(sides: tuple[str, str]) -> None:
    markdown = ok(*sides, "--format", "markdown")
    assert "| Last-acc | 50.00±0.00 | 61.11±5.56 | +11.11 |" in markdown
    rows = list(csv.DictReader(io.StringIO(ok(*sides, "--format", "csv"))))
    [last] = [row for row in rows if row["name"] == "last_accuracy"]
    assert float(last["difference"]) == pytest.approx(100 / 9)
    plain = json.loads(ok(*sides, "--format", "json"))
    [last] = [line for line in plain["metrics"] if line["name"] == "last_accuracy"]
    assert last["test"]["difference"] == pytest.approx(100 / 9)
    assert last["test"]["p_exact"] == 0.25


def test_runs_left_out_are_said(sides: tuple[str, str]) -> None:
    (Path(sides[0]) / "half").mkdir()
    (Path(sides[0]) / "half" / "record.json").write_text("{")
    assert "half/record.json: is not readable JSON" in ok(*sides)


def test_mixed_settings_and_missing_runs_are_refused(
    tmp_path: Path, sides: tuple[str, str]
) -> None:
    with pytest.raises(ConfigError, match=r"B mixes runs of different settings: method\.ccl is"):
        ok(sides[0], str(tmp_path))
    with pytest.raises(CheckpointError, match="nowhere: does not exist"):
        ok(sides[0], str(tmp_path / "nowhere"))
