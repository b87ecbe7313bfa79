"""Images decoded in other processes: the same as in threads, whatever happens."""

from __future__ import annotations

import signal
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from cprompt.data.pipeline import processes
from cprompt.data.pipeline.decode_worker import decode_file
from cprompt.data.pipeline.inspection import is_blank, nothing, sameness
from cprompt.data.pipeline.processes import (
    SETTING,
    decode_in_processes,
    only_threads,
    processes_for,
)
from cprompt.data.pipeline.reduced import ImageFile
from cprompt.data.tar_shards import read_index
from cprompt.errors import ConfigError, DataError

SIDE = 16


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[bytes]]:
    """The processes that a test starts."""
    found: list[subprocess.Popen[bytes]] = []
    start = subprocess.Popen

    def recorded(*args: Any, **options: Any) -> subprocess.Popen[bytes]:
        found.append(start(*args, **options))
        return found[-1]

    monkeypatch.setattr(subprocess, "Popen", recorded)
    return found


def written(folder: Path, count: int) -> list[Path]:
    """Images of different shapes and kinds."""
    files = []
    for i in range(count):
        levels = np.random.default_rng(i).integers(0, 256, (20 + i, 50 - i % 30, 3), np.uint8)
        image = Image.fromarray(levels)
        exif = Image.Exif()
        exif[0x0112] = 1 + i % 8
        files.append(folder / f"{i} é.{('jpg', 'png')[i % 2]}")
        (image if i % 3 else image.convert("L")).save(files[-1], exif=exif)
    return files


def in_processes(
    files: Sequence[ImageFile], find: Callable[[Any], Any]
) -> Generator[tuple[Any, Any], None, None]:
    return decode_in_processes(files, SIDE, find, 2, lambda file: expected(file, find))


def expected(file: ImageFile, find: Callable[[Any], Any]) -> tuple[Any, Any]:
    return decode_file(file, SIDE, find)


def test_pixels_order_and_findings_are_those_of_one_process(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    files: list[Any] = [*written(tmp_path / "in", 21), str(tmp_path / "in" / "0 é.jpg")]
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        tar.add(files[3], "x.png")
    files.append(read_index(str(tmp_path / "a.tar"))[0].image)
    found = list(in_processes(files, sameness))
    assert len(found) == len(files)
    for file, (image, same) in zip(files, found, strict=True):
        pixels, told = expected(file, sameness)
        np.testing.assert_array_equal(image, pixels)
        assert image.dtype == np.uint8
        assert not image.flags.writeable
        assert same.key == told.key
        np.testing.assert_array_equal(same.look, told.look)


def test_a_bad_file_raises_its_own_error_in_its_place(
    tmp_path: Path, started: list[subprocess.Popen[bytes]]
) -> None:
    files = written(tmp_path, 12)
    files[6].write_bytes(files[7].read_bytes()[:80])
    files[9].unlink()
    with pytest.raises(DataError) as alone:
        expected(files[6], nothing)
    images = in_processes(files, nothing)
    for file in files[:6]:
        np.testing.assert_array_equal(next(images)[0], expected(file, nothing)[0])
    with pytest.raises(DataError) as caught:
        next(images)
    for name in ("message", "file", "hint"):
        assert getattr(caught.value, name) == getattr(alone.value, name)
    assert type(caught.value.__cause__) is type(alone.value.__cause__)
    assert [each.returncode is None for each in started] == [False, False]


def test_closing_early_ends_processes_and_threads(
    tmp_path: Path, started: list[subprocess.Popen[bytes]]
) -> None:
    before = threading.active_count()
    images = in_processes(written(tmp_path, 30), is_blank)
    next(images)
    assert [each.poll() for each in started] == [None, None]
    images.close()
    assert [each.returncode is None for each in started] == [False, False]
    assert threading.active_count() == before


@pytest.mark.parametrize("victims", [1, 2])
def test_a_killed_process_is_one_clear_error(
    victims: int, tmp_path: Path, started: list[subprocess.Popen[bytes]]
) -> None:
    files = written(tmp_path, 10) * 10
    images = in_processes(files, nothing)
    next(images)
    for each in started[:victims]:
        each.kill()
    with pytest.raises(DataError, match="signal 9") as caught:
        list(images)
    assert caught.value.file in {str(file) for file in files}
    assert SETTING in (caught.value.hint or "")


def test_a_process_that_cannot_start_is_one_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(DataError, match="no process can be started") as caught:
        list(in_processes(written(tmp_path, 1), nothing))
    assert SETTING in (caught.value.hint or "")


SCRIPT = """
import os, sys, signal
from cprompt.data.pipeline.inspection import nothing
from cprompt.data.pipeline.processes import decode_in_processes
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
print("once", flush=True)
images = decode_in_processes(sys.argv[2:] * 20, 16, nothing, 2, None)
next(images)
print([name for name in ("torch", "fsspec") if name in sys.modules], flush=True)
os.kill(os.getpid(), int(sys.argv[1]))
"""


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT])
def test_processes_end_with_a_script_that_dies_and_do_not_run_it_again(
    end: signal.Signals, tmp_path: Path
) -> None:
    """They hold its standard error, so waiting for that to be closed waits for them."""
    files = [str(file) for file in written(tmp_path, 5)]
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, str(script), str(int(end)), *files]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert done.returncode != 0
    assert done.stdout.splitlines() == ["once", "[]"]
    assert done.stderr.count("Traceback") == (end == signal.SIGINT)


def test_processes_start_where_they_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SETTING, raising=False)
    many = ["a.jpg"] * processes.FEWEST_FILES
    for cores, files, count in [
        (2, many, 0),
        (8, many, 8),
        (8, many[1:], 0),
        (96, many, processes.MOST_PROCESSES),
        (8, [*many, "s3://bucket/a.jpg"], 0),
        (8, [*many, b"bytes"], 0),
    ]:
        monkeypatch.setattr(processes, "usable_cores", lambda cores=cores: cores)
        assert processes_for(files) == count
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    assert processes_for(many) == 0


def test_the_environment_says_how_many(monkeypatch: pytest.MonkeyPatch) -> None:
    for told, count in {"0": 0, "3": 3}.items():
        monkeypatch.setenv(SETTING, told)
        assert processes_for(["a.jpg"]) == count
        with only_threads():
            assert processes_for(["a.jpg"]) == 0
    monkeypatch.setenv(SETTING, "many")
    with pytest.raises(ConfigError, match=SETTING):
        processes_for(["a.jpg"])
