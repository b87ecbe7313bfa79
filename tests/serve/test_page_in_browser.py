"""The page, driven in a real browser as a person would."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.wait import WebDriverWait

from tests.serve.common import BLUE, GREEN, RED, TOKEN, photo, zipped
from tests.serve.live import running

SECONDS = 20


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not (chromium and driver):
        message = (
            "the page is tested in a real browser: install chromium and chromedriver (Debian: "
            "chromium, chromium-driver). .ci/run does, and there this is a failure"
        )
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)  # `make test` needs no more than Python and make
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--window-size=1200,1000",
        f"--user-data-dir={tmp_path_factory.mktemp('chromium')}",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    started = webdriver.Chrome(options, webdriver.ChromeService(driver))
    yield started
    started.quit()


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Photos as they lie on somebody's disk."""
    folder = tmp_path / "photos"
    folder.mkdir()
    for name, colour in (("red", RED), ("blue", BLUE), ("green", GREEN)):
        for i in range(8):
            (folder / f"{name}{i}.png").write_bytes(photo(colour, 100 + i))
    return folder


class Page:
    """What a person sees and does."""

    def __init__(self, browser: webdriver.Chrome, url: str) -> None:
        self._browser = browser
        browser.get("about:blank")  # the page before may still ask its service, which has ended
        browser.get_log("browser")
        browser.get(url)

    def find(self, id: str) -> WebElement:
        return self._browser.find_element(By.ID, id)

    def text(self, id: str) -> str:
        return self.find(id).text

    def give(self, id: str, *paths: Path) -> None:
        self.find(id).send_keys("\n".join(str(path) for path in paths))

    def drop(self, id: str, *paths: Path) -> None:
        """Files and folders, as a desktop drops them."""
        zone = self.find(id)
        self._browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", zone)

        def drag(kind: str) -> None:
            x, y = self._browser.execute_script(
                "const r = arguments[0].getBoundingClientRect(); return [r.x + 20, r.y + 20]", zone
            )
            files = [str(path) for path in paths]
            data = {"items": [], "files": files, "dragOperationsMask": 1}
            self._browser.execute_cdp_cmd(
                "Input.dispatchDragEvent", {"type": kind, "x": x, "y": y, "data": data}
            )

        def hovers(_: object) -> bool:
            """The window may still be about to scroll, and then the drag is somewhere else."""
            drag("dragEnter")
            drag("dragOver")
            return "over" in str(zone.get_attribute("class")).split()

        WebDriverWait(self._browser, SECONDS, 0.1).until(hovers, f"nothing hovers over {id}")
        drag("drop")

    def until(self, id: str, text: str) -> None:
        """Wait until an element says so."""
        WebDriverWait(self._browser, SECONDS, 0.05).until(
            lambda _: text in self.text(id), f"{id} never said {text!r}"
        )

    def rows(self) -> list[list[str]]:
        return [
            [cell.text for cell in row.find_elements(By.TAG_NAME, "td")]
            for row in self.find("table").find_elements(By.TAG_NAME, "tr")
        ]

    def complaints(self) -> list[str]:
        """What the browser logged: errors of the page, and what its policy forbade."""
        return [entry["message"] for entry in self._browser.get_log("browser")]


def test_predict_teach_a_new_class_and_predict_again(
    browser: webdriver.Chrome, real_model: Path, files: Path, tmp_path: Path
) -> None:
    with running(real_model) as url:
        page = Page(browser, url)
        page.until("summary", "knows 2 classes from 12 photos in 1 batch")
        page.give("ask-files", files / "red0.png")
        page.until("verdict", "red")
        page.give("ask-files", files / "green0.png")
        page.until("ranking", "%")
        assert page.text("verdict") != "green"

        page.give("teach-files", *(files / f"green{i}.png" for i in range(1, 8)))
        assert page.text("teach-count") == "7 photos"
        assert not page.find("teach-go").is_enabled()
        page.find("teach-name").send_keys("green", Keys.ENTER)
        page.until("teach-note", "Learnt green from 7 photos.")
        page.until("summary", "knows 3 classes from 19 photos in 2 batches")
        page.until("verdict", "green")  # the photo that is shown is asked about anew
        page.give("ask-files", files / "blue0.png", files / "green0.png")
        page.until("verdict", "blue")
        page.find("strip").find_elements(By.TAG_NAME, "button")[1].click()
        page.until("verdict", "green")
        assert [row[:3] for row in page.rows()] == [
            ["red", "6", "1"],
            ["blue", "6", "1"],
            ["green", "7", "2"],
        ]

        held_out = tmp_path / "test.zip"
        held_out.write_bytes(
            zipped(
                {
                    f"{name}/{i}.png": photo(colour, 200 + i)
                    for name, colour in (("red", RED), ("blue", BLUE), ("green", GREEN))
                    for i in range(3)
                }
            )
        )
        page.give("measure-files", held_out)
        page.until("numbers", "right of 9 photos")
        assert all("of 3" in row[3] for row in page.rows())
        assert page.complaints() == []


