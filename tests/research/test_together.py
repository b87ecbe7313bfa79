"""Runs that take turns: order, random state, failures, stopping."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from cprompt.research import together
from cprompt.research.together import Stopped, run_together
from cprompt.training.observers import Observer

CPU = torch.device("cpu")
Run = Callable[[Observer], None]


def step(turns: Observer) -> None:
    turns.stepped(0, (), torch.zeros(0))


def test_one_runs_at_a_time_and_each_hands_over_after_its_step() -> None:
    seen: list[str] = []
    begun = set()

    def running(name: str) -> Run:
        def run(turns: Observer) -> None:
            begun.add(name)
            while len(begun) < 3:  # until all have had their first turn
                step(turns)
            for number in range(4):
                seen.append(f"{name}{number}")
                step(turns)

        return run

    assert run_together({name: running(name) for name in "abc"}, 3, CPU) == {}
    by_number = [sorted(seen[i : i + 3]) for i in range(0, 12, 3)]
    assert by_number == [[f"a{n}", f"b{n}", f"c{n}"] for n in range(4)]
    order = [name[0] for name in seen]
    assert order == order[:3] * 4  # round after round in the same order


def test_no_more_than_asked_are_under_way() -> None:
    under_way, most = 0, 0

    def run(turns: Observer) -> None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        while most < 2:  # until another has begun
            step(turns)
        step(turns)
        under_way -= 1

    assert run_together(dict.fromkeys(range(5), run), 2, CPU) == {}
    assert (under_way, most) == (0, 2)


def drawing(seed: int, drawn: list[float]) -> Run:
    def run(turns: Observer) -> None:
        torch.manual_seed(seed)
        for _ in range(6):
            drawn.append(float(torch.rand(())))
            turns.evaluated_batch()

    return run


def test_each_draws_the_random_numbers_that_it_draws_alone() -> None:
    alone: dict[int, list[float]] = {seed: [] for seed in (1, 2, 3)}
    for seed, drawn in alone.items():
        run_together({seed: drawing(seed, drawn)}, 1, CPU)
    beside: dict[int, list[float]] = {seed: [] for seed in alone}
    torch.manual_seed(11)
    before = torch.get_rng_state()
    run_together({seed: drawing(seed, drawn) for seed, drawn in beside.items()}, 3, CPU)
    assert beside == alone
    assert torch.equal(torch.get_rng_state(), before)


def test_one_that_fails_does_not_stop_the_others() -> None:
    steps: dict[str, int] = {"good": 0}

    def good(turns: Observer) -> None:
        for _ in range(5):
            step(turns)
            steps["good"] += 1

    def bad(turns: Observer) -> None:
        step(turns)
        raise ValueError("bad")

    errors = run_together({"bad": bad, "good": good}, 2, CPU)
    assert [(name, str(error)) for name, error in errors.items()] == [("bad", "bad")]
    assert steps["good"] == 5


def test_ctrl_c_stops_all(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[type[BaseException]] = []
    begun = threading.Event()

    def endless(turns: Observer) -> None:
        begun.set()
        try:
            while True:
                step(turns)
        except BaseException as error:
            ended.append(type(error))
            raise

    def interrupted(*_: Any, **__: Any) -> Any:
        begun.wait()
        raise KeyboardInterrupt

    monkeypatch.setattr(together, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_together({"a": endless, "b": endless, "c": endless}, 2, CPU)
    assert ended
    assert set(ended) == {Stopped}
