"""`cprompt predict`: a table, JSON and CSV of the same answers."""

from __future__ import annotations

import csv
import io
import json
import os
import sys
from pathlib import Path

import pyarrow.parquet
import pytest

from cprompt.cli.predict import photo_files
from cprompt.errors import ConfigError, DataError
from tests.cli.common import QUICK, Main, ok


def test_predictions_as_a_table_as_json_and_as_csv(model: Path, photos: Path) -> None:
    files = sorted((photos / "test").rglob("*.png"))[:3]
    rows = json.loads(ok("predict", model, *files, "--top", "2", "--json", "--weights", "random:0"))
    assert [row["image"] for row in rows] == [str(f) for f in files]
    for row in rows:
        assert len(row["ranking"]) == 2
        assert row["ranking"][0][1] == row["probability"]
        assert set(row) == {"image", "label", "probability", "known", "ranking", "error"}
        assert row["error"] is None
    table = list(
        csv.DictReader(
            io.StringIO(ok("predict", model, *files, "--csv", "--explain", "--weights", "random:0"))
        )
    )
    assert [line["label"] for line in table] == [row["label"] for row in rows]
    assert all(0 <= float(line["familiarity"]) <= 1 for line in table)
    shown = ok("predict", model, *files, "--explain", "--top", "2", "--weights", "random:0")
    assert "familiarity" in shown
    for row in rows:
        (line,) = [line for line in shown.splitlines() if row["image"] in line]
        assert f"{100 * row['probability']:.0f}" in line.split()