def test_a_wrong_answer_is_corrected_with_one_photo_and_undone(
    browser: webdriver.Chrome, real_model: Path, files: Path
) -> None:
    with running(real_model) as url:
        page = Page(browser, url)
        page.until("summary", "knows 2 classes")
        assert not page.find("undo").is_enabled()
        page.give("ask-files", files / "red0.png", files / "green0.png")
        page.until("correct-question", "Wrong? It is …")
        page.find("strip").find_elements(By.TAG_NAME, "button")[1].click()
        page.until("verdict", "unknown")
        page.until("correct-question", "What is it?")
        assert not page.find("correct-go").is_enabled()
        page.find("correct-name").send_keys("green", Keys.ENTER)
        page.until("correct-note", "Learnt this photo as green.")
        page.until("summary", "knows 3 classes from 13 photos in 2 batches")
        assert page.find("correct-name").get_attribute("value") == ""
        page.find("undo").click()
        browser.switch_to.alert.accept()
        page.until("summary", "knows 2 classes from 12 photos in 1 batch")
        page.until("verdict", "unknown")
        assert page.complaints() == []
        page.find("correct-name").send_keys("unknown", Keys.ENTER)
        page.until("correct-note", "no class can be called 'unknown'")


def test_classes_are_renamed_merged_and_removed(
    browser: webdriver.Chrome, real_model: Path, files: Path
) -> None:
    def edit(label: str) -> None:
        browser.find_element(By.CSS_SELECTOR, f"[aria-label='Edit {label}']").click()

    with running(real_model) as url:
        page = Page(browser, url)
        page.until("summary", "knows 2 classes")
        page.give("ask-files", files / "red0.png")
        page.until("verdict", "red")
        edit("red")
        name = page.find("edit-rename")
        name.clear()
        name.send_keys("rose", Keys.ENTER)
        page.until("change-note", "red is called rose now. Undo takes it back.")
        page.until("verdict", "rose")
        assert [row[0] for row in page.rows()] == ["rose", "blue"]
        edit("rose")
        page.find("edit-merge").submit()
        browser.switch_to.alert.accept()
        page.until("change-note", "rose is a part of blue now.")
        assert [row[:2] for row in page.rows()] == [["blue", "12"]]
        page.find("undo").click()
        browser.switch_to.alert.accept()
        page.until("undo-note", "Done.")
        page.until("table", "rose")
        edit("blue")
        browser.find_element(By.CSS_SELECTOR, ".remove button").click()
        browser.switch_to.alert.accept()
        page.until("change-note", "blue is removed.")
        assert [row[0] for row in page.rows()] == ["rose"]
        assert page.complaints() == []


def test_photos_and_folders_can_be_dropped(
    browser: webdriver.Chrome, real_model: Path, files: Path, tmp_path: Path
) -> None:
    for name in ("red", "green"):
        (tmp_path / "classes" / name / "more").mkdir(parents=True)
        for i in range(4):
            part = "more" if i % 2 else "."
            shutil.copy(files / f"{name}{i}.png", tmp_path / "classes" / name / part / f"{i}.png")
    with running(real_model) as url:
        page = Page(browser, url)
        page.until("ask", "What is this?")
        page.drop("ask-drop", files / "red0.png")
        page.until("verdict", "red")
        page.drop("teach-drop", tmp_path / "classes")
        page.until("teach-count", "8 photos of 2 classes")
        page.find("teach-go").click()
        page.until("teach-note", "from 8 photos.")
        page.until("summary", "in 2 batches")  # by then nothing moves on the page any more
        page.drop("measure-drop", tmp_path / "classes" / "red", tmp_path / "classes" / "green")
        page.until("numbers", "right of 8 photos")
        assert [row[:3] for row in page.rows()] == [
            ["red", "10", "1, 2"],
            ["blue", "6", "1"],
            ["green", "4", "2"],
        ]
        assert page.complaints() == []


