"""`cprompt table`: it runs what is missing, resumes what was started, and prints what there is."""

from __future__ import annotations

import csv
import io
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import cprompt.cli.table as command
from cprompt.cli.progress import ProgressBars
from cprompt.errors import ConfigError
from cprompt.research.checkpoint import load_checkpoint
from cprompt.research.config import RunConfig, resolve
from cprompt.research.experiment import CHECKPOINT
from cprompt.research.record import Record, load_record
from cprompt.research.tables import PAPER_SEEDS, Cell, Table, load_table
from cprompt.vit.loading import load_backbone
from tests.cli import common
from tests.cli.common import Main

TINY = [
    *("--small", "--seeds", "3"),
    *("--backbone", "test_vit", "--weights", "random:0", "--backbone.image_size", "48"),
    *("--data.options", "{classes: 6, train_per_class: 3, test_per_class: 2, size: 48}"),
    *("--training.epochs", "1", "--method.length", "2", "--execution.device", "cpu"),
]
"""Three tasks of two classes, two steps each."""


def ok(*arguments: str) -> str:
    """What `cprompt table …` prints on stdout."""
    return common.ok("table", *arguments)


def records(runs: Path) -> dict[bool, Record]:
    """The runs of `ccl_given`, by whether they had CCL."""
    found = [load_record(path) for path in runs.glob("cars10/*/record.json")]
    return {record.config["method"]["ccl"]: record for record in found}


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of runs that a table made, and what was printed."""
    runs = tmp_path_factory.mktemp("table") / "runs"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "300")
        return runs, ok("ccl_given", *TINY, "--runs", str(runs))


def forbid_running(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*args: Any, **kwargs: Any) -> Record:
        raise AssertionError("a run was started")

    monkeypatch.setattr("cprompt.research.experiment.run", run)


def table_lines(printed: str) -> list[list[str]]:
    return [re.split(r" {2,}", line.strip()) for line in printed.splitlines()]


# --- running and showing ------------------------------------------------------------------------


def test_a_small_table_makes_its_runs_and_shows_their_numbers(done: tuple[Path, str]) -> None:
    runs, printed = done
    found = records(runs)
    assert set(found) == {False, True}
    for record in found.values():
        assert record.finished
        assert record.stream.sizes == (2, 2, 2)
        assert record.config["seeds"] == {"order": 3, "init": 3, "data": 3}
        assert record.images == {"train": 18, "test": 12}
        assert (record.dataset, record.backbone["name"]) == ("shapes", "test_vit")
    lines = table_lines(printed)
    for ccl, label, paper in ((False, "w/o CCL", "67.78 77.27"), (True, "CPrompt", "71.14 80.44")):
        summary = found[ccl].summary()
        last, average = (f"{summary[f'{m}_accuracy_given']:.2f}" for m in ("last", "average"))
        paper_last, paper_average = paper.split()
        assert [label, last, paper_last, average, paper_average] in lines
    assert (
        "Ours: seed 3 (class order, initialisation and data); backbone test_vit (random:0)"
        in printed
    )
    assert "--small: drawn images" in printed


def test_finished_runs_are_not_made_again(
    done: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    runs, printed = done
    forbid_running(monkeypatch)
    assert ok("ccl_given", *TINY, "--runs", str(runs)) == printed


def test_another_table_finds_the_runs_it_shares(
    done: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    runs, _ = done
    forbid_running(monkeypatch)
    printed = ok("aux", *TINY, "--runs", str(runs), "--only-show", "--format", "csv")
    rows = {row["row"]: row for row in csv.DictReader(io.StringIO(printed))}
    last = records(runs)[True].summary()["last_accuracy"]
    assert float(rows["CPrompt"]["Last-acc mean"]) == last
    assert {label: row["Last-acc runs"] for label, row in rows.items()} == {
        "w/o L_aux": "0",
        "w/o C_aux": "0",
        "CPrompt": "1",
    }


def test_a_table_stopped_in_the_middle_of_a_run_goes_on_where_it_was(
    done: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[int] = []

    def task_begins(self: ProgressBars, task: int, *args: Any) -> None:
        begun.append(task)
        if begun == [0, 1, 2, 0, 1]:  # the second task of the second run
            raise RuntimeError("stopped")
        original(self, task, *args)

    original = ProgressBars.task_begins
    monkeypatch.setattr(ProgressBars, "task_begins", task_begins)
    arguments = ["ccl_given", *TINY, "--runs", str(tmp_path / "runs")]
    with pytest.raises(RuntimeError, match="stopped"):
        ok(*arguments)
    stopped = records(tmp_path / "runs")
    assert (stopped[False].finished, len(stopped[True].rows)) == (True, 1)
    shown = table_lines(ok(*arguments, "--only-show"))
    assert ["CPrompt", "–", "71.14", "–", "80.44"] in shown

    begun.clear()
    assert ok(*arguments) == done[1]
    assert begun == [1, 2]
    for ccl, record in records(tmp_path / "runs").items():
        assert record.rows == records(done[0])[ccl].rows
    for folder in (done[0] / "cars10").iterdir():
        again = load_checkpoint(tmp_path / "runs" / "cars10" / folder.name / CHECKPOINT)[0]
        for name, tensor in load_checkpoint(folder / CHECKPOINT)[0].items():
            assert tensor.equal(again[name]), name


def test_only_show_runs_nothing_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forbid_running(monkeypatch)
    printed = table_lines(ok("ccl_given", "--only-show"))
    assert ["w/o CCL", "–", "67.78", "–", "77.27"] in printed
    assert ["CPrompt", "–", "71.14", "–", "80.44"] in printed
    assert list(tmp_path.iterdir()) == []


def test_every_format_prints_the_table_and_nothing_else(done: tuple[Path, str]) -> None:
    def printed(format: str) -> str:
        return ok("ccl_given", *TINY, "--runs", str(done[0]), "--only-show", "--format", format)

    last = records(done[0])[True].summary()["last_accuracy_given"]
    assert printed("terminal") == done[1]
    markdown = printed("markdown")
    assert markdown.startswith(
        "**CCL with the right prompt given to each image, small stand-in**\n"
    )
    assert f"| CPrompt | {last:.2f} | 71.14 | " in markdown
    latex = printed("latex")
    assert latex.startswith("% needs")
    assert f"\nCPrompt & {last:.2f} & 71.14 & " in latex
    rows = list(csv.reader(io.StringIO(printed("csv"))))
    assert [row[0] for row in rows] == ["row", "w/o CCL", "CPrompt"]
    assert float(rows[2][1]) == last


def test_backbone_and_images_are_loaded_once_for_all_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[str] = []
    given: list[tuple[int, int]] = []

    def load(*args: Any) -> Any:
        loaded.append(args[0])
        return load_backbone(*args)

    def run(config: RunConfig, folder: Path, **options: Any) -> None:
        assert options["resume"] is True
        given.append((id(options["dataset"]), id(options["backbone"])))

    monkeypatch.setattr("cprompt.vit.loading.load_backbone", load)
    monkeypatch.setattr("cprompt.research.experiment.run", run)
    ok("aux", *TINY, "--seeds", "3,4")
    assert loaded == ["test_vit"]
    assert len(given) == 6
    assert len(set(given)) == 1


OWN = """
title: Mine
benchmarks: [cars20, imagenet_r10]
columns: {last_accuracy: Last-acc, new_accuracy: New}
rows:
  - {label: Ours, set: {method.length: 3}}
  - {label: Plain, method: finetune, paper: {cars20: [12.5, null]}}
