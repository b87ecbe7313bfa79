"""`cprompt tune`: it tries, judges by held-out training images, and writes what was best."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from cprompt.cli.runs import data_roots
from cprompt.data.image_set import Dataset, ImageSet
from cprompt.data.registry import load_dataset
from cprompt.errors import DataError
from cprompt.research.record import Record, load_record
from cprompt.research.tables import load_table
from cprompt.research.tuning import load_grid
from tests.cli.common import Main, ok

TINY = [
    *("--backbone", "test_vit", "--weights", "random:0", "--backbone.image_size", "48"),
    *("--data.options", "{classes: 8, train_per_class: 10, test_per_class: 2, size: 48}"),
    *("--stream.increment", "2", "--training.batch_size", "8", "--execution.device", "cpu"),
]
LDA = ["shapes", "--method", "lda", *TINY]


@pytest.fixture(scope="module")
def tried(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of runs, and what was printed."""
    runs = tmp_path_factory.mktemp("tune") / "runs"
    return runs, ok("tune", *LDA, "--runs", runs, "--format", "markdown")


def forbid_running(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*args: Any, **kwargs: Any) -> Record:
        raise AssertionError("a run was started")

    monkeypatch.setattr("cprompt.research.experiment.run", run)


def test_every_try_leaves_a_record_and_the_best_one_is_chosen(tried: tuple[Path, str]) -> None:
    runs, printed = tried
    found = [load_record(path) for path in (runs / "shapes").glob("*/record.json")]
    assert len(found) == 4
    for record in found:
        assert record.finished
        assert record.partial
        assert (record.n_planned, record.stream.n_tasks) == (3, 4)
        assert record.images == {"train": 8 * 9, "test": 8}  # one of ten held out per class
    about = json.loads((runs / "shapes" / "tune.json").read_text())
    lda = about["rows"]["lda"]
    accuracies = [one["accuracy"] for one in lda["tries"]]
    by_folder = {
        path.parent.name: load_record(path).summary()["last_accuracy"]
        for path in (runs / "shapes").glob("*/record.json")
    }
    assert accuracies == [by_folder[one["run"]] for one in lda["tries"]]
    assert lda["chosen"] == accuracies.index(max(accuracies)) + 1
    assert about["rows"]["slca"]["chosen"] is None
    assert f"| {lda['chosen']} |" in next(x for x in printed.splitlines() if "chosen" in x)


