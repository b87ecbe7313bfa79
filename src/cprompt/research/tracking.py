"""Experiment tracking: TensorBoard, Weights & Biases, MLflow, or lines of JSON.

A tracker gets the settings once, losses after every epoch and metrics after every task. No run
depends on it: a tracker that fails during a run is dropped with a warning.
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Literal, Protocol

from cprompt.errors import ConfigError
from cprompt.files import read_json, write_bytes, write_json
from cprompt.research.config import RunConfig, flatten
from cprompt.settings import suggest
from cprompt.training.observers import Observer

Axis = Literal["epoch", "task"]
"""What a step counts: epochs over all tasks, or tasks; both from 1."""

Outcome = Literal["finished", "stopped", "failed"]


class Tracker(Protocol):
    """One destination for values."""

    def begin(self, settings: Mapping[str, Any], steps_before: Mapping[Axis, int]) -> None:
        """A run starts, or resumes after `steps_before`; values of later steps are discarded."""

    def log(self, values: Mapping[str, float], axis: Axis, step: int) -> None:
        """Values of one step."""

    def end(self, outcome: Outcome) -> None:
        """The run ended, or was stopped and may be resumed later."""


class Tracking(Observer):
    """An observer that passes events to trackers; a context manager, which reports the end."""

    def __init__(self, trackers: Sequence[Tracker], config: RunConfig) -> None:
        self._trackers = list(trackers)
        self._config = config
        self._begun = False

    def __enter__(self) -> Tracking:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._begun:
            return
        outcome: Outcome = "finished"
        if kind is not None:
            outcome = "stopped" if issubclass(kind, KeyboardInterrupt) else "failed"
        self._notify(lambda tracker: tracker.end(outcome))

    def task_begins(self, task: int, n_classes: int, steps: int, done: int) -> None:
        """The first call begins tracking where the run starts or resumes."""
        if self._begun:
            return
        self._begun = True
        epochs = self._config.training.epochs
        in_task = done * epochs // max(steps, 1)
        before: dict[Axis, int] = {"task": task, "epoch": task * epochs + in_task}
        settings = flatten(self._config.public())
        for tracker in self._trackers:
            tracker.begin(settings, before)  # not caught: nothing has been computed yet

    def epoch_ends(self, task: int, epoch: int, losses: Mapping[str, float]) -> None:
        """Log each loss term, and their sum, which is minimised."""
        values = {f"loss/{name}": value for name, value in losses.items()}
        values["loss/sum"] = sum(losses.values())
        step = task * self._config.training.epochs + epoch + 1
        self._notify(lambda tracker: tracker.log(values, "epoch", step))

    def task_ends(
        self, task: int, summary: Mapping[str, float], accuracies: Sequence[float]
    ) -> None:
        """Log every metric, and the accuracy on each task so far."""
        values = {f"metric/{name}": value for name, value in summary.items()}
        values |= {f"accuracy/task_{j + 1:02d}": a for j, a in enumerate(accuracies)}
        self._notify(lambda tracker: tracker.log(values, "task", task + 1))

    def _notify(self, send: Callable[[Tracker], None]) -> None:
        for tracker in tuple(self._trackers):
            try:
                send(tracker)
            except Exception as error:  # a client may raise anything
                self._trackers.remove(tracker)
                warnings.warn(
                    f"{type(tracker).__name__} failed and is dropped, the run continues: {error}",
                    stacklevel=2,
                )


class JsonLines:
    """`events.jsonl` in the run's folder: one line of settings, then one line per step."""

    FILE = "events.jsonl"

    def __init__(self, folder: Path) -> None:
        self._path = folder / self.FILE
        self._file: IO[str] | None = None

    def begin(self, settings: Mapping[str, Any], steps_before: Mapping[Axis, int]) -> None:
        """Create the file, or remove the lines that a resumed run will write again."""
        kept = [line for line in self._lines() if self._is_kept(line, steps_before)]
        if not kept:
            kept = [json.dumps({"settings": dict(settings)}, ensure_ascii=False)]
        write_bytes(self._path, "".join(line + "\n" for line in kept).encode())
        self._file = self._path.open("a", encoding="utf-8")

    def log(self, values: Mapping[str, float], axis: Axis, step: int) -> None:
        """One line, flushed."""
        assert self._file is not None
        line = {axis: step, "time": round(time.time(), 3), **values}
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()

    def end(self, outcome: Outcome) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def _lines(self) -> list[str]:
        if not self._path.exists():
            return []
        return self._path.read_text(encoding="utf-8").splitlines()

    @staticmethod
    def _is_kept(line: str, steps_before: Mapping[Axis, int]) -> bool:
        """Whether a line of an earlier part of the run stays valid."""
        if not any(steps_before.values()):
            return False
        try:
            event = json.loads(line)
        except ValueError:  # the last line of a run that was killed
            return False
        return all(event.get(axis, 0) <= step for axis, step in steps_before.items())


class TensorBoard:
    """`tensorboard/` in the run's folder, for `tensorboard --logdir runs`."""

    def __init__(self, folder: Path) -> None:
        _need("tensorboard", "tensorboard")
        self._folder = folder / "tensorboard"
        self._writers: dict[Axis, Any] = {}

    def begin(self, settings: Mapping[str, Any], steps_before: Mapping[Axis, int]) -> None:
        """Open one writer per axis, because a resumed run purges from one step on."""
        from torch.utils.tensorboard import SummaryWriter

        for axis, done in steps_before.items():
            self._writers[axis] = SummaryWriter(
                str(self._folder / axis), purge_step=done + 1 if done else None
            )
        lines = [f"    {name}: {value}" for name, value in settings.items()]
        self._writers["task"].add_text("settings", "\n".join(lines))

    def log(self, values: Mapping[str, float], axis: Axis, step: int) -> None:
        """Write scalars."""
        for name, value in values.items():
            self._writers[axis].add_scalar(name, value, step)
        self._writers[axis].flush()

    def end(self, outcome: Outcome) -> None:
        """Close the files."""
        for writer in self._writers.values():
            writer.close()


