"""What trackers are told, read back from where each of them keeps it."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cprompt.errors import ConfigError
from cprompt.research import metrics
from cprompt.research.config import resolve
from cprompt.research.experiment import run
from cprompt.research.record import Record
from cprompt.research.tracking import Axis, JsonLines, Outcome, Tracker, Tracking, make_trackers
from cprompt.training.observers import Observer, Observers
from tests.stopping import StopAt

EPOCHS = 2


def tracked(
    tiny: dict[str, Any],
    folder: Path,
    trackers: list[Tracker],
    *,
    stop_at: int | None = None,
    resume: bool = False,
) -> Record:
    config = resolve(
        "shapes",
        "cprompt",
        overrides=tiny
        | {
            "method.length": 2,
            "training.epochs": EPOCHS,
            "execution.checkpoint_seconds": 0,
        },
    )
    stop = Observer() if stop_at is None else StopAt(stop_at)
    with Tracking(trackers, config) as tracking:
        return run(config, folder, observer=Observers(stop, tracking), resume=resume)


def expected(record: Record) -> dict[tuple[str, int], float]:
    """Every value that a run says, by (name, step), from its record alone."""
    values: dict[tuple[str, int], float] = {}
    for task, epochs in enumerate(record.losses):
        assert len(epochs) == EPOCHS
        for epoch, terms in enumerate(epochs):
            step = task * EPOCHS + epoch + 1
            for name, value in terms.items():
                values[f"loss/{name}", step] = value
            values["loss/sum", step] = sum(terms.values())
    matrix = metrics.accuracy_matrix(record.matrix())
    for i in range(record.stream.n_tasks):
        for j in range(i + 1):
            values[f"accuracy/task_{j + 1:02d}", i + 1] = float(matrix[i, j])
    for name, value in record.summary().items():
        values[f"metric/{name}", record.stream.n_tasks] = value
    return values


def from_lines(folder: Path) -> dict[tuple[str, int], float]:
    values: dict[tuple[str, int], float] = {}
    first, *rest = (folder / JsonLines.FILE).read_text().splitlines()
    assert json.loads(first)["settings"]["training.epochs"] == EPOCHS
    for line in rest:
        said = json.loads(line)
        said.pop("time")
        step = said.pop("epoch", None) or said.pop("task")
        for name, value in said.items():
            assert (name, step) not in values, "said twice"
            values[name, step] = value
    return values


def assert_holds(
    values: Mapping[tuple[str, int], float], record: Record, tolerance: float = 0.0
) -> None:
    for key, value in expected(record).items():
        assert values[key] == pytest.approx(value, rel=tolerance, abs=tolerance), key


def test_lines_of_json_hold_every_loss_and_metric_once(
    tiny: dict[str, Any], tmp_path: Path
) -> None:
    record = tracked(tiny, tmp_path, make_trackers(["jsonl"], tmp_path))
    values = from_lines(tmp_path)
    assert_holds(values, record)
    losses = [key for key in values if key[0] == "loss/sum"]
    assert len(losses) == EPOCHS * record.stream.n_tasks


@pytest.mark.parametrize("stop_at", [2, 6, 9, 13])
def test_a_resumed_run_leaves_the_lines_of_an_uninterrupted_one(
    tiny: dict[str, Any], tmp_path: Path, stop_at: int
) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    tracked(tiny, whole, [JsonLines(whole)])
    with pytest.raises(KeyboardInterrupt):
        tracked(tiny, parts, [JsonLines(parts)], stop_at=stop_at)
    with (parts / JsonLines.FILE).open("a") as file:  # what a kill in the middle of a line leaves
        file.write('{"epoch": 1, "lo')
    tracked(tiny, parts, [JsonLines(parts)], resume=True)
    assert from_lines(parts) == from_lines(whole)


def test_what_was_said_after_the_checkpoint_is_cut_off(tmp_path: Path) -> None:
    lines = JsonLines(tmp_path)
    lines.begin({"training.epochs": EPOCHS}, {"task": 0, "epoch": 0})
    for axis, step in (("epoch", 1), ("epoch", 2), ("task", 1), ("epoch", 3), ("epoch", 4)):
        lines.log({"x": float(step)}, axis, step)  # type: ignore[arg-type]
    lines.end("stopped")
    again = JsonLines(tmp_path)
    again.begin({"training.epochs": EPOCHS}, {"task": 1, "epoch": 3})
    again.log({"x": 40.0}, "epoch", 4)
    again.end("finished")
    said = [json.loads(line) for line in (tmp_path / JsonLines.FILE).read_text().splitlines()]
    assert [line.get("x") for line in said] == [None, 1.0, 2.0, 1.0, 3.0, 40.0]


def test_a_run_that_starts_anew_starts_the_file_anew(tmp_path: Path) -> None:
    for value in (1.0, 2.0):
        lines = JsonLines(tmp_path)
        lines.begin({}, {"task": 0, "epoch": 0})
        lines.log({"x": value}, "epoch", 1)
        lines.end("finished")
    assert [json.loads(s).get("x") for s in (tmp_path / JsonLines.FILE).open()] == [None, 2.0]


def test_tensorboard_shows_the_same_values_also_after_resuming(
    tiny: dict[str, Any], tmp_path: Path
) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    with pytest.raises(KeyboardInterrupt):
        tracked(tiny, tmp_path, make_trackers(["tensorboard"], tmp_path), stop_at=9)
    record = tracked(tiny, tmp_path, make_trackers(["tensorboard"], tmp_path), resume=True)
    values: dict[tuple[str, int], float] = {}
    for axis in ("epoch", "task"):
        events = accumulator.EventAccumulator(str(tmp_path / "tensorboard" / axis))
        events.Reload()
        for tag in events.Tags()["scalars"]:
            steps = [event.step for event in events.Scalars(tag)]
            assert steps == sorted(set(steps)), tag
            values |= {(tag, e.step): e.value for e in events.Scalars(tag)}
    assert_holds(values, record, 1e-6)


def test_wandb_gets_every_value_and_goes_on_with_its_run(
    tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    with pytest.raises(KeyboardInterrupt):
        tracked(tiny, tmp_path, make_trackers(["wandb"], tmp_path), stop_at=9)
    known = json.loads((tmp_path / "tracking.json").read_text())["wandb"]
    record = tracked(tiny, tmp_path, make_trackers(["wandb"], tmp_path), resume=True)
    files = sorted(tmp_path.glob("wandb/offline-run-*/*.wandb"))
    assert len(files) == 2
    assert {file.stem for file in files} == {f"run-{known}"}
    assert_holds(from_wandb(files), record)


def from_wandb(files: list[Path]) -> dict[tuple[str, int], float]:
    values: dict[tuple[str, int], float] = {}
    for file in files:
        for message in wandb_messages(file):
            items = {
                item.key or "/".join(item.nested_key): json.loads(item.value_json)
                for item in message.history.item
            }
            step = items.get("epoch") or items.get("task")
            values |= {(name, step): value for name, value in items.items() if "/" in name}
    return values


def wandb_messages(file: Path) -> list[Any]:
    """What a run logged; wandb's own process may still be writing the end of it."""
    from wandb.proto import wandb_internal_pb2 as messages

    until = time.monotonic() + 30
    while True:
        found = [messages.Record.FromString(data) for data in wandb_log(file.read_bytes())]
        if found and found[-1].HasField("exit"):
            return found
        assert time.monotonic() < until, f"{file} has no end"
        time.sleep(0.1)


