"""Errors a user can act on.

An error is data: what is wrong, in which file, and what to do about it. The code that shows an
error chooses which parts to print and never edits their text. The command line prints all parts
without a traceback. Any other exception that reaches the user is a bug and keeps its traceback.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def some(values: Sequence[object], show: int = 5) -> str:
    """The first few values and how many more there are, for a message."""
    shown = ", ".join(repr(v) for v in values[:show])
    return shown if len(values) <= show else f"{shown} and {len(values) - show} more"


def plural(number: int, one: str, many: str | None = None) -> str:
    """The word for so many: `one` of 1, otherwise `many`, or `one` with the usual ending.

    >>> [f"{n} {plural(n, 'photo')} of {n} {plural(n, 'class')}" for n in (1, 2)]
    ['1 photo of 1 class', '2 photos of 2 classes']
    """
    return one if number == 1 else many or one + ("es" if one.endswith("s") else "s")


def counted(number: int, one: str, many: str | None = None) -> str:
    """So many of something, or so many of something that does something.

    >>> counted(1, "class"), counted(1234, "photo"), counted(2, "label is", "labels are")
    ('1 class', '1,234 photos', '2 labels are')
    """
    return f"{number:,} {plural(number, one, many)}"


class CPromptError(Exception):
    """Base of every error that cprompt raises on purpose.

    `message` says what is wrong and what was expected, `hint` what to do about it, `file` which
    file, or which item of a list, is at fault. As text: "FILE: MESSAGE; HINT".

    >>> str(DataError("is empty (0 bytes)", file="cat/1.jpg", hint="copy it again"))
    'cat/1.jpg: is empty (0 bytes); copy it again'
    """

    def __init__(
        self, message: str, *, hint: str | None = None, file: str | Path | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.file = None if file is None else str(file)

    def __str__(self) -> str:
        where = "" if self.file is None else f"{self.file}: "
        what_to_do = "" if self.hint is None else f"; {self.hint}"
        return f"{where}{self.message}{what_to_do}"


class ConfigError(CPromptError, ValueError):
    """A setting is unknown, or its value is not allowed."""


class DataError(CPromptError):
    """Images, labels or split lists are missing, corrupt or inconsistent."""


class BackboneError(CPromptError):
    """A backbone cannot be built, has no weights, or cannot be prompted."""


class CheckpointError(CPromptError):
    """A checkpoint or a record is missing, corrupt or belongs to something else."""


class ModelError(CPromptError):
    """A model folder is missing, damaged or in use, or the request does not fit its model.

    >>> from cprompt import ContinualClassifier
    >>> ContinualClassifier.load("no such folder")
    Traceback (most recent call last):
    ...
    cprompt.errors.ModelError: ...
    """


class ClusterError(CPromptError):
    """A cluster cannot be reached, or one of its workers cannot do its part."""