class WandB:
    """Weights & Biases, configured by its own environment variables."""

    def __init__(self, folder: Path) -> None:
        _need("wandb", "wandb")
        self._folder = folder
        self._run: Any = None

    def begin(self, settings: Mapping[str, Any], steps_before: Mapping[Axis, int]) -> None:
        """Open the run that the folder remembers, or a new one."""
        import wandb

        known = _known(self._folder, "wandb", steps_before)
        try:
            self._run = wandb.init(
                project="cprompt",
                name=self._folder.name,
                group=str(settings.get("benchmark")),
                config=dict(settings),
                dir=str(self._folder),
                id=known,
                resume="allow" if known else None,
            )
        except Exception as error:
            raise ConfigError(
                f"Weights & Biases cannot be used ({error})",
                hint="log in with `wandb login`, set WANDB_MODE=offline, or omit --track wandb",
            ) from error
        _remember(self._folder, "wandb", self._run.id)
        for axis in steps_before:  # values are plotted over these, not over wandb's own counter
            self._run.define_metric(axis, hidden=True)
        self._run.define_metric("loss/*", step_metric="epoch")
        for group in ("metric/*", "accuracy/*"):
            self._run.define_metric(group, step_metric="task")

    def log(self, values: Mapping[str, float], axis: Axis, step: int) -> None:
        """Log values with their step."""
        self._run.log({axis: step, **values})

    def end(self, outcome: Outcome) -> None:
        """Close the run."""
        self._run.finish(exit_code=0 if outcome == "finished" else 1)


class MLflow:
    """MLflow, at MLFLOW_TRACKING_URI or its default; the experiment is the benchmark."""

    STATUS: Mapping[Outcome, str] = {
        "finished": "FINISHED",
        "stopped": "KILLED",
        "failed": "FAILED",
    }

    def __init__(self, folder: Path) -> None:
        _need("mlflow", "mlflow")
        self._folder = folder
        self._client: Any = None
        self._run_id = ""

    def begin(self, settings: Mapping[str, Any], steps_before: Mapping[Axis, int]) -> None:
        """Open the run that the folder remembers, or a new one."""
        import mlflow
        from mlflow.entities import Param

        try:
            self._client = client = mlflow.MlflowClient()
            known = _known(self._folder, "mlflow", steps_before)
            if known is not None:
                self._run_id = known
                client.update_run(known, status="RUNNING")
                return
            name = f"cprompt {settings.get('benchmark')}"
            there = client.get_experiment_by_name(name)
            experiment = there.experiment_id if there else client.create_experiment(name)
            self._run_id = client.create_run(experiment, run_name=self._folder.name).info.run_id
            params = (Param(name, str(value)[:500]) for name, value in settings.items())
            while some := list(islice(params, 100)):  # as many as one request may hold
                client.log_batch(self._run_id, params=some)
        except Exception as error:
            raise ConfigError(
                f"MLflow cannot be used ({error})",
                hint="set MLFLOW_TRACKING_URI to a running server, or omit --track mlflow",
            ) from error
        _remember(self._folder, "mlflow", self._run_id)

    def log(self, values: Mapping[str, float], axis: Axis, step: int) -> None:
        """Log metrics."""
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        metrics = [Metric(name, value, now, step) for name, value in values.items()]
        self._client.log_batch(self._run_id, metrics=metrics)

    def end(self, outcome: Outcome) -> None:
        """Close the run."""
        self._client.set_terminated(self._run_id, self.STATUS[outcome])


TRACKERS: Mapping[str, Callable[[Path], Tracker]] = {
    "jsonl": JsonLines,
    "tensorboard": TensorBoard,
    "wandb": WandB,
    "mlflow": MLflow,
}


def make_trackers(names: Sequence[str], folder: Path) -> list[Tracker]:
    """The trackers of these names for the run in `folder`; "none" adds no tracker."""
    for name in names:
        if name not in (*TRACKERS, "none"):
            raise ConfigError(f"no tracker {name!r}", hint=suggest(name, [*TRACKERS, "none"]))
    return [TRACKERS[name](folder) for name in dict.fromkeys(names) if name != "none"]


_MEMORY = "tracking.json"


def _remembered(folder: Path) -> dict[str, str]:
    """The ids of the run in `folder` in other programs, by program."""
    path = folder / _MEMORY
    return dict(read_json(path)) if path.exists() else {}


def _known(folder: Path, program: str, steps_before: Mapping[Axis, int]) -> str | None:
    """The id to continue under; None for a run that starts from the beginning."""
    return _remembered(folder).get(program) if any(steps_before.values()) else None


def _remember(folder: Path, program: str, name: str) -> None:
    write_json(folder / _MEMORY, {**_remembered(folder), program: name})


def _need(module: str, extra: str) -> None:
    with suppress(ImportError):
        __import__(module)
        return
    raise ConfigError(
        f"--track {extra} needs {module}, which is not installed",
        hint=f"pip install 'cprompt[{extra}]'",
    )
