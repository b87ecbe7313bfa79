"""Captured steps, on a device that only pretends to be CUDA."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from cprompt.methods.base import LossPart
from cprompt.training.cuda_graphs import FIRST, GraphStepper
from cprompt.training.step import Stepper
from tests.training.common import InParts, step_inputs, toy_stepper


@pytest.mark.usefixtures("nothing_said")
def test_where_recording_fails_steps_are_taken_one_by_one_and_the_reason_is_said_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried = 0

    def stream(**options: Any) -> None:
        nonlocal tried
        tried += 1
        raise RuntimeError("a value was read back\nmore that nobody wants to read")

    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 0))
    monkeypatch.setattr(torch.cuda, "Stream", stream)
    plain, stepper = toy_stepper(Stepper)
    method, graphs = toy_stepper(GraphStepper)
    with pytest.warns(UserWarning, match="toy") as said:
        losses = [graphs.step(*step_inputs(step)) for step in range(3)]
    assert [str(w.message) for w in said] == [
        "steps of toy are not replayed as CUDA graphs, so training is slower: a value was read back"
    ]
    expected = [stepper.step(*step_inputs(step)) for step in range(3)]
    assert torch.equal(torch.stack(losses), torch.stack(expected))
    assert tried == 1
    for one, other in zip(method.parameters(), plain.parameters(), strict=True):
        assert torch.equal(one, other)
    assert graphs.names == ("square", "cross", "line")

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        toy_stepper(GraphStepper)[1].step(*step_inputs(0))
    assert tried == 2


class Stream:
    """Stands for a CUDA stream; `priority` is None where none was asked for."""

    current: list[Stream]

    def __init__(self, priority: int | None = None) -> None:
        self.priority = priority

    def wait_stream(self, other: Stream) -> None: ...


class Graph:
    """Stands for a CUDA graph: what is called while it records is taken for recorded."""

    made: list[Graph]

    def __init__(self) -> None:
        self.said: list[str] = []
        self.made.append(self)

    def capture_begin(self, pool: Any) -> None:
        assert not gc.isenabled()  # freeing a CUDA object would break the recording
        self.stream = Stream.current[-1]
        self.said.append("begin")

    def capture_end(self) -> None:
        self.said.append("end")

    def replay(self) -> None:
        self.said.append("replay")


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA's streams and graphs, where there are none."""

    @contextmanager
    def on(stream: Stream) -> Iterator[None]:
        Stream.current.append(stream)
        yield
        Stream.current.pop()

    Stream.current = [Stream()]
    Graph.made = []
    for name, fake in {
        "graph_pool_handle": lambda: (0, 0),
        "Stream": Stream,
        "current_stream": lambda: Stream.current[-1],
        "stream": on,
        "CUDAGraph": Graph,
        "synchronize": lambda: None,
    }.items():
        monkeypatch.setattr(torch.cuda, name, fake)


@pytest.mark.usefixtures("pretended")
def test_a_step_is_recorded_once_a_shape_and_replayed_on_the_new_inputs() -> None:
    _, stepper = toy_stepper(GraphStepper)
    assert isinstance(stepper, GraphStepper)
    assert (stepper.multiple, stepper.reseeds) == (8, False)
    for step, count in enumerate([2, 2, 1, 2, 1, 2]):
        images, targets, draws = step_inputs(step)
        losses = stepper.step(images[:count], targets[:count], draws)
        assert losses.shape == (3,)
    assert [graph.said for graph in Graph.made] == [
        ["begin", "end", *["replay"] * 4],
        ["begin", "end", *["replay"] * 2],
    ]
    assert [graph.stream.priority for graph in Graph.made] == [-1, -1]
    assert gc.isenabled()
    inputs = [recording.inputs for recording in stepper._captured.values()]
    for held, step, count in zip(inputs, (5, 4), (2, 1), strict=True):
        images, targets, draws = step_inputs(step)
        assert torch.equal(held["images"], images[:count])
        assert torch.equal(held["targets"], targets[:count])
        assert torch.equal(held["slopes"], draws["slopes"])


@pytest.mark.usefixtures("pretended")
def test_while_a_step_is_recorded_its_first_part_goes_before_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, stepper = toy_stepper(Stepper, InParts)
    method, graphs = toy_stepper(GraphStepper, InParts)
    whole, on = method.loss_parts, {}

    def noted(*inputs: Any) -> list[LossPart]:
        def note(number: int, part: LossPart) -> dict[str, Tensor]:
            on[number] = Stream.current[-1]
            return part()

        return [partial(note, number, part) for number, part in enumerate(whole(*inputs))]

    def recording() -> bool:
        return bool(Graph.made) and Graph.made[-1].said == ["begin"]

    monkeypatch.setattr(method, "loss_parts", noted)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)  # optimisers ask CUDA otherwise
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", recording)
    losses = graphs.step(*step_inputs(0))
    (graph,) = Graph.made
    assert graph.said == ["begin", "end", "replay"]
    assert on[0] is graph.stream
    assert len({graph.stream, on[1], on[2]}) == 3
    assert [on[number].priority for number in range(3)] == [FIRST, None, None]
    assert FIRST == -1  # CUDA's smaller numbers go first, and 0 is what a stream has by itself
    torch.testing.assert_close(losses, stepper.step(*step_inputs(0)))


@pytest.mark.usefixtures("pretended", "nothing_said")
def test_a_recording_that_breaks_off_is_ended_and_the_step_is_taken_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain, stepper = toy_stepper(Stepper)
    method, graphs = toy_stepper(GraphStepper)
    loss = method.loss

    def fails(*inputs: Any) -> dict[str, Tensor]:
        if Graph.made and Graph.made[-1].said == ["begin"]:
            raise RuntimeError("not permitted when stream is capturing")
        return loss(*inputs)

    monkeypatch.setattr(method, "loss", fails)
    with pytest.warns(UserWarning, match="slower: not permitted when stream is capturing"):
        losses = graphs.step(*step_inputs(0))
    assert [graph.said for graph in Graph.made] == [["begin", "end"]]
    assert gc.isenabled()
    assert torch.equal(losses, stepper.step(*step_inputs(0)))
    for one, other in zip(method.parameters(), plain.parameters(), strict=True):
        assert torch.equal(one, other)
