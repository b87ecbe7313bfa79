"""The wheel holds every file of the package and works without the repository."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

import cprompt

ROOT = Path(__file__).parents[1]


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    """What a command that succeeds prints; it finds installed packages, but not the repository."""
    clean = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=cwd,
        env={**clean, **environment},
        capture_output=True,
        encoding="utf-8",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy of the sources, so that nothing is left in the repository."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / name)
    unwanted = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", folder / "src", ignore=unwanted)
    run("-m", "build", "--wheel", "--no-isolation", "--outdir", folder / "dist", cwd=folder)
    (built,) = (folder / "dist").glob("*.whl")
    return built


def test_every_file_of_the_package_is_inside(wheel: Path) -> None:
    package = ROOT / "src" / "cprompt"
    there = {
        path.relative_to(ROOT / "src").as_posix()
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    inside = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("cprompt/")}
    assert inside == there
    for suffix in (".yaml", ".safetensors", ".html", ".typed"):
        assert any(name.endswith(suffix) for name in inside), suffix


def test_the_metadata_has_the_version_the_command_and_only_what_is_imported(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (info,) = {n.split("/")[0] for n in archive.namelist() if ".dist-info/" in n}
        about = Parser().parsestr(archive.read(f"{info}/METADATA").decode())
        scripts = archive.read(f"{info}/entry_points.txt").decode()
    assert about["Version"] == cprompt.__version__
    assert "cprompt = cprompt.cli:main" in scripts
    plain = [r for r in about.get_all("Requires-Dist", []) if "extra ==" not in r]
    assert not any(r.startswith(("torchvision", "tensorboard", "fastapi")) for r in plain)


def test_the_installed_wheel_runs_outside_the_repository(wheel: Path, tmp_path: Path) -> None:
    """Its dependencies are those of this environment."""
    site, here = tmp_path / "site", tmp_path / "here"
    here.mkdir()
    options = ("--no-deps", "--no-index", "--no-compile", "--disable-pip-version-check", "--quiet")
    run("-m", "pip", "install", *options, "--target", site, wheel, cwd=here)
    start = "import cprompt, cprompt.cli; print(cprompt.__file__); cprompt.cli.main()"
    said = run("-c", start, "demo", "--quick", cwd=here, PYTHONPATH=str(site), PYTHONUTF8="1")
    assert Path(said.splitlines()[0]).is_relative_to(site)
    assert "After all 3 batches" in said
    assert sorted(p.name for p in (here / "demo").iterdir()) == [
        "cprompt",
        "finetune",
        "report.html",
        "strata",
    ]


def test_the_version_is_written_once() -> None:
    """In the package; its metadata is made from there, and no other file repeats it."""
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    assert 'dynamic = ["version"]' in project
    for name in ("pyproject.toml", "CITATION.cff", "README.md", "mkdocs.yml"):
        text = (ROOT / name).read_text("utf-8")
        assert cprompt.__version__ not in text, name
        assert not re.search(r"^version: ", text, re.MULTILINE), name
