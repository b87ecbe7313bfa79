"""`cprompt evaluate`: every photo is counted once."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
from pathlib import Path

import pytest

from tests.cli.common import Main, ok


def test_evaluation_counts_every_photo(model: Path, photos: Path) -> None:
    found = json.loads(ok("evaluate", model, photos / "test", "--json", "--weights", "random:0"))
    assert found["photos"] == 10
    assert sum(c["photos"] for c in found["per_class"].values()) == 10
    assert set(found["per_batch"]) == {"1", "2"}
    told = ok("evaluate", model, photos / "test", "--weights", "random:0")
    share = re.search(r"accuracy ([\d.]+) % of 10 photos", told)
    assert share is not None
    assert float(share[1]) == round(100 * found["accuracy"], 1)
    forced = re.search(r"without refusals ([\d.]+) %:", told)
    assert forced is not None
    assert float(forced[1]) == round(100 * found["accuracy_forced"], 1)
    mistakes = re.findall(r"^(\d+) × .* taken for ", told, re.MULTILINE)
    assert sum(map(int, mistakes)) <= 10


def test_photos_of_classes_never_learnt_are_counted_apart(
    model: Path, photos: Path, tmp_path: Path
) -> None:
    one = next((photos / "test").iterdir())
    shutil.copytree(one, tmp_path / "new" / "never seen")
    told = ok("evaluate", model, tmp_path / "new", "--weights", "random:0")
    assert "2 photos of classes never learnt" in told
    assert "no photo is of a class that was learnt" in told


def test_answers_json_and_page_are_written_beside_the_tables(
    main: Main, model: Path, photos: Path
) -> None:
    asked = ("evaluate", model, photos / "test", "--weights", "random:0")
    code, out, err = main(*asked, "--csv", "a.csv", "--json", "a.json", "--report", "page.html")
    assert code == 0
    assert "accuracy" in out
    assert [line for line in err.splitlines() if line.startswith("written: ")] == [
        "written: a.csv",
        "written: a.json",
        "written: page.html",
    ]
    found = json.loads(Path("a.json").read_text("utf-8"))
    with Path("a.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["image"] for row in rows] == list(
        map(str, sorted((photos / "test").rglob("*.png")))
    )
    assert all(Path(row["image"]).parent.name == row["truth"] for row in rows)
    right = [row["right"] == "True" for row in rows]
    assert right == [row["label"] == row["truth"] for row in rows]
    assert sum(right) / 10 == found["accuracy"]
    assert sum(row["best"] == row["truth"] for row in rows) / 10 == found["accuracy_forced"]
    page = Path("page.html").read_text("utf-8")
    wrong = [row for row in rows if row["right"] == "False" and row["label"] != "unknown"]
    assert page.count("data:image/png") == len(wrong)


def test_a_bad_photo_is_listed_and_the_others_are_counted(
    main: Main, model: Path, photos: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "some bad"
    shutil.copytree(photos / "test", folder)
    first = sorted(folder.iterdir())[0]
    (first / "0 torn.png").write_bytes(next(first.iterdir()).read_bytes()[:200])
    (first / "empty.jpg").touch()
    asked = ("evaluate", model, folder, "--weights", "random:0")
    code, out, err = main(*asked, "--json", "--csv", "a.csv", "--report", "page.html")
    assert code == 3
    assert "2 of 12 photos cannot be read" in err
    assert f"{first / 'empty.jpg'}: is empty" in err
    found = json.loads(out)
    assert [Path(each["image"]).name for each in found.pop("unreadable")] == [
        "0 torn.png",
        "empty.jpg",
    ]
    clean = json.loads(ok("evaluate", model, photos / "test", "--json", "--weights", "random:0"))
    assert clean.pop("unreadable") == []
    for part in ("photos", "accuracy", "accuracy_forced", "per_class", "per_batch", "confusion"):
        assert found[part] == clean[part]
    assert found["ece"] == pytest.approx(clean["ece"], abs=1e-5)
    with Path("a.csv").open(encoding="utf-8", newline="") as file:
        rows = {Path(row["image"]).name: row for row in csv.DictReader(file)}
    assert len(rows) == len({p.name for p in folder.rglob("*.*")})
    assert (rows["empty.jpg"]["truth"], rows["empty.jpg"]["label"]) == (first.name, "")
    assert "damaged" in rows["0 torn.png"]["error"]
    code, out, err = main(*asked, "--strict")
    assert (code, out) == (2, "")
    assert "torn.png" in err


def test_csv_alone_goes_to_standard_output_and_nothing_else_does(model: Path, photos: Path) -> None:
    told = ok("evaluate", model, photos / "test", "--csv", "--weights", "random:0")
    assert len(list(csv.DictReader(io.StringIO(told)))) == 10


def test_a_page_that_cannot_be_written_is_refused_before_any_work(
    main: Main, tmp_path: Path
) -> None:
    assert "is a folder" in main.error("evaluate", "no model", "photos", "--report", tmp_path)
