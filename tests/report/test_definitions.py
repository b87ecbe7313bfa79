"""Every metric has words of its own."""

from __future__ import annotations

from cprompt.report.definitions import METRIC_TEXTS
from cprompt.research.record import Record


def test_every_metric_of_a_record_has_words_and_no_others_have(hand_record: Record) -> None:
    assert set(METRIC_TEXTS) == set(hand_record.summary())


def test_titles_and_meanings_tell_metrics_apart() -> None:
    for texts in (
        [text.title for text in METRIC_TEXTS.values()],
        [text.meaning for text in METRIC_TEXTS.values() if text.meaning],
    ):
        assert len(set(texts)) == len(texts)
