"""Records: metrics by hand, nothing lost on the way to disk and back, nothing private in them."""

from __future__ import annotations

import json
import platform
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from cprompt.errors import CheckpointError
from cprompt.research.evaluation import TaskCounts
from cprompt.research.record import FILE, Record, environment, load_record
from cprompt.training.movement import Movement


def test_the_summary_by_hand(hand_record: Record) -> None:
    assert hand_record.summary() == pytest.approx(
        {
            # right: 8 of 10; 7 + 4 of 15; 5 + 3 + 1 of 18
            "last_accuracy": 50.0,
            "average_accuracy": (80 + 1100 / 15 + 50) / 3,
            # a: 80; 70 80; 50 60 33⅓
            "last_task_mean": (50 + 60 + 100 / 3) / 3,
            "average_task_mean": (80 + 75 + (110 + 100 / 3) / 3) / 3,
            "forgetting_paper": (30 + 20) / 2,
            "forgetting_released": (30 + 20) / 2,
            "forgetting_stepwise": (10 + (20 + 20) / 2) / 2,
            "backward_transfer": -25.0,
            "learning_accuracy": (80 + 80 + 100 / 3) / 3,
            "first_task_accuracy": 80.0,
            "old_accuracy": 100 * 8 / 15,
            "new_accuracy": 100 / 3,
            "top_k_accuracy": 100 * 13 / 18,
            "selection_accuracy": 100 * 11 / 18,
            # given: 10 of 10; 14 of 15; 13 of 18
            "last_accuracy_given": 100 * 13 / 18,
            "average_accuracy_given": (100 + 1400 / 15 + 1300 / 18) / 3,
            # first, of tasks 2 and 3 only: 2 of 5; 1 + 1 of 8
            "last_accuracy_first": 25.0,
            "average_accuracy_first": (40 + 25) / 2,
        }
    )


def test_what_is_undefined_is_left_out(hand_record: Record) -> None:
    hand_record.rows = hand_record.rows[:1]
    assert hand_record.summary() == {
        "last_accuracy": 80.0,
        "average_accuracy": 80.0,
        "last_task_mean": 80.0,
        "average_task_mean": 80.0,
        "learning_accuracy": 80.0,
        "first_task_accuracy": 80.0,
        "new_accuracy": 80.0,
        "selection_accuracy": 100.0,
        "last_accuracy_given": 100.0,
        "average_accuracy_given": 100.0,
    }


def test_a_method_without_prompts_of_tasks_has_no_selection_accuracy(hand_record: Record) -> None:
    hand_record.rows = [
        TaskCounts(r.count, {"selected": r.correct["selected"]}, None, None)
        for r in hand_record.rows
    ]
    left = hand_record.summary()
    assert left["last_accuracy"] == 50.0
    assert not {"selection_accuracy", "top_k_accuracy", "last_accuracy_given"} & set(left)


def test_a_record_without_rows_has_an_empty_summary(hand_record: Record) -> None:
    hand_record.rows = []
    assert hand_record.summary() == {}


def test_a_run_is_finished_with_its_last_task(hand_record: Record) -> None:
    assert hand_record.finished
    hand_record.rows.pop()
    assert not hand_record.finished


@pytest.mark.parametrize("tasks", [0, 1, 3])
def test_a_record_comes_back_as_it_was_written(
    hand_record: Record, tmp_path: Path, tasks: int
) -> None:
    hand_record.rows = hand_record.rows[:tasks]
    hand_record.movement = [{"prompts": Movement(2.0, 1.5, 1.0, 0.1)}, {}][:tasks]
    hand_record.save(tmp_path / "run")
    for path in (tmp_path / "run", tmp_path / "run" / FILE):
        assert load_record(path) == hand_record


def test_a_record_from_before_movement_was_measured_is_read(
    hand_record: Record, tmp_path: Path
) -> None:
    hand_record.save(tmp_path)
    written = json.loads((tmp_path / FILE).read_text())
    for added in ("movement", "warnings", "failure"):
        del written[added]
    (tmp_path / FILE).write_text(json.dumps(written))
    assert load_record(tmp_path) == hand_record
    assert (hand_record.movement, hand_record.warnings) == ([], [])


def test_warnings_are_in_the_file_and_worked_out_anew(hand_record: Record, tmp_path: Path) -> None:
    hand_record.movement = [{"prompts": Movement(2.0, 0.001, 0.001)}]
    hand_record.failure = "it stopped"
    hand_record.save(tmp_path)
    written = json.loads((tmp_path / FILE).read_text())
    assert [text.split()[0] for text in written["warnings"]] == ["prompts", "it"]
    (tmp_path / FILE).write_text(json.dumps(written | {"warnings": []}))
    assert load_record(tmp_path).warnings == written["warnings"]


def test_readers_of_the_file_find_the_summary_in_it(hand_record: Record, tmp_path: Path) -> None:
    hand_record.save(tmp_path)
    written = json.loads((tmp_path / FILE).read_text())
    assert (written["format"], written["version"]) == ("cprompt-record", 1)
    assert written["finished"] is True
    assert written["summary"] == hand_record.summary()
    assert written["stream"] == {"order": [3, 1, 4, 0, 2], "sizes": [2, 1, 2]}


