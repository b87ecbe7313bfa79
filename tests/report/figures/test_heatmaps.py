"""Heat maps: the numbers in their cells."""

from __future__ import annotations

import copy

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from cprompt.report.figures.heatmaps import (
    MOST_DIGITS,
    accuracy_heatmap,
    accuracy_heatmaps,
    prompt_pick_maps,
    prompt_picks,
)
from cprompt.research.record import Record
from tests.report.figures.records import better, joint, longer


def cells(figure: Figure) -> tuple[np.ndarray, dict[tuple[int, int], str]]:  # type: ignore[type-arg]
    """The values that are coloured, and the numbers written by (row, column)."""
    [axes] = figure.axes
    [mesh] = axes.collections
    assert mesh.get_clim() == (0, 100)
    assert axes.yaxis_inverted()
    written = {}
    for text in axes.texts:
        column, row = text.get_position()
        written[int(row), int(column)] = text.get_text()
    return np.ma.filled(mesh.get_array().astype(float), np.nan), written


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
        [mesh], [text] = axes.collections, axes.texts
        below = luminance(mesh.cmap(mesh.norm(10.0 * right)))
        ink = luminance(matplotlib.colors.to_rgba(text.get_color()))
        high, low = max(below, ink), min(below, ink)
        assert (high + 0.05) / (low + 0.05) >= 3, right


def test_picks_are_shares_of_each_task_s_images(hand_record: Record) -> None:
    figure = prompt_picks(hand_record)
    values, written = cells(figure)
    np.testing.assert_allclose(values, [[60, 20, 20], [20, 60, 20], [0, 100 / 3, 200 / 3]])
    assert written[2, 0] == "0"
    assert written[2, 2] == "67"
    [axes] = figure.axes
    assert axes.get_xlabel() == "answered with the prompt of task"
    assert axes.get_ylabel() == "images of task"


def test_heat_maps_of_all_series_have_one_scale(hand_record: Record) -> None:
    series = {"ours": [hand_record, better(hand_record)], "joint": [joint(hand_record)]}
    figure = accuracy_heatmaps(series)
    panel, bar = figure.axes  # one task makes no map
    assert panel.get_title(loc="left") == "ours"
    [mesh] = panel.collections
    assert mesh.get_clim() == (0, 100)
    values = np.ma.filled(mesh.get_array().astype(float), np.nan)
    np.testing.assert_allclose(values[2], [75, 60, 100 / 3])
    assert bar.get_ylim() == (0, 100)


def test_heat_maps_of_twenty_tasks_have_smaller_digits_and_larger_ones_none(
    hand_record: Record,
) -> None:
    def written(tasks: int, series: int) -> tuple[int, float]:
        runs = {f"m{i}": [longer(hand_record, tasks)] for i in range(series)}
        texts = [text for axes in accuracy_heatmaps(runs).axes for text in axes.texts]
        return len(texts), texts[0].get_fontsize() if texts else 0.0

    assert written(10, 1)[0] == 55
    count, size = written(20, 1)
    assert count == 210
    assert 5 <= size < written(10, 1)[1]
    assert written(21, 1)[0] == 0
    assert MOST_DIGITS < 5 * 210
    assert written(20, 5)[0] == 0


def test_picks_of_series_that_select(hand_record: Record) -> None:
    plain = copy.deepcopy(hand_record)
    plain.rows = [type(r)(r.count, r.correct, r.top_k, None) for r in plain.rows]
    panel, _ = prompt_pick_maps({"plain": [plain], "ours": [hand_record]}).axes
    assert panel.get_title(loc="left") == "ours\npicked right 61.1 %"
