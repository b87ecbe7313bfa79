"""Errors a user can act on.

Each names the file or value, says what was expected and what to do. The command line prints the
message alone; anything else that escapes is a defect and keeps its traceback.
"""

from __future__ import annotations

from collections.abc import Sequence


def some(values: Sequence[object], show: int = 5) -> str:
    """The first few values and how many more there are, for a message."""
    shown = ", ".join(repr(v) for v in values[:show])
    return shown if len(values) <= show else f"{shown} and {len(values) - show} more"


class CPromptError(Exception):
    """Base of every error that cprompt raises on purpose."""


class ConfigError(CPromptError, ValueError):
    """A setting is unknown or its value makes no sense."""


class DataError(CPromptError):
    """Pictures, labels or split lists are missing, corrupt or inconsistent."""


class BackboneError(CPromptError):
    """A backbone cannot be built, has no weights, or cannot be prompted."""


class CheckpointError(CPromptError):
    """A checkpoint or a record is missing, corrupt or belongs to something else."""


class ModelError(CPromptError):
    """A model folder is missing, damaged, in use, or does not fit what is asked of it."""
