"""A process that decodes image files for another one; see `cprompt.data.pipeline.processes`.

It reads pickles from its standard input: first the side and what to find out about each image, then
lists of files. For each file it writes to its standard output a pickle of the image's shape and of
what was found, and then the pixels; or a pickle of None if that failed. It ends with its input.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable
from typing import Any, BinaryIO

import numpy as np

from cprompt.data.pipeline.decoded import ImageArray
from cprompt.data.pipeline.reduced import ImageFile, read_reduced


def decode_file(
    file: ImageFile, side: int, find: Callable[[ImageArray], Any]
) -> tuple[ImageArray, Any]:
    """The pixels of the image, reduced, and what `find` says of them."""
    image = np.asarray(read_reduced(file, side))
    return image, find(image)


def main() -> None:
    """Decode until the input ends, or nobody reads the output."""
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # a decoder may print
    try:
        serve(sys.stdin.buffer, replies)
    except (EOFError, BrokenPipeError):
        os._exit(0)  # at once: what is left to write has no reader


def serve(requests: BinaryIO, replies: BinaryIO) -> None:
    """Answer requests; ends with an EOFError."""
    side, find = pickle.load(requests)
    while True:
        for file in pickle.load(requests):
            try:
                image, found = decode_file(file, side, find)
            except Exception:  # whoever asked decodes it again, and has the error itself
                pickle.dump(None, replies)
            else:
                pickle.dump((image.shape, found), replies)
                replies.write(image.data)
            replies.flush()
