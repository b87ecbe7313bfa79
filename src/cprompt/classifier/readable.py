"""Answers for the photos of a list that can be read, and the reason for each that cannot.

`ContinualClassifier.predict` and `explain` refuse a list with one bad photo. A folder of thousands
is better answered as far as possible.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from PIL import Image

from cprompt.classifier.classifier import DECODED_AT_ONCE, ContinualClassifier
from cprompt.classifier.explanation import Explanation
from cprompt.classifier.photos import DETAIL, load_photo, shrunk
from cprompt.data.pipeline.decoded import Progress
from cprompt.data.pipeline.parallel import DECODING_THREADS, map_in_order
from cprompt.data.tar_shards import TarImage
from cprompt.errors import DataError


def explain_readable(
    classifier: ContinualClassifier,
    files: Sequence[str | Path | TarImage],
    top: int = 5,
    progress: Progress | None = None,
) -> list[Explanation | DataError]:
    """For each file `ContinualClassifier.explain`'s answer, or the error of reading it.

    Files are read in parts, each once, so memory does not limit their number.
    """
    found: list[Explanation | DataError] = []
    for part in read_in_parts(classifier, files, progress):
        images = [each for each in part if isinstance(each, Image.Image)]
        answers = iter(classifier.explain(images, top) if images else [])
        found += [each if isinstance(each, DataError) else next(answers) for each in part]
    return found


def read_in_parts(
    classifier: ContinualClassifier,
    files: Sequence[str | Path | TarImage],
    progress: Progress | None = None,
) -> Iterator[list[Image.Image | DataError]]:
    """The photos, as far as the classifier needs their detail, or the errors of reading them.

    Each part has as many as the classifier decodes at once.
    """
    side = DETAIL * classifier.preparation_.size  # as far as the classifier reduces them itself

    def read(file: str | Path | TarImage) -> Image.Image | DataError:
        try:
            return shrunk(load_photo(file, str(file)), side)
        except DataError as error:
            return error

    for first in range(0, len(files), DECODED_AT_ONCE):
        part: list[Image.Image | DataError] = []
        for image in map_in_order(read, files[first : first + DECODED_AT_ONCE], DECODING_THREADS):
            part.append(image)
            if progress:
                progress(first + len(part), len(files))
        yield part
