"""The whole report: what is in it, that it stands alone, and that it is the same every time."""

from __future__ import annotations

import copy
import csv
import io
import re
from xml.etree import ElementTree

import pytest
from matplotlib.figure import Figure

from cprompt.report import figures
from cprompt.report.page import BuiltReport, build
from cprompt.report.runs import RecordedRun
from tests.report.page.records import NASTY, Page
from tests.report.records import MakeRun, learnt_at_once

FIGURES = ("accuracy", "matrix", "forgetting", "prompts", "classes", "losses", "cost")
TABLES = ("summary", "tasks", "classes", "cost", "runs")


@pytest.fixture(scope="module")
def once() -> dict[str, BuiltReport]:
    return {}


@pytest.fixture
def report(request: pytest.FixtureRequest, once: dict[str, BuiltReport]) -> BuiltReport:
    """Of `runs`; built for the first test that asks, and changed by none."""
    if not once:
        request.getfixturevalue("empty_files")
        once["report"] = build(request.getfixturevalue("runs"), "Title")
    return once["report"]


@pytest.fixture
def page(report: BuiltReport) -> Page:
    return Page(report.files["report.html"])


def test_every_figure_and_table_is_a_file_and_in_the_page(report: BuiltReport, page: Page) -> None:
    assert set(report.files) == {
        "report.html",
        *(f"figures/shapes-3-tasks-{n}.{e}" for n in FIGURES for e in ("png", "svg", "pdf")),
        *(f"tables/shapes-3-tasks-{n}.{e}" for n in TABLES for e in ("md", "tex", "csv")),
    }
    assert page.tags.count("svg") == len(FIGURES)
    assert page.by_tag["h1"] == page.by_tag["title"] == ["Title"]
    assert len(page.by_tag["h2"]) == 1
    assert page.by_tag["h3"] == [
        "Summary",
        "Accuracy as classes arrive",
        "Accuracy by task",
        "Forgetting by task",
        "Which prompt answered",
        "Accuracy by class",
        "Losses",
        "Cost",
        "Runs",
    ]
    assert (report.series, report.unfinished) == (4, 1)


def test_contents_and_headings_lead_to_what_is_there_once(page: Page) -> None:
    ids = [a["id"] for _, a in page.elements if "id" in a]
    assert len(ids) == len(set(ids))
    targets = [a.get("href") or a.get("xlink:href") for _, a in page.elements]
    targets = [target for target in targets if target and not target.startswith("data:image")]
    assert len(targets) > 20
    assert {target.removeprefix("#") for target in targets} <= set(ids)


def test_a_caption_says_runs_seeds_and_backbone(page: Page) -> None:
    captions = page.by_tag["figcaption"]
    assert len(captions) == len(FIGURES)
    assert all("Backbone: test_vit (random:0, 0123456789ab)." in caption for caption in captions)
    assert "CPrompt (seeds 0, 1); L2P (seeds 0, 1); Fine-tuning (seeds 0, 1); Joint" in captions[0]
    assert "CPrompt (seeds 0, 1); L2P (seeds 0, 1); Fine-tuning (seed 0)." in captions[1]
    assert "CPrompt (seeds 0, 1). Backbone" in captions[3]
    assert "metrics.forgetting_paper" in captions[2]


def test_every_drawing_has_a_description(page: Page) -> None:
    drawings = [a for tag, a in page.elements if tag == "svg"]
    assert all(a["role"] == "img" for a in drawings)
    described = [a["aria-label"] or "" for a in drawings]
    ends = "CPrompt 50.0 %, L2P 50.0 %, Fine-tuning 50.0 %, Joint 50.0 %"
    assert described[0].endswith(f": {ends}")
    assert all("CPrompt" in text for text in described)


def test_an_unfinished_run_is_in_the_curves_in_no_mean_and_named(
    report: BuiltReport, page: Page
) -> None:
    paragraphs = " ".join(page.by_tag["p"])
    assert "the records of 7 runs, of which 1 unfinished;" in paragraphs
    assert "Fine-tuning seed 1 (unfinished, 2 of 3 tasks)." in paragraphs
    assert "ends in a cross" in page.by_tag["figcaption"][0]
    summary = list(
        csv.DictReader(io.StringIO(report.files["tables/shapes-3-tasks-summary.csv"].decode()))
    )
    [plain] = [row for row in summary if row[""] == "Fine-tuning"]
    assert (float(plain["Last-acc mean"]), plain["Last-acc runs"]) == (50, "1")
    assert {row[""]: row["n"] for row in summary} == {
        "CPrompt": "2",
        "L2P": "2",
        "Fine-tuning": "1",
        "Joint": "1",
    }


