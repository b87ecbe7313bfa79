"""A prediction request from its images to its answers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from typing import BinaryIO

from PIL import Image

from cprompt.classifier.explanation import Explanation
from cprompt.classifier.photos import DETAIL
from cprompt.data.pipeline.reduced import shrunk
from cprompt.serve.bodies import NamedFile
from cprompt.serve.config import Limits
from cprompt.serve.images import check_image, decode_upload
from cprompt.serve.prediction_queue import Answered
from cprompt.serve.schemas import Near, PhotoParts, Prediction, Predictions, Ranked
from cprompt.serve.service import Asked, Service


async def answer_images(
    service: Service, files: Sequence[NamedFile], *, parts: bool = False
) -> Answered[Explanation]:
    """Check, decode and classify the images of one request, in their order; see `Asked`."""
    limits = service.config.limits
    side = DETAIL * service.input_side
    sizes = await service.in_decoder(_checked_sizes, files, limits)
    waiting = sum(_pixels_shrunk(size, side) for size in sizes)
    async with service.decoded.taking(min(waiting, limits.max_decoded)):
        images = await asyncio.gather(
            *(
                _decoded(service, file, name, size, side)
                for (file, name), size in zip(files, sizes, strict=True)
            )
        )
        return await service.predictions.submit([Asked(image, parts) for image in images])


def to_schema(
    names: Sequence[str], answered: Answered[Explanation], *, top: int, explain: bool
) -> Predictions:
    """The answers to the images of those names, as they are sent."""
    return Predictions(
        model=answered.model,
        predictions=[
            _prediction(name, answer, top, explain)
            for name, answer in zip(names, answered.answers, strict=True)
        ],
    )


async def _decoded(
    service: Service, file: BinaryIO, name: str, size: tuple[int, int], side: int
) -> Image.Image:
    """The image of that full size, decoded when as many pixels are free among those of others."""
    # A JPEG too, of which only a part is decoded: a progressive one is in memory whole.
    pixels = min(size[0] * size[1], service.config.limits.max_decoded)
    async with service.decoding.taking(pixels):
        return await service.in_decoder(_decode, file, name, side)


def _decode(file: BinaryIO, name: str, side: int) -> Image.Image:
    """The image, shrunk as the classifier would do anyway, so that less waits in memory."""
    return shrunk(decode_upload(file, name, side), side)


def _checked_sizes(files: Sequence[NamedFile], limits: Limits) -> list[tuple[int, int]]:
    """Check the images' headers; width and height of each."""
    return [check_image(file, name, limits) for file, name in files]


def _pixels_shrunk(size: tuple[int, int], side: int) -> int:
    """The pixels that an image of that size has once decoded and shrunk."""
    scale = min(1.0, side / min(size))
    return round(size[0] * scale) * round(size[1] * scale)


def _prediction(name: str, answer: Explanation, top: int, explain: bool) -> Prediction:
    return Prediction(
        file=name,
        label=answer.label,
        known=answer.known,
        probability=answer.probability,
        familiarity=answer.familiarity,
        ranking=[Ranked(label=n, probability=p) for n, p in answer.ranking[:top]],
        prompt=answer.prompt,
        nearest_keys=[Near(label=n, cosine=c) for n, c in answer.nearest_keys[:top]]
        if explain
        else None,
        score=answer.score if explain else None,
        parts=None if answer.parts is None else PhotoParts(**asdict(answer.parts)),
    )
