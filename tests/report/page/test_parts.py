"""Which parts a section has, and its notes."""

from __future__ import annotations

import csv
import io

import pytest

from cprompt.report.page import build
from cprompt.report.page.blocks import Drawing, Part, TableBlock
from cprompt.report.page.parts import SectionBuilder
from cprompt.report.runs import RecordedRun
from cprompt.report.series import sections
from cprompt.training.movement import Movement
from tests.report.page.records import page_of
from tests.report.records import MakeRun

LossesByTask = list[list[dict[str, float]]]


def parts_of(*runs: RecordedRun) -> dict[str, Part]:
    """The parts of the runs' one section, by heading."""
    [section] = sections(runs)
    return {part.heading: part for part in SectionBuilder(section, {}).build().parts}


@pytest.mark.usefixtures("blank_figures")
@pytest.mark.parametrize("tasks", [1, 2])
def test_a_series_that_is_not_finished_is_shown_as_far_as_it_got(
    make_run: MakeRun, tasks: int
) -> None:
    parts = parts_of(make_run(tasks=tasks))
    assert "Summary" not in parts
    assert ("Forgetting by task" in parts) == (tasks > 1)
    [heat_maps] = parts["Accuracy by task"].blocks
    assert isinstance(heat_maps, Drawing)
    assert f"CPrompt (unfinished, {tasks} of 3 tasks)" in heat_maps.svg


@pytest.mark.usefixtures("only_page")
def test_an_old_record_gives_what_it_has(make_run: MakeRun) -> None:
    old = make_run(picks=False)
    record = old.record
    record.losses, record.seconds, record.parameters = [], {}, {}
    record.environment, record.backbone, record.images = {}, {}, {}
    record.config = {"method": {"name": "elder"}}
    page = page_of([old])
    assert "Losses" not in page.by_tag["h3"]
    assert "elder" in page.by_tag["td"]
    assert "–" in page.by_tag["td"]


@pytest.mark.usefixtures("only_page")
def test_prompts_that_hardly_moved_are_told_at_the_top(make_run: MakeRun) -> None:
    healthy, inert = make_run(), make_run("l2p")
    assert "What training moved" not in page_of([healthy, inert]).by_tag["h3"]
    healthy.record.movement = [{"prompts": Movement(1.0, 0.5, 0.5)}] * 3
    inert.record.movement = [{"pool": Movement(1.0, 0.5, 0.001)}] * 3
    page = page_of([healthy, inert])
    assert "What training moved" in page.by_tag["h3"]
    notes = [text for text in page.by_tag["p"] if "hardly moved" in text]
    assert len(notes) == 1
    assert "pool hardly moved in 3 of 3 tasks" in notes[0]


NO_TRAINING: list[LossesByTask] = [[], [[], [], []], [[{}], [{}], [{}]], [[{}, {}], [], [{}]]]


@pytest.mark.parametrize("losses", NO_TRAINING)
@pytest.mark.usefixtures("blank_figures")
def test_methods_without_training_have_no_losses(make_run: MakeRun, losses: LossesByTask) -> None:
    run = make_run()
    run.record.losses = losses
    parts = parts_of(run)
    assert "Losses" not in parts
    assert "Cost" in parts


def untrained(make_run: MakeRun) -> RecordedRun:
    run = make_run()
    run.record.losses = [[], [], []]
    run.record.seconds = {"training": 0.0}
    run.record.parameters = {"learnt": 0}
    return run


@pytest.mark.usefixtures("only_page")
def test_a_method_without_training_or_parameters_has_a_whole_page(make_run: MakeRun) -> None:
    """All parts but losses."""
    page = page_of([untrained(make_run)])
    assert len(page.by_tag["figcaption"]) == page.tags.count("svg") == 6


@pytest.mark.usefixtures("blank_figures")
def test_losses_are_of_the_methods_that_were_trained(make_run: MakeRun) -> None:
    page = page_of([untrained(make_run), make_run("l2p")])
    labels = [a["aria-label"] or "" for tag, a in page.elements if tag == "svg"]
    assert [label for label in labels if label.startswith("Loss")] == ["Loss terms by epoch: L2P"]
    assert len(labels) == 7


@pytest.mark.usefixtures("blank_figures")
def test_what_no_record_measured_is_in_the_table_and_not_drawn(make_run: MakeRun) -> None:
    run = make_run()
    run.record.seconds, run.record.parameters = {}, {"learnt": 0}
    [table] = parts_of(run)["Cost"].blocks
    assert isinstance(table, TableBlock)
    assert table.rows[0][0] == "CPrompt"


@pytest.mark.usefixtures("blank_figures")
def test_series_of_different_or_repeated_seeds_are_pointed_out(make_run: MakeRun) -> None:
    def notes(*runs: RecordedRun) -> str:
        [section] = sections(runs)
        return " ".join(SectionBuilder(section, {}).build().notes)

    again = make_run(folder="again")
    again.record.seconds = {}
    told = notes(make_run(), again, make_run("l2p", 5))
    assert "CPrompt has several runs with seed 0" in told
    assert "do not all have the same seeds" in told
    assert notes(make_run(), make_run("l2p")) == ""


@pytest.mark.usefixtures("blank_figures")
def test_files_of_the_tasks_have_the_numbers_behind_the_bars(make_run: MakeRun) -> None:
    files = build([make_run()], "T").files
    rows = list(csv.reader(io.StringIO(files["tables/shapes-3-tasks-tasks.csv"].decode())))
    learnt_best_end = ["just learnt", "best before the last task", "at the end"]
    assert rows[0] == ["", "task", *learnt_best_end, "forgotten"]
    assert rows[1] == ["CPrompt", "1", "80.0", "80.0", "50.0", "30.0"]
    assert rows[3][:2] == ["CPrompt", "3"]
    assert float(rows[3][2]) == pytest.approx(100 / 3)
    assert rows[3][3] == rows[3][5] == ""
