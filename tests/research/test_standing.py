"""How far a run is: what is told, and when."""

from __future__ import annotations

from cprompt.research.standing import Standing, TellsStanding


def test_each_task_is_told_and_what_is_odd() -> None:
    told: list[Standing] = []
    odd: list[str] = []
    observer = TellsStanding(told.append, "cuda", odd.append)
    observer.stream_begins(5)
    observer.task_begins(3, n_classes=10, steps=7, done=2)
    observer.noticed("strange")
    assert told == [Standing("running", 0, 5, "cuda"), Standing("running", 3, 5, "cuda")]
    assert odd == ["strange"]
    TellsStanding(told.append, "cuda").noticed("nobody asked")
    assert len(told) == 2
