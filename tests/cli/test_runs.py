"""Many runs: finished ones are left alone, and the table shows those at work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from cprompt.cli.runs import LiveTable, backbone_settings, run_all
from cprompt.cluster.runs import Standing
from cprompt.cluster.tasks import Work
from cprompt.research.config import RunConfig, resolve
from cprompt.research.record import load_record


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
