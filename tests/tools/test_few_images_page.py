"""docs/few_images.md says what results/few_images says."""

from __future__ import annotations

from tests.scripts import load_tool

page = load_tool("few_images_page")


def test_the_page_is_up_to_date() -> None:
    text = page.PAGE.read_text()
    assert page.render(text) == text


def test_means_and_spreads_worked_by_hand() -> None:
    draws = [{"product": {"accuracy": a, "ece": 2.0}, "nearest mean": a - 1} for a in (10, 12, 14)]
    found = page.few({"5": draws})
    assert found.splitlines()[2] == "| 5 | 12.0 ± 2.0 | 11.0 ± 2.0 | – | – | 2.0 |"
