"""A classifier that tells images by their mean colour: same interface, no network, no waiting."""

from __future__ import annotations

import hashlib
import json
import math
import threading
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from cprompt.classifier import model_folder
from cprompt.classifier.explanation import Explanation
from cprompt.classifier.state import LearntBatch
from cprompt.data.image_files import read_image
from cprompt.data.pipeline import views
from cprompt.errors import DataError, ModelError
from cprompt.training.observers import Observer

STEPS = 20


class Gate:
    """Where a test can hold the fake: closed, whoever comes waits until it is opened."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self._open.set()
        self.reached = threading.Event()

    def close(self) -> None:
        self.reached.clear()
        self._open.clear()

    def open(self) -> None:
        self._open.set()

    def pass_through(self) -> None:
        self.reached.set()
        assert self._open.wait(20), "nobody opened the gate"


class FakeClassifier:
    """Knows the mean colour of each class; `unknown` below a familiarity of 0.6."""

    answering = Gate()
    learning = Gate()
    backbone, method, temperature_, threshold_ = "fake", "colours", 10.0, 0.6
    preparation_ = views.build("plain", 16, "none")

    def __init__(self) -> None:
        self.colours: dict[str, list[float]] = {}
        self.history_: list[LearntBatch] = []
        self._replaces: set[str] = set()

    @classmethod
    def load(cls, path: Path) -> FakeClassifier:
        about = model_folder.read_about(path)
        self = cls()
        self.colours = about["colours"]
        self.history_ = [LearntBatch(**batch) for batch in about["history"]]
        return self

    def save(self, path: Path) -> None:
        about = {
            "model": self.model_id,
            "colours": self.colours,
            "history": [asdict(batch) for batch in self.history_],
        }
        model_folder.write(path, about, {"x": torch.zeros(1)}, replaces=self._replaces)

    @property
    def classes_(self) -> list[str]:
        return list(self.colours)

    @property
    def model_id(self) -> str:
        return hashlib.sha256(json.dumps(self.colours).encode()).hexdigest()[:12]

    def learn(
        self, source: Sequence[tuple[Any, str]], *, observer: Observer | None = None
    ) -> FakeClassifier:
        observer = observer or Observer()
        self._replaces.add(self.model_id)
        known, before = list(self.colours), self.model_id
        found: dict[str, list[np.ndarray]] = {}
        for done, (photo, label) in enumerate(source):
            found.setdefault(label, []).append(_mean(photo))
            observer.decoded(done + 1, len(source))
        observer.task_begins(len(self.history_), len(found), STEPS, 0)
        for _ in range(STEPS):
            FakeClassifier.learning.pass_through()
            observer.stepped(0, ("loss",), torch.zeros(1))
        for label, colours in found.items():
            self.colours[label] = np.mean(colours, axis=0).tolist()
        self.history_.append(learnt_batch(len(self.history_) + 1, found, known, before))
        return self

    def rename(self, name: str, new: str) -> FakeClassifier:
        self._know(name)
        return self._become({new if n == name else n: c for n, c in self.colours.items()})

    def forget(self, name: str) -> FakeClassifier:
        self._know(name)
        return self._become({n: c for n, c in self.colours.items() if n != name})

    def merge_classes(self, name: str, into: str) -> FakeClassifier:
        self._know(name, into)
        mean = np.mean([self.colours[name], self.colours[into]], axis=0).tolist()
        return self.forget(name)._become({**self.colours, into: mean})

    def _know(self, *names: str) -> None:
        for name in names:
            if name not in self.colours:
                raise ModelError(f"the model has no class {name!r}")

    def _become(self, colours: dict[str, list[float]]) -> FakeClassifier:
        self._replaces.add(self.model_id)
        self.colours = colours
        return self

    def explain(
        self, images: Sequence[Image.Image], top: int = 5, parts: bool = False
    ) -> list[Explanation]:
        FakeClassifier.answering.pass_through()
        if any(image.getpixel((0, 0)) == (1, 2, 3) for image in images):
            raise DataError("an image that the model cannot bear")
        return [self._explain(_mean(image), top) for image in images]

    def evaluate(
        self, source: Sequence[tuple[Any, str]], *, observer: Observer | None = None
    ) -> FakeEvaluation:
        return FakeEvaluation(
            [(label, self._explain(_mean(photo), 1).label) for photo, label in source]
        )

    def _explain(self, colour: np.ndarray, top: int) -> Explanation:
        distances = {n: float(np.linalg.norm(colour - c)) for n, c in self.colours.items()}
        weights = {n: math.exp(-d / self.temperature_) for n, d in distances.items()}
        total = sum(weights.values()) + math.exp(-60 / self.temperature_)  # far from all: none
        ranking = sorted(((n, w / total) for n, w in weights.items()), key=lambda nw: -nw[1])
        best, probability = ranking[0]
        familiarity = math.exp(-distances[best] / 100)
        known = familiarity >= self.threshold_
        return Explanation(
            label=best if known else "unknown",
            probability=probability,
            known=known,
            ranking=ranking[:top],
            prompt=next((b.number for b in self.history_ if best in b.photos), None),
            nearest_keys=[(n, 1 - distances[n] / 500) for n, _ in ranking[:top]],
            score=-distances[best],
            familiarity=familiarity,
        )


class FakeEvaluation:
    def __init__(self, answers: list[tuple[str, str]]) -> None:
        self.answers = answers

    def to_dict(self) -> dict[str, Any]:
        right = sum(label == answer for label, answer in self.answers)
        per_class = {
            name: {
                "photos": sum(label == name for label, _ in self.answers),
                "right": sum(label == answer == name for label, answer in self.answers),
                "unknown": sum(label == name and a == "unknown" for label, a in self.answers),
            }
            for name in {label for label, _ in self.answers}
        }
        unknown = sum(answer == "unknown" for _, answer in self.answers)
        return {
            "photos": len(self.answers),
            "accuracy": right / len(self.answers),
            "unknown_share": unknown / len(self.answers),
            "per_class": per_class,
        }


def learnt_batch(
    number: int, photos: dict[str, list[Any]], known: list[str], before: str
) -> LearntBatch:
    return LearntBatch(
        number=number,
        when="2024-05-06T07:08:09+00:00",
        photos={name: len(found) for name, found in photos.items()},
        new=[name for name in photos if name not in known],
        returning=[name for name in photos if name in known],
        held_out=0,
        calibrated=False,
        temperature=FakeClassifier.temperature_,
        threshold=FakeClassifier.threshold_,
        seconds=0.1,
        steps=STEPS,
        before=before,
    )


def _mean(photo: Any) -> np.ndarray:
    image = photo if isinstance(photo, Image.Image) else read_image(Path(photo))
    return np.asarray(image, np.float64).mean(axis=(0, 1))
