"""The results in the pages are what the committed records say."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest

from tests.scripts import ROOT, load_tool


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    return load_tool("results_page")


def test_every_block_of_results_is_made_from_the_records_byte_for_byte(tool: ModuleType) -> None:
    names: list[str] = []
    for path in tool.pages():
        page = path.read_text("utf-8")
        names += [name for _, name, _ in tool.BLOCK.findall(page)]
        assert tool.up_to_date(page) == page, f"{path.name} is old: run tools/results_page.py"
    assert sorted(names) == sorted(tool.PARTS)


def test_a_finding_is_judged_by_the_counts_of_the_two_records(tool: ModuleType) -> None:
    def last_accuracy(method: str) -> float:
        (path,) = (ROOT / tool.RUNS / "cars10").glob(f"{method}-*order1993-*/record.json")
        last = json.loads(path.read_text())["rows"][-1]
        return 100 * sum(last["correct"]["selected"]) / sum(last["count"])

    dualprompt = tool.Finding(
        "", "cars10", ("dualprompt", "DualPrompt"), ("finetune", "Fine-tuning")
    )
    l2p = tool.FINDINGS[0]
    assert (l2p.better, l2p.worse) == (tool.CPROMPT, ("l2p", "L2P"))
    theirs, mine = tool.judge(l2p)
    assert theirs == pytest.approx(66.77 - 60.39)
    cprompt = tool.value(tool.row_for("cprompt", "cars10"), "cars10", "last_accuracy")
    assert mine == pytest.approx(cprompt - last_accuracy("l2p-matched"))
    with pytest.raises(KeyError):  # the paper has no number for fine-tuning
        tool.judge(dualprompt)


def test_a_run_that_is_not_there_is_listed_and_nothing_is_made_up(
    tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tool, "RUNS", str(tmp_path))
    monkeypatch.setattr(tool, "all_shown", lambda: tool.MAIN[:1])
    monkeypatch.setattr(tool, "FINDINGS", tool.FINDINGS[:2])
    assert all(record is None for *_, record in tool.wanted_runs(tool.all_shown()))
    assert "L2P (1993)" in tool.missing()
    assert "0 agree, 0 do not, and 2 could not be checked" in tool.findings()
    row = tool.cells("cprompt", "cars10", tool.METRICS)
    assert [(cell.mean, cell.runs) for cell in row] == [(None, 0)] * 3
