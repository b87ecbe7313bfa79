"""Methods and datasets from outside the package: a file in the working folder, or a package."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from PIL import Image
from typer.testing import CliRunner

from cprompt import plugins
from cprompt.cli import app
from cprompt.data.datasets import shapes
from cprompt.data.registry import DATASETS, DatasetRegistry
from cprompt.errors import ConfigError, ModelError
from cprompt.methods.registry import METHODS, MethodInfo, MethodRegistry
from cprompt.report import figures
from cprompt.research.record import load_record
from cprompt.serve.app import create_app
from tests.registered import forgotten_afterwards

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "add_a_method.md").read_text("utf-8")
METHOD = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[0]
TABLE = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)[0]
SMALL = ["--backbone", "test_vit", "--weights", "random:0", "--backbone.image_size", "48"]
TINY = [*SMALL, "--training.epochs", "1", "--execution.device", "cpu", "--stream.sizes", "[2,1]"]
for _option, _value in {
    "classes": 3,
    "train_per_class": 4,
    "test_per_class": 2,
    "size": 48,
}.items():
    TINY += [f"--data.options.{_option}", str(_value)]


@pytest.fixture
def newcomer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with nothing but the page's method and table, for the benchmark `shapes`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "prototypes.py").write_text(METHOD, "utf-8")
    (tmp_path / "table.yaml").write_text(TABLE.replace("cars10", "shapes"), "utf-8")
    with forgotten_afterwards():
        yield tmp_path
    sys.modules.pop("prototypes", None)


def ok(*words: str) -> str:
    result = CliRunner().invoke(app, list(words), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_a_newcomers_method_goes_from_its_file_to_a_table(
    newcomer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Listed, run, resumed, tabulated, reported; the file and the table take under 60 lines."""
    assert len(METHOD.splitlines()) + len(TABLE.splitlines()) < 60
    outside = ["--plugin", "prototypes"]
    assert "prototypes" in ok("list", "methods", *outside)
    run = ["run", "shapes", "--method", "prototypes", *outside, *TINY, "--out", "one"]
    ok(*run)
    record = load_record(Path("one"))
    assert record.finished
    assert record.losses == [[], []]  # it is not trained
    ok(*run, "--resume")
    assert load_record(Path("one")).rows == record.rows
    table = ok("table", "table.yaml", *outside, *TINY, "--seeds", "1", "--format", "markdown")
    assert re.search(r"\| Prototypes \| [\d.]+ \| [\d.]+ \|", table)
    assert re.search(r"\| CPrompt \| [\d.]+ \| [\d.]+ \|", table)
    monkeypatch.setattr(figures, "to_files", lambda figure: {})  # the page has them all
    ok("report", "one", "--out", "report")
    assert "Prototypes" in Path("report/report.html").read_text("utf-8")


def test_a_newcomers_method_answers_photos_and_is_served(newcomer: Path) -> None:
    drawn = shapes.load(classes=2, train_per_class=6, test_per_class=1, size=48, difficulty=0.0)
    for i, label in enumerate(drawn.train.labels):
        folder = newcomer / "photos" / drawn.classes[label]
        folder.mkdir(parents=True, exist_ok=True)
        drawn.train.load(i).save(folder / f"{i}.png")
    outside = ["--plugin", "prototypes"]
    embedded = ["--backbone", "test_vit", "--weights", "random:0"]
    ok("learn", "model", "photos", "--method", "prototypes", *embedded, *outside)
    photo = next(Path("photos", drawn.classes[0]).iterdir())
    (answer,) = json.loads(ok("predict", "model", str(photo), "--json", *outside))
    assert answer["ranking"][0][0] == drawn.classes[0]
    with TestClient(create_app(Path("model")), base_url="http://127.0.0.1") as client:
        sent = client.post("/v1/predict", files={"images": photo.read_bytes()})
        assert sent.status_code == 200, sent.text
        (served,) = sent.json()["predictions"]
        assert served["ranking"][0]["label"] == drawn.classes[0]
        assert served["probability"] == pytest.approx(answer["probability"], abs=1e-9)


OUTSIDE = ["--plugin", "prototypes"]


@pytest.fixture
def photo(newcomer: Path) -> str:
    """One of the photos of `a` and `b` that a model in the folder `model` has learnt."""
    for label, colour in (("a", "red"), ("b", "blue")):
        path = newcomer / "photos" / label / "1.png"
        path.parent.mkdir(parents=True)
        Image.new("RGB", (48, 48), colour).save(path)
    embedded = ["--backbone", "test_vit", "--weights", "random:0"]
    with forgotten_afterwards():
        ok("learn", "model", "photos", "--method", "prototypes", *embedded, *OUTSIDE)
    del sys.modules["prototypes"]
    return "photos/a/1.png"


