"""Figures: the data in their axes, and SVG that asks nobody for anything."""

from __future__ import annotations

import copy
import re
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from cprompt.record import Record
from cprompt.report.figures import (
    COLOURS,
    INK,
    accuracy_curves,
    accuracy_heatmap,
    prompt_picks,
    to_svg,
)

SEEN = [80, 1100 / 15, 50]


def better(record: Record) -> Record:
    """The same run with every picture of the first task right throughout."""
    other = copy.deepcopy(record)
    for row in other.rows:
        row.correct["selected"][:2] = [4, 6]
    return other


def test_a_curve_is_the_accuracy_over_all_classes_seen(hand_record: Record) -> None:
    [axes] = accuracy_curves({"ours": [hand_record]}).axes
    [line] = axes.lines
    assert line.get_label() == "ours"
    assert line.get_xdata().tolist() == [1, 2, 3]
    assert line.get_ydata().tolist() == pytest.approx(SEEN)
    assert axes.get_ylim() == (0, 100)
    assert axes.get_xticks().tolist() == [1, 2, 3]
    assert len(axes.collections) == 0  # one run has no range


def test_several_runs_are_their_mean_and_their_range(hand_record: Record) -> None:
    runs = [hand_record, better(hand_record), hand_record]
    [axes] = accuracy_curves({"ours": runs}).axes
    best = [100, 1400 / 15, 1400 / 18]
    mean = [(2 * a + b) / 3 for a, b in zip(SEEN, best, strict=True)]
    [line] = axes.lines
    assert line.get_ydata().tolist() == pytest.approx(mean)
    [band] = axes.collections
    corners = band.get_paths()[0].vertices
    for x, low, high in zip([1, 2, 3], SEEN, best, strict=True):
        at = corners[corners[:, 0] == x][:, 1]
        assert (at.min(), at.max()) == pytest.approx((low, high))


def test_labels_have_colours_and_markers_of_their_own(hand_record: Record) -> None:
    labels = [f"m{i}" for i in range(len(COLOURS))]
    [axes] = accuracy_curves({label: [hand_record] for label in labels}).axes
    assert len({line.get_color() for line in axes.lines}) == len(labels)
    assert len({line.get_marker() for line in axes.lines}) == len(labels)
    legend = axes.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == labels


def test_the_axis_reaches_to_the_longest_run_whatever_comes_last(hand_record: Record) -> None:
    short = copy.deepcopy(hand_record)
    short.rows = short.rows[:2]
    [axes] = accuracy_curves({"whole": [hand_record], "under way": [short]}).axes
    assert [len(line.get_xdata()) for line in axes.lines] == [3, 2]
    assert axes.get_xticks().tolist() == [1, 2, 3]


def cells(figure: Figure) -> tuple[np.ndarray, dict[tuple[int, int], str]]:  # type: ignore[type-arg]
    """The values that are coloured, and the numbers written by (row, column)."""
    [axes] = figure.axes
    [image] = axes.images
    assert image.get_clim() == (0, 100)
    written = {}
    for text in axes.texts:
        column, row = text.get_position()
        written[int(row), int(column)] = text.get_text()
    return np.ma.filled(image.get_array().astype(float), np.nan), written


def test_the_heat_map_is_the_accuracy_matrix(hand_record: Record) -> None:
    figure = accuracy_heatmap(hand_record)
    values, written = cells(figure)
    nan = np.nan
    np.testing.assert_allclose(values, [[80, nan, nan], [70, 80, nan], [50, 60, 100 / 3]])
    assert written == {
        (0, 0): "80",
        (1, 0): "70",
        (1, 1): "80",
        (2, 0): "50",
        (2, 1): "60",
        (2, 2): "33",
    }
    [axes] = figure.axes
    assert [t.get_text() for t in axes.get_xticklabels()] == ["1", "2", "3"]
    assert [t.get_text() for t in axes.get_yticklabels()] == ["1", "2", "3"]
    assert axes.get_xlabel() == "tested on task"
    assert axes.get_ylabel() == "after learning task"


