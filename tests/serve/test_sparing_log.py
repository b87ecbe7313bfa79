"""Log lines that do not repeat."""

from __future__ import annotations

import logging

import pytest

from cprompt.serve import sparing_log
from cprompt.serve.sparing_log import LOGGERS, Sparing, log_sparingly


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> logging.Logger:
    logger = logging.getLogger("tests.sparing")
    logger.filters = [Sparing()]
    caplog.set_level(logging.WARNING)
    return logger


def test_a_line_is_written_once_and_then_with_how_many_were_left_out(
    log: logging.Logger, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(sparing_log.time, "monotonic", lambda: now)
    for client in range(50):
        log.warning("%s was slow", client)
    log.warning("something else")
    assert caplog.messages == ["0 was slow", "something else"]
    now += sparing_log.PAUSE_SECONDS + 1
    log.warning("%s was slow", 50)
    assert caplog.messages[2:] == ["50 was slow (and 49 more like this before)"]


def test_exceptions_from_different_places_are_both_written(
    log: logging.Logger, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        try:
            raise ValueError
        except ValueError:
            log.exception("failed")
        try:
            raise ValueError
        except ValueError:
            log.exception("failed")
    assert len(caplog.records) == 2


def test_it_is_set_up_once() -> None:
    log_sparingly()
    log_sparingly()
    for name in LOGGERS:
        filters = logging.getLogger(name).filters
        assert sum(isinstance(each, Sparing) for each in filters) == 1
