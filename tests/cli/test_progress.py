"""The bars of a run: what they say, and what they leave behind."""

from __future__ import annotations

import io

import pytest
import torch
from rich.console import Console

from cprompt.cli.progress import ProgressBars


def shown(**options: object) -> tuple[ProgressBars, io.StringIO]:
    file = io.StringIO()
    console = Console(file=file, width=200, force_terminal=True, color_system=None)
    return ProgressBars("mine", console, **options), file  # type: ignore[arg-type]


def a_task(bars: ProgressBars) -> None:
    bars.stream_begins(4)
    for done in (1, 2):
        bars.decoded(done, 2)
    bars.task_begins(1, n_classes=3, steps=2, done=0)
    bars.stepped(0, ("ce", "mk"), torch.tensor([1.5, 0.25]))
    bars._progress.refresh()
    bars.evaluating(1, batches=1)
    bars.evaluated_batch()
    bars.task_ends(1, {"last_accuracy": 81.25, "selection_accuracy": 90.0}, [80.0, 82.5])


def test_bars_name_the_task_and_the_losses_and_a_line_stays() -> None:
    bars, file = shown()
    with bars:
        a_task(bars)
    text = file.getvalue()
    assert "mine task 2/4, learning" in text
    assert "ce 1.500  mk 0.250" in text
    (line,) = [line for line in text.splitlines() if "accuracy on all classes so far" in line]
    assert "mine task 2/4: accuracy on all classes so far 81.2 %" in line
    assert "90 %" in line


def test_counting_shows_how_many_images_were_looked_at() -> None:
    bars, file = shown()
    with bars:
        bars.stream_begins(1)
        bars.task_begins(0, n_classes=3, steps=0, done=0)
        bars._progress.refresh()
        assert "0/0" not in file.getvalue()
        for done in (1, 2):
            bars.decoded(done, 4)
        bars.counted(2, 4)
        for done in (3, 4):
            bars.decoded(done, 4)  # of the next part: the bar of counting stays
        bars._progress.refresh()
        assert "mine looking at images" in file.getvalue()
        assert "2/4" in file.getvalue().rpartition("looking at images")[2]
        bars.counted(4, 4)


def test_without_lines_nothing_stays() -> None:
    bars, file = shown(lines=False)
    with bars:
        a_task(bars)
    assert "accuracy on all classes" not in file.getvalue()


def test_a_method_that_selects_no_prompt_has_no_share_of_right_ones() -> None:
    bars, file = shown()
    with bars:
        bars.stream_begins(1)
        bars.task_ends(0, {"last_accuracy": 50.0}, [50.0])
    assert "task 1/1: accuracy on all classes so far 50.0 %\n" in file.getvalue()


@pytest.mark.parametrize(("error", "said"), [(KeyboardInterrupt, True), (ValueError, False)])
def test_what_to_do_is_said_on_an_interrupt_only(error: type[BaseException], said: bool) -> None:
    bars, file = shown(if_stopped="type that again")
    with pytest.raises(error), bars:
        raise error
    assert ("type that again" in file.getvalue()) == said