def test_the_heat_map_of_another_mode_and_of_a_run_under_way(hand_record: Record) -> None:
    values, _ = cells(accuracy_heatmap(hand_record, "given"))
    np.testing.assert_allclose(values[2], [70, 80, 200 / 3])
    hand_record.rows = hand_record.rows[:2]
    values, written = cells(accuracy_heatmap(hand_record))
    np.testing.assert_allclose(values, [[80, np.nan], [70, 80]])
    assert len(written) == 3


def test_numbers_can_be_read_on_their_cell(hand_record: Record) -> None:
    """At least 3 to 1, WCAG's contrast for large text, at every value there can be."""

    def luminance(colour: tuple[float, ...]) -> float:
        linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in colour[:3]]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    hand_record.rows = hand_record.rows[:1]
    for right in range(11):
        hand_record.rows[0].correct["selected"][:] = [min(right, 4), max(right - 4, 0)]
        [axes] = accuracy_heatmap(hand_record).axes
        [image], [text] = axes.images, axes.texts
        below = luminance(image.cmap(image.norm(10.0 * right)))
        ink = luminance(matplotlib.colors.to_rgba(text.get_color()))
        high, low = max(below, ink), min(below, ink)
        assert (high + 0.05) / (low + 0.05) >= 3, right


def test_picks_are_shares_of_each_task_s_pictures(hand_record: Record) -> None:
    figure = prompt_picks(hand_record)
    values, written = cells(figure)
    np.testing.assert_allclose(values, [[60, 20, 20], [20, 60, 20], [0, 100 / 3, 200 / 3]])
    assert written[2, 0] == "0"
    assert written[2, 2] == "67"
    [axes] = figure.axes
    assert axes.get_xlabel() == "answered with the prompt of task"
    assert axes.get_ylabel() == "pictures of task"


# --- SVG ----------------------------------------------------------------------------------------


def figures(record: Record) -> list[Figure]:
    return [
        accuracy_curves({"<b>&\"'": [record, better(record)], "plain": [record]}),
        accuracy_heatmap(record),
        prompt_picks(record),
    ]


def test_svg_takes_the_text_colour_around_it(hand_record: Record) -> None:
    for figure in figures(hand_record):
        svg = to_svg(figure)
        assert INK not in svg
        assert "currentColor" in svg
        assert to_hex(INK) == INK  # what matplotlib writes is what is replaced


def test_svg_is_one_element_that_a_page_can_hold(hand_record: Record) -> None:
    for figure in figures(hand_record):
        root = ElementTree.fromstring(to_svg(figure))
        assert root.tag == "{http://www.w3.org/2000/svg}svg"


def test_svg_refers_to_nothing_outside_itself(hand_record: Record) -> None:
    for figure in figures(hand_record):
        svg = to_svg(figure)
        without_names = re.sub(r'xmlns(:\w+)?="[^"]*"', "", svg)
        assert "http" not in without_names
        for address in re.findall(r'(?:href|src)="([^"]*)"', svg):
            assert address.startswith(("#", "data:image/png;base64,")), address[:80]
        for address in re.findall(r"url\(([^)]*)\)", svg):
            assert address.startswith("#"), address
        assert "<script" not in svg
        assert "@import" not in svg


def test_labels_are_text_in_the_svg_and_escaped(hand_record: Record) -> None:
    svg = to_svg(figures(hand_record)[0])
    texts = ["".join(e.itertext()).strip() for e in ElementTree.fromstring(svg).iter()]
    assert "<b>&\"'" in texts
    assert "tasks learnt" in texts
    assert "<b>" not in svg


def test_the_same_record_gives_the_same_bytes(hand_record: Record) -> None:
    again = copy.deepcopy(hand_record)
    for one, other in zip(figures(hand_record), figures(again), strict=True):
        assert to_svg(one) == to_svg(other)
