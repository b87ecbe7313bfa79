"""Errors as data."""

from __future__ import annotations

from pathlib import Path

import pytest

from cprompt.errors import ConfigError, CPromptError, DataError, some


@pytest.mark.parametrize(
    ("hint", "file", "text"),
    [
        (None, None, "is empty"),
        ("copy it again", None, "is empty; copy it again"),
        (None, Path("cat/1.jpg"), "cat/1.jpg: is empty"),
        ("copy it again", "cat/1.jpg", "cat/1.jpg: is empty; copy it again"),
    ],
)
def test_text_is_file_message_and_hint(
    hint: str | None, file: str | Path | None, text: str
) -> None:
    error = DataError("is empty", hint=hint, file=file)
    assert str(error) == text
    assert (error.message, error.hint) == ("is empty", hint)
    assert error.file == (None if file is None else str(file))
    assert isinstance(error, CPromptError)


def test_a_wrong_setting_is_also_a_value_error() -> None:
    with pytest.raises(ValueError, match="no such setting"):
        raise ConfigError("no such setting")


def test_long_lists_are_cut_and_counted() -> None:
    assert some([1, "b"]) == "1, 'b'"
    assert some(range(5)) == "0, 1, 2, 3, 4"
    assert some(range(12)) == "0, 1, 2, 3, 4 and 7 more"
    assert some(range(12), show=2) == "0, 1 and 10 more"
