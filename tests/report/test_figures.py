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

from cprompt.report.figures import (
    COLOURS,
    INK,
    MOST_DIGITS,
    accuracy_curves,
    accuracy_heatmap,
    accuracy_heatmaps,
    class_accuracy,
    costs,
    forgetting,
    losses,
    lowest_shown,
    prompt_pick_maps,
    prompt_picks,
    settle,
    style,
    to_files,
    to_svg,
)
from cprompt.research.record import Record
from cprompt.research.stream import TaskStream

SEEN = [80, 1100 / 15, 50]


def better(record: Record) -> Record:
    """The same run with every image of the first task right throughout."""
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


# --- series -------------------------------------------------------------------------------------


def longer(record: Record, tasks: int, classes: int = 1) -> Record:
    """A run over so many tasks with two images per class, one of them right."""
    other = copy.deepcopy(record)
    n = tasks * classes
    other.stream = TaskStream(tuple(range(n)), (classes,) * tasks)
    other.classes = tuple(f"c{i}" for i in range(n))
    other.rows = [
        type(record.rows[0])([2] * k, {"selected": [1] * k}, None, [[1] * t for _ in range(t)])
        for t in range(1, tasks + 1)
        for k in [t * classes]
    ]
    return other


def joint(record: Record) -> Record:
    """The same classes in one task: 9 of 18 right."""
    other = copy.deepcopy(record)
    other.stream = TaskStream(other.stream.order, (5,))
    other.rows = other.rows[-1:]
    return other


def test_no_two_of_32_series_look_alike() -> None:
    styles = [style(i) for i in range(32)]
    assert len(set(styles)) == 32
    for i, one in enumerate(styles):
        for other in styles[:i]:
            without_colour = (one.marker, one.linestyle) != (other.marker, other.linestyle)
            assert without_colour or one.color != other.color


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
    assert lowest_shown(lowest) == start


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


def test_bars_of_forgetting_keep_the_colour_of_their_series(hand_record: Record) -> None:
    figure = forgetting({"joint": [joint(hand_record)], "ours": [hand_record]})
    [axes] = figure.axes
    assert [bar.get_height() for bar in axes.patches] == pytest.approx([30, 20])
    assert to_hex(axes.patches[0].get_facecolor()) == style(1).color.lower()
    assert axes.lines[0].get_ydata().tolist() == pytest.approx([30, 20])


def test_few_classes_are_dots_and_many_are_boxes(hand_record: Record) -> None:
    [axes] = class_accuracy({"ours": [hand_record]}).axes
    dots = [line for line in axes.lines if line.get_marker() == "o"]
    points = [(x, y) for line in dots for x, y in zip(*line.get_data(), strict=True)]
    np.testing.assert_allclose(points, [(0, 200 / 3), (1, 25), (2, 60), (3, 100), (4, 0)])
    [axes] = class_accuracy({"ours": [longer(hand_record, 7, 10)]}).axes
    assert len(axes.patches) == 7
    assert not [line for line in axes.lines if line.get_marker() == "o"]


def test_losses_have_a_log_scale_where_they_span_a_lot(hand_record: Record) -> None:
    wide = copy.deepcopy(hand_record)
    wide.losses = [[{"ce": 100.0}, {"ce": 1.0}]] * 3
    zero = copy.deepcopy(hand_record)
    zero.losses = [[{"ce": 100.0, "ccl": 0.0}]] * 3
    figure = losses({"narrow": [hand_record], "wide": [wide], "zero": [zero]})
    assert [axes.get_yscale() for axes in figure.axes] == ["linear", "log", "linear"]
    [legend] = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["ce", "ccl"]
    assert [list(line.get_xdata()) for line in figure.axes[0].lines[1:]] == [[2.5] * 2, [4.5] * 2]


def test_costs_show_the_parts_that_are_known(hand_record: Record) -> None:
    hand_record.memory = {"process": 2**30}
    figure = costs({"ours": [hand_record]})
    assert [axes.get_xlabel() for axes in figure.axes] == [
        "seconds a run",
        "peak memory, GiB",
        "parameters learnt, thousands",
    ]
    assert [bar.get_width() for bar in figure.axes[0].patches] == pytest.approx([61.4, 2.6])
    assert figure.axes[0].patches[1].get_x() == pytest.approx(61.4)
    assert [bar.get_width() for bar in figure.axes[1].patches] == [1]
    hand_record.memory = hand_record.parameters = {}
    assert len(costs({"ours": [hand_record]}).axes) == 1


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


# --- files --------------------------------------------------------------------------------------


def test_files_are_of_their_kind_with_letters_inside_and_the_same_every_time(
    hand_record: Record,
) -> None:
    files = to_files(settle(accuracy_curves({"ours": [hand_record]})))
    assert set(files) == {"svg", "pdf", "png"}
    assert files["png"].startswith(b"\x89PNG")
    assert b"Software" not in files["png"]
    assert files["pdf"].startswith(b"%PDF")
    assert b"/FontFile2" in files["pdf"]
    assert b"CreationDate" not in files["pdf"]
    assert b"<text" not in files["svg"]  # letters are outlines
    assert INK.encode() in files["svg"]
    again = to_files(settle(accuracy_curves({"ours": [copy.deepcopy(hand_record)]})))
    assert files == again


def test_ids_of_several_drawings_do_not_meet(hand_record: Record) -> None:
    figure = accuracy_curves({'id="x': [hand_record]})
    one, two = (to_svg(figure, name) for name in ("one", "two"))
    ids = [set(re.findall(r'\bid="([^"]*)"', re.sub(">[^<]*<", "><", svg))) for svg in (one, two)]
    assert ids[0]
    assert not ids[0] & ids[1]
    for svg, known in zip((one, two), ids, strict=True):
        used = set(re.findall(r'url\(#([^)]*)\)|href="#([^"]*)"', svg))
        assert {a or b for a, b in used} <= known
        assert 'id="x' in "".join(ElementTree.fromstring(svg).itertext())


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
