"""Steps against the textbook, and what happens where a device cannot replay them."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, get_args

import pytest
import torch
from torch import Tensor, nn

from cprompt.methods.base import Draws, Method, create_method
from cprompt.training import acceleration
from cprompt.training import step as step_module
from cprompt.training.acceleration import compile_backbones, make_stepper, resolve_acceleration
from cprompt.training.cuda_graphs import GraphStepper
from cprompt.training.optimizer import make_optimizer, set_learning_rate, start_state
from cprompt.training.settings import Acceleration
from cprompt.training.step import Stepper
from cprompt.vit.promptable import Embedded, FrozenViT, Precision, PromptableViT

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


class Toy(Method):
    """Two tensors, `a` learnt at a tenth of the rate; what the loss is can be written down."""

    name = "toy"

    def __init__(self) -> None:
        super().__init__(None, None)  # type: ignore[arg-type]
        self.a = nn.Parameter(torch.tensor([1.0, -2.0], dtype=torch.float64))
        self.b = nn.Parameter(torch.tensor([[0.5, 3.0, -1.0]], dtype=torch.float64))

    def embed(self, images: Tensor, precision: Precision = "fp32") -> Embedded:
        return Embedded(images, precision)

    def loss(self, embedded: Embedded, targets: Tensor, draws: Draws) -> dict[str, Tensor]:
        return {
            "square": (embedded.tokens.sum() * self.a.square()).sum(),
            "cross": targets.sum() * self.a.sum() * self.b.sum(),
            "line": (draws["slopes"] * self.b).sum(),
        }

    def parameter_groups(self) -> list[dict[str, Any]]:
        return [{"params": [self.a], "lr_scale": 0.1}, {"params": [self.b]}]


def step_inputs(step: int) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    rng = torch.Generator().manual_seed(step)
    images = torch.rand(2, 3, generator=rng, dtype=torch.float64)
    slopes = torch.randn(1, 3, generator=rng, dtype=torch.float64)
    return images, torch.tensor([1, step % 3]), {"slopes": slopes}


def by_hand(
    values: dict[str, Tensor], images: Tensor, targets: Tensor, slopes: Tensor
) -> tuple[list[float], dict[str, Tensor]]:
    """The three terms, and the gradients of their sum."""
    a, b, x, y = values["a"], values["b"], images.sum(), targets.sum()
    terms = [x * (a[0] ** 2 + a[1] ** 2), y * (a[0] + a[1]) * b.sum(), (slopes * b).sum()]
    gradients = {"a": 2 * x * a + y * b.sum(), "b": slopes + y * (a[0] + a[1])}
    return [float(term) for term in terms], gradients


def clipped(gradients: dict[str, Tensor], clip: float | None) -> dict[str, Tensor]:
    norm = sum(float(g.square().sum()) for g in gradients.values()) ** 0.5
    scale = 1.0 if clip is None else min(1.0, clip / (norm + 1e-6))
    return {name: scale * gradient for name, gradient in gradients.items()}


OPTIONS: dict[str, float] = {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01}
RATES = [0.05, 0.04, 0.02, 0.01]


@pytest.mark.parametrize("clip", [None, 0.5])
@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_steps_are_those_of_the_textbook(kind: str, clip: float | None) -> None:
    method = Toy()
    optimizer = make_optimizer(method.parameter_groups(), kind, CPU, **OPTIONS)
    stepper = Stepper(method, optimizer, clip)
    values = {name: p.detach().clone() for name, p in method.named_parameters()}
    first = {name: torch.zeros_like(value) for name, value in values.items()}
    second = {name: torch.zeros_like(value) for name, value in values.items()}
    for step, rate in enumerate(RATES, start=1):
        set_learning_rate(optimizer, rate)
        images, targets, draws = step_inputs(step)
        losses = stepper.step(images, targets, draws)
        terms, gradients = by_hand(values, images, targets, draws["slopes"])
        assert list(stepper.names) == ["square", "cross", "line"]
        assert losses.tolist() == pytest.approx(terms)
        assert not losses.requires_grad
        for name, gradient in clipped(gradients, clip).items():
            lr = rate * {"a": 0.1, "b": 1.0}[name]
            g = gradient + 0.01 * values[name]
            if kind == "sgd":
                first[name] = 0.9 * first[name] + g
                values[name] = values[name] - lr * first[name]
            else:
                first[name] = 0.9 * first[name] + 0.1 * g
                second[name] = 0.999 * second[name] + 0.001 * g**2
                m, v = first[name] / (1 - 0.9**step), second[name] / (1 - 0.999**step)
                values[name] = values[name] - lr * m / (v.sqrt() + 1e-8)
        for name, parameter in method.named_parameters():
            torch.testing.assert_close(parameter.detach(), values[name], msg=name)


def test_a_gradient_of_the_step_before_is_forgotten() -> None:
    """Also by a tensor that this step's loss does not reach, which then stays where it is."""
    method = Toy()
    optimizer = make_optimizer(method.parameter_groups(), "sgd", CPU, lr=0.1)
    stepper = Stepper(method, optimizer, None)
    stepper.step(*step_inputs(1))
    method.loss = lambda *inputs: {"a": method.a.sum()}  # type: ignore[method-assign]
    b = method.b.detach().clone()
    stepper.step(*step_inputs(2))
    assert torch.equal(method.b, b)
    assert method.b.grad is None
    assert method.a.grad is not None
    assert method.a.grad.tolist() == [1, 1]


