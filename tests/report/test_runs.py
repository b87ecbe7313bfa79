"""Which files count as runs, and what is said of the others."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest

from cprompt.errors import CheckpointError
from cprompt.files import write_json
from cprompt.report.runs import RecordedRun, find_runs
from cprompt.research.record import Record


def other(record: Record, seed: int) -> Record:
    changed = copy.deepcopy(record)
    changed.config["seeds"] = dict.fromkeys(("order", "init", "data"), seed)
    return changed


def names(*paths: Path) -> list[str]:
    return [run.name for run in find_runs(paths)[0]]


def test_a_run_folder_a_record_file_and_a_folder_of_runs(
    tmp_path: Path, hand_record: Record
) -> None:
    for seed in range(3):
        other(hand_record, seed).save(tmp_path / "deep" / "below" / f"run{seed}")
    write_json(tmp_path / "deep" / "loose.json", other(hand_record, 9).to_dict())
    deep = tmp_path / "deep"
    assert names(deep / "below" / "run1") == ["run1"]
    assert names(deep / "below" / "run1" / "record.json") == ["run1"]
    assert names(deep / "loose.json") == ["loose"]
    assert names(deep / "below") == ["run0", "run1", "run2"]
    assert names(deep) == ["run0", "run1", "run2", "loose"]


def test_loose_json_is_found_only_directly_inside(tmp_path: Path, hand_record: Record) -> None:
    write_json(tmp_path / "a.json", other(hand_record, 1).to_dict())
    write_json(tmp_path / "sub" / "b.json", other(hand_record, 2).to_dict())
    assert names(tmp_path) == ["a"]


def test_what_is_found_and_is_not_a_record_is_skipped(tmp_path: Path, hand_record: Record) -> None:
    hand_record.save(tmp_path / "run")
    write_json(tmp_path / "notes.json", {"a": 1})
    (tmp_path / "list.json").write_text("[1, 2]")
    (tmp_path / "broken.json").write_text("{")
    runs, notes = find_runs([tmp_path])
    assert [run.name for run in runs] == ["run"]
    assert notes == []


def test_a_damaged_record_that_is_found_is_named(tmp_path: Path, hand_record: Record) -> None:
    hand_record.save(tmp_path / "run")
    values = hand_record.to_dict()
    write_json(tmp_path / "future.json", {**values, "version": 99})
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "record.json").write_text(json.dumps(values)[:100])
    runs, notes = find_runs([tmp_path])
    assert [run.name for run in runs] == ["run"]
    assert len(notes) == 2
    assert any("future.json" in note and "99" in note for note in notes)
    assert any("half/record.json" in note for note in notes)


def test_what_is_named_must_be_a_record(tmp_path: Path, hand_record: Record) -> None:
    hand_record.save(tmp_path / "run")
    write_json(tmp_path / "notes.json", {"a": 1})
    with pytest.raises(CheckpointError, match=r"notes\.json.* not a record"):
        find_runs([tmp_path / "run", tmp_path / "notes.json"])
    with pytest.raises(CheckpointError, match=r"nowhere.* not exist"):
        find_runs([tmp_path / "nowhere"])


def test_a_folder_without_records_is_named(tmp_path: Path, hand_record: Record) -> None:
    hand_record.save(tmp_path / "run")
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match="no record") as raised:
        find_runs([tmp_path / "run", tmp_path / "empty"])
    assert raised.value.file == str(tmp_path / "empty")
    assert "record files" in (raised.value.hint or "")


def test_a_record_found_twice_or_copied_counts_once(tmp_path: Path, hand_record: Record) -> None:
    hand_record.save(tmp_path / "run")
    hand_record.save(tmp_path / "same")
    runs, notes = find_runs([tmp_path / "run", tmp_path / "run" / "record.json", tmp_path])
    assert [run.name for run in runs] == ["run"]
    assert notes == ["same is a copy of run; it counts once."]


def test_a_pattern_names_what_it_matches(tmp_path: Path, hand_record: Record) -> None:
    for name, seed in (("l2p-2", 2), ("l2p-1", 1), ("cprompt-1", 3)):
        other(hand_record, seed).save(tmp_path / name)
    assert names(tmp_path / "l2p-*") == ["l2p-1", "l2p-2"]
    assert names(tmp_path / "*-[1]") == ["cprompt-1", "l2p-1"]
    with pytest.raises(CheckpointError, match="matches") as raised:
        find_runs([tmp_path / "coda-*"])
    assert raised.value.file == str(tmp_path / "coda-*")


def test_a_folder_whose_name_has_signs_of_a_pattern_is_that_folder(
    tmp_path: Path, hand_record: Record
) -> None:
    other(hand_record, 1).save(tmp_path / "run[1]")
    other(hand_record, 2).save(tmp_path / "run1")
    assert names(tmp_path / "run[1]") == ["run[1]"]


@pytest.mark.parametrize(
    ("seeds", "text"),
    [
        ({"order": 7, "init": 7, "data": 7}, "7"),
        ({"order": 1993, "init": 0, "data": 2}, "1993/0/2"),
        ({"order": "natural", "init": 0, "data": 0}, "natural/0/0"),
        ({"order": [3, 1, 2], "init": 0, "data": 0}, "list/0/0"),
        ({}, "?"),
    ],
)
def test_seeds_are_one_number_where_all_are_the_same(
    hand_record: Record, seeds: dict[str, object], text: str
) -> None:
    hand_record.config["seeds"] = seeds
    assert RecordedRun(Path("x/record.json"), hand_record).seeds_text == text


def test_the_state_says_how_far_a_run_got(hand_record: Record) -> None:
    run = RecordedRun(Path("x/record.json"), hand_record)
    assert run.state == "finished"
    hand_record.rows = hand_record.rows[:2]
    assert run.state == "unfinished, 2 of 3 tasks"
