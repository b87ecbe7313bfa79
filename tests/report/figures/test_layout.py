"""Labels and legends: whole, inside the figure, and taken as they stand."""

from __future__ import annotations

from collections.abc import Callable
from xml.etree import ElementTree

import pytest
from matplotlib.figure import Figure

from cprompt.report.figures import (
    accuracy_curves,
    accuracy_heatmaps,
    class_accuracy,
    costs,
    forgetting,
    losses,
    prompt_pick_maps,
    settle,
    to_svg,
)
from cprompt.report.figures.layout import (
    WIDTH,
    add_legend,
    new_figure,
    new_panels,
    task_ticks,
)
from cprompt.report.numbers import RecordsByLabel
from cprompt.research.record import Record
from tests.report.figures.records import better


def test_a_name_with_dollars_is_not_taken_for_mathematics(hand_record: Record) -> None:
    name = r"$\frac$ & $x_1$"
    for draw in (accuracy_curves, accuracy_heatmaps, forgetting, class_accuracy, losses, costs):
        svg = to_svg(draw({name: [hand_record]}))
        texts = " ".join("".join(e.itertext()) for e in ElementTree.fromstring(svg).iter())
        assert name in " ".join(texts.split()), draw.__name__


@pytest.mark.parametrize(
    "draw",
    [
        accuracy_curves,
        accuracy_heatmaps,
        prompt_pick_maps,
        forgetting,
        class_accuracy,
        losses,
        costs,
    ],
)
def test_nothing_reaches_over_the_edge_of_a_figure(
    hand_record: Record, draw: Callable[[RecordsByLabel], Figure]
) -> None:
    """With one long label, and with so many that panels need a second row."""
    label = "CPrompt, some setting 0.123, another one off, and 5 more"
    records = [hand_record, better(hand_record)]
    for series in ({label: records}, {f"{label} {i}": records for i in range(5)}):
        figure = settle(draw(series))
        inside, edge = figure.get_tightbbox(), figure.bbox_inches
        assert inside.x0 >= -0.02
        assert inside.y0 >= -0.02
        assert inside.x1 <= edge.x1 + 0.02
        assert inside.y1 <= edge.y1 + 0.02


def test_panels_fill_rows_of_the_page() -> None:
    figure, panels = new_panels(["a", "b", "c"], 5.0, 2.0, sharey=True)
    assert figure.get_size_inches().tolist() == pytest.approx([2 * 5.0 + 0.4, 2 * 2.0 + 0.3])
    assert [axes.get_title(loc="left") for axes in panels] == ["a", "b", "c"]
    assert figure.get_figwidth() <= WIDTH
    _, (narrow, *_) = new_panels(["a", "b", "c"], 2 * WIDTH, 2.0)
    assert narrow.get_subplotspec().get_gridspec().get_geometry() == (3, 1)


def test_ticks_are_tasks_and_never_too_many() -> None:
    _, axes = new_figure(4, 2)
    task_ticks(axes, range(1, 8))
    assert axes.get_xticks().tolist() == [1, 2, 3, 4, 5, 6, 7]
    task_ticks(axes, range(1, 101))
    assert axes.get_xticks().tolist() == list(range(1, 101, 5))


def test_a_legend_has_each_label_once() -> None:
    figure, panels = new_panels(["a", "b"], 3, 2)
    for axes in panels:
        axes.plot([1, 2], label="ce")
    panels[1].plot([2, 1], label="ccl")
    add_legend(figure)
    [legend] = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["ce", "ccl"]
    empty, _ = new_figure(3, 2)
    add_legend(empty)
    assert empty.legends == []
