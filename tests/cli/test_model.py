"""The commands of a practitioner, from drawn photos to a served prediction."""

from __future__ import annotations

import csv
import io
import json
import re
import shlex
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from cprompt.cli import app

README = Path(__file__).parents[2] / "README.md"
QUICK = ["--training.epochs", "1", "--backbone", "test_vit", "--weights", "random:0"]


def cprompt(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(a) for a in arguments])


def ok(*arguments: str | Path) -> str:
    result = cprompt(*arguments)
    assert result.exit_code == 0, result.output + repr(result.exception)
    return result.output


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("drawn") / "photos"
    ok("draw", folder, "--classes", "5", "--photos", "6", "--test", "2")
    return folder


@pytest.fixture(scope="module")
def model(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("learnt") / "model"
    ok("learn", folder, photos / "january", *QUICK)
    ok("learn", folder, photos / "february", "--weights", "random:0")
    return folder


def test_drawn_photos_are_two_batches_and_a_test(photos: Path) -> None:
    counts = {
        part.name: {c.name: len(list(c.iterdir())) for c in part.iterdir()}
        for part in photos.iterdir()
    }
    assert set(counts) == {"january", "february", "test"}
    assert sorted(counts["january"].values()) == [6, 6, 6]
    assert sorted(counts["february"].values()) == [6, 6]
    assert counts["test"] == dict.fromkeys([*counts["january"], *counts["february"]], 2)
    again = cprompt("draw", photos)
    assert again.exit_code != 0
    assert "is not empty" in str(again.exception)


def test_info_tells_the_past_of_a_model(model: Path, photos: Path) -> None:
    told = ok("info", model)
    assert "5 classes; cprompt on test_vit" in told
    about = json.loads(ok("info", model, "--json"))
    assert [sum(b["photos"].values()) for b in about["history"]] == [18, 12]
    assert [len(b["new"]) for b in about["history"]] == [3, 2]


def test_predictions_as_a_table_as_json_and_as_csv(model: Path, photos: Path) -> None:
    files = sorted((photos / "test").rglob("*.png"))[:3]
    rows = json.loads(ok("predict", model, *files, "--top", "2", "--json", "--weights", "random:0"))
    assert [row["image"] for row in rows] == [str(f) for f in files]
    for row in rows:
        assert len(row["ranking"]) == 2
        assert row["ranking"][0][1] == row["probability"]
        assert set(row) == {"image", "label", "probability", "known", "ranking"}
    table = list(
        csv.DictReader(
            io.StringIO(ok("predict", model, *files, "--csv", "--explain", "--weights", "random:0"))
        )
    )
    assert [line["label"] for line in table] == [row["label"] for row in rows]
    assert all(line["prompt"] in ("1", "2") for line in table)
    shown = ok("predict", model, photos / "test", "--explain", "--weights", "random:0")
    assert "nearest keys" in shown
    both = cprompt("predict", model, files[0], "--json", "--csv")
    assert "choose one" in str(both.exception)


def test_evaluation_counts_every_photo(model: Path, photos: Path) -> None:
    found = json.loads(ok("evaluate", model, photos / "test", "--json", "--weights", "random:0"))
    assert found["photos"] == 10
    assert sum(c["photos"] for c in found["per_class"].values()) == 10
    assert set(found["per_batch"]) == {"1", "2"}
    told = ok("evaluate", model, photos / "test", "--weights", "random:0")
    assert re.search(r"accuracy [\d.]+ % of 10 photos", told)
    assert "calibration error" in told


def test_a_model_keeps_the_settings_it_began_with(model: Path, photos: Path) -> None:
    refused = cprompt("learn", model, photos / "january", "--method", "l2p", "--training.lr", "1")
    assert "leave out 'method', 'training.lr'" in str(refused.exception)


def test_undo_goes_back_a_batch(photos: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    ok("learn", folder, photos / "january", *QUICK)
    before = json.loads(ok("info", folder, "--json"))["model"]
    ok("learn", folder, photos / "february", "--weights", "random:0")
    assert "is back to batch 1, 3 classes" in ok("undo", folder)
    assert json.loads(ok("info", folder, "--json"))["model"] == before


def test_the_five_commands_of_the_readme(tmp_path: Path) -> None:
    here = tmp_path
    block = (
        README.read_text("utf-8").split("## Five commands")[1].split("```sh\n")[1].split("```")[0]
    )
    commands = [shlex.split(line, comments=True) for line in block.strip().splitlines()]
    assert [c[1] for c in commands] == ["draw", "learn", "learn", "predict", "serve"]
    entry = [sys.executable, "-c", "from cprompt.cli import main; main()"]
    for command in commands[:4]:
        done = subprocess.run(
            [*entry, *command[1:]], cwd=here, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) > 40
    service = subprocess.Popen(
        [*entry, *commands[4][1:], "--port", "0"],
        cwd=here,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        address = _address(service)
        photo = next((here / "photos/test").rglob("*.png"))
        request = urllib.request.Request(
            f"{address}/v1/predict",
            data=photo.read_bytes(),
            headers={"Content-Type": "image/png"},
            method="POST",
        )
        with urllib.request.urlopen(request, timeout=60) as response:
            answer = json.load(response)
        names = [p.name for p in (here / "photos/test").iterdir()]
        assert answer["predictions"][0]["ranking"][0]["label"] in names
    finally:
        service.terminate()
        service.wait(30)


def _address(service: subprocess.Popen[str]) -> str:
    assert service.stdout is not None
    until = time.monotonic() + 120
    while time.monotonic() < until:
        line = service.stdout.readline()
        if found := re.search(r"http://127\.0\.0\.1:\d+", line):
            return found[0]
        assert service.poll() is None, line
    raise AssertionError("the service did not say where it listens")
