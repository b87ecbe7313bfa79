"""`cprompt demo`, on settings so small that it takes a second."""

from __future__ import annotations

import re
import shlex
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image

from cprompt.cli.demo import COMPARED
from cprompt.data.pipeline import views
from cprompt.research import metrics
from cprompt.research.config import RunConfig, resolve
from cprompt.research.experiment import CHECKPOINT, load_method
from cprompt.research.record import Record, load_record
from cprompt.vit.loading import load_backbone
from tests.cli.common import Main
from tests.cli.common import ok as invoke

TINY: dict[str, Any] = {
    "backbone.name": "test_vit",
    "backbone.weights": "random:0",
    "backbone.image_size": 48,
    "data.options": {"classes": 5, "train_per_class": 4, "test_per_class": 15, "size": 48},
    "stream.sizes": [2, 1, 2],
    "training.epochs": 1,
    "method.length": 2,
    "execution.device": "cpu",
}


def shrink(monkeypatch: pytest.MonkeyPatch) -> None:
    def tiny(*args: Any, overrides: dict[str, Any]) -> RunConfig:
        return resolve(*args, overrides={**overrides, **TINY})

    monkeypatch.setattr("cprompt.research.config.resolve", tiny)
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The demo's folder, and what was printed."""
    out = tmp_path_factory.mktemp("demo") / "out"
    with pytest.MonkeyPatch.context() as patch:
        shrink(patch)
        return out, invoke("demo", "--out", str(out), "--seed", "4")


@pytest.fixture(scope="module")
def records(demo: tuple[Path, str]) -> dict[str, Record]:
    return {name: load_record(demo[0] / name) for name in COMPARED}


