"""tools/readme_figure.py: the records behind the README's figure are there."""

from __future__ import annotations

from tests.scripts import load_tool


def test_each_method_of_the_demo_has_three_finished_runs_with_different_seeds() -> None:
    series = load_tool("readme_figure").demo_records()
    titles = ("Strata", "CPrompt", "Fine-tuning")
    assert list(series) == [f"{title} (three seeds)" for title in titles]
    for records in series.values():
        assert all(record.finished for record in records)
        assert {record.config["seeds"]["order"] for record in records} == {0, 1, 2}


def test_the_runs_of_a_seed_learnt_the_same_stream() -> None:
    series = load_tool("readme_figure").demo_records()
    for records in zip(*series.values(), strict=True):
        first = records[0]
        for record in records[1:]:
            assert record.stream == first.stream
            assert record.config["data"]["options"] == first.config["data"]["options"]
            assert record.backbone == first.backbone


def test_the_method_of_cprompt_learn_is_right_on_88_of_100_drawings_in_every_run() -> None:
    strata, *_ = load_tool("readme_figure").demo_records().values()
    assert min(record.summary()["last_accuracy"] for record in strata) >= 88


def test_the_order_of_classes_does_not_change_what_strata_knows_in_the_end() -> None:
    strata, *others = load_tool("readme_figure").demo_records().values()
    assert len({tuple(record.stream.order) for record in strata}) == 3
    assert len({record.summary()["last_accuracy"] for record in strata}) == 1
    for records in others:
        assert len({record.summary()["last_accuracy"] for record in records}) > 1