# --- optimisers ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "cls"), [("sgd", torch.optim.SGD), ("adam", torch.optim.Adam)])
def test_groups_keep_their_scale_and_the_callers_are_left_alone(kind: str, cls: type) -> None:
    groups = Toy().parameter_groups()
    optimizer = make_optimizer(groups, kind, CPU, **OPTIONS)
    assert type(optimizer) is cls
    assert [group.get("lr_scale") for group in optimizer.param_groups] == [0.1, None]
    assert [group["lr"] for group in optimizer.param_groups] == [0.05, 0.05]
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.01, 0.01]
    assert optimizer.param_groups[0].get("momentum") == (0.9 if kind == "sgd" else None)
    assert [set(group) for group in groups] == [{"params", "lr_scale"}, {"params"}]
    set_learning_rate(optimizer, 0.3)
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.03, 0.3])
    set_learning_rate(optimizer, 0.2)  # of the rate given, not of the last one
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.02, 0.2])


def test_a_rate_that_a_recording_reads_is_changed_in_its_place() -> None:
    optimizer = make_optimizer(Toy().parameter_groups(), "sgd", CPU, lr=0.1)
    rates = [torch.tensor(0.1), torch.tensor(0.1)]
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    set_learning_rate(optimizer, 0.4)
    assert [float(rate) for rate in rates] == pytest.approx([0.04, 0.4])
    assert all(
        group["lr"] is rate for group, rate in zip(optimizer.param_groups, rates, strict=True)
    )


@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_state_from_zero_makes_torch_s_own_first_steps_to_the_bit(kind: str) -> None:
    ended = []
    for given in (False, True):
        method = Toy().float()
        optimizer = make_optimizer(method.parameter_groups(), kind, CPU, **OPTIONS)
        if given:
            start_state(optimizer)
            states = [optimizer.state[p] for p in method.parameters()]
            assert all(states)
            assert not any(tensor.any() for state in states for tensor in state.values())
        stepper = Stepper(method, optimizer, None)
        for step in range(4):
            images, targets, draws = step_inputs(step)
            stepper.step(images.float(), targets, {n: t.float() for n, t in draws.items()})
        tensors: dict[str, Tensor] = dict(method.named_parameters())
        for name, parameter in method.named_parameters():
            tensors |= {f"{name}/{n}": t for n, t in optimizer.state[parameter].items()}
        ended.append(tensors)
    own, from_zero = ended
    assert own.keys() == from_zero.keys()
    assert len(own) == 2 * (1 + {"sgd": 1, "adam": 3}[kind])
    for name, tensor in own.items():
        assert torch.equal(tensor, from_zero[name]), name


@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_state_that_is_there_is_kept(kind: str) -> None:
    method = Toy()
    optimizer = make_optimizer(method.parameter_groups(), kind, CPU, **OPTIONS)
    Stepper(method, optimizer, None).step(*step_inputs(0))
    before = [{n: t.clone() for n, t in s.items()} for s in optimizer.state.values()]
    start_state(optimizer)
    after = [dict(state) for state in optimizer.state.values()]
    assert len(before) == len(after) == 2
    for one, other in zip(before, after, strict=True):
        assert one.keys() == other.keys()
        for name, tensor in one.items():
            assert tensor.any()
            assert torch.equal(other[name], tensor), name


def test_sgd_without_momentum_is_given_none() -> None:
    optimizer = make_optimizer(Toy().parameter_groups(), "sgd", CPU, lr=0.1, momentum=0.0)
    start_state(optimizer)
    assert not any(optimizer.state.values())


# --- recorded steps, with a device that only pretends -------------------------------------------


@pytest.fixture
def nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_module, "_warned", set())


def toy_stepper(kind: type[Stepper]) -> tuple[Toy, Stepper]:
    method = Toy()
    optimizer = make_optimizer(method.parameter_groups(), "sgd", CPU, **OPTIONS)
    return method, kind(method, optimizer, 0.5)


