"""Styles tell series apart, with and without colours."""

from __future__ import annotations

from cprompt.report.figures.style import style_at


def test_no_two_of_32_series_look_alike() -> None:
    styles = [style_at(i) for i in range(32)]
    assert len(set(styles)) == 32
    for i, one in enumerate(styles):
        for other in styles[:i]:
            without_colour = (one.marker, one.linestyle) != (other.marker, other.linestyle)
            assert without_colour or one.color != other.color
