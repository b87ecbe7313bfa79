"""Which services start at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from cprompt.errors import ConfigError, ModelError
from cprompt.serve.app import create_app
from cprompt.serve.config import ServeConfig
from tests.serve.fake import FakeClassifier


def refused_at_start(model: Path, token: str | None = None, **settings: object) -> str:
    with pytest.raises(ConfigError) as refused:
        create_app(
            model,
            token=token,
            settings=ServeConfig(**settings),  # type: ignore[arg-type]
            load=FakeClassifier.load,  # type: ignore[arg-type]
        )
    return str(refused.value)


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.7", "::", "example.org"])
def test_learning_beyond_this_machine_needs_a_token(model: Path, host: str) -> None:
    message = refused_at_start(model, host=host)
    assert host in message
    assert "CPROMPT_TOKEN" in message
    assert "--read-only" in message


@pytest.mark.parametrize(
    "token", ["", "short", "fifteen-letters", "with space in the middle", "ü" * 20]
)
def test_a_token_that_can_be_guessed_or_not_be_sent_is_refused(model: Path, token: str) -> None:
    assert "the token must" in refused_at_start(model, token)


def test_a_missing_model_is_an_error_at_start(tmp_path: Path) -> None:

    with pytest.raises(ModelError, match="holds no model"):
        create_app(tmp_path / "nowhere")
