"""What is tried, how it is judged, and what becomes of the choice."""

from __future__ import annotations

import copy
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from cprompt.cli.arguments import parse_settings, settings_as_options
from cprompt.errors import ConfigError
from cprompt.methods.registry import METHODS, method_class
from cprompt.research.config import RunConfig, flatten, resolve
from cprompt.research.record import Record
from cprompt.research.table_file import read_table_file
from cprompt.research.tables import Find, load_table, row_config, run_folder
from cprompt.research.tuning import (
    Outcome,
    Try,
    TunedRow,
    choose,
    command,
    load_grid,
    outcomes,
    protocol_table,
    settings_of_try,
    summary,
    try_config,
)

GRID = load_grid()
CLASSES = {"cars10": 196, "cifar100": 100, "cars20": 196}


def not_run(config: RunConfig) -> Record | None:
    return None


EVERY_TRY = [
    (row, number, benchmark)
    for row in GRID.rows
    for number in range(1, len(row.tries) + 1)
    for benchmark in GRID.benchmarks
]


# --- what is tried ------------------------------------------------------------------------------


def test_every_method_is_tried_equally_often_and_first_as_published() -> None:
    assert {row.method for row in GRID.rows} == set(METHODS)
    fixed = [row for row in GRID.rows if row.is_fixed]
    assert [(row.label, row.tries[0].settings) for row in fixed] == [("CPrompt, as published", {})]
    assert {len(row.tries) for row in GRID.to_choose} == {GRID.tries_of_each} == {4}
    assert not any(row.tries[0].times for row in GRID.rows)
    assert len({row.label for row in GRID.rows}) == len(GRID.rows)


def test_no_two_tries_are_the_same_run() -> None:
    folders = [
        run_folder(try_config(GRID, row, n, benchmark), Path())
        for row, n, benchmark in EVERY_TRY
        if not row.is_fixed
    ]
    assert len(set(folders)) == len(folders)


def test_every_try_is_on_held_out_images_of_the_first_three_tasks() -> None:
    for row, number, benchmark in EVERY_TRY:
        config = try_config(GRID, row, number, benchmark, {"data.validation": None})
        assert config.data.validation == 0.1
        assert config.data.normalization == "auto"  # the same for this backbone
        assert {config.seeds.order, config.seeds.init, config.seeds.data} == {1993}
        stream = config.stream.build(CLASSES[benchmark], 1993)
        learnt = stream.order[: sum(stream.sizes[: config.stream.first_tasks])]
        whole = resolve(benchmark, "cprompt").stream.build(CLASSES[benchmark], 1993)
        assert learnt == sum((whole.labels(task) for task in range(3)), ())
        single = method_class(row.method).single_task
        assert config.stream.first_tasks == (1 if single else 3)


def test_a_try_is_run_with_its_own_settings() -> None:
    slca = GRID.row("slca")
    rates = [try_config(GRID, slca, n, "cars10").training.lr for n in range(1, 5)]
    assert rates == [0.01, 0.01, 0.003, 0.03]
    for row, number, benchmark in EVERY_TRY:
        one = row.tries[number - 1]
        config = try_config(GRID, row, number, benchmark)
        assert config.flavour == one.flavour
        found = flatten(config.to_dict())
        for name, value in settings_of_try(row, one, benchmark).items():
            assert found[name] == value, (row.name, number, name)


def test_factors_round_to_whole_numbers_and_to_numbers_that_can_be_read() -> None:
    row = TunedRow("slca", "SLCA", "slca", {"training.epochs": 5, "training.lr": 0.0028125}, ())
    less = Try("official", {}, {"training.epochs": 0.3, "training.lr": 0.3})
    found = settings_of_try(row, less, "cars10")
    assert (found["training.epochs"], found["training.lr"]) == (2, 0.00084375)


def test_a_try_may_change_what_the_row_sets() -> None:
    row = TunedRow("slca", "SLCA", "slca", {"training.epochs": 5}, ())
    other = Try("official", {"training.epochs": 7}, {})
    assert settings_of_try(row, other, "cars10") == {"training.epochs": 7}


