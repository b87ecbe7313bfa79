"""The results in the pages are what the committed records say."""

from __future__ import annotations

import copy
import dataclasses
import json
import statistics
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from cprompt.research import tuning
from cprompt.research.config import RunConfig
from cprompt.research.record import Record
from cprompt.research.tables import (
    PAPER_SEEDS,
    TableRow,
    finder,
    load_table,
    row_config,
    run_folder,
)
from tests.cli.common import ok
from tests.scripts import ROOT, load_tool


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    return load_tool("results_page")


@pytest.fixture(scope="module")
def blocks() -> ModuleType:
    return load_tool("protocol_blocks")


def test_every_block_of_results_is_made_from_the_records_byte_for_byte(tool: ModuleType) -> None:
    names: list[str] = []
    for path in tool.pages():
        page = path.read_text("utf-8")
        names += [name for _, name, _ in tool.BLOCK.findall(page)]
        assert tool.up_to_date(page) == page, f"{path.name} is old: run tools/results_page.py"
    assert sorted(names) == sorted(tool.PARTS)


def test_a_finding_is_judged_by_the_counts_of_the_two_records(tool: ModuleType) -> None:
    def last_accuracies(label: str, benchmark: str) -> dict[int, float]:
        """By class order, of the runs of a row of the protocol."""
        found = {}
        row = next(row for row in load_table("protocol").rows if row.label == label)
        for seed in PAPER_SEEDS:
            config = row_config(row, benchmark, seed, overrides=tool.SETTINGS)
            path = run_folder(config, ROOT / tool.RUNS) / "record.json"
            if path.exists():
                last = json.loads(path.read_text())["rows"][-1]
                found[seed] = 100 * sum(last["correct"]["selected"]) / sum(last["count"])
        return found

    dualprompt = tool.Finding(
        "", "cars10", ("dualprompt", "DualPrompt"), ("finetune", "Fine-tuning")
    )
    on_cars, on_cifar = (f for f in tool.FINDINGS if f.worse == ("l2p", "L2P") and "," in f.says)
    assert on_cars.better == on_cifar.better == tool.CPROMPT
    assert tool.claimed(on_cars) == pytest.approx(66.77 - 60.39)
    assert tool.claimed(on_cifar) == pytest.approx(87.82 - 86.38)
    for finding in (on_cars, on_cifar):
        worse = last_accuracies("L2P", finding.table)
        best, published = (
            last_accuracies(label, finding.table) for label in ("CPrompt", tool.PUBLISHED)
        )
        better = best if best.keys() & worse else published
        both = [better[seed] - worse[seed] for seed in PAPER_SEEDS if seed in better.keys() & worse]
        assert both
        assert tool.differences(finding) == pytest.approx(both)
        told = "each at its best" if better is best else "CPrompt as published"
        assert tool.settings_of(finding, tool.shown_of(finding)) == told
    with pytest.raises(KeyError):  # the paper has no number for fine-tuning
        tool.claimed(dualprompt)


@pytest.mark.parametrize(
    ("found", "std", "verdict"),
    [
        ([], 1.0, "not run"),
        # Student's t with two degrees of freedom: 4.303 standard errors.
        ([4.2], 1.0, "within noise"),
        ([4.4], 1.0, "agrees"),
        ([-4.4], 1.0, "**does not agree**"),
        ([2.0, 2.4, 2.2, 2.2], 1.0, "agrees"),  # the standard error is 0.5
        ([1.9, 2.3, 2.1, 2.1], 1.0, "within noise"),
        ([9.0], None, "within noise"),  # nothing tells how much an order changes
    ],
)
def test_a_finding_is_judged_by_few_class_orders(
    tool: ModuleType, found: list[float], std: float | None, verdict: str
) -> None:
    noise = None if std is None else tool.Spread(std, orders=3, differences=1)
    assert tool.verdict(found, noise) == verdict


def test_a_spread_of_two_orders_needs_far_more_standard_errors(tool: ModuleType) -> None:
    noise = tool.Spread(1.0, orders=2, differences=1)
    assert noise.certain == pytest.approx(12.706, abs=1e-3)  # Student's t, one degree of freedom
    assert tool.verdict([12.0], noise) == "within noise"
    assert tool.verdict([13.0], noise) == "agrees"


