"""All that a classifier has learnt, as one immutable value; learning a batch makes a new one.

A method numbers classes by arrival. Names are mapped to these positions. A class that appears again
keeps its position if the method `takes_returning`. Otherwise it gets another one, in the new task,
and the better of them speaks for it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cprompt.classifier import calibration
from cprompt.files import under_prefix, with_prefix
from cprompt.methods.base import Method, rebuild


@dataclass(frozen=True)
class LearntBatch:
    """What one call of `learn` added; `ContinualClassifier.history_` lists all of them.

    >>> about = {"number": 1, "when": "2026-01-31T12:00:00+00:00", "photos": {"cat": 6, "dog": 5}}
    >>> about |= {"new": ["cat", "dog"], "returning": [], "held_out": 2, "calibrated": False}
    >>> about |= {"temperature": 1.0, "threshold": 0.0, "seconds": 3.2, "steps": 48, "before": ""}
    >>> sum(LearntBatch(**about).photos.values())
    11
    """

    number: int
    """From 1."""
    when: str
    """UTC, ISO 8601."""
    photos: dict[str, int]
    """Number per class, held-out photos included."""
    new: list[str]
    returning: list[str]
    held_out: int
    calibrated: bool
    """Whether there were enough held-out photos to fit temperature and threshold."""
    temperature: float
    threshold: float
    seconds: float
    steps: int
    before: str
    """The model's id before this batch; empty for the first."""


@dataclass(frozen=True)
class ModelState:
    """What was learnt so far."""

    method: Method
    names: tuple[str, ...] = ()
    name_of: tuple[int, ...] = ()
    """For each position, the index of its name."""
    history: tuple[LearntBatch, ...] = ()
    temperature: float = 1.0
    threshold: float = 0.0
    """Photos less familiar than this are answered `UNKNOWN`."""
    kept: Tensor = field(default_factory=lambda: torch.zeros(0))
    """Features of held-out photos of earlier batches (k, …), on the CPU."""
    kept_positions: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.long))
    model_id: str = ""

    def probabilities(self, logits: Tensor, temperature: float | None = None) -> NDArray[Any]:
        """(n, names) at `temperature`, by default the calibrated one."""
        return calibration.name_probabilities(
            logits.numpy(), self.owners, len(self.names), temperature or self.temperature
        )

    def first_batch(self) -> dict[str, int]:
        """The number of the batch in which each name first appeared."""
        return {name: batch.number for batch in self.history for name in batch.new}

    @property
    def owners(self) -> NDArray[np.int64]:
        """`name_of` as an array."""
        return np.asarray(self.name_of, dtype=np.int64)

    # --- as files -------------------------------------------------------------------------------

    def tensors(self) -> dict[str, Tensor]:
        """All tensors, by name."""
        learnt = {n: t.detach().cpu().contiguous() for n, t in self.method.state_dict().items()}
        held_out = {"features": self.kept, "positions": self.kept_positions}
        return {**with_prefix("method", learnt), **with_prefix("held_out", held_out)}

    def about(self) -> dict[str, Any]:
        """Everything else as plain JSON, except the id, which is computed from all of it."""
        positions: list[list[int]] = [[] for _ in self.names]
        for at, owner in enumerate(self.name_of):
            positions[owner].append(at)
        return {
            "classes": [
                {"name": name, "positions": at}
                for name, at in zip(self.names, positions, strict=True)
            ],
            "task_sizes": list(self.method.task_sizes),
            "calibration": {"temperature": self.temperature, "threshold": self.threshold},
            "history": [dataclasses.asdict(batch) for batch in self.history],
        }

    @classmethod
    def from_files(
        cls, method: Method, about: Mapping[str, Any], tensors: Mapping[str, Tensor]
    ) -> ModelState:
        """The state described by `about` and `tensors`; `method` is fresh.

        Raises a ValueError, a KeyError or the like if they are inconsistent.
        """
        names = [entry["name"] for entry in about["classes"]]
        owner = {at: i for i, entry in enumerate(about["classes"]) for at in entry["positions"]}
        sizes = about["task_sizes"]
        count = sum(len(entry["positions"]) for entry in about["classes"])
        if len(set(names)) != len(names) or sorted(owner) != list(range(count)):
            raise ValueError("class names or positions are not unique")
        if sum(sizes) != count or len(sizes) != len(about["history"]):
            raise ValueError(
                f"{len(sizes)} tasks of {sum(sizes)} classes, but {len(about['history'])} batches "
                f"and {count} positions"
            )
        kept, positions = tensors["held_out/features"], tensors["held_out/positions"]
        if len(positions) != len(kept) or not ((positions >= 0) & (positions < count)).all():
            raise ValueError("held-out features and their positions do not match")
        rebuild(method, sizes, under_prefix("method", tensors), open_=False)
        return cls(
            method=method,
            names=tuple(names),
            name_of=tuple(owner[at] for at in range(count)),
            history=tuple(LearntBatch(**batch) for batch in about["history"]),
            temperature=float(about["calibration"]["temperature"]),
            threshold=float(about["calibration"]["threshold"]),
            kept=kept,
            kept_positions=positions,
            model_id=about["model"],
        )
