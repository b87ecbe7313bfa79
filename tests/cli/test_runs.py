"""Many runs: finished ones are left alone, and the table shows those at work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from cprompt.cli.runs import LiveTable, backbone_settings, run_all
from cprompt.cluster.tasks import Work
from cprompt.errors import ConfigError
from cprompt.research.checkpoint import CHECKPOINT, load_run
from cprompt.research.config import RunConfig, resolve
from cprompt.research.experiment import Experiment
from cprompt.research.record import load_record
from cprompt.research.standing import Standing


@pytest.fixture
def configs(tiny: dict[str, Any], tmp_path: Path) -> dict[Path, RunConfig]:
    short = tiny | {"training.epochs": 1}
    return {
        tmp_path / str(seed): resolve("shapes", "finetune", overrides=short | {"seeds.init": seed})
        for seed in (1, 2)
    }


def test_only_what_is_missing_is_run(
    configs: dict[Path, RunConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = configs
    run_all({first: configs[first]})
    before = (first / "record.json").stat().st_mtime_ns
    asked: dict[str, Any] = {}

    def on_ray(missing: dict[Path, RunConfig], on: str, **options: Any) -> None:
        asked.update(options, missing=list(missing), on=on)

    monkeypatch.setattr("cprompt.cluster.runs.run_on_ray", on_ray)
    run_all(
        configs,
        on="host:1",
        gpus_per_run=0.25,
        cpus_per_run=2,
        max_parallel=3,
        plugins=["mine"],
        track=["none"],
    )
    assert asked["missing"] == [second]
    assert (asked["on"], asked["max_parallel"], asked["track"]) == ("host:1", 3, ["none"])
    assert asked["work"] == Work(threads=2, gpus=0.25, plugins=("mine",))
    run_all(configs)
    assert (first / "record.json").stat().st_mtime_ns == before
    assert load_record(second).finished


def test_runs_that_take_turns_learn_the_same_bits(
    configs: dict[Path, RunConfig], tmp_path: Path
) -> None:
    run_all(configs)
    beside = {tmp_path / f"beside {folder.name}": config for folder, config in configs.items()}
    run_all(beside, together=2)
    for alone, folder in zip(configs, beside, strict=True):
        one, other = (load_run(f / CHECKPOINT)[0].tensors for f in (alone, folder))
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in one)
        record = load_record(folder)
        assert record.rows == load_record(alone).rows
        assert record.losses == load_record(alone).losses
        assert record.environment["together"] == 2


def test_a_run_that_fails_is_told_when_the_others_are_done(
    configs: dict[Path, RunConfig], tiny: dict[str, Any], tmp_path: Path
) -> None:
    diverging = tiny | {"training.epochs": 2, "training.lr": 1e30}
    folder = tmp_path / "diverging"
    bad = {folder: resolve("shapes", "finetune", overrides=diverging)}
    run_all(bad | configs, together=2, may_diverge=True)
    with pytest.raises(ConfigError, match="diverged"):
        run_all(bad, together=2)
    assert load_record(folder).failure is not None
    assert all(load_record(f).finished for f in configs)


def test_warnings_name_their_run(
    configs: dict[Path, RunConfig],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def after_the_first_task(self: Experiment) -> dict[str, str]:
        return {"keys": "odd [x]"} if self.record.movement else {}

    monkeypatch.setattr(Experiment, "_warnings", after_the_first_task)
    run_all(configs, together=2)
    told = [line for line in capsys.readouterr().err.splitlines() if "odd" in line]
    assert sorted(told) == [
        f"warning: finetune shapes, seed {seed}: odd [x] (task 1)" for seed in (1, 2)
    ]


def test_turns_are_taken_in_one_process_only(configs: dict[Path, RunConfig]) -> None:
    with pytest.raises(ConfigError, match="--together"):
        run_all(configs, on="ray", together=2)


def test_the_table_shows_runs_at_work_and_counts_the_others(
    configs: dict[Path, RunConfig],
) -> None:
    first, second = (folder.absolute() for folder in configs)
    console = Console(width=100, record=True)
    standings = {first: Standing("running", 1, 3, "10.0.0.7"), second: Standing()}
    console.print(LiveTable(configs, console).table(standings))
    shown = console.export_text()
    (line,) = [line for line in shown.splitlines() if "10.0.0.7" in line]
    assert line.split() == ["finetune", "shapes,", "seed", "1", "2/3", "10.0.0.7"]
    assert "1 running, 1 waiting" in shown


def test_a_file_of_weights_may_name_its_backbone() -> None:
    file = "somewhere/vit_tiny_patch16_224.augreg_in21k_ft_in1k.safetensors"
    named = backbone_settings(None, file)
    assert named == {
        "backbone.name": "vit_tiny_patch16_224.augreg_in21k_ft_in1k",
        "backbone.weights": file,
    }
    assert backbone_settings("mine", file) == named | {"backbone.name": "mine"}
    assert backbone_settings("mine", None) == {"backbone.name": "mine"}
    assert backbone_settings(None, None) == {}