"""


def test_a_table_from_a_file_runs_on_all_its_benchmarks(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(OWN)
    printed = ok("mine.yaml", *TINY, "--format", "csv")
    rows = {row["row"]: row for row in csv.DictReader(io.StringIO(printed))}
    assert list(rows) == ["Ours", "Plain"]
    found = [load_record(path) for path in (tmp_path / "runs").glob("*/*/record.json")]
    assert sorted((r.config["benchmark"], r.stream.sizes) for r in found) == [
        *[("cars20", (1,) * 6)] * 2,
        *[("imagenet_r10", (2, 2, 2))] * 2,
    ]
    for record in found:
        label = "Plain" if record.config["method"]["name"] == "finetune" else "Ours"
        summary = record.summary()
        for metric, heading in (("last_accuracy", "Last-acc"), ("new_accuracy", "New")):
            column = f"{record.config['benchmark']} {heading}"
            assert float(rows[label][f"{column} mean"]) == summary[metric]
    assert "CPrompt paper" not in ok("mine.yaml", *TINY, "--only-show")


def test_runs_that_cannot_be_written_are_refused_before_the_first(
    main: Main, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forbid_running(monkeypatch)
    (tmp_path / "file").touch()
    message = main.error("table", "aux", *TINY, "--runs", "file")
    assert message.startswith("file/")
    assert "cannot be written" in message


# --- what is run --------------------------------------------------------------------------------


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[Path, RunConfig]:
    """The runs that a table would make, by their folders."""
    found: dict[Path, RunConfig] = {}
    monkeypatch.setattr(command, "run_all", lambda configs, **how: found.update(configs))
    return found


def test_a_table_needs_a_run_for_every_row_benchmark_and_seed(asked: dict[Path, RunConfig]) -> None:
    ok("ablation", "--small", "--seeds", "1,2", "--runs", "elsewhere")
    assert len(asked) == 6 * 4 * 2
    assert {folder.parts[:2] for folder in asked} == {
        ("elsewhere", benchmark) for benchmark in load_table("ablation").benchmarks
    }
    assert {config.data.dataset for config in asked.values()} == {"shapes"}


def test_a_table_can_be_about_one_of_its_benchmarks(asked: dict[Path, RunConfig]) -> None:
    printed = ok(
        *("ablation", "--benchmark", "cars20", "--data", "/cars", "--seeds", "1"),
        *("--format", "csv"),
    )
    assert {config.benchmark for config in asked.values()} == {"cars20"}
    assert len(asked) == 6
    assert "49.23" in printed  # the paper's vanilla on cars20
    assert "61.96" not in printed  # and on cars10


def test_one_run_of_a_table_can_be_made_by_its_row_benchmark_and_seed(
    asked: dict[Path, RunConfig],
) -> None:
    printed = ok(
        *("others", "--only", "6", "--seeds", "1993", "--data", "/cars", "--format", "csv")
    )
    (config,) = asked.values()
    assert (config.method, config.settings["ccl"], config.settings["pcl"]) == ("l2p", True, False)
    assert [line[0] for line in csv.reader(io.StringIO(printed))] == ["row", "+ CCL"]


def test_rows_that_differ_only_in_what_they_show_share_a_run(asked: dict[Path, RunConfig]) -> None:
    ok("keys", "--small", "--seeds", "1")
    assert len(asked) == 2


def test_the_papers_seeds_are_used_unless_told(asked: dict[Path, RunConfig]) -> None:
    ok("ccl_given", "--small")
    assert {config.seeds.order for config in asked.values()} == set(PAPER_SEEDS)
    assert f"[default: ({','.join(map(str, PAPER_SEEDS))}" in ok("--help")


def test_data_is_where_the_images_of_each_dataset_are(asked: dict[Path, RunConfig]) -> None:
    ok("ablation", "--data", "stanford_cars=/a=b", "--data", "imagenet_r=/r", "--seeds", "1")
    roots = {(config.benchmark, config.data.root) for config in asked.values()}
    assert roots == {
        ("cars10", "/a=b"),
        ("cars20", "/a=b"),
        ("imagenet_r10", "/r"),
        ("imagenet_r20", "/r"),
    }


@pytest.mark.parametrize("data", ["/cars", "stanford_cars=/cars"])
def test_a_table_of_one_dataset_takes_its_folder_with_or_without_a_name(
    asked: dict[Path, RunConfig], data: str
) -> None:
    ok("aux", "--data", data, "--seeds", "1")
    assert [config.data.root for config in asked.values()] == ["/cars"] * 3


def test_where_the_images_are_does_not_decide_where_a_run_is(
    asked: dict[Path, RunConfig],
) -> None:
    for data in ("/here", "/there"):
        ok("aux", "--data", data, "--seeds", "1")
    assert len(asked) == 3


def test_a_setting_by_its_name_beats_the_short_option(asked: dict[Path, RunConfig]) -> None:
    ok("aux", "--small", "--backbone", "test_vit", "--weights", "random:1", "--seeds", "1")
    ok("aux", "--backbone", "other", "--backbone.name", "test_vit2", "--seeds", "2")
    names = {c.seeds.init: (c.backbone.name, c.backbone.weights) for c in asked.values()}
    assert names == {1: ("test_vit", "random:1"), 2: ("test_vit2", None)}


# --- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ablations"], "no table 'ablations'; did you mean 'ablation'?"),
        (["resource"], "no table 'resource'; did you mean 'resources'?"),
        (["zzz"], "no table 'zzz'; there are ablation, aux, cars10, "),
        (
            ["ablation", "--data", "/images"],
            "--data '/images' does not say which dataset it is; write "
            "DATASET=FOLDER with DATASET one of imagenet_r, stanford_cars",
        ),
        (["ablation", "--data", "cars=/images"], "--data 'cars=/images' does not say which"),
        (
            ["ablation", "--benchmark", "cars11"],
            "table ablation has no benchmark 'cars11'; did you mean 'cars10'?",
        ),
        (["aux", "--only", "4"], "table aux has no row 4; rows are counted from 1 to 3"),
        (["aux", "--only", "0"], "table aux has no row 0; rows are counted from 1 to 3"),
        (["aux", "--seeds", "1,x"], "--seeds '1,x' is not whole numbers"),
        (["aux", "--seeds", ""], "--seeds '' is not whole numbers"),
        (["aux", "--small", "--data", "x"], "--small draws its images"),
        (["aux", "--methd.tau", "2"], "no settings 'methd'; did you mean 'method'?"),
        (["aux", "--method.taw", "2"], "method cprompt: no setting 'taw'; did you mean 'tau'?"),
        (["resources", "5"], "'5' is neither an argument"),
    ],
)
def test_what_cannot_be_meant_is_named(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    forbid_running(monkeypatch)
    with pytest.raises(ConfigError) as error:
        ok(*arguments)
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("title: Mine", "titel: Mine", "'titel'"),
        ("title: Mine", "", "title"),
        ("[cars20, imagenet_r10]", "[cars21]", "benchmarks: no 'cars21'"),
        ("last_accuracy:", "last_acuracy:", "columns: no 'last_acuracy'"),
        ("label: Ours", "label: 3", "rows, number 1: label"),
        ("method: finetune", "method: finetun", "row 'Plain' on cars20: no method"),
        ("method.length: 3", "method.lenght: 3", "'lenght'"),
        ("[12.5, null]", "[12.5]", "rows, number 2: paper.cars20"),
    ],
)
def test_a_fault_in_a_table_s_file_is_named_with_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str, fault: str
) -> None:
    forbid_running(monkeypatch)
    assert old in OWN
    (tmp_path / "mine.yaml").write_text(OWN.replace(old, new))
    with pytest.raises(ConfigError) as error:
        ok("mine.yaml", *TINY)
    assert error.value.file == "mine.yaml"
    assert fault in error.value.message


def test_a_file_that_is_not_there_is_named(main: Main) -> None:
    assert main.error("table", "nowhere.yaml").startswith("nowhere.yaml")


def test_a_table_without_its_images_says_what_to_pass() -> None:
    with pytest.raises(
        ConfigError, match=r"'stanford_cars' needs the folder .* pass --data FOLDER"
    ):
        ok("aux", "--seeds", "1", "--backbone", "test_vit", "--weights", "random:0")


def test_the_resource_table_is_printed_without_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    forbid_running(monkeypatch)
    counted = Table("Costs", ("stored",), (("CPrompt", (Cell(1.5, None, 0, None),)),), ())
    monkeypatch.setattr("cprompt.research.cost.table", lambda: counted)
    printed = ok("resources", "--format", "markdown")
    assert printed.startswith("**Costs**\n\n|  | stored |\n| --- | ---: |\n| CPrompt | 1.50 |\n")


def test_help_names_every_table() -> None:
    printed = ok("--help")
    for name in (*command.TABLES, "resources", "cars10"):
        assert name in printed


def test_the_settings_of_a_row_are_those_of_the_same_run_by_hand(
    asked: dict[Path, RunConfig],
) -> None:
    """`cprompt run` with the row's settings would make the same run."""
    ok("ccl_given", "--seeds", "87")
    seeds = dict.fromkeys(("seeds.order", "seeds.init", "seeds.data"), 87)
    modes = {"evaluation.modes": ["selected", "given", "first"]}
    by_hand = [
        resolve("cars10", "cprompt", overrides=seeds | modes | more)
        for more in ({"method.ccl": False}, {})
    ]
    assert list(asked.values()) == by_hand
    assert list(asked) == [config.default_folder() for config in by_hand]


def test_a_table_of_runs_says_nothing_on_stderr_and_does_not_wait_for_triton() -> None:
    """Triton's bindings told of leaks at the end of each process that imported it."""
    program = """
import sys
from cprompt import cli
sys.argv = ["cprompt", "table", "cars10", "--only-show", "--format", "markdown"]
try:
    cli.main()
finally:
    print("triton" in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120
    )
    lines = done.stdout.splitlines()
    assert (done.returncode, done.stderr, lines[-1]) == (0, "", "False")
    assert any(line.startswith("| CPrompt") for line in lines)