@pytest.mark.usefixtures("nothing_said")
def test_where_recording_fails_steps_are_taken_one_by_one_and_the_reason_is_said_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried = 0

    def stream() -> None:
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


class Graph:
    """Stands for a CUDA graph: what is called while it records is taken for recorded."""

    made: list[Graph]

    def __init__(self) -> None:
        self.said: list[str] = []
        self.made.append(self)

    def capture_begin(self, pool: Any) -> None:
        assert not gc.isenabled()  # freeing a CUDA object would break the recording
        self.said.append("begin")

    def capture_end(self) -> None:
        self.said.append("end")

    def replay(self) -> None:
        self.said.append("replay")


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA's streams and graphs, where there are none."""

    class Stream:
        def wait_stream(self, other: Stream) -> None: ...

    @contextmanager
    def on(stream: Stream) -> Iterator[None]:
        yield

    Graph.made = []
    for name, fake in {
        "graph_pool_handle": lambda: (0, 0),
        "Stream": Stream,
        "current_stream": Stream,
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
    for step, pictures in enumerate([2, 2, 1, 2, 1, 2]):
        images, targets, draws = step_inputs(step)
        losses = stepper.step(images[:pictures], targets[:pictures], draws)
        assert losses.shape == (3,)
    assert [graph.said for graph in Graph.made] == [
        ["begin", "end", *["replay"] * 4],
        ["begin", "end", *["replay"] * 2],
    ]
    assert gc.isenabled()
    inputs = [recording.inputs for recording in stepper._captured.values()]
    for held, step, pictures in zip(inputs, (5, 4), (2, 1), strict=True):
        images, targets, draws = step_inputs(step)
        assert torch.equal(held["images"], images[:pictures])
        assert torch.equal(held["targets"], targets[:pictures])
        assert torch.equal(held["slopes"], draws["slopes"])


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


@pytest.mark.parametrize("how", get_args(Acceleration))
def test_on_a_cpu_steps_are_taken_one_by_one(how: Acceleration, backbone: FrozenViT) -> None:
    method = create_method("finetune", backbone, {"length": 2})
    method.begin_task(2, torch.Generator().manual_seed(0))
    optimizer = make_optimizer(method.parameter_groups(), "sgd", CPU, **OPTIONS)
    stepper = make_stepper(method, optimizer, 1.5, how)
    assert type(stepper) is Stepper
    assert (stepper.method, stepper.optimizer, stepper.clip) == (method, optimizer, 1.5)
    assert (stepper.multiple, stepper.reseeds) == (1, True)


# --- compiling ----------------------------------------------------------------------------------


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, PromptableViT]]:
    """Who was compiled and who was told to run as written, in order; compiling fails."""
    told: list[tuple[str, PromptableViT]] = []

    def fail(vit: PromptableViT) -> None:
        told.append(("compile", vit))
        raise OSError("no C compiler\nwas found")

    monkeypatch.setattr(PromptableViT, "compile", fail)
    monkeypatch.setattr(PromptableViT, "decompile", lambda vit: told.append(("decompile", vit)))
    return told


@pytest.mark.usefixtures("nothing_said")
def test_where_compiling_fails_all_backbones_run_as_written_and_the_reason_is_said_once(
    compiled: list[tuple[str, PromptableViT]], backbone: FrozenViT
) -> None:
    method = create_method("slca", backbone)  # has a backbone of its own
    with pytest.warns(UserWarning, match="compiled") as said:
        compile_backbones(method, "compile", CUDA)
    assert [str(w.message) for w in said] == [
        "the backbone is not compiled, so training is slower: no C compiler"
    ]
    once = [("compile", backbone), ("decompile", backbone), ("decompile", method.tuned)]
    assert compiled == once
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compile_backbones(method, "compile", CUDA)
    assert compiled == [*once, *once]


@pytest.mark.parametrize(
    ("how", "device"), [("compile", CPU), ("graphs", CUDA), ("auto", CUDA), ("none", CUDA)]
)
def test_a_backbone_compiled_for_another_run_goes_back_where_it_must_not_be(
    compiled: list[tuple[str, PromptableViT]],
    backbone: FrozenViT,
    how: Acceleration,
    device: torch.device,
) -> None:
    compile_backbones(create_method("cprompt", backbone, {"length": 2}), how, device)
    assert compiled == [("decompile", backbone)]


def test_auto_compiles_where_a_run_is_long_enough_to_pay_for_it() -> None:
    long = acceleration.WORTH_COMPILING
    assert resolve_acceleration("auto", long) == "compile"
    assert resolve_acceleration("auto", long - 1) == "auto"
    for how in ("compile", "graphs", "none"):
        assert resolve_acceleration(how, 1) == resolve_acceleration(how, 10 * long) == how
