"""`cprompt serve`: what the service is started with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cprompt.errors import ConfigError
from tests.cli.common import ok

uvicorn = pytest.importorskip("uvicorn")


@pytest.fixture
def created(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What `create_app` is called with; nothing is served."""
    found: dict[str, Any] = {}
    monkeypatch.setattr(
        "cprompt.serve.app.create_app", lambda model, **options: found.update(options, model=model)
    )
    monkeypatch.setattr(uvicorn.Server, "run", lambda server, sockets: None)
    monkeypatch.delenv("CPROMPT_TOKEN", raising=False)
    return found


def test_options_and_limits_reach_the_service(created: dict[str, Any]) -> None:
    told = ok(
        *("serve", "--limits.max_pixels", "1000", "model", "--port", "0", "--read-only"),
        *("--allow-host", "a.example", "--allow-host", "b.example"),
    )
    assert created["model"] == Path("model")
    assert created["token"] is None
    settings = created["settings"]
    assert settings.limits.max_pixels == 1000
    assert settings.allow_hosts == ("a.example", "b.example")
    assert settings.read_only
    assert "token: none; learning: off" in told


def test_the_token_may_come_from_the_environment(
    created: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CPROMPT_TOKEN", "correct-horse-battery")
    assert "token: needed; learning: on" in ok("serve", "model", "--port", "0")
    assert created["token"] == "correct-horse-battery"


def test_settings_other_than_limits_are_refused(created: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"'training\.epochs'"):
        ok("serve", "model", "--training.epochs", "5")
    assert created == {}
