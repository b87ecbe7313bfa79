"""A tiny real model behind a real port."""

from __future__ import annotations

import io
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import uvicorn
from PIL import Image

from cprompt import ContinualClassifier
from cprompt.serve.app import create_app
from cprompt.serve.config import ServeConfig
from cprompt.serve.http_server import server_config
from tests.serve.common import BLUE, RED, photo


def images(colour: tuple[int, int, int], count: int, seed: int = 0) -> list[Image.Image]:
    """Photos of different shades, so that none of the class is far from all that were learnt."""
    rng = np.random.default_rng(seed)
    found = []
    for i in range(count):
        red, green, blue = (int(c) for c in np.clip(colour + rng.integers(-40, 41, 3), 0, 255))
        found.append(Image.open(io.BytesIO(photo((red, green, blue), seed + i))))
    return found


def make_model(folder: Path, method: str = "strata") -> None:
    """A classifier on timm's smallest ViT, random weights, that knows red and blue."""
    classifier = ContinualClassifier(
        "test_vit",
        method=method,
        weights="random:0",
        image_size=48,
        transform="plain",
        training={"epochs": 4},
        device="cpu",
    )
    classifier.learn([*images(RED, 6), *images(BLUE, 6)], ["red"] * 6 + ["blue"] * 6)
    classifier.save(folder)


@contextmanager
def running(model: Path, **options: Any) -> Iterator[str]:
    """The address of a service of the model in that folder."""
    settings = ServeConfig(**options.pop("settings", {}))
    app = create_app(model, settings=settings, **options)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = uvicorn.Server(server_config(app, settings.limits))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            while not server.started:
                assert thread.is_alive(), "the service did not start"
                time.sleep(0.01)
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(20)
            assert not thread.is_alive(), "the service did not stop"
