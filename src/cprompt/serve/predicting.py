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
    size = await service.in_decoder(_decoded_pixels, files, side, limits)
    async with service.decoded.taking(min(size, limits.max_decoded)):
        images = await asyncio.gather(
            *(service.in_decoder(_decode, file, name, side) for file, name in files)
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


def _decode(file: BinaryIO, name: str, side: int) -> Image.Image:
    """The image, shrunk as the classifier would do anyway, so that less waits in memory."""
    return shrunk(decode_upload(file, name, side), side)


def _decoded_pixels(files: Sequence[NamedFile], side: int, limits: Limits) -> int:
    """Check the images' headers; the pixels that they will have once decoded and shrunk."""
    pixels = 0
    for file, name in files:
        size = check_image(file, name, limits)
        scale = min(1.0, side / min(size))
        pixels += round(size[0] * scale) * round(size[1] * scale)
    return pixels


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
