"""Labels and legends: whole, inside the figure, and taken as they stand."""

from __future__ import annotations

from xml.etree import ElementTree

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
from cprompt.research.record import Record
from tests.report.figures.records import better


def test_a_name_with_dollars_is_not_taken_for_mathematics(hand_record: Record) -> None:
    name = r"$\frac$ & $x_1$"
    for draw in (accuracy_curves, accuracy_heatmaps, forgetting, class_accuracy, losses, costs):
        svg = to_svg(settle(draw({name: [hand_record], "b": [hand_record]})))
        texts = " ".join("".join(e.itertext()) for e in ElementTree.fromstring(svg).iter())
        assert name in " ".join(texts.split()), draw.__name__


def test_nothing_reaches_over_the_edge_of_a_figure(hand_record: Record) -> None:
    label = "CPrompt, some setting 0.123, another one off, and 5 more"
    runs = {f"{label} {i}": [hand_record, better(hand_record)] for i in range(9)}
    draws = (accuracy_curves, accuracy_heatmaps, prompt_pick_maps, forgetting, class_accuracy)
    for draw in (*draws, losses, costs):
        for series in (runs, {label: [hand_record]}):
            figure = settle(draw(series))
            inside, edge = figure.get_tightbbox(), figure.bbox_inches
            assert inside.x0 >= -0.02, draw.__name__
            assert inside.y0 >= -0.02, draw.__name__
            assert inside.x1 <= edge.x1 + 0.02, draw.__name__
            assert inside.y1 <= edge.y1 + 0.02, draw.__name__
