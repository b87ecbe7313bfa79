"""Styles tell series apart, with and without colours."""

from __future__ import annotations

from cprompt.report.figures.style import colour_of, style_at


def test_no_two_of_32_series_look_alike() -> None:
    styles = [style_at(i) for i in range(32)]
    assert len(set(styles)) == 32
    for i, one in enumerate(styles):
        for other in styles[:i]:
            without_colour = (one.marker, one.linestyle) != (other.marker, other.linestyle)
            assert without_colour or one.color != other.color


def test_a_label_keeps_its_colour_where_others_are_left_out() -> None:
    assert colour_of("b", ["a", "b", "c"]) == style_at(1).color