def test_nothing_is_cut_in_a_narrow_terminal(
    model: Path, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    files = sorted((photos / "test").rglob("*.png"))[:3]
    asked = ("predict", model, *files, "--weights", "random:0", "--top", "3")
    rows = json.loads(ok(*asked, "--json"))
    for shown in (ok(*asked), ok(*asked, "--explain")):
        for row in rows:
            assert any(line.startswith(row["image"]) for line in shown.splitlines())
            for name, p in row["ranking"][1:]:
                assert f"{name} {100 * p:.0f} %" in shown
        assert "prompt of batch" not in shown  # strata chooses none
        assert "nearest keys" not in shown
    assert "cprompt[parquet]" in " ".join(ok("predict", "--help").replace("│", " ").split())


def test_methods_with_prompts_and_keys_show_them(photos: Path, tmp_path: Path) -> None:
    ok("learn", "m", photos / "january", *QUICK, "--method", "cprompt", "--method.length", "2")
    file = next((photos / "test").rglob("*.png"))
    shown = ok("predict", "m", file, "--weights", "random:0", "--explain")
    assert "prompt of batch" in shown
    assert "nearest keys" in shown


def test_options_that_exclude_each_other_are_refused(model: Path, photos: Path) -> None:
    with pytest.raises(ConfigError, match="--json and --csv cannot both"):
        ok("predict", model, photos, "--json", "--csv")
    with pytest.raises(ConfigError, match="'fp16'"):
        ok("predict", model, photos, "--precision", "fp16")
    with pytest.raises(ConfigError, match="--precision auto chooses for one machine"):
        ok("predict", model, photos, "--precision", "auto", "--out", photos / "answers")


def test_a_folder_stands_for_its_photos(photos: Path, tmp_path: Path) -> None:
    assert len(photo_files(photos / "test")) == 10
    with pytest.raises(DataError) as error:
        photo_files(tmp_path)
    assert error.value.file == str(tmp_path)
    with pytest.raises(DataError, match=r"a\.jpg: does not exist; check the path$"):
        photo_files(tmp_path / "a.jpg")
    (tmp_path / "a.jpg").touch()
    assert photo_files(tmp_path / "a.jpg") == [tmp_path / "a.jpg"]


@pytest.fixture
def with_bad_ones(photos: Path, tmp_path: Path) -> Path:
    """Two good photos, a cut one and an empty one, in one folder."""
    good = sorted((photos / "test").rglob("*.png"))[:2]
    folder = tmp_path / "mixed"
    folder.mkdir()
    for name, file in zip(("a.png", "d.png"), good, strict=True):
        (folder / name).write_bytes(file.read_bytes())
    (folder / "b.png").write_bytes(good[0].read_bytes()[:200])
    (folder / "c.jpg").write_bytes(b"")
    return folder


def test_bad_photos_are_listed_and_the_others_answered(
    main: Main, model: Path, with_bad_ones: Path
) -> None:
    good = [with_bad_ones / name for name in ("a.png", "d.png")]
    alone = json.loads(ok("predict", model, *good, "--json", "--weights", "random:0"))
    code, out, err = main("predict", model, with_bad_ones, "--json", "--weights", "random:0")
    assert code == 3
    rows = json.loads(out)
    assert [Path(row["image"]).name for row in rows] == ["a.png", "b.png", "c.jpg", "d.png"]
    for row, expected in zip((rows[0], rows[3]), alone, strict=True):
        assert (row["label"], row["error"]) == (expected["label"], None)
        assert row["probability"] == pytest.approx(expected["probability"])
    for row, reason in zip(rows[1:3], ("damaged", "empty"), strict=True):
        assert reason in row["error"]
        assert all(row[name] is None for name in ("label", "probability", "known", "ranking"))
    assert "2 of 4 photos cannot be read" in err
    assert f"{with_bad_ones / 'c.jpg'}: is empty" in err
    code, out, _ = main("predict", model, with_bad_ones, "--weights", "random:0")
    assert code == 3
    assert ["cannot be read" in line for line in out.splitlines()[1:]] == [0, 1, 1, 0]


def test_strict_answers_nothing_if_a_photo_is_bad(
    main: Main, model: Path, with_bad_ones: Path
) -> None:
    told = main.error("predict", model, with_bad_ones, "--strict", "--weights", "random:0")
    assert "b.png" in told


def test_answers_go_to_several_files_at_once(main: Main, model: Path, with_bad_ones: Path) -> None:
    code, out, err = main(
        *("predict", model, "--csv", "a.csv", with_bad_ones, "--json=answers.txt"),
        *("--weights", "random:0"),
    )
    assert (code, out) == (3, "")
    assert "4 photos in a.csv" in err
    rows = json.loads(Path("answers.txt").read_text("utf-8"))
    with Path("a.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert [line["label"] for line in lines] == [row["label"] or "" for row in rows]
    assert [line["error"] for line in lines] == [row["error"] or "" for row in rows]


def test_a_file_that_cannot_be_written_is_refused_before_any_work(
    main: Main, tmp_path: Path
) -> None:
    assert "is a folder" in main.error("predict", "no model", "x.jpg", f"--csv={tmp_path}")


@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse such names")
def test_names_that_are_not_utf8_are_escaped_in_every_output(
    main: Main, model: Path, photos: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "old camera"
    folder.mkdir()
    good = next((photos / "test").rglob("*.png")).read_bytes()
    for name, content in ((b"caf\xe9 \xc3\xa9.png", good), (b"\xff.jpg", b"")):
        Path(folder, os.fsdecode(name)).write_bytes(content)
    expected = [f"{folder}/caf\\xe9 é.png", f"{folder}/\\xff.jpg"]
    asked = ("predict", model, folder, "--weights", "random:0")
    code, out, err = main(*asked, "--json", "--csv", "a.csv")
    assert code == 3
    assert [row["image"] for row in json.loads(out.encode("utf-8"))] == expected
    lines = list(csv.DictReader(io.StringIO(Path("a.csv").read_bytes().decode("utf-8"))))
    assert [line["image"] for line in lines] == expected
    assert f"{expected[1]}: is empty" in err
    _, table, _ = main(*asked)
    assert table.encode("utf-8")  # a lone surrogate would not go through
    assert all(name in table for name in expected)
    assert expected[1] in main.error(*asked, "--strict")


def test_parquet_has_the_same_answers_as_json(main: Main, model: Path, with_bad_ones: Path) -> None:
    asked = ("predict", model, with_bad_ones, "--weights", "random:0", "--top", "2")
    code, _, err = main(*asked, "--parquet", "a.parquet", "--json", "a.json")
    assert code == 3
    assert "4 photos in a.parquet" in err
    rows = json.loads(Path("a.json").read_text("utf-8"))
    found = pyarrow.parquet.read_table("a.parquet").to_pylist()
    for row in rows:
        pairs = row["ranking"]
        row["ranking"] = pairs and [{"name": name, "probability": p} for name, p in pairs]
    assert found == rows


# --- in parts -----------------------------------------------------------------------------------


def test_answers_in_parts_are_those_of_the_table_and_are_not_made_twice(
    main: Main, model: Path, with_bad_ones: Path, tmp_path: Path
) -> None:
    asked = ("predict", model, with_bad_ones, "--weights", "random:0", "--top", "2")
    _, out, _ = main(*asked, "--json")
    code, _, err = main(*asked, "--out", tmp_path / "out", "--jsonl")
    assert code == 3
    assert "4 photos answered" in err
    assert "2 photos cannot be read" in err
    (part,) = (tmp_path / "out").glob("part-*.jsonl")
    rows = [json.loads(line) for line in part.read_text("utf-8").splitlines()]
    assert rows == json.loads(out)
    code, _, err = main(*asked, "--out", tmp_path / "out", "--jsonl")
    assert code == 3
    assert "0 photos answered" in err
    assert "4 were there already" in err
    assert "2 photos cannot be read" in err
    told = main.error(*asked, "--out", tmp_path / "out", "--jsonl", "--explain")
    assert "other explain" in told


def test_options_of_parts_need_a_folder(main: Main, model: Path, photos: Path) -> None:
    assert "--out FOLDER" in main.error("predict", model, photos, "--on", "ray")
    assert "excludes" in main.error("predict", model, photos, "--out", "x", "--strict")