class Page(HTMLParser):
    """Elements with their attributes, and the text between them."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def page(demo: tuple[Path, str]) -> Page:
    return Page(demo[0] / "report.html")


def test_both_methods_learn_the_same_stream_from_the_seed(records: dict[str, Record]) -> None:
    for name, record in records.items():
        assert record.finished
        assert record.config["method"]["name"] == name
        assert record.config["seeds"] == {"order": 4, "init": 4, "data": 4}
        assert (record.backbone["name"], record.backbone["weights"]) == ("test_vit", "random:0")
    assert records["cprompt"].stream == records["finetune"].stream


def test_both_matrices_and_both_last_accuracies_are_printed(
    demo: tuple[Path, str], records: dict[str, Record]
) -> None:
    _, printed = demo
    lines = [line.split() for line in printed.splitlines()]
    blocks = [i for i, line in enumerate(lines) if line[:2] == ["after", "task"]]
    titles = [" ".join(lines[i - 1]) for i in blocks]
    assert titles == [
        "CPrompt: accuracy in % on each batch",
        "Fine-tuning: accuracy in % on each batch",
    ]
    for start, record in zip(blocks, records.values(), strict=True):
        cells = metrics.accuracy_matrix(record.matrix())
        seen = metrics.seen_accuracy(record.matrix())
        for i in range(3):
            numbers = [f"{v:.1f}" for v in [*cells[i][: i + 1], seen[i]]]
            assert lines[start + 1 + i] == [str(i + 1), *numbers]
    last = [record.summary()["last_accuracy"] for record in records.values()]
    assert (
        f"After all 3 batches CPrompt answers {last[0]:.1f} % of the test images right, "
        f"fine-tuning {last[1]:.1f} %."
    ) in printed
    assert f"Report: {demo[0] / 'report.html'}" in printed


def test_a_line_is_printed_for_every_batch_learnt(demo: tuple[Path, str]) -> None:
    for name in ("CPrompt", "Fine-tuning"):
        done = re.findall(rf"^{name} +task (\d)/3: accuracy", demo[1], re.MULTILINE)
        assert done == ["1", "2", "3"]


def test_the_report_needs_nothing_but_itself(demo: tuple[Path, str], page: Page) -> None:
    tags = {tag for tag, _ in page.elements}
    assert not tags & {"script", "link", "iframe", "object", "embed", "base"}
    for _, attributes in page.elements:
        for name, value in attributes.items():
            assert not name.startswith("on")
            if name == "src":
                assert (value or "").startswith("data:image/png;base64,")
            if name.endswith("href"):
                assert (value or "").startswith(("#", "data:image/png;base64,"))
    text = (demo[0] / "report.html").read_text(encoding="utf-8")
    assert "@import" not in text
    assert set(re.findall(r"url\((.)", text)) <= {"#"}


def test_the_report_names_both_methods_and_shows_their_numbers(
    page: Page, records: dict[str, Record]
) -> None:
    for name in ("CPrompt", "Fine-tuning"):
        assert name in page.text
    for record in records.values():
        assert f"{record.summary()['last_accuracy']:.1f} %" in page.text
    assert "5 classes of drawn images arrive in 3 batches" in page.text
    assert "Backbone test_vit" in page.text
    assert "seeds order 4, init 4, data 4" in page.text


def test_the_strip_has_three_images_of_every_batch(page: Page) -> None:
    images = [attributes for tag, attributes in page.elements if tag == "img"]
    batches = [re.search(r"\(batch (\d)\)", p["alt"] or "") for p in images]
    assert [match and match[1] for match in batches] == ["1"] * 3 + ["2"] * 3 + ["3"] * 3
    (strip,) = [a for _, a in page.elements if a.get("class") == "strip"]
    assert "repeat(3, minmax" in (strip["style"] or "")
    assert "grid-template-rows: repeat(3, auto)" in (strip["style"] or "")


def test_the_answers_under_an_image_are_those_of_the_saved_methods(
    demo: tuple[Path, str], page: Page, records: dict[str, Record]
) -> None:
    """Image by image: the first, the middle and the last of each batch."""
    out, _ = demo
    config = resolve("demo", "cprompt", overrides=TINY)
    dataset, stream = config.data.load(4), records["cprompt"].stream
    backbone = load_backbone("test_vit", "random:0", 48)
    preparation = views.build("drawn", 48, "inception")
    expected = []
    methods = {n: load_method(out / n, backbone) for n in COMPARED}
    for task in range(3):
        members = stream.indices(dataset.test.labels, task)
        for index in (members[0], members[round((len(members) - 1) / 2)], members[-1]):
            truth = dataset.classes[dataset.test.labels[index]]
            lines = [f"{truth} (batch {task + 1})"]
            for name, label in (("cprompt", "CPrompt"), ("finetune", "Fine-tuning")):
                image = preparation.prepare(dataset.test.load(int(index)))[None]
                answer = dataset.classes[stream.order[int(methods[name](image).argmax())]]
                lines.append(f"{'✓' if answer == truth else '✗'} {label}: {answer}")
            expected.append("; ".join(lines))
    assert [a["alt"] for tag, a in page.elements if tag == "img"] == expected


def test_a_second_demo_replaces_the_first(
    demo: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shrink(monkeypatch)
    out = tmp_path / "demo"
    shutil.copytree(demo[0], out)
    first = (out / "report.html").read_bytes()
    (out / "cprompt" / "left over").write_text("")
    (out / "mine.txt").write_text("kept")
    invoke("demo", "--out", str(out), "--seed", "2")
    assert load_record(out / "cprompt").config["seeds"]["order"] == 2
    assert (out / "report.html").read_bytes() != first
    assert sorted(p.name for p in (out / "cprompt").iterdir()) == [CHECKPOINT, "record.json"]
    assert (out / "mine.txt").exists()


def test_a_folder_that_cannot_be_written_is_refused_before_learning(
    tmp_path: Path, main: Main, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(*args: object, **options: object) -> None:
        raise AssertionError("a run was started")

    monkeypatch.setattr("cprompt.research.experiment.run", run)
    (tmp_path / "file").touch()
    assert main.error("demo", "--out", "file").startswith("file/report.html: cannot be written")


# --- what it tells the reader to do next --------------------------------------------------------


def next_commands(printed: str) -> list[list[str]]:
    tail = printed[printed.index("Next, with your own images") :]
    return [shlex.split(line) for line in tail.splitlines()[1:] if line.strip()]


def test_the_three_printed_commands_work_on_a_folder_of_images(
    demo: tuple[Path, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    hand_record: Record,
) -> None:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for name in "abcde":
        (tmp_path / "IMAGES" / name).mkdir(parents=True)
        for i in range(4):
            pixels = rng.integers(0, 255, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "IMAGES" / name / f"{i}.png")
    doctor, run, show = (words[1:] for words in next_commands(demo[1]))
    assert "5 classes" in invoke(*doctor)
    settings = yaml.safe_load(invoke(*run, "--dry-run"))
    assert settings["data"]["root"] == "IMAGES"
    assert settings["stream"]["tasks"] == 5
    folder = Path(run[run.index("--out") + 1])
    assert show == ["show", str(folder)]
    hand_record.save(tmp_path / folder)
    assert "Last-acc" in invoke(*show)
