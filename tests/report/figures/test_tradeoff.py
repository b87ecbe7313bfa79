"""Points of accuracy over cost."""

from __future__ import annotations

from cprompt.report.figures.tradeoff import accuracy_against_cost


def test_every_method_is_where_its_cost_and_accuracy_are() -> None:
    figure = accuracy_against_cost(
        {"seconds": {"A": 10.0, "B": 0.0}, "megabytes": {"A": 3.0}}, {"A": 40.0, "B": 60.0}
    )
    seconds, megabytes = figure.axes
    points = [(line.get_xdata()[0], line.get_ydata()[0]) for line in seconds.lines]  # type: ignore[index]
    assert points == [(10.0, 40.0), (0.001, 60.0)]
    assert [line.get_label() for line in seconds.lines] == ["A", "B"]
    assert [line.get_xdata()[0] for line in megabytes.lines] == [3.0]  # type: ignore[index]
    assert seconds.get_xscale() == megabytes.get_xscale() == "log"
    assert (seconds.get_xlabel(), megabytes.get_xlabel()) == ("seconds", "megabytes")
    assert seconds.lines[0].get_marker() != seconds.lines[1].get_marker()
    assert megabytes.lines[0].get_color() == seconds.lines[0].get_color()


def test_a_method_without_accuracy_is_not_drawn_and_the_others_look_the_same() -> None:
    costs = {"seconds": {"A": 1.0, "B": 2.0, "C": 3.0}}
    whole = accuracy_against_cost(costs, {"A": 40.0, "B": 50.0, "C": 60.0}).axes[0].lines
    part = accuracy_against_cost(costs, {"A": None, "B": 50.0, "C": 60.0}).axes[0].lines
    looks = [[(i.get_label(), i.get_marker(), i.get_color()) for i in p] for p in (whole, part)]
    assert looks[1] == looks[0][1:]


def test_names_stand_beside_their_points_and_cover_nothing() -> None:
    accuracy: dict[str, float | None] = {f"method {i}": 40.0 + i for i in range(6)}
    figure = accuracy_against_cost({"seconds": dict.fromkeys(accuracy, 1.0)}, accuracy)
    figure.draw_without_rendering()
    [axes] = figure.axes
    boxes = [text.get_window_extent() for text in axes.texts]
    assert sorted(text.get_text() for text in axes.texts) == sorted(accuracy)
    points = axes.transData.transform([(1.0, 40.0 + i) for i in range(6)])
    for i, box in enumerate(boxes):
        assert not any(box.overlaps(other) for other in boxes[:i])
        assert not box.count_contains(points)
        assert axes.get_window_extent().count_contains(box.corners()) == 4