def test_what_cannot_be_read_is_said_and_nothing_breaks(
    browser: webdriver.Chrome, real_model: Path, files: Path
) -> None:
    with running(real_model) as url:
        page = Page(browser, url)
        page.until("summary", "knows 2 classes")
        broken = files / "broken.png"
        broken.write_bytes(b"no image")
        page.give("ask-files", broken)
        page.until("ask-note", "broken.png is not an image")
        page.find("teach-name").send_keys("unknown")
        page.give("teach-files", files / "red0.png")
        page.find("teach-go").click()
        page.until("teach-note", "no class can be called 'unknown'")
        page.give("ask-files", files / "red0.png")
        page.until("verdict", "red")
        assert page.text("ask-note") == ""


def test_a_service_with_a_token_asks_for_it(
    browser: webdriver.Chrome, real_model: Path, files: Path
) -> None:
    with running(real_model, token=TOKEN) as url:
        page = Page(browser, url)
        page.until("token-form", "This service needs a token")
        page.find("token").send_keys("wrong", Keys.ENTER)
        page.until("summary", "that token is wrong")
        page.find("token").send_keys(TOKEN, Keys.ENTER)
        page.until("summary", "knows 2 classes")
        page.give("ask-files", files / "blue0.png")
        page.until("verdict", "blue")


def test_a_read_only_service_offers_no_teaching(
    browser: webdriver.Chrome, real_model: Path, files: Path
) -> None:
    with running(real_model, settings={"read_only": True}) as url:
        page = Page(browser, url)
        page.until("ask", "What is this?")
        page.give("ask-files", files / "red0.png")
        page.until("verdict", "red")
        assert not page.find("correct").is_displayed()
        assert browser.find_elements(By.CSS_SELECTOR, "[aria-label='Edit red']") == []
        assert not page.find("teach-card").is_displayed()
        assert not page.find("undo-row").is_displayed()


def test_which_parts_spoke_is_shown_on_demand(
    browser: webdriver.Chrome, real_model: Path, files: Path
) -> None:
    coloured = """const c = document.getElementById("parts-photo");
        const d = c.getContext("2d").getImageData(0, 0, c.width, c.height).data;
        return [c.width, c.height, d.some((v, i) => i % 4 === 0 && Math.abs(v - d[i + 2]) > 20)]"""
    with running(real_model) as url:
        page = Page(browser, url)
        page.until("summary", "knows 2 classes")
        page.give("ask-files", files / "red0.png", files / "blue0.png")
        page.until("verdict", "red")
        assert not page.find("parts-photo").is_displayed()
        page.find("parts").click()
        page.until("parts-note", "parts speak for red")
        assert page.find("parts-photo").is_displayed()
        assert not page.find("answer-photo").is_displayed()
        assert browser.execute_script(coloured) == [20, 20, True]
        page.find("strip").find_elements(By.TAG_NAME, "button")[1].click()
        page.until("verdict", "blue")
        assert page.find("answer-photo").is_displayed()
        assert page.text("parts-note") == ""
        page.find("parts").click()
        page.until("parts-note", "parts speak for blue")
        page.find("parts").click()
        assert page.find("answer-photo").is_displayed()
        assert page.complaints() == []


def test_what_is_odd_about_photos_is_said_after_learning(
    browser: webdriver.Chrome, real_model: Path, files: Path
) -> None:
    (files / "again.png").write_bytes((files / "green1.png").read_bytes())
    with running(real_model) as url:
        page = Page(browser, url)
        page.until("summary", "knows 2 classes")
        page.give("teach-files", *(files / f"green{i}.png" for i in range(4)), files / "again.png")
        page.find("teach-name").send_keys("green", Keys.ENTER)
        page.until("teach-note", "Learnt green from 5 photos.")
        page.until("teach-note", "green1.png = again.png")


@pytest.mark.parametrize("width", [400, 1200])
def test_nothing_is_wider_than_the_window(
    browser: webdriver.Chrome, real_model: Path, files: Path, width: int
) -> None:
    with running(real_model) as url:
        browser.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False},
        )
        try:
            page = Page(browser, url)
            page.until("summary", "knows 2 classes")
            page.give("ask-files", files / "red0.png")
            page.until("verdict", "red")
            page.find("parts").click()
            page.until("parts-note", "parts speak for red")
            browser.find_element(By.CSS_SELECTOR, "[aria-label='Edit red']").click()
            assert browser.execute_script("return document.documentElement.scrollWidth") <= width
            browser.get(f"{url}/docs")
            too_wide = """return [...document.querySelectorAll("body *")].filter(
                (e) => e.getBoundingClientRect().right > innerWidth).length"""
            assert browser.execute_script(too_wide) == 0
        finally:
            browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