def test_a_summary_that_was_changed_in_the_file_is_not_believed(
    hand_record: Record, tmp_path: Path
) -> None:
    hand_record.save(tmp_path)
    written = json.loads((tmp_path / FILE).read_text())
    written["summary"]["last_accuracy"] = 99.9
    (tmp_path / FILE).write_text(json.dumps(written))
    assert load_record(tmp_path).summary()["last_accuracy"] == 50.0


# --- files that are no records ------------------------------------------------------------------


def refusal(path: Path) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        load_record(path)
    return caught.value


def test_a_file_that_is_missing_or_no_json_is_named(tmp_path: Path) -> None:
    assert refusal(tmp_path).file == str(tmp_path / FILE)
    missing = refusal(tmp_path / "none.json")
    assert (missing.file, missing.message) == (str(tmp_path / "none.json"), "does not exist")
    (tmp_path / FILE).write_text('{"format": "cprompt-rec')
    cut = refusal(tmp_path)
    assert cut.file == str(tmp_path / FILE)
    assert "JSON" in cut.message


@pytest.mark.parametrize("other", ["[]", "3", "{}", '{"format": "cprompt-checkpoint"}'])
def test_a_file_of_another_format_is_named(tmp_path: Path, other: str) -> None:
    (tmp_path / FILE).write_text(other)
    error = refusal(tmp_path)
    assert (error.file, error.message) == (str(tmp_path / FILE), "is not a record of cprompt")


def test_a_record_of_another_version_is_named(hand_record: Record, tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(json.dumps({**hand_record.to_dict(), "version": 99}))
    error = refusal(tmp_path)
    assert error.file == str(tmp_path / FILE)
    assert "version 99" in error.message


DAMAGE: list[tuple[tuple[str | int, ...], Any]] = [
    (("rows",), None),
    (("rows",), [{"count": [1]}]),
    (("rows", 0), {"count": [1], "correct": {}, "top_k": None, "picks": None, "more": 1}),
    (("rows", 2, "correct"), {"given": [1, 1, 1, 1, 1]}),
    (("rows", 0, "correct", "selected"), [5, 6]),
    (("rows", 0, "correct", "selected"), ["3", "5"]),
    (("rows", 2, "top_k"), "many"),
    (("rows", 2, "picks"), [[1, 2], [3]]),
    (("stream",), None),
    (("stream", "sizes"), [2, 2]),
    (("stream", "order"), [0, 0, 1, 2, 3]),
    (("classes",), None),
]


@pytest.mark.parametrize(("place", "value"), DAMAGE)
def test_a_damaged_record_is_named(
    hand_record: Record, tmp_path: Path, place: tuple[str | int, ...], value: Any
) -> None:
    values = json.loads(json.dumps(hand_record.to_dict()))
    inside = values
    for key in place[:-1]:
        inside = inside[key]
    inside[place[-1]] = value
    (tmp_path / FILE).write_text(json.dumps(values))
    error = refusal(tmp_path)
    assert error.file == str(tmp_path / FILE)
    assert "damaged" in error.message


FIELDS = (
    *("format", "version", "finished", "partial", "summary", "warnings", "config", "stream"),
    *("dataset", "classes", "backbone", "pictures", "parameters", "rows", "losses", "movement"),
    *("seconds", "test_passes", "memory", "environment", "failure"),
)


@pytest.mark.parametrize("value", [None, "oops", [1]])
@pytest.mark.parametrize("field", FIELDS)
def test_whatever_a_field_holds_the_record_loads_or_is_refused(
    hand_record: Record, tmp_path: Path, field: str, value: Any
) -> None:
    values = hand_record.to_dict()
    assert set(FIELDS) == set(values)
    (tmp_path / FILE).write_text(json.dumps(values | {field: value}))
    read = field in ("finished", "partial", "summary", "warnings")  # worked out anew
    if read or (field, value) in (("failure", None), ("failure", "oops"), ("dataset", "oops")):
        assert load_record(tmp_path).summary() == hand_record.summary()
        return
    error = refusal(tmp_path)
    assert error.file == str(tmp_path / FILE)
    if field not in ("format", "version"):
        assert error.message.startswith("is a damaged record: ")
        assert f"`{field}" in error.message


@pytest.mark.parametrize("missing", ["rows", "stream", "config", "classes", "backbone", "dataset"])
def test_a_record_that_lacks_a_part_is_named(
    hand_record: Record, tmp_path: Path, missing: str
) -> None:
    values = hand_record.to_dict()
    del values[missing]
    (tmp_path / FILE).write_text(json.dumps(values))
    error = refusal(tmp_path)
    assert error.file == str(tmp_path / FILE)
    assert missing in error.message


# --- what is said of the machine ----------------------------------------------------------------


def test_the_environment_names_versions_and_hardware_but_neither_host_nor_paths() -> None:
    about = environment(torch.device("cpu"))
    assert about["torch"] == torch.__version__
    assert about["python"] == platform.python_version()
    assert (about["system"], about["device"]) == (platform.system(), "cpu")
    assert set(about) == {
        "cprompt",
        "python",
        "torch",
        "timm",
        "system",
        "device",
        "cpu",
        "cpu_count",
    }
    assert platform.node() not in about.values()
    for private in (str(Path.home()), str(Path.cwd()), sys.prefix):
        assert private == "/" or private not in json.dumps(about)