def test_the_spread_is_pooled_over_all_that_was_run_in_several_class_orders(
    tool: ModuleType, monkeypatch: pytest.MonkeyPatch, hand_record: Record
) -> None:
    """Two variants of one method have a spread of their own."""
    tool.spread.cache_clear()
    other = ("l2p", "L2P")
    few = {"a": [1.0, 3.0], "b": [0.0, 1.0, 5.0], "c": [7.0], "d": [2.0, 8.0]}
    made = [tool.Finding(says, "cars10", tool.CPROMPT, other) for says in "abc"]
    made.append(tool.Finding("d", "cars10", tool.CPROMPT, tool.CPROMPT))
    monkeypatch.setattr(tool, "FINDINGS", made)
    monkeypatch.setattr(tool, "differences", lambda finding: few[finding.says])
    right = {
        ("the paper's", 1993): 8,
        ("the paper's", 87): 9,
        ("the paper's", 1013): 10,
        ("CPrompt, as published", 1993): 9,
        ("CPrompt, as published", 87): 9,
        ("CPrompt, as published", 1013): 7,
        ("SLCA", 1993): 9,
        ("SLCA", 87): 4,
        ("Strata", 1993): 7,  # the same in every order
        ("Strata", 87): 7,
        ("Strata", 1013): 7,
        ("RanPAC", 1013): 9,  # one order only
    }

    def run_of(row: TableRow, benchmark: str, seed: int, *_: Any) -> Record | None:
        at = "the paper's" if row.label == "CPrompt" and not row.chosen else row.label
        if (at, seed) not in right:
            return None
        record = copy.deepcopy(hand_record)
        record.rows[-1].correct["selected"] = [right[at, seed], 0, 0, 0, 0]  # of 18
        return record

    monkeypatch.setattr(tool, "run_of", run_of)
    one = 100 / 18  # percent that an image is worth
    found = tool.differences_from_cprompt("cars10", "last_accuracy", one_method=False)
    np.testing.assert_allclose(found, [[-one, 5 * one]])
    found = tool.differences_from_cprompt("cars10", "last_accuracy", one_method=True)
    np.testing.assert_allclose(found, [[-one, 0, 3 * one]])

    variances = [np.var(v, ddof=1) for v in ([1, 3], [0, 1, 5], [-one, 5 * one])]
    noise = tool.spread("cars10", "last_accuracy", one_method=False)
    assert noise.std == pytest.approx(np.sqrt(np.average(variances, weights=[1, 2, 1])))
    assert (noise.orders, noise.differences) == (3, 3)

    variances = [np.var(v, ddof=1) for v in ([2, 8], [-one, 0, 3 * one])]
    noise = tool.spread("cars10", "last_accuracy", one_method=True)
    assert noise.std == pytest.approx(np.sqrt(np.average(variances, weights=[1, 2])))
    assert (noise.orders, noise.differences) == (3, 2)

    assert tool.spread("cars10", "no such metric", one_method=True) is None
    tool.spread.cache_clear()


def test_runs_that_number_their_classes_otherwise_are_not_compared(
    tool: ModuleType, monkeypatch: pytest.MonkeyPatch, hand_record: Record
) -> None:
    """Then one seed is two class orders."""
    finding = next(f for f in tool.FINDINGS if f.says == "the auxiliary loss is needed")
    shown = tool.shown_of(finding)
    _, second, third = PAPER_SEEDS

    def run_of(row: TableRow, benchmark: str, seed: int, *_: Any) -> Record | None:
        if seed == third:
            return None
        record, better = copy.deepcopy(hand_record), row == tool.both_rows(finding, shown)[0]
        record.rows[-1].correct["selected"] = [6 if better else 3, 0, 0, 0, 0]  # of 18
        if seed == second and better:
            record.classes = record.classes[::-1]
        return record

    monkeypatch.setattr(tool, "run_of", run_of)
    assert tool.differences_in(shown, finding) == pytest.approx([300 / 18])


