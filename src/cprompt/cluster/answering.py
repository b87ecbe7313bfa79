"""Asking a model about many photos, part by part: on Ray, or in this process."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

from cprompt.classifier import model_folder
from cprompt.classifier.classifier import ContinualClassifier
from cprompt.classifier.explanation import Explanation
from cprompt.classifier.readable import explain_readable
from cprompt.classifier.shards import refuse_if_package_is_missing, spread_over
from cprompt.cluster.connection import connected
from cprompt.cluster.tasks import Work, collect, named_worker, slots
from cprompt.data.pipeline.processes import only_threads
from cprompt.errors import DataError

Answers: TypeAlias = list[Explanation | DataError]
"""What is known of each photo of a part, or why it could not be read."""
Keep: TypeAlias = Callable[[int, Answers], None]
"""Called with the number of a part and its answers, in any order."""

AHEAD = 4
"""Parts that are handed to Ray for each task that can run, so that no worker waits for the next."""

_ANSWERED_AT_ONCE = 64
_FEW, _LARGEST = 64, 4096


@dataclass(frozen=True)
class Questions:
    """A model and how it is asked; the model travels as bytes, so no worker needs its folder."""

    model: Mapping[str, bytes] = field(repr=False)
    weights: str | None
    device: str = "auto"
    precision: str = "fp32"
    top: int = 1

    @classmethod
    def of(cls, folder: Path, weights: str | None = None, **how: Any) -> Questions:
        """About the model in a folder; `weights` as for `ContinualClassifier.load`."""
        files = model_folder.read_files(folder)
        backbone = json.loads(files[model_folder.FILE])["backbone"]
        if weights is None and backbone.get("file"):
            weights = str(backbone["file"])
        return cls(files, weights, **how)

    @property
    def model_id(self) -> str:
        """The version that answers, whatever was saved into its folder since."""
        return str(json.loads(self.model[model_folder.FILE])["model"])

    def classifier(self) -> ContinualClassifier:
        """The model, loaded."""
        with TemporaryDirectory() as folder:
            for name, content in self.model.items():
                Path(folder, name).write_bytes(content)
            return ContinualClassifier.load(
                folder, device=self.device, precision=self.precision, weights=self.weights
            )


def parts_of(photos: int, shards: int | None = None) -> list[range]:
    """The photos of each part; the same for a given number, wherever they are answered.

    Parts begin where batches begin, so that an answer is the same as in one process.
    """
    wanted = shards or max(min(_FEW, -(-photos // _ANSWERED_AT_ONCE)), -(-photos // _LARGEST))
    return spread_over(range(0, photos, _ANSWERED_AT_ONCE), photos, wanted)


def answer_here(
    questions: Questions, photos: Sequence[Any], parts: Mapping[int, range], keep: Keep
) -> None:
    """Answer the parts one after another in this process."""
    classifier = questions.classifier()
    for number, part in parts.items():
        asked = photos[part.start : part.stop]
        keep(number, explain_readable(classifier, asked, questions.top))


def answer_on_ray(
    on: str,
    questions: Questions,
    photos: Sequence[Any],
    parts: Mapping[int, range],
    keep: Keep,
    work: Work,
) -> None:
    """Answer the parts on Ray; one whose worker died is answered again, and kept once."""
    with connected(on) as ray:
        sent = ray.put((questions, work))
        answer = work.remote(ray, _answer)

        def asking(part: range) -> Callable[[], Any]:
            return lambda: answer.remote(sent, photos[part.start : part.stop])

        asked = {number: asking(part) for number, part in parts.items()}
        collect(ray, asked, keep, limit=AHEAD * slots(ray, work))


def _answer(sent: tuple[Questions, Work], photos: Sequence[Any]) -> Answers:
    questions, work = sent
    with named_worker(), only_threads():  # other workers may want the cores
        work.begin()
        answers = explain_readable(_classifier(questions), photos, questions.top)
        refuse_if_package_is_missing(answers)
        missing = [each for each in answers if _is_missing(each)]
        if len(missing) == len(photos):
            raise DataError(
                f"does not exist here, nor does any other of {len(photos)} photos",
                file=str(photos[0]),
                hint="put photos where every worker finds them under the same path, or use URLs",
            )
        return answers


def _is_missing(answer: Explanation | DataError) -> bool:
    return isinstance(answer, DataError) and isinstance(answer.__cause__, FileNotFoundError)


_asked: list[tuple[Questions, ContinualClassifier]] = []


def _classifier(questions: Questions) -> ContinualClassifier:
    """The model of this process, which keeps it between tasks."""
    if not _asked or _asked[0][0] != questions:
        _asked[:] = [(questions, questions.classifier())]
    return _asked[0][1]