def test_factors_multiply_what_the_recipe_says_for_the_benchmark() -> None:
    row = TunedRow("slca", "SLCA", "slca", {}, ())
    twice = Try("official", {}, {"training.epochs": 2.0})
    assert settings_of_try(row, twice, "cars10") == {
        "training.epochs": 100,
        "training.milestones": [80],
    }
    assert settings_of_try(row, twice, "cifar100") == {
        "training.epochs": 40,
        "training.milestones": [36],
    }
    assert settings_of_try(row, Try("official", {}, {"training.lr": 0.3}), "cars10") == {
        "training.lr": 0.003
    }
    # The recipe's value, or the row's own one if it has one.
    row = TunedRow("slca", "SLCA", "slca", {"training.epochs": 3}, ())
    least = Try("official", {"training.lr": 0.5}, {"training.epochs": 0.1, "training.lr": 0.5})
    assert settings_of_try(row, least, "cars10") == {
        "training.epochs": 1,
        "training.lr": 0.25,
        "training.milestones": [4],
    }


def test_a_row_that_is_not_there_gets_a_suggestion() -> None:
    with pytest.raises(ConfigError, match="nothing to try for 'slcaa'; did you mean 'slca'"):
        GRID.row("slcaa")


# --- the command of a try -----------------------------------------------------------------------


@pytest.mark.parametrize("benchmark", GRID.benchmarks)
def test_the_printed_command_makes_the_same_run(benchmark: str) -> None:
    """As `cprompt run` reads it."""
    given = {
        "data.root": "/my photos/cars",
        "backbone.name": "test_vit",
        "backbone.weights": "random:0",
        "training.precision": "bf16",
        "execution.workers": 2,
    }
    for row in GRID.rows:
        for number in range(1, len(row.tries) + 1):
            config = try_config(GRID, row, number, benchmark, given)
            assert _as_run_reads(command(config)) == config


def _as_run_reads(line: str) -> RunConfig:
    words = shlex.split(line)
    assert words[:2] == ["cprompt", "run"]
    rest = settings_as_options(words[3:])
    pairs = list(zip(rest[::2], rest[1::2], strict=True))
    named = {option: value for option, value in pairs if option != "--set"}
    overrides = parse_settings([value for option, value in pairs if option == "--set"])
    overrides |= dict.fromkeys(("seeds.order", "seeds.init", "seeds.data"), int(named["--seed"]))
    overrides |= {
        "data.root": named["--data"],
        "backbone.name": named["--backbone"],
        "backbone.weights": named["--weights"],
    }
    return resolve(words[2], named["--method"], named.get("--flavour"), overrides=overrides)


# --- what was best ------------------------------------------------------------------------------


def answer_right(record: Record, right: int) -> None:
    """So many of the 18 images at the end, those of the first task's six and ten."""
    assert right <= 9
    record.rows[-1].correct["selected"][:] = [min(right, 4), max(right - 4, 0), 0, 0, 0]


@pytest.fixture
def outcome(hand_record: Record) -> Callable[..., Outcome]:
    """A try whose run answered so many of 18 held-out images right at the end."""

    def make(number: int, right: int | None, failure: str | None = None) -> Outcome:
        record = copy.deepcopy(hand_record)
        record.failure = failure
        if right is None:
            record.rows.pop()
        else:
            answer_right(record, right)
        return Outcome(number, Try(None, {}, {}), resolve("shapes"), record)

    return make


def test_the_best_on_held_out_images_is_chosen_and_of_equals_the_first(
    outcome: Callable[..., Outcome],
) -> None:
    tries = [outcome(1, 3), outcome(2, 9), outcome(3, 9)]
    assert tries[1].accuracy == pytest.approx(50)
    assert choose(tries) is tries[1]
    assert choose(tries[::-1]) is tries[1]


def test_nothing_is_chosen_before_all_tries_are_done(outcome: Callable[..., Outcome]) -> None:
    assert choose([outcome(1, 3), outcome(2, None)]) is None
    nothing = Outcome(2, Try(None, {}, {}), resolve("shapes"), None)
    assert choose([outcome(1, 3), nothing]) is None


def test_a_try_that_diverged_is_done_and_never_chosen(outcome: Callable[..., Outcome]) -> None:
    good, bad = outcome(1, 3), outcome(2, None, "diverged")
    assert choose([good, bad]) is good
    assert choose([bad, bad]) is None


# --- what becomes of it -------------------------------------------------------------------------


