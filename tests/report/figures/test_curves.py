"""Accuracy curves: the data in their axes."""

from __future__ import annotations

import copy

import pytest

from cprompt.report.figures.curves import accuracy_axis_start, accuracy_curves
from cprompt.report.figures.style import COLOURS
from cprompt.research.record import Record
from tests.report.figures.records import SEEN, better, joint


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
    figure = accuracy_curves({label: [hand_record] for label in labels})
    [axes] = figure.axes
    assert len({line.get_color() for line in axes.lines}) == len(labels)
    assert len({line.get_marker() for line in axes.lines}) == len(labels)
    [legend] = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == labels


def test_the_axis_reaches_to_the_longest_run_whatever_comes_last(hand_record: Record) -> None:
    short = copy.deepcopy(hand_record)
    short.rows = short.rows[:2]
    [axes] = accuracy_curves({"whole": [hand_record], "under way": [short]}).axes
    assert [len(line.get_xdata()) for line in axes.lines] == [3, 2, 1]  # a cross at the end
    assert axes.get_xticks().tolist() == [1, 2, 3]


def test_a_series_learnt_at_once_is_a_level_line_beside_others(hand_record: Record) -> None:
    [axes] = accuracy_curves({"tasks": [hand_record], "joint": [joint(hand_record)]}).axes
    level = axes.lines[1]
    assert level.get_label() == "joint"
    assert list(level.get_ydata()) == [50, 50]
    assert list(level.get_xdata()) == [0, 1]  # the whole width
    [alone] = accuracy_curves({"joint": [joint(hand_record)]}).axes
    [point] = alone.lines
    assert (point.get_xdata().tolist(), point.get_ydata().tolist()) == ([1], [50])


def test_an_unfinished_run_is_in_no_mean(hand_record: Record) -> None:
    under_way = better(hand_record)
    under_way.rows = under_way.rows[:2]
    [axes] = accuracy_curves({"ours": [under_way, hand_record]}).axes
    mean, dotted, cross = axes.lines
    assert mean.get_ydata().tolist() == pytest.approx(SEEN)
    assert dotted.get_ydata().tolist() == pytest.approx([100, 1400 / 15])
    assert dotted.get_linestyle() == ":"
    assert cross.get_xdata().tolist() == [2]
    assert len(axes.collections) == 0
    figure = accuracy_curves({"ours": [under_way]})
    [legend] = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["ours (unfinished)"]


@pytest.mark.parametrize(("lowest", "start"), [(3, 0), (50, 0), (51, 40), (84.9, 70), (99, 90)])
def test_the_accuracy_axis_begins_at_0_unless_all_is_far_from_it(
    lowest: float, start: float
) -> None:
    assert accuracy_axis_start(lowest) == start
