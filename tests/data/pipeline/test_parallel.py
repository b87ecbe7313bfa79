"""Work in threads, results in order."""

from __future__ import annotations

import threading
from collections.abc import Generator
from pathlib import Path

import pytest

from cprompt.data.pipeline import parallel
from cprompt.data.pipeline.parallel import ahead, map_in_order, usable_cores


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_results_come_map_in_order(threads: int) -> None:
    gate = threading.Event()

    def square(i: int) -> int:
        if i == 0 and threads > 1:
            gate.wait(20)  # the first is done last
        if i == 1:
            gate.set()
        return i * i

    assert list(map_in_order(square, range(20), threads)) == [i * i for i in range(20)]


@pytest.mark.parametrize("threads", [0, 2])
def test_an_exception_is_raised_in_its_place(threads: int) -> None:
    results = map_in_order(lambda i: 12 // (3 - i), range(6), threads)
    assert [next(results) for _ in range(3)] == [4, 6, 12]
    with pytest.raises(ZeroDivisionError):
        next(results)


def test_work_is_only_done_a_little_ahead() -> None:
    begun: list[int] = []
    results = map_in_order(lambda i: begun.append(i), range(100), 2)
    next(results)
    results.close()
    assert len(begun) <= 5


def test_closing_ends_the_threads() -> None:
    before = threading.active_count()
    results = map_in_order(lambda i: i, range(100), 3)
    next(results)
    assert threading.active_count() > before
    results.close()
    assert threading.active_count() == before


def test_the_next_item_is_got_while_one_is_used() -> None:
    begun = [threading.Event() for _ in range(3)]

    def items() -> Generator[int, None, None]:
        for i, event in enumerate(begun):
            event.set()
            yield i

    results = ahead(items())
    assert next(results) == 0
    assert begun[1].wait(20)
    assert not begun[2].is_set()
    assert list(results) == [1, 2]


def test_an_error_of_the_next_item_comes_in_its_place() -> None:
    results = ahead(12 // (2 - i) for i in range(4))
    assert [next(results) for _ in range(2)] == [6, 12]
    with pytest.raises(ZeroDivisionError):
        next(results)


def test_a_reader_that_stops_leaves_no_thread_behind() -> None:
    before = threading.active_count()
    items = (i for i in range(100))
    results = ahead(items)
    assert next(results) == 0
    assert threading.active_count() == before + 1
    results.close()
    assert threading.active_count() == before
    assert list(items) == []  # closed as well


def test_a_container_may_use_fewer_cores_than_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parallel, "_QUOTA", tmp_path / "cpu.max")
    without = usable_cores()
    assert without >= 1
    for quota, cores in {"max 100000": without, "50000 100000": 1, "100000 100000": 1}.items():
        (tmp_path / "cpu.max").write_text(quota + "\n")
        assert usable_cores() == cores