def test_a_model_whose_method_is_not_known_here_is_in_order(photo: str) -> None:
    """Neither a copy nor `undo` would help: both lose what was learnt."""
    for command in (["predict", "model", photo], ["rename", "model", "a", "c"]):
        with pytest.raises(ModelError, match="which is not known here") as caught:
            CliRunner().invoke(app, command, catch_exceptions=False)
        error = caught.value
        assert (error.file, str(error.hint).partition(",")[0]) == ("model", "pass --plugin MODULE")
        assert error.message.startswith("was learnt with the method 'prototypes'")
        assert "prototypes" not in METHODS
    ok("rename", "model", "a", "c", *OUTSIDE)
    (answer,) = json.loads(ok("predict", "model", photo, "--json", *OUTSIDE))
    assert answer["ranking"][0][0] == "c"


def test_a_model_whose_method_cannot_be_imported_says_what_to_repair(
    photo: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load() -> None:
        raise ConfigError("the package is broken", hint="repair it")

    info = MethodInfo("prototypes", "Prototypes", "from a package", load)
    monkeypatch.setitem(METHODS._infos, "prototypes", info)
    with pytest.raises(ModelError, match="'prototypes', but the package is broken; repair it"):
        ok("predict", "model", photo)


def test_without_the_plugin_a_run_or_a_model_says_what_is_missing(newcomer: Path) -> None:
    with pytest.raises(ConfigError, match="no method is called 'prototypes'") as caught:
        CliRunner().invoke(app, ["run", "shapes", "--method", "prototypes"], catch_exceptions=False)
    assert "--plugin" in str(caught.value.hint)
    assert "prototypes" not in sys.modules


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import nothing_of_the_kind", "ModuleNotFoundError: No module named 'nothing_of"),
        ("1 / 0", "ZeroDivisionError"),
        ("def", "SyntaxError"),
    ],
)
def test_a_plugin_that_fails_is_named_with_its_error(
    newcomer: Path, code: str, message: str
) -> None:
    (newcomer / "broken_plugin.py").write_text(code, "utf-8")
    with pytest.raises(ConfigError, match="the plugin 'broken_plugin' cannot be imported") as error:
        plugins.import_module("broken_plugin")
    assert message in error.value.message


def test_a_plugin_that_takes_the_name_of_a_method_is_refused(newcomer: Path) -> None:
    assert "cprompt" in METHODS
    (newcomer / "again.py").write_text(METHOD.replace('"prototypes"', '"finetune"'), "utf-8")
    METHODS["finetune"]  # imported, as by any earlier run
    with pytest.raises(ConfigError, match="two methods are called 'finetune'"):
        plugins.import_module("again")


DATASET = """
import numpy as np
from cprompt import Dataset, DatasetInfo, ImageSet

def load(root):
    images = ImageSet(np.zeros((4, 48, 48, 3), np.uint8), np.array([0, 0, 1, 1]), ("a", "b"))
    return Dataset("black", images, images)

BLACK = DatasetInfo("black", load, "black squares", "nothing", {}, needs_root=False)
"""
PROJECT = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "our-methods"
version = "1"
[project.entry-points."cprompt.methods"]
prototypes = "our_methods.prototypes"
broken = "our_methods.nothing"
[project.entry-points."cprompt.datasets"]
black = "our_methods.black:BLACK"
[tool.setuptools]
packages = ["our_methods"]
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package that offers a method, a dataset and something broken, installed by pip.

    The registries look for entry points when they are made, so new ones are asked what they find.
    """
    site = tmp_path / "site"
    package = tmp_path / "project" / "our_methods"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "prototypes.py").write_text(METHOD, "utf-8")
    (package / "black.py").write_text(DATASET, "utf-8")
    (package.parent / "pyproject.toml").write_text(PROJECT, "utf-8")
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index"]
    pip += ["--no-build-isolation", "--target", str(site), str(package.parent)]
    subprocess.run(pip, check=True)
    monkeypatch.syspath_prepend(site)
    monkeypatch.chdir(tmp_path)
    methods, datasets = MethodRegistry(), DatasetRegistry()
    monkeypatch.setattr(METHODS, "_infos", {**methods._infos, **METHODS._infos})
    monkeypatch.setattr(DATASETS, "_offers", datasets._offers)
    yield
    METHODS._classes.pop("prototypes", None)
    for module in [name for name in sys.modules if name.partition(".")[0] == "our_methods"]:
        del sys.modules[module]


@pytest.mark.usefixtures("installed")
def test_an_installed_package_brings_methods_and_datasets() -> None:
    """Listed, run and resumed without a word; one that is broken spoils nothing but itself."""
    assert "prototypes" in ok("list", "methods")
    assert "our_methods" not in sys.modules  # listing imports no method
    assert "black" in ok("list", "datasets")
    run = ["run", "shapes", "--method", "prototypes", *TINY, "--out", "one"]
    ok(*run)
    ok(*run, "--resume")
    assert load_record(Path("one")).finished
    black = ["--data.dataset", "black", "--stream.sizes", "[1,1]", "--out", "two"]
    ok("run", "folder", *black, "--method", "prototypes", *SMALL)
    assert load_record(Path("two")).dataset == "black"
    with pytest.raises(ConfigError, match="our-methods") as broken:
        ok("run", "shapes", "--method", "broken")
    assert "our_methods.nothing" in str(broken.value.hint)
