"""Fixtures of the training tests."""

from __future__ import annotations

import pytest

from cprompt.training import step as step_module


@pytest.fixture
def nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_module, "_warned", set())
