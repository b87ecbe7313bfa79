"""The photos of a list that can be read, learnt or answered; the reason for each that cannot.

`learn`, `predict`, `explain` and `evaluate` of `ContinualClassifier` refuse a list with one bad
photo. A folder of thousands is better taken as far as possible.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import cast

import numpy as np

from cprompt.classifier import batch_checks, photo_sources
from cprompt.classifier.classifier import DECODED_AT_ONCE, ContinualClassifier
from cprompt.classifier.evaluation import Evaluation, assess
from cprompt.classifier.explanation import Explanation
from cprompt.classifier.photos import DETAIL, works_beside_cpu
from cprompt.data.pipeline.decode_worker import decode_file
from cprompt.data.pipeline.decoded import ImageArray, Progress
from cprompt.data.pipeline.inspection import nothing
from cprompt.data.pipeline.parallel import DECODING_THREADS, ahead, map_in_order
from cprompt.data.pipeline.processes import decode_in_processes, processes_for
from cprompt.data.pipeline.reduced import ImageFile
from cprompt.data.tar_shards import TarImage
from cprompt.device import pick_device
from cprompt.errors import DataError
from cprompt.training.observers import Observer


def learn_readable(
    classifier: ContinualClassifier,
    place: str | Path,
    *,
    strict: bool = False,
    observer: Observer | None = None,
) -> list[DataError]:
    """`ContinualClassifier.learn` of the readable photos at a place, and the errors of others.

    If `strict`, one such photo is an error, which names all of them. Bad photos are rare, so they
    are looked for only where learning has met one.
    """
    found, names = photo_sources.labelled(place)
    photos = cast(list[str | Path | TarImage], found)  # at a place there is nothing else
    photo_sources.notice_layout(place, observer or Observer())
    try:
        classifier.learn(photos, names, observer=observer)
        return []
    except DataError:
        progress = observer.decoded if observer else None
        read = (each for part in read_in_parts(classifier, photos, progress) for each in part)
        unread = {i: each for i, each in enumerate(read) if isinstance(each, DataError)}
        if not unread:
            raise  # it was about something else
    batch_checks.check_unread(unread, len(photos), strict)
    left = [i for i in range(len(photos)) if i not in unread]
    classifier.learn([photos[i] for i in left], [names[i] for i in left], observer=observer)
    return list(unread.values())


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
        images = [each for each in part if not isinstance(each, DataError)]
        answers = iter(classifier.explain(images, top) if images else [])
        found += [each if isinstance(each, DataError) else next(answers) for each in part]
    return found


def evaluate_readable(
    classifier: ContinualClassifier,
    files: Sequence[str | Path],
    names: Sequence[str],
    progress: Progress | None = None,
) -> tuple[Evaluation, dict[int, DataError]]:
    """`ContinualClassifier.evaluate` of the readable files, and the errors of others by place.

    `names[i]` is the true name of `files[i]`.
    """
    classes = classifier.classes_
    column = {name: at for at, name in enumerate(classes)}
    found = explain_readable(classifier, files, len(classes), progress)
    errors = {i: each for i, each in enumerate(found) if isinstance(each, DataError)}
    answers = [each for each in found if isinstance(each, Explanation)]
    p = np.zeros((len(answers), len(classes)))
    for row, answer in zip(p, answers, strict=True):
        for name, probability in answer.ranking:
            row[column[name]] = probability
    known = np.array([answer.known for answer in answers], dtype=np.bool_)
    truth = [name for i, name in enumerate(names) if i not in errors]
    first_batch = {name: batch.number for batch in classifier.history_ for name in batch.new}
    return assess(p, classes, first_batch, known, truth), errors


def read_in_parts(
    classifier: ContinualClassifier,
    files: Sequence[str | Path | TarImage],
    progress: Progress | None = None,
) -> Iterator[list[ImageArray | DataError]]:
    """The photos, as far as the classifier needs their detail, or the errors of reading them.

    Each part has as many as the classifier decodes at once. While a GPU answers one, the next is
    read; `progress` is then called in another thread.
    """
    parts = _parts(classifier, files, progress)
    return ahead(parts) if works_beside_cpu(pick_device(classifier.device)) else parts


def _parts(
    classifier: ContinualClassifier,
    files: Sequence[str | Path | TarImage],
    progress: Progress | None,
) -> Generator[list[ImageArray | DataError], None, None]:
    side = DETAIL * classifier.preparation_.size  # as far as the classifier reduces them itself

    def read(file: ImageFile) -> tuple[ImageArray | DataError, None]:
        try:
            return decode_file(file, side, nothing)
        except DataError as error:
            return error, None

    processes = processes_for(files)
    if processes:
        read_all = decode_in_processes(files, side, nothing, processes, read)
    else:
        read_all = map_in_order(read, files, DECODING_THREADS)
    with closing(read_all) as images:
        for first in range(0, len(files), DECODED_AT_ONCE):
            part: list[ImageArray | DataError] = []
            for image, _ in islice(images, DECODED_AT_ONCE):
                part.append(image)
                if progress:
                    progress(first + len(part), len(files))
            yield part
