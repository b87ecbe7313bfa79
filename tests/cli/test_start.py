"""Garbage is searched for after the imports of a command, as ever from then on, not at its end."""

from __future__ import annotations

from tests.fresh import printed


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