def test_every_column_of_the_summary_is_explained_beside_it(page: Page) -> None:
    headings = [t for t in page.by_tag["th"] if t][1:10]
    terms = page.by_tag["dt"]
    assert headings[:3] == ["Last-acc", "Avg-acc", "FF (paper's formula)"]
    assert set(headings) - {"n"} <= set(terms)
    assert len(page.by_tag["dd"]) == len(terms)
    assert page.by_tag["dd"][0].endswith("[last_accuracy]")


def test_the_page_stands_alone(report: BuiltReport, page: Page) -> None:
    text = report.files["report.html"].decode()
    assert not {"script", "link", "iframe", "object", "embed", "base", "img"} & set(page.tags)
    assert "http" not in re.sub(r'xmlns(:\w+)?="[^"]*"', "", text)
    for _, attributes in page.elements:
        for name, value in attributes.items():
            assert not name.startswith("on")
            if name in ("src", "href", "xlink:href"):
                assert (value or "").startswith(("#", "data:image/png")), value
    assert "@import" not in text
    assert not re.search(r"url\((?!#)", text)


@pytest.mark.usefixtures("only_page")
def test_the_same_records_give_the_same_bytes_in_any_order(
    report: BuiltReport, runs: list[RecordedRun]
) -> None:
    """The page holds every figure; tests of figures compare the formats of files."""
    again = [RecordedRun(run.path, copy.deepcopy(run.record)) for run in reversed(runs)]
    files = build(again, "Title").files
    assert files == {name: data for name, data in report.files.items() if "figures" not in name}


def test_hostile_names_are_text_everywhere(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    def only_svg(figure: Figure) -> dict[str, bytes]:
        return {"svg": figures.to_svg(figure).encode()}

    monkeypatch.setattr(figures, "to_files", only_svg)
    run = make_run()
    run.record.classes = (NASTY, *run.record.classes[1:])
    run.record.dataset = run.record.config["benchmark"] = NASTY
    run.record.config["method"]["name"] = NASTY
    run.record.losses = [[{NASTY: 1.0}]] * 3
    run.record.environment["cpu"] = NASTY
    run.record.backbone["name"] = NASTY
    report = build([run], NASTY, [NASTY])
    page = Page(report.files["report.html"])
    assert "script" not in page.tags
    assert page.by_tag["h1"] == page.by_tag["title"] == [NASTY]
    assert NASTY in page.by_tag["p"]
    assert f"{NASTY}: 100 %" in page.by_tag["td"]
    assert any(NASTY in (a.get("aria-label") or "") for tag, a in page.elements if tag == "svg")
    for name, data in report.files.items():
        assert re.fullmatch(r"[a-z0-9./-]+", name)
        if name.endswith(".svg"):
            ElementTree.fromstring(data)
        if name.endswith(".md"):
            assert not re.search(rb"(?<!\\)<script", data), name


@pytest.mark.usefixtures("blank_figures")
def test_two_benchmarks_are_two_sections(make_run: MakeRun) -> None:
    report = build([make_run(), make_run(benchmark="demo")], "Title")
    page = Page(report.files["report.html"])
    assert [h.partition(":")[0] for h in page.by_tag["h2"]] == ["demo", "shapes"]
    assert {"tables/demo-3-tasks-cost.csv", "tables/shapes-3-tasks-cost.csv"} <= set(report.files)
    ids = [a["id"] for _, a in page.elements if "id" in a]
    assert len(ids) == len(set(ids))


def test_a_run_just_begun_is_listed(make_run: MakeRun) -> None:
    files = build([make_run(tasks=0)], "Begun").files
    assert not any(name.startswith("figures/") for name in files)
    page = Page(files["report.html"])
    assert page.by_tag["h3"] == ["Runs"]
    assert "unfinished, 0 of 3 tasks" in page.by_tag["td"]
    assert "the records of 1 run, of which 1 unfinished;" in " ".join(page.by_tag["p"])


@pytest.mark.usefixtures("only_page")
def test_a_run_of_one_task_is_drawn(make_run: MakeRun) -> None:
    page = Page(build([learnt_at_once(make_run("joint"))], "One").files["report.html"])
    assert page.by_tag["h3"] == [
        "Summary",
        "Accuracy as classes arrive",
        "Accuracy by class",
        "Losses",
        "Cost",
        "Runs",
    ]
    assert page.tags.count("svg") == 4