def test_finished_tries_are_not_run_again(
    tried: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    runs, printed = tried
    forbid_running(monkeypatch)
    again = ["tune", *LDA, "--runs", runs, "--format", "markdown"]
    assert ok(*again) == ok(*again, "--only-show") == printed
    assert ok("tune", *LDA, "--runs", runs, "--dry-run") == ""


def test_tries_can_be_made_one_by_one(tried: tuple[Path, str], tmp_path: Path) -> None:
    """By number, and as a run of its own; then the table is the same."""
    runs, printed = tried
    lines = ok("tune", *LDA, "--runs", tmp_path, "--dry-run").splitlines()
    assert len(lines) == 4
    for line in lines[:2]:
        ok(*shlex.split(line)[1:])
    ok("tune", *LDA, "--runs", tmp_path, "--only", "3")
    assert len(list((tmp_path / "shapes").glob("*/record.json"))) == 3
    [last] = ok("tune", *LDA, "--runs", tmp_path, "--dry-run").splitlines()
    assert last == lines[3]
    ok(*shlex.split(last)[1:])
    show = ["tune", *LDA, "--runs", tmp_path, "--only-show", "--format", "markdown"]
    assert ok(*show) == printed
    summaries = [(folder / "shapes" / "tune.json").read_text() for folder in (runs, tmp_path)]
    one, two = (json.loads(text) for text in summaries)
    for about in (one, two):
        for tries in (row["tries"] for row in about["rows"].values()):
            for try_ in tries:
                del try_["training_seconds"]
    assert one == two


def test_test_images_are_never_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dataset whose test images cannot be opened."""
    from cprompt.research import config

    def load(name: str, root: Path | None, **options: Any) -> Dataset:
        whole = load_dataset(name, root, **options)
        nowhere = [tmp_path / f"{number}.png" for number in range(len(whole.test))]
        test = ImageSet(nowhere, whole.test.labels, whole.test.classes)
        return Dataset(whole.name, whole.train, test)

    monkeypatch.setattr(config, "load_dataset", load)
    ok("tune", "shapes", "--method", "nearest_mean", *TINY, "--runs", tmp_path)
    about = json.loads((tmp_path / "shapes" / "tune.json").read_text())
    assert about["rows"]["nearest_mean"]["chosen"] is not None
    with pytest.raises(DataError, match=r"\.png"):  # a run without held-out images does read them
        ok("run", "shapes", "--method", "nearest_mean", *TINY, "--out", tmp_path / "whole")


def test_a_try_that_diverges_is_told_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = [*TINY, "--training.epochs", "4", "--method.length", "2"]
    from cprompt.research import tuning

    grid = load_grid()
    row = grid.row("finetune")
    wild = [tuning.Try(None, {"training.lr": rate}, {}) for rate in (0.05, 1e30)]
    changed = tuning.TunedRow(row.name, row.label, row.method, row.settings, tuple(wild))
    other = tuning.TuningGrid(**{**vars(grid), "rows": (changed,)})
    monkeypatch.setattr(tuning, "load_grid", lambda: other)
    arguments = ["tune", "shapes", *few, "--runs", tmp_path, "--format", "markdown"]
    printed = ok(*arguments)
    assert "diverged" in printed
    forbid_running(monkeypatch)
    assert ok(*arguments) == printed
    about = json.loads((tmp_path / "shapes" / "tune.json").read_text())["rows"]["finetune"]
    assert about["chosen"] == 1
    assert about["tries"][1]["accuracy"] is None
    assert "diverged" in about["tries"][1]["failure"]


def test_write_makes_a_table_that_can_be_run(tmp_path: Path) -> None:
    file = tmp_path / "chosen.yaml"
    ok("tune", "--only-show", "--runs", tmp_path / "none", "--write", file)
    spec = load_table(str(file))
    assert [row.label for row in spec.rows] == [row.label for row in load_grid().rows]
    assert set(spec.notes_on) == set(spec.benchmarks)
    assert all("not chosen yet" in note for note in spec.notes_on.values())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["shapes", "--method", "lad"], "nothing to try for 'lad'"),
        (["shapes", "--only", "5"], "--only 5: tries are counted from 1 to 4"),
        (["shape"], "no benchmark 'shape'"),
        (["--benchmark", "shape"], "no benchmark 'shape'"),
        (["--data", "there"], "--data 'there' does not say which dataset it is"),
    ],
)
def test_what_cannot_be_meant_is_named(arguments: list[str], message: str, main: Main) -> None:
    assert main.error("tune", *arguments).startswith(message)


def test_datasets_of_the_protocol_are_found_by_their_names(tmp_path: Path) -> None:
    both = ["--data", "stanford_cars=/a b/cars", "--data", "cifar100=/cifar"]
    lines = ok("tune", "--method", "lda", *both, "--dry-run", "--runs", tmp_path).splitlines()
    roots = [shlex.split(line)[shlex.split(line).index("--data") + 1] for line in lines]
    assert roots == ["/a b/cars"] * 4 + ["/cifar"] * 4


def test_benchmarks_may_also_be_named_as_for_a_table(tmp_path: Path) -> None:
    def benchmarks(*words: str) -> list[str]:
        base = ["tune", *words, "--method", "lda", "--dry-run", "--runs", tmp_path]
        lines = ok(*base, "--data", "stanford_cars=/c", "--data", "cifar100=/d").splitlines()
        return list(dict.fromkeys(shlex.split(line)[2] for line in lines))

    assert benchmarks("--benchmark", "cars10") == benchmarks("cars10") == ["cars10"]
    assert benchmarks("cifar100", "--benchmark", "cars10") == ["cifar100", "cars10"]
    assert benchmarks("--benchmark", "cars10", "--benchmark", "cars10") == ["cars10"]
    assert benchmarks() == list(load_grid().benchmarks)


def test_folders_of_datasets_that_are_not_asked_for_are_passed_over() -> None:
    cars, cifar = "stanford_cars=/cars", "cifar100=/cifar"
    assert data_roots(["cars10", "cars20"], [cars, cifar]) == dict.fromkeys(
        ["cars10", "cars20"], "/cars"
    )
    assert data_roots(["cars10"], [cifar]) == {}
    assert data_roots(["cars10"], ["a=b"]) == {"cars10": "a=b"}
