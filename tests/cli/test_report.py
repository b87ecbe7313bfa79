"""`cprompt report`: what it writes, what it says, and that a failure leaves nothing."""

from __future__ import annotations

import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cprompt.cli import report as command
from cprompt.errors import CheckpointError
from cprompt.files import write_json
from cprompt.report import figures
from cprompt.research.record import Record
from tests.cli import common
from tests.cli.common import Main

Asked = list[tuple[list[str], str, list[str]]]
"""Names of runs, title and notes."""


@pytest.fixture
def runs(tmp_path: Path, hand_record: Record) -> Path:
    """Two seeds, of which one is not finished."""
    folder = tmp_path / "runs"
    hand_record.save(folder / "one")
    other = copy.deepcopy(hand_record)
    other.config["seeds"] = dict.fromkeys(("order", "init", "data"), 5)
    other.rows = other.rows[:2]
    other.save(folder / "two")
    return folder


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """A report of three small files, and what it was asked for: runs, title, notes."""
    asked: Asked = []

    def build(runs: Any, title: str, notes: Any) -> SimpleNamespace:
        asked.append((sorted(run.name for run in runs), title, list(notes)))
        files = {"report.html": b"page", "tables/a.csv": b"1", "figures/a.png": b"2"}
        return SimpleNamespace(files=files, series=1, unfinished=0)

    monkeypatch.setattr("cprompt.report.page.build", build)
    return asked


def ok(*arguments: str) -> str:
    return common.ok("report", *arguments)


def test_a_report_goes_to_its_folder_with_its_title(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the files of the first figure only, as each takes long."""
    made: list[dict[str, bytes]] = []

    def files_of_the_first(figure: Any) -> dict[str, bytes]:
        made.append({} if made else to_files(figure))
        return made[-1]

    to_files = figures.to_files
    monkeypatch.setattr(figures, "to_files", files_of_the_first)
    printed = ok(str(runs), "--out", "mine", "--title", "My <runs>")
    assert printed == "2 runs in 1 series, 1 unfinished (in no mean)\nReport: mine/report.html\n"
    text = Path("mine/report.html").read_text("utf-8")
    assert "<h1>My &lt;runs&gt;</h1>" in text
    names = sorted(path.name for path in Path("mine").iterdir())
    assert names == ["figures", "report.html", "tables"]
    assert not list(Path("mine").rglob("*.part"))
    assert Path("mine/figures/shapes-3-tasks-accuracy.pdf").read_bytes().startswith(b"%PDF")


@pytest.mark.usefixtures("built")
def test_one_run_is_called_one_run(runs: Path) -> None:
    assert ok(str(runs / "one")).startswith("1 run in 1 series\n")


def test_the_default_folder_and_any_way_to_name_the_runs(runs: Path, built: Asked) -> None:
    ok(str(runs / "two"), str(runs / "one" / "record.json"))
    assert Path("report/report.html").read_bytes() == b"page"
    ok(str(runs))
    assert [names for names, _, _ in built] == [["one", "two"]] * 2


@pytest.mark.usefixtures("built")
def test_files_of_another_report_in_the_folder_are_left_and_named(runs: Path) -> None:
    old = Path("mine/figures/cars10-10-tasks-accuracy.png")
    old.parent.mkdir(parents=True)
    old.write_bytes(b"old")
    printed = ok(str(runs), "--out", "mine")
    assert f"another report: {old.relative_to('mine')}\n" in printed
    assert old.read_bytes() == b"old"
    (old.parent / "z.png").touch()
    assert f"{old.relative_to('mine')} and 1 more\n" in ok(str(runs), "--out", "mine")


def test_what_was_found_and_left_out_is_said_and_for_the_page(runs: Path, built: Asked) -> None:
    (runs / "half").mkdir()
    (runs / "half" / "record.json").write_text("{")
    printed = ok(str(runs))
    ((names, _, notes),) = built
    assert names == ["one", "two"]
    (note,) = notes
    assert "half/record.json" in note
    assert note in printed


def test_damaged_records_are_left_out_and_the_others_are_shown(
    runs: Path, built: Asked, hand_record: Record
) -> None:
    """Each was once a traceback, or passed in silence."""
    damage: dict[str, Any] = {
        "losses": "oops",
        "backbone": None,
        "classes": list(hand_record.classes)[1:],
        "config": {"method": {}},
        "movement": [1, 2],
        "seconds": {"training": "long"},
        "rows": [
            {"count": [4, 6], "correct": {"selected": [3.5, 5]}, "top_k": None, "picks": None}
        ],
    }
    for field, value in damage.items():
        write_json(runs / field / "record.json", hand_record.to_dict() | {field: value})
    ok(str(runs))
    ((names, _, notes),) = built
    assert names == ["one", "two"]
    assert len(notes) == len(damage)
    for note, field in zip(notes, sorted(damage), strict=True):
        assert note.startswith(f"Left out: {runs / field / 'record.json'}: is a damaged record: ")
        assert f"`{field}" in note


def test_wrong_inputs_are_named_and_nothing_is_written(runs: Path, main: Main) -> None:
    write_json(Path("other.json"), {"format": "something"})
    Path("empty").mkdir()
    for wrong, message in (
        ("other.json", "other.json: is not a record of cprompt"),
        ("nowhere", "nowhere: does not exist"),
        ("empty", "empty: holds no record"),
    ):
        assert message in main.error("report", runs, wrong)
        assert not Path("report").exists()


def test_a_folder_that_cannot_be_written_is_refused_before_anything_is_read(main: Main) -> None:
    Path("file").touch()
    message = main.error("report", "nowhere", "--out", "file/report")
    assert message.startswith("file/report/report.html: cannot be written")


@pytest.mark.usefixtures("built")
def test_a_failure_on_the_way_leaves_no_page(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = command.write_bytes

    def full_disk(path: Path, data: bytes) -> None:
        if path.suffix == ".csv":
            raise CheckpointError(f"{path} cannot be written")
        write(path, data)

    monkeypatch.setattr(command, "write_bytes", full_disk)
    with pytest.raises(CheckpointError, match="cannot be written"):
        ok(str(runs))
    assert not Path("report/report.html").exists()
    assert not list(Path().rglob("*.part"))
