"""Runs on Ray: complete and right though a machine dies; bit-equal to runs here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from cprompt import plugins
from cprompt.cluster.runs import Standing, is_finished, run_on_ray
from cprompt.cluster.tasks import Work
from cprompt.errors import ClusterError
from cprompt.methods.registry import MethodRegistry
from cprompt.research.checkpoint import CHECKPOINT, load_checkpoint
from cprompt.research.config import RunConfig, resolve
from cprompt.research.experiment import run
from cprompt.research.record import load_record
from tests.cluster.conftest import TwoNodes

DYING = "tests.cluster.dying"
WAITING = "tests.cluster.waiting"


def configs(
    folder: Path, tiny: dict[str, Any], *seeds: int, method: str = "finetune"
) -> dict[Path, RunConfig]:
    return {
        folder / str(seed): resolve(
            "shapes", method, overrides={**tiny, "seeds.init": seed, "seeds.data": seed}
        )
        for seed in seeds
    }


def test_four_runs_end_complete_and_right_though_a_node_dies(
    cluster: TwoNodes,
    tiny: dict[str, Any],
    tmp_path: Path,
    once: Callable[[Callable[[], object]], Callable[[], None]],
    own_methods: MethodRegistry,
) -> None:
    """No run gets past its second task before the node is dead."""
    plugins.import_module(WAITING)
    go = tmp_path / "go"
    waiting = {**tiny, "method.go": str(go)}
    asked = configs(tmp_path / "ray", waiting, 1, 2, 3, 4, method="waiting")

    def kill_node() -> None:
        cluster.kill_node("_run")
        go.touch()

    kill = once(kill_node)
    seen: list[Mapping[Path, Standing]] = []

    def watch(standings: Mapping[Path, Standing]) -> None:
        seen.append(dict(standings))
        if any(each.state == "running" for each in standings.values()):
            kill()

    work = Work(plugins=(WAITING,))
    run_on_ray(asked, cluster.address, work=work, watch=watch)
    assert go.exists()
    assert {each.state for each in seen[-1].values()} == {"finished"}
    assert any(each.state == "running" and each.tasks == 3 for s in seen for each in s.values())
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        expected = configs(tmp_path / "here", waiting, 1, 2, 3, 4, method="waiting")
        for folder, config in expected.items():
            run(config, folder)
    finally:
        torch.set_num_threads(before)
    for folder in asked:
        mine, theirs = load_record(folder), load_record(tmp_path / "here" / folder.name)
        assert mine.finished
        assert mine.rows == theirs.rows
        assert mine.losses == theirs.losses
        assert mine.environment["engine"].startswith("ray ")
        assert mine.environment["threads"] == 1
        ours, _ = load_checkpoint(folder / CHECKPOINT)
        others, _ = load_checkpoint(tmp_path / "here" / folder.name / CHECKPOINT)
        assert ours.keys() == others.keys()
        assert all(torch.equal(ours[name], others[name]) for name in ours)

    def forbidden(standings: Mapping[Path, Standing]) -> None:
        raise AssertionError("a finished run was started again")

    run_on_ray(asked, cluster.address, work=work, watch=forbidden)


def test_a_run_whose_worker_died_resumes_from_its_checkpoint(
    cluster: TwoNodes, tiny: dict[str, Any], tmp_path: Path, own_methods: MethodRegistry
) -> None:
    """Not only does it end well: the task that was finished is not learnt a second time."""
    plugins.import_module(DYING)
    notes, folder = tmp_path / "notes.txt", tmp_path / "run"
    config = resolve("shapes", "dying", overrides={**tiny, "method.notes": str(notes)})
    run_on_ray({folder: config}, cluster.address, work=Work(plugins=(DYING,)))
    assert load_record(folder).finished
    learnt: dict[str, list[str]] = {}
    for line in notes.read_text().splitlines():
        process, task = line.split()
        learnt.setdefault(process, []).append(task)
    first, second = learnt.values()
    assert dict.fromkeys(first) == {"0": None, "1": None}
    assert dict.fromkeys(second) == {"1": None, "2": None}


def test_a_run_that_fails_does_not_stop_the_others(
    cluster: TwoNodes, tiny: dict[str, Any], tmp_path: Path
) -> None:
    bad = tiny | {"backbone.weights": "/nowhere/test_vit.safetensors"}
    asked = configs(tmp_path, bad, 1) | configs(tmp_path, tiny, 2)
    with pytest.raises(ClusterError, match=r"the worker at .*/nowhere/test_vit") as error:
        run_on_ray(asked, cluster.address, work=Work(), max_parallel=1)
    assert error.value.file == str(tmp_path / "1")
    assert not (tmp_path / "1").exists()
    assert is_finished(tmp_path / "2")
    assert (tmp_path / "2" / "events.jsonl").exists()


def test_a_run_whose_folder_the_worker_cannot_see_sends_its_record(
    cluster: TwoNodes, tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that is not made here is not there for the worker either."""
    monkeypatch.setattr(Path, "mkdir", lambda *args, **options: None)
    (config,) = configs(tmp_path, tiny, 1).values()
    folder = tmp_path / "away"
    with monkeypatch.context() as patch:
        saved: list[Path] = []
        patch.setattr(
            "cprompt.research.record.Record.save", lambda self, folder: saved.append(folder)
        )
        run_on_ray({folder: config}, cluster.address, work=Work())
    assert saved == [folder]
    assert not (folder / CHECKPOINT).exists()
