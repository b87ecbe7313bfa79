"""Every command and every snippet of the documentation is run.

Each page is one test. Its fenced blocks run in order in a new folder. Data that the page names in
capitals (`CARS`, `PHOTOS`, `MODEL` …) is there, small but with the real layout. The language says
what a block is. A comment right above the block, if there is one, says how it is run:

    ```sh        <!-- test: quick -->        the same command on less: `run` and `draw` with few
                                             drawn images, a tiny ViT and one epoch; `report` on
                                             two of the records, figures in the page only;
                                             `export` of a smaller model
                 <!-- test: dry-run -->      `run` gets --dry-run, `table` --only-show
                 <!-- test: parse -->        only checks that the command and its options exist
                 <!-- test: make-targets --> the target of `make`, or the extra of `pip`, exists
                 <!-- test: shown -->        executed, and the page shows what it prints
                 <!-- test: shown-part -->   executed for some methods; the page has every line
    ```python    <!-- test: parse -->        only compiled
                 <!-- test: file NAME -->    written to that file, for the blocks that follow
    ```yaml      <!-- test: file NAME -->    written to that file, for the blocks that follow
    ```text      <!-- test: output -->       what the block before prints
                 <!-- test: example -->      what something may look like; not checked

A block without a comment is executed as it stands; YAML must then be settings of a run. A text
block must have one of its two comments. Other languages, modes and programs are refused.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import re
import shlex
import shutil
import subprocess
import sys
import threading
import time
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import typer
import uvicorn
import yaml
from typer.testing import CliRunner

from cprompt.classifier import parameters
from cprompt.cli import app
from cprompt.methods.registry import METHODS
from cprompt.research.config import config_from_dict
from tests.docs.trees import PLACES, small_export
from tests.registered import forgotten_afterwards

ROOT = Path(__file__).parents[2]
PAGES = ["README.md", *sorted(str(p.relative_to(ROOT)) for p in (ROOT / "docs").rglob("*.md"))]

BLOCK = re.compile(
    r"(?:^<!-- test: (?P<mode>[^\n]*) -->\n)?^```(?P<language>\w*)\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
MODES: dict[str, set[str | None]] = {
    "sh": {None, "quick", "dry-run", "parse", "make-targets", "shown", "shown-part"},
    "python": {None, "parse", "file"},
    "yaml": {None, "file"},
    "text": {"output", "example"},
}
PLAIN = {"ls", "cp", "mv", "mkdir", "zip"}
"""Programs that are run as they are."""

QUICK = {
    "draw": "--photos 4 --test 2",
    "run": "--backbone test_vit --weights random:0 --backbone.image_size 48 --training.epochs 1",
}
FEW_IMAGES = "--data.options.train_per_class 2 --data.options.test_per_class 1"
FEW = {
    "shapes": FEW_IMAGES,
    "demo": f"{FEW_IMAGES} --data.options.classes 6 --stream.tasks 3",
}
"""By benchmark."""
SHORT_ALIGNMENT = "--method.align_epochs 1 --method.samples 4"
"""For methods that train their heads again after each task."""
PART = ("cprompt", "finetune")
"""Methods whose costs are counted for the table of resources, by a pass of a ViT-B/16 each. The
paper has numbers of the first, not of the second."""


@dataclass(frozen=True)
class Block:
    language: str
    mode: str | None
    argument: str
    code: str


def blocks(text: str) -> list[Block]:
    """The fenced blocks of a page; a fence or a mode of unknown kind is an error."""
    found = []
    for match in BLOCK.finditer(text):
        mode, _, argument = (match["mode"] or "").partition(" ")
        block = Block(match["language"], mode or None, argument, match["code"])
        assert block.language in MODES, f"language {block.language!r} of\n{block.code}"
        assert block.mode in MODES[block.language], f"mode {match['mode']!r} of\n{block.code}"
        assert bool(block.argument) == (block.mode == "file"), match["mode"]
        found.append(block)
    fences = len(re.findall(r"^ *(?:```|~~~)", text, re.MULTILINE))
    notes = len(re.findall(r"<!-- *test:", text))
    assert fences == 2 * len(found), "a fence is indented, open, or of tildes"
    assert notes == sum(b.mode is not None for b in found), "a mode stands above no block"
    return found


def lines(code: str) -> Iterator[list[str]]:
    """The words of each command, comments left out."""
    for line in code.replace("\\\n", " ").splitlines():
        if words := shlex.split(line, comments=True):
            yield words


@dataclass
class Session:
    """A reader who does what a page says, in the current folder."""

    module: types.ModuleType
    page: str = ""
    printed: str = ""
    job: str = ""
    files: list[str] = field(default_factory=list)
    """Modules that blocks were written to."""
    services: list[tuple[uvicorn.Server, threading.Thread, int]] = field(default_factory=list)

    def do(self, block: Block) -> None:
        if block.language == "text":
            if block.mode == "output":
                assert block.code.strip() == self.printed.strip()
            return
        self.printed = ""
        getattr(self, f"_{block.language}")(block)

    def _yaml(self, block: Block) -> None:
        settings = yaml.safe_load(block.code)
        if block.mode == "file":
            Path(block.argument).write_text(block.code, encoding="utf-8")
        else:
            config_from_dict(settings)

    def _python(self, block: Block) -> None:
        if block.mode == "file":
            Path(block.argument).write_text(block.code, encoding="utf-8")
            self.files.append(Path(block.argument).stem)
            return
        code = compile(block.code, self.module.__name__, "exec")
        if block.mode != "parse":
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                exec(code, vars(self.module))
            self.printed = out.getvalue()

    def _sh(self, block: Block) -> None:
        for words in lines(block.code):
            if words[0] == "torchrun":  # the same run, by one process
                words = words[words.index("-m") + 1 :]
            program = words[0]
            if block.mode == "make-targets":
                _check_target(words)
            elif block.mode == "parse":
                _check_words(words)
            elif program == "cprompt":
                self._cprompt(words[1:], block.mode)
            elif program == "curl":
                self._curl(words)
            elif program == "docker":  # not run; tests/deploy checks the files
                assert "-f" not in words or (ROOT / words[words.index("-f") + 1]).is_file()
            else:
                assert program in PLAIN, f"{shlex.join(words)}: what is {program!r} to do here?"
                subprocess.run(words, check=True)
        if block.mode == "shown":
            assert self.printed
            assert self.printed in self.page, f"the page does not show\n{self.printed}"
        if block.mode == "shown-part":
            lines_of_page = self.page.splitlines()
            assert self.printed
            for line in self.printed.splitlines():
                assert line in lines_of_page, f"the page does not show\n{line}"

    def _cprompt(self, words: list[str], mode: str | None) -> None:
        command = words[0]
        less: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
        if mode == "quick":
            words = [*words, *QUICK.get(command, "").split()]
            if command == "run":
                words += FEW.get(words[1], "").split()
                if _trains_heads_again(words):
                    words += SHORT_ALIGNMENT.split()
            if command == "report":
                words[1] = str(_two_records(Path(words[1])))
                less = patch("cprompt.report.figures.to_files", lambda figure: {})
            if command == "export":
                less = small_export(Path(words[1]))
        elif mode == "shown-part":
            less = patch.object(type(METHODS), "__iter__", lambda methods: iter(PART))
        elif mode == "dry-run":
            words = [*words, {"run": "--dry-run", "table": "--only-show"}[command]]
        if command == "serve":
            words = [*words, "--port", "0"]
        with less:
            result = CliRunner().invoke(app, words)
        said = f"cprompt {shlex.join(words)}\n{result.output}"
        if result.exception and not isinstance(result.exception, SystemExit):
            raise AssertionError(f"{said}{result.exception}") from result.exception
        assert result.exit_code == 0, said
        self.printed += result.stdout

    def _curl(self, words: list[str]) -> None:
        """Ask the service that `cprompt serve` started, wherever it listens, about the last job."""
        port = self.services[-1][2]
        words = [w.replace("localhost:8000", f"127.0.0.1:{port}") for w in words]
        words[-1] = re.sub(r"\bID$", self.job, words[-1])
        deadline = time.monotonic() + 60
        while True:
            done = subprocess.run(
                [*words, "--silent", "--show-error", "--fail-with-body"],
                capture_output=True,
                text=True,
            )
            assert done.returncode == 0, shlex.join(words) + done.stdout + done.stderr
            answer = json.loads(done.stdout)
            if "/v1/jobs/" not in words[-1] or answer["finished"]:
                break
            assert time.monotonic() < deadline
            time.sleep(0.05)
        if "/v1/jobs/" in words[-1]:
            assert answer["state"] == "done", answer
        self.job = answer.get("id", self.job)

    def serve(self, server: uvicorn.Server, sockets: list[Any]) -> None:
        """In place of `uvicorn.Server.run`: the same, beside what comes next."""
        own = [each.dup() for each in sockets]
        thread = threading.Thread(target=RUN, args=(server, own))
        thread.start()
        while not server.started:
            assert thread.is_alive(), "the service did not start"
            time.sleep(0.01)
        self.services.append((server, thread, own[0].getsockname()[1]))

    def stop(self) -> None:
        for server, thread, _ in self.services:
            server.should_exit = True
            thread.join(20)
            assert not thread.is_alive(), "the service did not stop"


RUN = uvicorn.Server.run


def _two_records(folder: Path) -> Path:
    """A folder with the first and the last record below `folder`: figures of all take minutes."""
    found = sorted(folder.rglob("record.json"))
    assert found, f"{folder} has no records"
    two = Path("two records")
    for number, record in enumerate((found[0], found[-1])):
        (two / str(number)).mkdir(parents=True)
        shutil.copy(record, two / str(number))
    return two


def _trains_heads_again(words: list[str]) -> bool:
    """Whether the run's method has epochs of alignment, as SLCA and HiDe-Prompt have."""
    method = words[words.index("--method") + 1] if "--method" in words else "cprompt"
    return method in METHODS and hasattr(METHODS[method].Config, "align_epochs")


