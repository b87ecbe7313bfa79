"""One kind of thing that is wrong with a dataset."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Problem:
    """One kind of thing that is wrong with a dataset, with every place where it was found.

    An error stops training sooner or later; a warning means that results may mislead. Each of
    `findings` is a file (with the reason if it cannot be read), a class, or files with equal
    images, joined by " = ".
    """

    severity: Literal["error", "warning"]
    message: str
    findings: tuple[str, ...]
    hint: str
