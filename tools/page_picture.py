"""Take the README's picture of the page: a photo is answered, and the parts that spoke are shown.

    python tools/page_picture.py

Draws photos, learns them in two batches with the embedded backbone, serves the model and takes the
picture with Chromium (chromium, chromedriver and selenium). Writes docs/page.png.
"""

from __future__ import annotations

import io
import shutil
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn
from PIL import Image
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

from cprompt import ContinualClassifier
from cprompt.cli.draw import draw
from cprompt.files import check_writable
from cprompt.serve.app import create_app
from cprompt.serve.config import ServeConfig
from cprompt.serve.http_server import server_config

OUT = Path(__file__).resolve().parents[1] / "docs" / "page.png"
WIDTH, HEIGHT = 1200, 860
COLOURS = 128
"""In the picture's palette, which makes the file small."""
SECONDS = 60


def model_of(photos: Path, folder: Path) -> ContinualClassifier:
    """A model that has learnt two batches of drawn photos."""
    draw(photos, classes=8, photos=16, test=6, seed=0)
    classifier = ContinualClassifier(device="cpu")
    for batch in ("january", "february"):
        classifier.learn(photos / batch)
    classifier.save(folder)
    return classifier


def surest(classifier: ContinualClassifier, photos: Path) -> Path:
    """The test photo that is answered rightly with the highest familiarity."""
    files = sorted((photos / "test").rglob("*.png"))
    answers = zip(files, classifier.explain(files), strict=True)
    right = [(a.familiarity, f) for f, a in answers if a.label == f.parent.name]
    return max(right)[1]


@contextmanager
def served(model: Path) -> Iterator[str]:
    """The address of a service of that model."""
    settings = ServeConfig()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = uvicorn.Server(server_config(create_app(model), settings.limits))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(SECONDS)


def picture(url: str, photo: Path) -> Image.Image:
    """The page after that photo was given to it."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"):
        options.add_argument(argument)
    browser = webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver")))
    try:
        size = {"width": WIDTH, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        browser.get(url)
        wait = WebDriverWait(browser, SECONDS)
        wait.until(lambda _: "knows" in browser.find_element(By.ID, "summary").text)
        browser.find_element(By.ID, "ask-files").send_keys(str(photo))
        wait.until(lambda _: browser.find_element(By.ID, "verdict").text)
        browser.find_element(By.ID, "parts").click()
        wait.until(lambda _: browser.find_element(By.ID, "parts-note").text)
        time.sleep(1)  # bars grow
        return Image.open(io.BytesIO(browser.get_screenshot_as_png())).convert("RGB")
    finally:
        browser.quit()


def main() -> int:
    check_writable(OUT)
    with tempfile.TemporaryDirectory() as scratch:
        photos, model = Path(scratch, "photos"), Path(scratch, "model")
        photo = surest(model_of(photos, model), photos)
        with served(model) as url:
            found = picture(url, photo)
    found.quantize(COLOURS).save(OUT, optimize=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