def _check_target(words: list[str]) -> None:
    if words[0] == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        names = [w for w in words[1:] if "=" not in w]
        assert names
        assert set(names) <= set(targets), shlex.join(words)
        return
    assert words[:2] == ["pip", "install"], shlex.join(words)
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    extras = re.findall(r"^(\w+) = \[", project.split("[project.optional-dependencies]")[1], re.M)
    for word in words[2:]:
        wanted = re.fullmatch(r"(?:cprompt|\.)(?:\[([\w,]+)\])?", word)
        assert wanted, word
        assert set((wanted[1] or extras[0]).split(",")) <= set(extras), word


def _check_words(words: list[str]) -> None:
    """The command exists and takes these arguments."""
    if words[0] == "cprompt":
        command = typer.main.get_command(app)
        assert isinstance(command, typer.core.TyperGroup)
        with command.make_context("cprompt", words[1:2]) as context:
            name, found, rest = command.resolve_command(context, words[1:])
            assert found is not None, shlex.join(words)
            found.make_context(name, rest, parent=context)
        return
    assert words[:2] == ["python", "-m"], shlex.join(words)
    spec = importlib.util.find_spec(words[2])
    assert spec is not None, words[2]
    assert spec.origin is not None
    source = Path(spec.origin).read_text("utf-8")
    for option in (w for w in words[3:] if w.startswith("--")):
        assert f'"{option}"' in source, f"{words[2]} has no option {option}"


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    """A reader in an empty folder, for whom every batch is learnt in one epoch."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(parameters, "epochs_for", lambda photos: 1)
    module = types.ModuleType("page")  # dataclasses look their module up
    monkeypatch.setitem(sys.modules, "page", module)
    reader = Session(module)
    monkeypatch.setattr(
        uvicorn.Server, "run", lambda server, sockets: reader.serve(server, sockets)
    )
    with forgotten_afterwards():
        yield reader
    reader.stop()
    for module_name in reader.files:
        sys.modules.pop(module_name, None)


def follow(text: str, session: Session, folder: Path) -> None:
    """Make what the page's blocks name and do not make themselves, then do what they say."""
    todo = blocks(text)
    code = "\n".join(b.code for b in todo if b.language in ("sh", "python"))
    for name, make in PLACES.items():
        if re.search(rf"(?<![\w/.]){re.escape(name)}(?!\w)", code):
            make(folder / name)
    (folder / "results").symlink_to(ROOT / "results")
    session.page = text
    for block in todo:
        session.do(block)


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_says_works(page: str, session: Session, tmp_path: Path) -> None:
    text = (ROOT / page).read_text("utf-8")
    follow(text, session, tmp_path)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("```sh\ncprompt lern model PHOTOS\n```\n", "No such command"),
        ("```sh\ncprompt run shapes --training.epoch 1\n```\n", "no setting 'epoch'"),
        ("```sh\nrm -r elsewhere\n```\n", "what is 'rm' to do here"),
        ("```python\nprint(1)\n```\n<!-- test: output -->\n```text\n2\n```\n", "'2' == '1'"),
        ("```python\nimport cprompt.nothing\n```\n", "No module named"),
        ("<!-- test: parse -->\n```sh\ncprompt learn\n```\n", "Missing parameter: model"),
        ("<!-- test: dry-run -->\n```sh\ncprompt run cars11\n```\n", "no benchmark 'cars11'"),
        ("<!-- test: make-targets -->\n```sh\nmake coffee\n```\n", "make coffee"),
        ("<!-- test: make-targets -->\n```sh\npip install 'cprompt[tea]'\n```\n", "tea"),
        ("<!-- test: shown -->\n```sh\ncprompt list methods\n```\n", "the page does not show"),
        ("<!-- test: later -->\n```sh\ncprompt demo\n```\n", "mode 'later'"),
        ("```text\n80.0 %\n```\n", "mode None"),
        ("```\ncprompt demo\n```\n", "language ''"),
        ("<!-- test: quick -->\n\n```sh\ncprompt demo\n```\n", "stands above no block"),
        ("- so:\n  ```sh\n  cprompt demo\n  ```\n", "a fence is indented"),
    ],
)
def test_a_page_that_is_wrong_fails(
    text: str, error: str, session: Session, tmp_path: Path
) -> None:
    with pytest.raises((AssertionError, ImportError, typer.BadParameter)) as failed:
        follow(text, session, tmp_path)
    causes = [failed.value, failed.value.__cause__]
    assert error in " ".join(str(cause) for cause in causes)