def judged(accuracies: dict[str, list[int]], record: Record) -> Find:
    """Records of Cars for some rows: each try answers so many of 18 held-out images right."""
    known = {}
    for name, rights in accuracies.items():
        for number, right in enumerate(rights, start=1):
            found = copy.deepcopy(record)
            answer_right(found, right)
            config = try_config(GRID, GRID.row(name), number, "cars10")
            known[run_folder(config, Path())] = found
    return lambda config: known.get(run_folder(config, Path()))


def test_the_table_has_what_was_chosen_and_says_what_was_not(
    hand_record: Record, tmp_path: Path
) -> None:
    find = judged({"slca": [5, 3, 9, 1], "cprompt": [2, 7, 1, 1], "l2p": [1, 1, 1]}, hand_record)
    text = protocol_table(GRID, find)
    assert text == protocol_table(GRID, find)
    (tmp_path / "mine.yaml").write_text(text)
    read_table_file(tmp_path / "mine.yaml")
    spec = load_table(str(tmp_path / "mine.yaml"))
    rows = {row.label: row for row in spec.rows}
    assert list(rows) == [row.label for row in GRID.rows]
    slca = row_config(rows["SLCA"], "cars10", 87)
    assert (slca.flavour, slca.training.lr) == ("official", 0.003)  # the third try
    assert row_config(rows["SLCA"], "cars20", 87).training.lr == 0.003
    assert row_config(rows["SLCA"], "cifar100", 87).training.lr == 0.01
    assert row_config(rows["CPrompt"], "cars10", 87).training.epochs == 240
    assert row_config(rows["L2P"], "cars10", 87).flavour == "official"
    for row in spec.rows:
        config = row_config(row, "cars10", 87)
        assert config.data.validation is config.stream.first_tasks is None
        assert config.data.normalization == "inception"
        assert config.seeds.order == 87
    on_cars = spec.notes_on["cars10"]
    assert "SLCA" not in on_cars
    assert "CPrompt" not in on_cars
    assert "L2P; DualPrompt" in on_cars
    on_cifar = "On cifar100, not chosen yet, so as in the recipe: every row."
    assert spec.notes_on["cifar100"] == on_cifar


def test_the_summary_has_every_try_its_accuracy_and_its_command(hand_record: Record) -> None:
    find = judged({"slca": [5, 3, 9, 1], "l2p": [1]}, hand_record)
    there = {"data.root": "/home/me/cars", "execution.device": "cpu"}
    about = summary(GRID, "cars10", find, there)
    assert "/home/me" not in yaml.safe_dump(about)
    assert about == summary(GRID, "cars10", find)
    slca = about["rows"]["slca"]
    assert slca["chosen"] == 3
    assert [one["accuracy"] for one in slca["tries"]] == pytest.approx(
        [100 * right / 18 for right in (5, 3, 9, 1)]
    )
    assert slca["tries"][2]["settings"] == {"training.lr": 0.003}
    assert "--data DATA" in slca["tries"][2]["command"]
    l2p = about["rows"]["l2p"]
    assert (l2p["chosen"], l2p["tries"][1]["accuracy"]) == (None, None)


def test_the_commands_of_a_summary_make_the_runs_it_names() -> None:
    about = summary(GRID, "cars10", not_run, {"backbone.name": "test_vit"})
    for one in about["rows"]["joint"]["tries"]:
        words = shlex.split(one["command"])
        at = words.index("--backbone")
        words[at:at] = ["--weights", "random:0"]
        config = _as_run_reads(shlex.join(words))
        plain = flatten(config.to_dict()) | {"backbone.weights": None}
        same = try_config(GRID, GRID.row("joint"), one["number"], "cars10")
        assert plain == flatten(same.to_dict()) | {
            "backbone.name": "test_vit",
            "data.root": "DATA",
        }


def test_tries_are_found_by_their_settings(hand_record: Record) -> None:
    find = judged({"slca": [5, 3, 9, 1]}, hand_record)
    found = outcomes(GRID, GRID.row("slca"), "cars10", find)
    assert [one.done for one in found] == [True] * 4
    other: dict[str, Any] = {"backbone.name": "test_vit"}
    assert not any(one.done for one in outcomes(GRID, GRID.row("slca"), "cars10", find, other))
