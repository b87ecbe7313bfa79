"""How a command's process starts and ends: garbage, and memory that was freed."""

from __future__ import annotations

import platform

import pytest

from tests.fresh import printed


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc gives memory back")
def test_freed_memory_is_used_again_without_asking_for_fresh_pages() -> None:
    code = """
import resource
from cprompt.cli import start
def fresh_pages():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        layer = [b"x" * (6 * 2**20) for _ in range(6)]
        del layer
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
fresh_pages()
usual = fresh_pages()
start.keep_freed_memory()
fresh_pages()
print(usual > 10_000, fresh_pages() < 100)
"""
    assert printed(code).split() == ["True", "True"]


def test_imports_are_not_searched_and_later_objects_are() -> None:
    code = """
import gc
from cprompt.cli import start
usual = gc.get_threshold()
searches = []
gc.callbacks.append(lambda phase, _: searches.append(phase))
start.collect_garbage_later()
start.collect_garbage_later()
kept = [[] for _ in range(100_000)]
print(len(searches))
kept += [[] for _ in range(start._IMPORTED)]
print(searches[:2], gc.get_threshold() == usual, gc.get_freeze_count() > start._IMPORTED)
class Ring: ...
import weakref
ring = Ring()
ring.own = ring
seen = weakref.ref(ring)
del ring
kept += [[] for _ in range(2_000_000)]
print(seen())
"""
    assert printed(code).splitlines() == ["0", "['start', 'stop'] True True", "None"]


def test_nothing_is_searched_when_the_process_ends() -> None:
    code = """
import atexit, gc
atexit.register(lambda: print(gc.get_freeze_count() >= 1000))  # runs after what comes later
from cprompt.cli import start
start.collect_garbage_later()
kept = [[] for _ in range(1000)]
"""
    assert printed(code) == "True\n"


def test_modules_that_count_what_is_left_find_nothing() -> None:
    code = """
import atexit, gc, sys
atexit.register(lambda: print(gc.get_freeze_count()))  # runs after what comes later
from cprompt.cli import start
start.collect_garbage_later()
gc.freeze()
sys.modules["triton"] = sys
"""
    assert printed(code) == "0\n"
