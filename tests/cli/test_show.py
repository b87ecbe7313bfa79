"""`cprompt show`: a run from its record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cprompt.files import write_json
from cprompt.research.record import Record
from cprompt.training.movement import Movement
from tests.cli.common import Main, ok, squeezed


@pytest.mark.parametrize(
    ("mode", "rows"),
    [
        ("selected", ["1 80.0 80.0", "2 70.0 80.0 73.3", "3 50.0 60.0 33.3 50.0"]),
        ("given", ["1 100.0 100.0", "2 90.0 100.0 93.3", "3 70.0 80.0 66.7 72.2"]),
        ("first", ["1 30.0 30.0", "2 40.0 40.0 40.0", "3 30.0 20.0 33.3 27.8"]),
    ],
)
def test_show_prints_the_settings_the_matrix_of_a_mode_and_the_metrics(
    tmp_path: Path, hand_record: Record, mode: str, rows: list[str]
) -> None:
    hand_record.save(tmp_path)
    for place in (tmp_path, tmp_path / "record.json"):
        printed = ok("show", str(place), "--mode", mode)
        assert printed.startswith(
            "cprompt on shapes (shapes), finished: 3 of 3 tasks, 5 classes\n"
            "backbone test_vit (random:0, 0123456789ab)\n"
            "seeds: order 1993, init 1, data 1\n"
            "time: training 61 s, evaluation 3 s\n"
            "on cprompt 0, torch 2, cpu abacus, cpu_count 2\n"
        )
        lines = [squeezed(line).strip() for line in printed.splitlines()]
        start = lines.index("after task on 1 on 2 on 3 all seen") + 1
        assert lines[start : start + 3] == rows
        assert "Last-acc 50.00" in lines


def test_show_prints_what_training_moved_and_what_it_left(
    tmp_path: Path, hand_record: Record
) -> None:
    assert "moved by training" not in ok("show", _saved(hand_record, tmp_path))
    hand_record.movement = [
        {"prompts": Movement(10.0, 0.02, 0.001), "heads": Movement(0.0, 1.0, 1.0)},
        {"prompts": Movement(10.0, 3.0, 3.0)},
    ]
    printed = ok("show", _saved(hand_record, tmp_path))
    assert "\nwarning: prompts hardly moved in 1 of 2 tasks: by 0.01 % at most" in printed
    lines = [squeezed(line).strip() for line in printed.splitlines()]
    start = lines.index("moved by training, % task 1 task 2")
    assert lines[start + 1 :] == ["prompts 0.20 30.00", "heads 100.00"]


def _saved(record: Record, folder: Path) -> Path:
    record.save(folder)
    return folder


def test_show_of_a_record_that_says_little_prints_what_there_is(
    tmp_path: Path, hand_record: Record
) -> None:
    hand_record.config, hand_record.backbone = {}, {}
    printed = ok("show", _saved(hand_record, tmp_path))
    assert printed.startswith(
        "unknown on shapes (shapes), finished: 3 of 3 tasks, 5 classes\n"
        "backbone unknown (unknown)\n"
        "seeds: order –, init –, data –\n"
    )


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("backbone",), None),
        (("seconds", "training"), "long"),
        (("movement",), [1, 2]),
        (("config", "method"), {"tau": 1.1}),
    ],
)
def test_show_of_a_damaged_record_names_the_field(
    tmp_path: Path, hand_record: Record, main: Main, place: tuple[str, ...], value: Any
) -> None:
    values = json.loads(json.dumps(hand_record.to_dict()))
    inside = values
    for key in place[:-1]:
        inside = inside[key]
    inside[place[-1]] = value
    write_json(tmp_path / "record.json", values)
    message = main.error("show", tmp_path)
    assert message.startswith(
        f"{tmp_path / 'record.json'}: is a damaged record: `{'.'.join(place)}"
    )


def test_show_says_selected_unless_told(a_run: tuple[Path, str]) -> None:
    folder, _ = a_run
    assert ok("show", str(folder)) == ok("show", str(folder), "--mode", "selected")


def test_show_refuses_a_mode_that_was_not_measured(a_run: tuple[Path, str], main: Main) -> None:
    code, _, err = main("show", str(a_run[0]), "--mode", "oracle")
    assert code == 2
    assert "'oracle' was not measured; this record has selected, given, first" in err
    assert "Traceback" not in err


def test_show_of_a_run_just_begun_prints_what_there_is(tmp_path: Path, hand_record: Record) -> None:
    hand_record.rows = []
    hand_record.save(tmp_path)
    printed = ok("show", str(tmp_path))
    assert "under way: 0 of 3 tasks, 5 classes" in printed
    assert "Accuracy" not in printed


def test_a_dataset_that_looks_like_markup_is_printed_as_it_is(
    tmp_path: Path, hand_record: Record
) -> None:
    hand_record.dataset = "my [/b] photos"
    hand_record.save(tmp_path)
    assert "cprompt on shapes (my [/b] photos), finished" in ok("show", tmp_path)


def test_show_says_that_only_the_first_tasks_were_learnt(
    tmp_path: Path, hand_record: Record
) -> None:
    hand_record.config["stream"]["first_tasks"] = 2
    hand_record.rows.pop()
    printed = ok("show", _saved(hand_record, tmp_path))
    assert "finished: 2 of the first 2 tasks of 3, 5 classes\n" in printed
