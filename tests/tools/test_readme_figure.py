"""tools/readme_figure.py: the records behind the README's figure are there."""

from __future__ import annotations

from tests.scripts import load_tool


def test_each_method_of_the_demo_has_three_finished_runs_with_different_seeds() -> None:
    series = load_tool("readme_figure").demo_records()
    assert list(series) == ["CPrompt (three seeds)", "Fine-tuning (three seeds)"]
    for records in series.values():
        assert all(record.finished for record in records)
        assert {record.config["seeds"]["order"] for record in records} == {0, 1, 2}
