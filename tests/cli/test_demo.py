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
from PIL import Image

from cprompt import ContinualClassifier
from cprompt.cli.demo import LEARNERS
from cprompt.data.pipeline import views
from cprompt.research import metrics
from cprompt.research.config import RunConfig, resolve
from cprompt.research.experiment import CHECKPOINT, load_method
from cprompt.research.record import Record, load_record
from cprompt.vit.loading import load_backbone
from tests.cli.common import Main
from tests.cli.common import ok as invoke

TITLES = {"strata": "Strata", "cprompt": "CPrompt", "finetune": "Fine-tuning"}
TINY: dict[str, Any] = {
    "backbone.name": "test_vit",
    "backbone.weights": "random:0",
    "backbone.image_size": 48,
    "data.options": {"classes": 5, "train_per_class": 4, "test_per_class": 15, "size": 48},
    "stream.sizes": [2, 1, 2],
    "training.epochs": 1,
    "execution.device": "cpu",
}
SHORT_PROMPTS = {"method.length": 2}
"""For the methods that are trained."""


def shrink(monkeypatch: pytest.MonkeyPatch) -> None:
    def tiny(benchmark: str, method: str, overrides: dict[str, Any]) -> RunConfig:
        short = {} if method == "strata" else SHORT_PROMPTS
        return resolve(benchmark, method, overrides={**overrides, **TINY, **short})

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
    return {name: load_record(demo[0] / name) for name in LEARNERS}


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


def test_the_method_of_cprompt_learn_comes_first() -> None:
    assert next(iter(LEARNERS)) == ContinualClassifier().method


def test_all_methods_learn_the_same_stream_from_the_seed(records: dict[str, Record]) -> None:
    assert list(records) == ["strata", "cprompt", "finetune"]
    for name, record in records.items():
        assert record.finished
        assert record.config["method"]["name"] == name
        assert record.config["seeds"] == {"order": 4, "init": 4, "data": 4}
        assert (record.backbone["name"], record.backbone["weights"]) == ("test_vit", "random:0")
        assert record.stream == records["cprompt"].stream


def test_a_curve_and_the_numbers_of_every_learner_are_printed(
    demo: tuple[Path, str], records: dict[str, Record]
) -> None:
    out, printed = demo
    lines = [line.split() for line in printed.splitlines()]
    for name, record in records.items():
        seen = metrics.seen_accuracy(record.matrix())
        curve = "".join("▁▂▃▄▅▆▇█"[min(7, int(v // 12.5))] for v in seen)
        assert [TITLES[name], curve, *(f"{v:.1f}" for v in seen)] in lines
    last = [record.summary()["last_accuracy"] for record in records.values()]
    assert (
        f"After all 3 batches Strata answers {last[0]:.1f} % of the test images right, "
        f"CPrompt {last[1]:.1f} %, fine-tuning {last[2]:.1f} %."
    ) in printed
    assert f"Report: {out / 'report.html'}" in printed


def test_every_learner_is_introduced_in_order(demo: tuple[Path, str]) -> None:
    at = [demo[1].index(f"{TITLES[name]:11} {about}") for name, about in LEARNERS.items()]
    assert at == sorted(at)
    assert demo[1].index("one pass, nothing forgotten") < at[1]


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


def test_the_report_names_all_methods_and_shows_their_numbers(
    page: Page, records: dict[str, Record]
) -> None:
    for name in TITLES.values():
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
    config = resolve("demo", "strata", overrides=TINY)
    dataset, stream = config.data.load(4), records["cprompt"].stream
    backbone = load_backbone("test_vit", "random:0", 48)
    preparation = views.build("drawn", 48, "inception")
    expected = []
    methods = {n: load_method(out / n, backbone) for n in LEARNERS}
    for task in range(3):
        members = stream.indices(dataset.test.labels, task)
        for index in (members[0], members[round((len(members) - 1) / 2)], members[-1]):
            truth = dataset.classes[dataset.test.labels[index]]
            lines = [f"{truth} (batch {task + 1})"]
            for name, label in TITLES.items():
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
    demo: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for name in "abcde":
        (tmp_path / "IMAGES" / name).mkdir(parents=True)
        for i in range(4):
            pixels = rng.integers(0, 255, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "IMAGES" / name / f"{i}.png")
    shutil.copy(tmp_path / "IMAGES" / "a" / "0.png", tmp_path / "PHOTO")
    doctor, learn, predict = (words[1:] for words in next_commands(demo[1]))
    assert "5 classes" in invoke(*doctor)
    assert "5 classes" in invoke(*learn)
    assert "PHOTO" in invoke(*predict)