def test_a_finding_is_judged_at_the_papers_budget_as_soon_as_both_rows_were_run(
    tool: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    finding = next(f for f in tool.FINDINGS if f.says == "the auxiliary loss is needed")
    ran = {(30, "CPrompt"): 40.0, (30, "w/o L_aux"): 41.0, (120, "CPrompt"): 45.0}

    def value(row: Any, benchmark: str, metric: str, settings: Any, seed: int) -> float | None:
        epochs = settings.get("training.epochs", 120)
        return ran.get((epochs, row.label)) if seed == 1993 else None

    monkeypatch.setattr(tool, "value", value)
    assert (tool.differences(finding), tool.shown_of(finding).epochs) == ([-1.0], 30)
    assert tool.settings_of(finding, tool.shown_of(finding)) == "30 epochs"
    ran[120, "w/o L_aux"] = 42.0
    assert (tool.differences(finding), tool.shown_of(finding).epochs) == ([3.0], None)
    assert tool.settings_of(finding, tool.shown_of(finding)) == "120 epochs"


def test_every_run_that_is_wanted_is_the_one_that_its_tables_command_makes(
    tool: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By table, benchmark, row and seed: the study of ESN, twenty tasks and all else."""
    asked: dict[Path, RunConfig] = {}
    monkeypatch.setattr("cprompt.cli.table.run_all", lambda configs, **how: asked.update(configs))
    every = list(tool.wanted_runs(tool.all_wanted()))
    of_table = {(w.shown.table, w.benchmark) for w in every}
    assert {("esn_study", "cars10"), ("protocol", "cars20"), ("ablation", "cars10")} <= of_table
    one_each = {(w.shown.table, w.benchmark, w.shown.normalization): w for w in every}.values()
    for wanted in one_each:
        asked.clear()
        changed = [word for k, v in wanted.shown.changed.items() for word in (f"--{k}", str(v))]
        ok(
            *("table", wanted.shown.table, "--benchmark", wanted.benchmark),
            *("--only", wanted.number, "--seeds", wanted.seed, "--backbone", tool.BACKBONE),
            *("--weights", tool.WEIGHTS, "--training.precision", "bf16", *changed),
        )
        [folder] = asked
        assert folder == run_folder(wanted.config, Path("runs"))


def test_time_is_estimated_from_like_runs_by_their_epochs(tool: ModuleType) -> None:
    row = tool.row_for("l2p", "cars10")
    like = [r for r in tool.like_runs("cars10") if r.config["method"]["name"] == "l2p"]
    parts = ("preparation", "training", "evaluation")
    per_epoch = statistics.median(
        sum(run.seconds[part] for part in parts) / run.config["training"]["epochs"] for run in like
    )
    config = tool.row_config(row, "cars10", 87, overrides=tool.SETTINGS | {"training.epochs": 240})
    assert tool.estimated_seconds(config) == pytest.approx(240 * per_epoch)


def test_the_table_of_the_protocol_and_the_summaries_are_those_of_the_tries(
    blocks: ModuleType,
) -> None:
    """Byte for byte; `cprompt tune --only-show --write` makes them."""
    grid, find = tuning.load_grid(), finder(ROOT / blocks.TRIES)
    table = ROOT / "src/cprompt/research/recipes/tables/protocol.yaml"
    assert table.read_text("utf-8") == tuning.protocol_table(grid, find, blocks.SETTINGS)
    for path in (ROOT / blocks.TRIES).glob(f"*/{tuning.SUMMARY}"):
        about = tuning.summary(grid, path.parent.name, find, blocks.SETTINGS)
        assert json.loads(path.read_text("utf-8")) == about


def test_a_run_that_is_not_there_is_listed_and_nothing_is_made_up(
    tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("result_runs.RUNS", str(tmp_path))
    monkeypatch.setattr(tool, "all_shown", lambda: tool.MAIN[:1])
    monkeypatch.setattr(tool, "FINDINGS", tool.FINDINGS[:2])
    tool.like_runs.cache_clear()
    tool.spread.cache_clear()
    assert all(wanted.record is None for wanted in tool.wanted_runs(tool.all_shown()))
    assert "| cars10 | L2P | 1993 | – | `cprompt run cars10 --method l2p" in tool.missing()
    assert "0 agree, 0 are within noise, 0 do not agree, and 2 could not" in tool.findings()
    tool.like_runs.cache_clear()
    tool.spread.cache_clear()
    row = tool.cells_of(tool.row_for("cprompt", "cars10"), "cars10", tool.METRICS)
    assert [(cell.mean, cell.runs) for cell in row] == [(None, 0)] * 3


def test_accuracy_and_cost_are_those_of_the_rows_records(
    blocks: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hand_record: Record
) -> None:
    hand_record.parameters = {"learnt": 2_500_000, "backbone": 1}
    hand_record.seconds = {"training": 100.0}
    other = copy.deepcopy(hand_record)
    other.rows[-1].correct["selected"][0] += 1
    other.seconds = {"training": 300.0}
    known = {("cars10", "CPrompt", 1993): hand_record, ("cars10", "CPrompt", 87): other}
    monkeypatch.setattr(
        blocks, "run_of", lambda row, benchmark, seed: known.get((benchmark, row.label, seed))
    )
    passes = {"cars10": {"CPrompt": {"passes": 1_234_567}}}
    (tmp_path / "results").mkdir()
    (tmp_path / blocks.TRAINING_PASSES).write_text(json.dumps(passes))
    monkeypatch.setattr(blocks, "ROOT", tmp_path)
    text = blocks.cost()
    mean, std = (9 + 10) / 36 * 100, np.std([900 / 18, 1000 / 18], ddof=1)
    [line] = [x for x in text.splitlines() if x.startswith("| CPrompt | ") and "| 2 |" in x]
    assert line.startswith(f"| CPrompt | 80.00±0.00 | {mean:.2f}±{std:.2f} | ")  # 8 of 10 at first
    # 4 bytes each; a query pass and a prompted one
    assert line.endswith("| 10.0 | 1.23 | 200, CPU | 2 | 2 |")
    assert "(assets/cost_cars10.png)" in text
    assert "(assets/cost_cifar100.png)" not in text
    for benchmark in ("cars10", "cifar100"):
        blocks.draw_cost(benchmark)
    drawn = [path.name for path in (tmp_path / "docs" / "assets").iterdir()]
    assert drawn == ["cost_cars10.png"]


def test_notes_name_rows_without_a_run_and_rows_run_without_a_choice(
    blocks: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hand_record: Record
) -> None:
    monkeypatch.setattr(blocks, "ROOT", tmp_path)  # no try was run
    found = {
        "cars10": {"ESN": [hand_record], "Joint, prompts": [hand_record], "CPrompt": []},
        "cifar100": {"ESN": [], "Joint, prompts": [], "CPrompt, as published": [hand_record]},
    }
    assert blocks.notes_on(found) == (
        "Not run yet: CPrompt on Cars; ESN and “Joint, prompts” on CIFAR-100. With the recipe's "
        "settings, because none were chosen yet: on Cars ESN and “Joint, prompts”."
    )
    assert blocks.notes_on({"cars10": {}}) == ""


def test_that_ranpac_has_a_prompt_is_said_if_it_has(
    blocks: ModuleType, hand_record: Record
) -> None:
    with_prompt = copy.deepcopy(hand_record)
    with_prompt.config["method"]["adaptation"] = "prompt"
    assert "(methods/ranpac.md)" in blocks.note_on_ranpac({"RanPAC": [with_prompt]}, "methods")
    for runs in ([], [hand_record]):
        assert blocks.note_on_ranpac({"RanPAC": runs}, "methods") == ""


def test_a_methods_table_names_the_rows_whose_runs_number_their_classes_otherwise(
    tool: ModuleType, monkeypatch: pytest.MonkeyPatch, hand_record: Record
) -> None:
    def numbers(otherwise: set[str]) -> str:
        def runs_of(row: TableRow, benchmark: str) -> list[Record]:
            record = copy.deepcopy(hand_record)
            record.dataset = row.label if benchmark == "cars10" else "other"
            record.seconds = dict.fromkeys(tool.MEASURED_PARTS, 1.0)
            return [record] * 3

        monkeypatch.setattr(tool, "runs_of", runs_of)
        monkeypatch.setattr(tool, "numbered_otherwise", lambda record: record.dataset in otherwise)
        both = tool.closed_form_rows("RanPAC", "RanPAC, prompt of the first task")
        return str(both + tool.method_rows("coda"))

    assert "sorted names" not in numbers(set())
    assert numbers({"RanPAC"}).count("in the runs of RanPAC the classes have") == 1
    assert "in the runs of the paper's tables and the protocol the" in numbers({"CODA-Prompt"})


def test_what_was_chosen_is_shown_with_the_other_tries(
    blocks: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hand_record: Record
) -> None:
    monkeypatch.setattr(blocks, "ROOT", tmp_path)
    grid = tuning.load_grid()
    row = grid.row("slca")
    for number in range(1, 5):
        config = tuning.try_config(grid, row, number, "cars10", blocks.SETTINGS)
        record = copy.deepcopy(hand_record)
        record.rows[-1].correct["selected"][0] = number % 4
        record.save(run_folder(config, tmp_path / blocks.TRIES))
    [line] = [
        x for x in blocks.chosen().splitlines() if x.startswith("| SLCA | official, lr × 0.3")
    ]
    assert line == (
        f"| SLCA | official, lr × 0.3 | {1100 / 18:.2f} | official: {900 / 18:.2f}; "
        f"official, head_init kaiming: {1000 / 18:.2f}; official, lr × 3: {800 / 18:.2f} |"
    )


def test_a_first_task_is_compared_in_the_same_order_and_a_far_one_needs_a_reason(
    blocks: ModuleType, monkeypatch: pytest.MonkeyPatch, hand_record: Record
) -> None:
    def with_first(correct: int, order: tuple[int, ...] | None = None) -> Record:
        record = copy.deepcopy(hand_record)
        record.rows[0].correct["selected"] = [correct // 2, correct - correct // 2]
        if order is not None:
            record.stream = dataclasses.replace(record.stream, order=order)
        return record

    mirrored = tuple(reversed(hand_record.stream.order))
    known = {
        ("CPrompt", 1993): with_first(8),
        ("L2P", 1993): with_first(8),
        ("DualPrompt", 1993): with_first(7),
        ("DualPrompt", 87): with_first(0, mirrored),  # CPrompt was not run in that order
        ("ESN", 1993): with_first(2, mirrored),  # the order, not the seed, must be the same
    }
    monkeypatch.setattr(
        blocks,
        "run_of",
        lambda row, benchmark, seed: (
            known.get((row.label, seed)) if benchmark == "cars10" else None
        ),
    )
    monkeypatch.setattr(blocks, "REASONS", {"cars10": {"L2P": lambda: "near anyway."}})
    lines = blocks.first_task().splitlines()
    assert [line for line in lines if line.startswith("| ")][2:] == [
        "| L2P | 80.00 | 80.00 | +0.00 |",
        "| DualPrompt | 70.00 | 80.00 | -10.00 |",
    ]
    assert [line for line in lines if line.startswith("- ")] == [
        "- **DualPrompt**: not looked into yet."
    ]
    known["CPrompt", 87] = with_first(8, mirrored)
    assert "| DualPrompt | 35.00 | 80.00 | -45.00 |" in blocks.first_task()
    assert "| ESN | 20.00 | 80.00 | -60.00 |" in blocks.first_task()


def test_every_first_task_that_is_far_from_cprompts_has_its_reason(blocks: ModuleType) -> None:
    assert "not looked into yet" not in blocks.first_task()


def test_a_repaired_method_is_shown_before_and_after_with_what_changed(
    blocks: ModuleType, monkeypatch: pytest.MonkeyPatch, hand_record: Record
) -> None:
    before = copy.deepcopy(hand_record)
    before.rows[0].correct["selected"] = [2, 5]
    before.rows[-1].correct["selected"][0] = 0

    def run_of(row: TableRow, benchmark: str, seed: int) -> Record | None:
        assert (benchmark, seed) == ("cars10", 1993)
        runs = {("esn", False): before, ("esn", True): hand_record, ("slca", True): hand_record}
        return runs.get((row.method, bool(row.chosen)))

    monkeypatch.setattr(blocks, "run_of", run_of)
    [line] = [line for line in blocks.repaired().splitlines() if line.startswith("| ")][2:]
    assert line == (
        f"| ESN | 70.00 | 80.00 | {800 / 18:.2f} | {900 / 18:.2f} | `method.block_init` fixed → "
        "width; `data.normalization` none → inception |"
    )
