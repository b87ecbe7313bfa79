"""Observers of a run."""

from __future__ import annotations

from typing import Any

from cprompt.training.observers import Observer, Observers

EVENTS = [name for name in vars(Observer) if not name.startswith("_")]


def test_several_observers_hear_every_event_in_order() -> None:
    heard: list[tuple[str, str, Any, Any]] = []

    def observer(who: str) -> Observer:
        def hears(event: str) -> Any:
            return lambda self, *args, **named: heard.append((who, event, args, named))

        listening = type("Listening", (Observer,), {event: hears(event) for event in EVENTS})
        made: Observer = listening()
        return made

    both = Observers(observer("a"), observer("b"))
    for event in EVENTS:
        getattr(both, event)(1, total=2)
    assert "task_ends" in EVENTS
    assert heard == [(who, event, (1,), {"total": 2}) for event in EVENTS for who in "ab"]


def test_an_observer_ignores_what_it_does_not_override() -> None:
    Observer().task_begins(0, n_classes=2, steps=3, done=0)
    Observer().task_ends(0, {"last_accuracy": 50.0}, [50.0])
