"""The whole report: what is in it, that it stands alone, and that it is the same every time."""

from __future__ import annotations

import copy
import csv
import io
import re
from collections.abc import Callable
from xml.etree import ElementTree

import pytest

from cprompt.report import figures
from cprompt.report.page import NAMED_CLASSES, build, class_lines, summary_grid
from cprompt.report.runs import Run
from cprompt.report.series import sections
from cprompt.research.stream import TaskStream
from tests.report.reader import Reader

MakeRun = Callable[..., Run]

FIGURES = ("accuracy", "matrix", "forgetting", "prompts", "classes", "losses", "cost")
TABLES = ("summary", "tasks", "classes", "cost", "runs")
NASTY = "<script>alert('1')</script> & \"$x_1$\""


class Page(Reader):
    """A whole document: nothing is left open."""

    def __init__(self, document: bytes) -> None:
        super().__init__(document.decode())
        assert self.open == []


@pytest.fixture
def only_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spares the files of the figures, which take most of the time."""
    monkeypatch.setattr(figures, "to_files", lambda figure: {})


def page(runs: list[Run]) -> Page:
    return Page(build(runs, "Title").files["report.html"])


def joint(run: Run) -> Run:
    record = run.record
    record.stream = TaskStream(record.stream.order, (5,))
    row = record.rows[-1]
    record.rows = [type(row)(row.count, {"selected": row.correct["selected"]}, row.top_k, None)]
    record.losses = record.losses[:1]
    return run


@pytest.fixture
def runs(make_run: MakeRun) -> list[Run]:
    """Three methods with two seeds, one of them not finished, and joint training."""
    return [
        *(make_run(seed=seed) for seed in (0, 1)),
        *(make_run("l2p", seed, picks=False) for seed in (0, 1)),
        make_run("finetune", 0, picks=False),
        make_run("finetune", 1, picks=False, tasks=2),
        joint(make_run("joint", 0)),
    ]


def test_every_figure_and_table_is_a_file_and_in_the_page(runs: list[Run]) -> None:
    files = build(runs, "Title").files
    assert set(files) == {
        "report.html",
        *(f"figures/shapes-3-tasks-{n}.{e}" for n in FIGURES for e in ("png", "svg", "pdf")),
        *(f"tables/shapes-3-tasks-{n}.{e}" for n in TABLES for e in ("md", "tex", "csv")),
    }
    read = Page(files["report.html"])
    assert [tag for tag, _ in read.elements].count("svg") == len(FIGURES)
    assert read.by_tag["h1"] == ["Title"]
    assert len(read.by_tag["h2"]) == 1
    assert read.by_tag["h3"] == [
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


@pytest.mark.usefixtures("only_page")
def test_contents_and_headings_lead_to_what_is_there_once(runs: list[Run]) -> None:
    read = page(runs)
    ids = [a["id"] for _, a in read.elements if "id" in a]
    assert len(ids) == len(set(ids))
    targets = [a.get("href") or a.get("xlink:href") for _, a in read.elements]
    targets = [target for target in targets if target and not target.startswith("data:image")]
    assert len(targets) > 20
    assert {target.removeprefix("#") for target in targets} <= set(ids)


@pytest.mark.usefixtures("only_page")
def test_a_caption_says_runs_seeds_and_backbone(runs: list[Run]) -> None:
    captions = page(runs).by_tag["figcaption"]
    assert len(captions) == len(FIGURES)
    assert all("Backbone: test_vit (random:0, 0123456789ab)." in caption for caption in captions)
    assert "CPrompt (seeds 0, 1); L2P (seeds 0, 1); Fine-tuning (seeds 0, 1); Joint" in captions[0]
    assert "CPrompt (seeds 0, 1); L2P (seeds 0, 1); Fine-tuning (seed 0)." in captions[1]
    assert "CPrompt (seeds 0, 1). Backbone" in captions[3]
    assert "metrics.forgetting_paper" in captions[2]


@pytest.mark.usefixtures("only_page")
def test_every_drawing_has_a_description(runs: list[Run]) -> None:
    drawings = [a for tag, a in page(runs).elements if tag == "svg"]
    assert all(a["role"] == "img" for a in drawings)
    described = [a["aria-label"] or "" for a in drawings]
    assert described[0] == (
        "Accuracy over all classes seen after each task; at the end: CPrompt 50.0 %, L2P 50.0 %, "
        "Fine-tuning 50.0 %, Joint 50.0 %"
    )
    assert all("CPrompt" in text for text in described)


@pytest.mark.usefixtures("only_page")
def test_an_unfinished_run_is_in_the_curves_in_no_mean_and_named(runs: list[Run]) -> None:
    report = build(runs, "Title")
    text = report.files["report.html"].decode()
    assert "Made from the records of 7 runs, of which 1 unfinished" in text
    assert "Unfinished, and in no mean: Fine-tuning seed 1 (unfinished, 2 of 3 tasks)." in text
    assert "ends in a cross: a run that is not finished" in text
    assert report.unfinished == 1
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


def test_the_summary_is_by_hand(make_run: MakeRun) -> None:
    better = make_run(seed=1)
    better.record.rows[-1].correct["selected"][:] = [4, 6, 5, 1, 2]
    [section] = sections([make_run(), better])
    grid, metrics = summary_grid(section)
    head, line = grid.lines()
    shown = dict(zip(head, line, strict=True))
    assert shown["n"] == "2"
    assert shown["Last-acc"] == "75.00±35.36"
    assert shown["FF (paper)"] == "2.50±31.82"  # 25 and -20
    assert shown["Old"] == "76.67±33.00"  # 8 and 15 of 15
    assert shown["New"] == "66.67±47.14"
    assert shown["Picked right"] == "61.11±0.00"
    assert shown["Last, right prompt"] == "72.22±0.00"
    assert "last_accuracy_first" in metrics


@pytest.mark.usefixtures("only_page")
def test_every_column_of_the_summary_is_explained_beside_it(runs: list[Run]) -> None:
    read = page(runs)
    headings = [t for t in read.by_tag["th"] if t][1:10]
    terms = read.by_tag["dt"]
    assert headings[:3] == ["Last-acc", "Avg-acc", "FF (paper)"]
    assert set(headings) - {"n"} <= set(terms)
    assert len(read.by_tag["dd"]) == len(terms)
    assert read.by_tag["dd"][0].endswith("[last_accuracy]")


def test_a_report_of_one_run_of_one_task(make_run: MakeRun) -> None:
    files = build([joint(make_run("joint"))], "One").files
    made = {name.split("-")[-1] for name in files if name.endswith(".png")}
    assert made == {"accuracy.png", "classes.png", "losses.png", "cost.png"}
    assert Page(files["report.html"]).by_tag["h3"][0] == "Summary"


@pytest.mark.usefixtures("only_page")
def test_a_series_that_is_not_finished_is_shown_as_far_as_it_got(make_run: MakeRun) -> None:
    for tasks, heat_maps in ((1, True), (2, True)):
        read = page([make_run(tasks=tasks)])
        assert "Summary" not in read.by_tag["h3"]
        assert ("Forgetting by task" in read.by_tag["h3"]) == (tasks > 1)
        assert ("Accuracy by task" in read.by_tag["h3"]) == heat_maps
        labels = [a["aria-label"] for tag, a in read.elements if tag == "svg"]
        assert f"CPrompt (unfinished, {tasks} of 3 tasks)" in (labels[1] or "")


def test_a_run_just_begun_is_listed(make_run: MakeRun) -> None:
    begun = make_run(tasks=0)
    files = build([begun], "Begun").files
    assert not any(name.startswith("figures/") for name in files)
    read = Page(files["report.html"])
    assert read.by_tag["h3"] == ["Runs"]
    assert "unfinished, 0 of 3 tasks" in read.by_tag["td"]


@pytest.mark.usefixtures("only_page")
def test_an_old_record_gives_what_it_has(make_run: MakeRun) -> None:
    old = make_run(picks=False)
    record = old.record
    record.losses, record.seconds, record.parameters = [], {}, {}
    record.environment, record.backbone, record.images = {}, {}, {}
    record.config = {"method": {"name": "elder"}}
    files = build([old], "Old").files
    read = Page(files["report.html"])
    assert "Losses" not in read.by_tag["h3"]
    assert "elder" in read.by_tag["td"]
    assert "–" in read.by_tag["td"]


def test_hostile_names_are_text_everywhere(make_run: MakeRun) -> None:
    run = make_run()
    run.record.classes = (NASTY, *run.record.classes[1:])
    run.record.dataset = run.record.config["benchmark"] = NASTY
    run.record.config["method"]["name"] = NASTY
    run.record.losses = [[{NASTY: 1.0}]] * 3
    run.record.environment["cpu"] = NASTY
    run.record.backbone["name"] = NASTY
    report = build([run], NASTY, [NASTY])
    read = Page(report.files["report.html"])
    assert "script" not in [tag for tag, _ in read.elements]
    assert read.by_tag["h1"] == read.by_tag["title"] == [NASTY]
    assert f"{NASTY}: 100 %" in read.by_tag["td"]
    for name, data in report.files.items():
        assert re.fullmatch(r"[a-z0-9./-]+", name)
        if name.endswith(".svg"):
            ElementTree.fromstring(data)
        if name.endswith(".md"):
            assert not re.search(rb"(?<!\\)<script", data), name


@pytest.mark.usefixtures("only_page")
def test_the_page_stands_alone(runs: list[Run]) -> None:
    text = build(runs, "Title").files["report.html"].decode()
    read = Page(text.encode())
    tags = {tag for tag, _ in read.elements}
    assert not {"script", "link", "iframe", "object", "embed", "base", "img"} & tags
    assert "http" not in re.sub(r'xmlns(:\w+)?="[^"]*"', "", text)
    for _, attributes in read.elements:
        for name, value in attributes.items():
            assert not name.startswith("on")
            if name in ("src", "href", "xlink:href"):
                assert (value or "").startswith(("#", "data:image/png")), value
    assert "@import" not in text
    assert not re.search(r"url\((?!#)", text)


def test_the_same_records_give_the_same_bytes_in_any_order(make_run: MakeRun) -> None:
    runs = [make_run(), make_run(seed=1), make_run("finetune", picks=False)]
    again = [Run(run.path, copy.deepcopy(run.record)) for run in reversed(runs)]
    assert build(runs, "Title").files == build(again, "Title").files


@pytest.mark.usefixtures("only_page")
def test_two_benchmarks_are_two_sections(make_run: MakeRun) -> None:
    report = build([make_run(), make_run(benchmark="demo")], "Title")
    read = Page(report.files["report.html"])
    assert [h.partition(":")[0] for h in read.by_tag["h2"]] == ["demo", "shapes"]
    assert {"tables/demo-3-tasks-cost.csv", "tables/shapes-3-tasks-cost.csv"} <= set(report.files)
    ids = [a["id"] for _, a in read.elements if "id" in a]
    assert len(ids) == len(set(ids))


@pytest.mark.usefixtures("only_page")
def test_series_of_different_or_repeated_seeds_are_pointed_out(make_run: MakeRun) -> None:
    again = make_run(folder="again")
    again.record.seconds = {}
    text = " ".join(page([make_run(), again, make_run("l2p", 5)]).by_tag["p"])
    assert "CPrompt has several runs with seed 0; each counts in the means." in text
    assert "The series do not all have the same seeds" in text
    assert "same seeds" not in " ".join(page([make_run(), make_run("l2p")]).by_tag["p"])


def test_the_best_and_worst_classes_are_named_and_none_is_both(make_run: MakeRun) -> None:
    head, best, worst = class_lines({"ours": [make_run().record]})
    assert head == ["", "", "1.", "2.", "3.", "4.", "5."]
    assert best == ["ours", "best", "ant: 100 %", "bee: 67 %", "elk: 60 %", "dog: 25 %", "cat: 0 %"]
    assert worst == ["ours", "worst", *[""] * NAMED_CLASSES]
    many = make_run().record
    n = 12
    many.stream = TaskStream(tuple(range(n)), (n,))
    many.classes = tuple(f"c{i}" for i in range(n))
    many.rows = [type(many.rows[0])([20] * n, {"selected": list(range(n))}, None, None)]
    _, best, worst = class_lines({"ours": [many]})
    assert best[2:] == ["c11: 55 %", "c10: 50 %", "c9: 45 %", "c8: 40 %", "c7: 35 %"]
    assert worst[2:] == ["c0: 0 %", "c1: 5 %", "c2: 10 %", "c3: 15 %", "c4: 20 %"]


@pytest.mark.usefixtures("only_page")
def test_files_of_the_tasks_have_the_numbers_behind_the_bars(make_run: MakeRun) -> None:
    files = build([make_run()], "T").files
    rows = list(csv.reader(io.StringIO(files["tables/shapes-3-tasks-tasks.csv"].decode())))
    learnt_best_end = ["just learnt", "best before the last task", "at the end"]
    assert rows[0] == ["", "task", *learnt_best_end, "forgotten"]
    assert rows[1] == ["CPrompt", "1", "80.0", "80.0", "50.0", "30.0"]
    assert rows[3][:2] == ["CPrompt", "3"]
    assert float(rows[3][2]) == pytest.approx(100 / 3)
    assert rows[3][3] == rows[3][5] == ""
