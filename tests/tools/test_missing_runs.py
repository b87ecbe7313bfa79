"""tools/missing_runs.py: which runs it makes, and what becomes of their records."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from cprompt.research.config import RunConfig, resolve
from cprompt.research.record import FILE, Record, load_record
from cprompt.research.tables import run_folder
from tests.scripts import load_tool


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    return load_tool("missing_runs")


def test_what_is_run_is_what_is_missing_with_the_paths_given(
    tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = load_tool("results_page")
    monkeypatch.setattr(page, "find_finished", lambda config: None)
    wanted = [w for w in page.wanted_runs(page.MAIN[:1]) if w.config.method == "l2p"]
    done = wanted[0]._replace(record=object(), label="made before")
    monkeypatch.setattr(tool, "wanted_runs", lambda which: [*wanted, done])
    monkeypatch.setattr(tool, "ROOT", tmp_path)
    asked: dict[Path, RunConfig] = {}

    def run_all(configs: Mapping[Path, RunConfig], **how: Any) -> None:
        asked.update(configs)
        assert how["together"] == 3

    monkeypatch.setattr(tool, "run_all", run_all)
    tool.main(["--data", "stanford_cars=there", "--weights", "w.safetensors", "--together", "3"])
    (config,) = asked.values()
    assert list(asked) == [run_folder(wanted[0].config, tmp_path / "runs" / "vit_ti")]
    assert (config.data.root, config.backbone.weights) == ("there", "w.safetensors")
    assert config.training == wanted[0].config.training
    assert tool.missing_runs("no such run") == []


def test_only_finished_records_are_kept(
    tool: ModuleType, tmp_path: Path, hand_record: Record
) -> None:
    finished, under_way = resolve("shapes", "finetune"), resolve("shapes", "joint")
    made, kept = tmp_path / "made", tmp_path / "kept"
    hand_record.save(run_folder(finished, made))
    hand_record.rows.pop()
    hand_record.save(run_folder(under_way, made))
    tool.keep_finished([finished, under_way, resolve("shapes", "l2p")], made, kept)
    assert [path.parent for path in kept.rglob(FILE)] == [run_folder(finished, kept)]
    assert load_record(run_folder(finished, kept)).finished
