"""Independent calls: one each, results in order, and streams that wait for each other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest
import torch

from cprompt.training.streams import run_on_streams


def test_every_call_is_made_once_and_results_come_in_order() -> None:
    calls: list[str] = []

    def call(name: str) -> str:
        calls.append(name)
        return name.upper()

    assert list(run_on_streams(*(partial(call, name) for name in "abc"))) == ["A", "B", "C"]
    assert sorted(calls) == ["a", "b", "c"]
    assert list(run_on_streams(partial(call, "d"))) == ["D"]


class Stream:
    """Stands for a CUDA stream, and writes down what goes to it."""

    def __init__(self, said: list[str], name: str) -> None:
        self.said = said
        self.name = name

    def wait_stream(self, other: Stream) -> None:
        self.said.append(f"{self.name} waits for {other.name}")


def test_while_a_graph_is_recorded_each_call_has_a_stream_that_begins_and_ends_in_the_first_one_s(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[str] = []
    on = [Stream(said, "main")]
    names = iter(["one", "two"])

    @contextmanager
    def stream(which: Stream) -> Iterator[None]:
        on.append(which)
        yield
        on.pop()

    def call(value: int) -> int:
        said.append(f"{value} on {on[-1].name}")
        return value

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: on[-1])
    monkeypatch.setattr(torch.cuda, "Stream", lambda: Stream(said, next(names)))
    monkeypatch.setattr(torch.cuda, "stream", stream)

    assert list(run_on_streams(*(partial(call, value) for value in (1, 2, 3)))) == [1, 2, 3]

    assert sorted(line for line in said if " on " in line) == ["1 on main", "2 on one", "3 on two"]
    for value, name in ((2, "one"), (3, "two")):
        begins, ends = f"{name} waits for main", f"main waits for {name}"
        assert said.index(begins) < said.index(f"{value} on {name}") < said.index(ends)
        assert said.index("1 on main") < said.index(ends)
