"""Runs on Ray: each is one task that calls `cprompt.run`, and resumes if its worker died."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from cprompt.cluster.connection import connected
from cprompt.cluster.tasks import Work, collect, named_worker
from cprompt.data.image_set import Dataset
from cprompt.errors import ClusterError
from cprompt.research.config import RunConfig
from cprompt.research.experiment import run
from cprompt.research.record import FILE, Record, load_record
from cprompt.research.standing import Standing, TellsStanding
from cprompt.research.tracking import Tracking, make_trackers
from cprompt.training.observers import Observer, Observers
from cprompt.vit.backbone import Backbone
from cprompt.vit.loading import load_backbone

Watch = Callable[[Mapping[Path, Standing]], None]
"""Called about once a second with the standing of all runs."""


def is_finished(folder: Path) -> bool:
    """Whether a run in this folder has come to its end."""
    return (folder / FILE).exists() and load_record(folder).finished


def run_on_ray(
    configs: Mapping[Path, RunConfig],
    on: str,
    *,
    work: Work,
    track: Sequence[str] = ("jsonl",),
    max_parallel: int | None = None,
    watch: Watch = lambda standings: None,
) -> None:
    """Run or resume what is not finished, each run into its folder.

    A folder that a worker can see is used there: it holds the checkpoint from which a run goes on
    after its worker died. If it cannot, the run starts again, and its record comes back alone. A
    run that fails does not stop the others; its error is raised at the end.
    """
    missing = {f.absolute(): c for f, c in configs.items() if not is_finished(f)}
    standings = dict.fromkeys(missing, Standing())
    failed: dict[Path, ClusterError] = {}
    if not missing:
        return
    with connected(on) as ray:
        board = ray.remote(num_cpus=0, max_restarts=-1)(_Board).remote()
        task = work.remote(ray, _run)

        def look() -> None:
            with suppress(ray.exceptions.RayError):  # it died with its machine and starts again
                for name, standing in ray.get(board.read.remote(), timeout=5).items():
                    if standings[Path(name)].state in ("waiting", "running"):
                        standings[Path(name)] = standing
            watch(standings)

        def starting(folder: Path, config: RunConfig) -> Callable[[], Any]:
            def start() -> Any:
                folder.mkdir(parents=True, exist_ok=True)
                return task.remote(work, config, str(folder), list(track), board)

            return start

        def keep(folder: Path, result: dict[str, Any] | ClusterError) -> None:
            if isinstance(result, ClusterError):
                failed[folder] = result
            elif not is_finished(folder):
                Record.from_dict(result).save(folder)
            state: Literal["failed", "finished"] = "failed" if folder in failed else "finished"
            told = standings[folder]
            standings[folder] = Standing(state, told.tasks, told.tasks, told.where)
            watch(standings)

        tasks = {folder: starting(folder, config) for folder, config in missing.items()}
        try:
            collect(ray, tasks, keep, limit=max_parallel, meanwhile=look)
        finally:
            for folder in missing:
                with suppress(OSError):
                    folder.rmdir()  # only if nothing was begun there
    if failed:
        folder, error = next(iter(failed.items()))
        others = f", and {len(failed) - 1} more" if len(failed) > 1 else ""
        raise ClusterError(
            f"the run failed{others}: {error.message}", file=folder, hint=error.hint
        ) from error


class _Board:
    """Where runs say how far they are; an actor."""

    def __init__(self) -> None:
        self._standings: dict[str, Standing] = {}

    def write(self, folder: str, standing: Standing) -> None:
        self._standings[folder] = standing

    def read(self) -> dict[str, Standing]:
        return self._standings


def _telling(board: Any, folder: str) -> Observer:
    """Tells the board of each task."""
    import ray

    return TellsStanding(
        lambda standing: board.write.remote(folder, standing),
        str(ray.util.get_node_ip_address()),
    )


def _run(
    work: Work, config: RunConfig, folder: str, track: Sequence[str], board: Any
) -> dict[str, Any] | ClusterError:
    """On a worker: the record, or the error of this run."""
    try:
        with named_worker():
            work.begin()
            if Path(folder).is_dir():
                return _run_in(Path(folder), config, track, _telling(board, folder))
            with TemporaryDirectory() as here:
                return _run_in(Path(here), config, track, _telling(board, folder))
    except ClusterError as error:
        return error


def _run_in(
    folder: Path, config: RunConfig, track: Sequence[str], observer: Observer
) -> dict[str, Any]:
    import ray
    import torch

    with Tracking(make_trackers(list(track), folder), config) as tracking:
        record = run(
            config,
            folder,
            resume=True,
            observer=Observers(observer, tracking),
            dataset=_dataset(_Loaded(config)),
            backbone=_backbone(_Loaded(config)),
        )
    threads = torch.get_num_threads()
    record.environment |= {"engine": f"ray {ray.__version__}", "threads": threads}
    record.save(folder)
    return record.to_dict()


@dataclass(frozen=True)
class _Loaded:
    """What of a run decides its dataset and its backbone, so that the next one may share them."""

    config: RunConfig

    @property
    def _key(self) -> str:
        c = self.config
        return repr((c.backbone, c.data, c.seeds.data if c.data.validation else None))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Loaded) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


@lru_cache(maxsize=1)
def _dataset(loaded: _Loaded) -> Dataset:
    return loaded.config.data.load(loaded.config.seeds.data)


@lru_cache(maxsize=1)
def _backbone(loaded: _Loaded) -> Backbone:
    b = loaded.config.backbone
    return load_backbone(b.name, b.weights, b.image_size)