def wandb_log(content: bytes) -> list[bytes]:
    """The messages of a LevelDB log: chunks of crc (4), length (2), kind (1) and data, none of
    which crosses a border of 32 KiB; kind 1 is a whole message, 2 to 4 its first to last chunk."""
    found, part, at = [], b"", 7  # after the file's own header
    while at + 7 <= len(content):
        if (room := 32768 - at % 32768) < 7:
            at += room
            continue
        length, kind = int.from_bytes(content[at + 4 : at + 6], "little"), content[at + 6]
        if at + 7 + length > len(content):
            break  # it is still being written
        part += content[at + 7 : at + 7 + length]
        if kind in (1, 4):
            found.append(part)
            part = b""
        at += 7 + length
    return found


def test_mlflow_gets_every_value_and_goes_on_with_its_run(
    tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import mlflow

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    folder = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        tracked(tiny, folder, make_trackers(["mlflow"], folder), stop_at=9)
    client, known = mlflow.MlflowClient(), json.loads((folder / "tracking.json").read_text())
    assert client.get_run(known["mlflow"]).info.status == "KILLED"
    record = tracked(tiny, folder, make_trackers(["mlflow"], folder), resume=True)
    seen = client.get_run(known["mlflow"])
    assert seen.info.status == "FINISHED"
    assert seen.data.params["training.epochs"] == str(EPOCHS)
    values = {
        (name, metric.step): metric.value
        for name in seen.data.metrics
        for metric in client.get_metric_history(known["mlflow"], name)
    }
    assert_holds(values, record)


def test_a_run_that_starts_anew_gets_a_new_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    names = []
    for steps in (0, 0, 3):
        (tracker,) = make_trackers(["wandb"], tmp_path)
        tracker.begin({"benchmark": "shapes"}, {"task": 0, "epoch": steps})
        tracker.end("finished")
        names.append(json.loads((tmp_path / "tracking.json").read_text())["wandb"])
    assert names[0] != names[1] == names[2]


class Broken:
    """Fails at the third value, as a server does that goes away."""

    def __init__(self) -> None:
        self.left = 2

    def begin(self, settings: Mapping[str, Any], steps_before: Mapping[Axis, int]) -> None:
        pass

    def log(self, values: Mapping[str, float], axis: Axis, step: int) -> None:
        self.left -= 1
        if self.left < 0:
            raise OSError("server gone")

    def end(self, outcome: Outcome) -> None:
        raise AssertionError("must not be told any more")


def test_a_tracker_that_fails_is_left_behind_and_the_run_goes_on(
    tiny: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.warns(UserWarning, match=r"Broken .*: server gone"):
        record = tracked(tiny, tmp_path, [Broken(), JsonLines(tmp_path)])
    assert record.finished
    assert_holds(from_lines(tmp_path), record)


def test_an_unknown_tracker_is_named_with_its_nearest() -> None:
    with pytest.raises(ConfigError, match="no tracker 'tensorbord'; did you mean 'tensorboard'"):
        make_trackers(["tensorbord"], Path("nowhere"))


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "mlflow"])
def test_a_missing_package_is_an_error_before_the_run(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError) as refused:
        make_trackers([name], Path("nowhere"))
    assert name in refused.value.message
    assert refused.value.hint == f"pip install 'cprompt[{name}]'"


def test_none_is_no_tracker() -> None:
    assert make_trackers(["none"], Path("nowhere")) == []
