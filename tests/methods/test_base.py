"""The interface of a method: the order of its steps, its settings, and rebuilding it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from cprompt.errors import BackboneError, ConfigError
from cprompt.methods.base import (
    Draws,
    LossPart,
    Method,
    add_terms,
    create_method,
    rebuild,
    register,
)
from cprompt.methods.cprompt import CPrompt, CPromptConfig
from cprompt.methods.registry import METHODS, MethodRegistry
from cprompt.vit.loading import load_backbone
from cprompt.vit.promptable import Embedded, FrozenViT
from tests.methods.common import batch


@dataclass(frozen=True)
class NoSettings:
    """Nothing to set."""


class Steps(Method):
    """Writes down its steps; answers with the task, or 9 without one."""

    uses_query = True
    selects_task = True

    def __init__(self, backbone: FrozenViT) -> None:
        super().__init__(backbone, NoSettings())
        self.taken: list[str] = []

    def query(self, embedded: Embedded) -> Tensor:
        self.taken.append("query")
        return torch.full((len(embedded), 2), 5.0)

    def choose(self, query: Tensor) -> Tensor:
        self.taken.append("choose")
        return query[:, 0].long()

    def feature(self, embedded: Embedded, query: Tensor | None, task: Tensor | None) -> Tensor:
        self.taken.append("feature")
        return torch.full((len(embedded), 1), 9.0) if task is None else task[:, None].float()

    def answer(self, feature: Tensor) -> Tensor:
        self.taken.append("answer")
        return feature


def images() -> Tensor:
    return torch.zeros(3, 3, 48, 48)


@pytest.mark.parametrize(
    ("flags", "given", "taken", "answer"),
    [
        ({}, (), ["query", "choose", "feature", "answer"], 5),
        ({}, ("query",), ["choose", "feature", "answer"], 4),
        ({}, ("task",), ["feature", "answer"], 7),
        ({"selects_task": False}, (), ["query", "feature", "answer"], 9),
        ({"selects_task": False, "uses_query": False}, (), ["feature", "answer"], 9),
    ],
)
def test_respond_takes_only_the_steps_it_needs(
    flags: dict[str, bool],
    given: tuple[str, ...],
    taken: list[str],
    answer: int,
    backbone: FrozenViT,
) -> None:
    method = type("Own", (Steps,), flags)(backbone)
    values = {"query": torch.full((3, 2), 4.0), "task": torch.full((3,), 7)}
    response = method.respond(images(), **{name: values[name] for name in given})
    assert method.taken == taken
    assert response.logits.tolist() == [[answer]] * 3
    assert (response.task is None) == (not method.selects_task)


def test_what_a_method_lacks_is_an_error_that_names_it(backbone: FrozenViT) -> None:
    bare = Method(backbone, NoSettings())
    for ask in (bare.ask, bare.respond):
        with pytest.raises(TypeError, match="Method"):
            ask(images())


def test_counts_of_tasks_and_classes(backbone: FrozenViT, rng: torch.Generator) -> None:
    method = Method(backbone, NoSettings())
    assert (method.n_tasks, method.n_classes, method.known) == (0, 0, 0)
    for size in (3, 1, 2):
        method.begin_task(size, rng)
    assert (method.n_tasks, method.n_classes, method.known) == (3, 6, 4)


def test_the_backbone_is_not_part_of_what_was_learnt(backbone: FrozenViT) -> None:
    method = create_method("finetune", backbone, {"length": 2})
    assert set(method.state_dict()) == {"prompt", "weight", "bias"}
    assert method.backbone is backbone


def test_settings_must_be_a_dataclass(own_methods: MethodRegistry) -> None:
    with pytest.raises(ConfigError, match=r"int.*'guess'"):
        register("guess", int)(Steps)
    assert "guess" not in own_methods


class OwnLoss(CPrompt):
    """CPrompt's tensors, trained by something else."""

    def loss(self, embedded: Embedded, targets: Tensor, draws: Draws) -> dict[str, Tensor]:
        assert self.prompts.current is not None
        return {"size": self.prompts.current.square().sum(), "images": embedded.tokens.sum()}


class OwnParts(OwnLoss):
    """The same in two parts."""

    def loss(self, embedded: Embedded, targets: Tensor, draws: Draws) -> dict[str, Tensor]:
        return add_terms(part() for part in self.loss_parts(embedded, targets, draws))

    def loss_parts(self, embedded: Embedded, targets: Tensor, draws: Draws) -> list[LossPart]:
        current = self.prompts.current
        assert current is not None
        return [
            lambda: {"size": current[:, :1].square().sum(), "images": embedded.tokens.sum()},
            lambda: {"size": current[:, 1:].square().sum()},
        ]


class OwnPartsInherited(OwnParts):
    """Changes neither."""


class OneTermMore(CPrompt):
    """CPrompt's loss and the size of its prompt."""

    def loss(self, embedded: Embedded, targets: Tensor, draws: Draws) -> dict[str, Tensor]:
        assert self.prompts.current is not None
        terms = super().loss(embedded, targets, draws)
        return {**terms, "size": self.prompts.current.square().sum()}


def test_a_new_loss_may_begin_with_the_terms_of_the_old_one(
    backbone: FrozenViT, rng: torch.Generator
) -> None:
    found = []
    for kind in (CPrompt, OneTermMore):
        method = kind(backbone, CPromptConfig(length=2))
        method.begin_task(3, torch.Generator().manual_seed(3))
        images, targets = batch(method, 4)
        (*parts,) = method.loss_parts(method.embed(images), targets, {})
        terms = add_terms(part() for part in parts)
        found.append({name: term.item() for name, term in terms.items()})
    usual, more = found
    assert more.pop("size") > 0
    assert more == pytest.approx(usual)


@pytest.mark.parametrize(
    ("kind", "count"), [(CPrompt, 3), (OwnLoss, 1), (OwnParts, 2), (OwnPartsInherited, 2)]
)
def test_a_method_is_trained_by_the_loss_that_it_defines(
    kind: type[CPrompt], count: int, backbone: FrozenViT, rng: torch.Generator
) -> None:
    """A new `loss` is the only part; one that comes with parts of its own is trained by those."""
    method = kind(backbone, CPromptConfig(length=2))
    method.begin_task(2, rng)
    method.close_task()
    method.begin_task(3, rng)
    images, targets = batch(method, 4)
    draws = {"old_images": torch.tensor([1, 3]), "old_tasks": torch.tensor([0, 0])}
    embedded = method.embed(images)
    parts = method.loss_parts(embedded, targets, draws)
    assert len(parts) == count
    terms = [part() for part in parts]
    found: dict[str, float] = {}
    for name, term in ((name, term) for part in terms for name, term in part.items()):
        found[name] = found.get(name, 0) + term.item()
    losses = method.loss(embedded, targets, draws)
    assert found == pytest.approx({name: term.item() for name, term in losses.items()})
    if kind is CPrompt:
        assert [[*part] for part in terms] == [["ce", "aux", "ccl"], ["ce"], ["mk"]]
    else:
        prompt = method.prompts.current
        assert prompt is not None
        size = sum(value**2 for value in prompt.flatten().tolist())
        assert found == pytest.approx({"size": size, "images": float(embedded.tokens.sum())})


@pytest.mark.parametrize("open_", [False, True])
def test_a_rebuilt_method_has_the_saved_values(
    open_: bool, backbone: FrozenViT, rng: torch.Generator
) -> None:
    settings: dict[str, Any] = {"length": 2}
    method = create_method("cprompt", backbone, settings)
    for task, size in enumerate((2, 3)):
        method.begin_task(size, rng)
        with torch.no_grad():
            for parameter in method.parameters():
                parameter.normal_(generator=rng)
        if task == 0 or not open_:
            method.close_task()
    fresh = create_method("cprompt", backbone, settings)
    rebuild(fresh, (2, 3), method.state_dict(), open_=open_)
    assert fresh.task_sizes == [2, 3]
    mine, theirs = fresh.state_dict(), method.state_dict()
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    trainable = [name for name, _ in fresh.named_parameters()]
    assert trainable == [name for name, _ in method.named_parameters()]
    assert bool(trainable) is open_


def test_only_methods_that_need_no_prompts_take_any_backbone() -> None:
    """Every built-in one, on a model that cannot be prompted."""
    other = load_backbone("test_resnet", "random:0", 64)
    taken = set()
    for name in METHODS:
        if METHODS[name].needs_prompts:
            with pytest.raises(BackboneError, match=f"{name} needs a .* test_resnet is not") as e:
                create_method(name, other)
            assert e.value.hint is not None
            assert "vit_base_patch16_224" in e.value.hint
        else:
            taken.add(create_method(name, other).name)
    assert "strata" in taken


def test_draws_without_a_row_per_image_are_not_split_silently(backbone: FrozenViT) -> None:
    method = create_method("finetune", backbone)
    rows = torch.arange(10).view(5, 2)
    part = method.split_draws({"rows": rows}, 5, slice(3, 5))
    assert part["rows"].tolist() == [[6, 7], [8, 9]]
    with pytest.raises(ConfigError, match=r"finetune cannot share a batch.*'slopes'"):
        method.split_draws({"rows": rows, "slopes": torch.zeros(3)}, 5, slice(3, 5))


@pytest.mark.parametrize("name", sorted(METHODS))
def test_room_for_all_tasks_at_once_is_said_only_where_it_is_the_same(
    name: str, backbone: FrozenViT
) -> None:
    def shapes(*sizes: int) -> dict[str, torch.Size]:
        method = create_method(name, backbone)
        for task, size in enumerate(sizes):
            method.begin_task(size, torch.Generator().manual_seed(task))
            method.close_task()
        return {name: tensor.shape for name, tensor in method.state_dict().items()}

    if METHODS[name].tasks_leave_no_trace:
        assert shapes(2, 1, 3) == shapes(6)


class NumbersMade(TorchDispatchMode):
    """Counts the numbers that operations write; views write none."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if not func.is_view:
            self.count += sum(t.numel() for t in tree_leaves(out) if isinstance(t, torch.Tensor))
        return out


SMALL = {"length": 2}
LOADS_IN_SQUARE_TIME = {"slca"}
"""It makes its aligned head anew for every task."""


@pytest.mark.parametrize(
    "name",
    sorted(
        name
        for name in METHODS
        if not METHODS[name].single_task and name not in LOADS_IN_SQUARE_TIME
    ),
)
def test_loading_costs_as_much_as_there_is_to_load(name: str, backbone: FrozenViT) -> None:
    """As many tasks more write as many numbers more; with copies per task, more and more."""
    settings = {k: v for k, v in SMALL.items() if k in METHODS[name].Config.__dataclass_fields__}

    def written(tasks: int) -> int:
        sizes = [20] * tasks
        shape = create_method(name, backbone, settings)
        learn_nothing(shape, sizes)
        fresh = create_method(name, backbone, settings)
        with NumbersMade() as made:
            rebuild(fresh, sizes, shape.state_dict(), open_=False)
        return made.count

    few, many, more = (written(tasks) for tasks in (8, 40, 72))
    assert more - many < 1.1 * (many - few)


def learn_nothing(method: Method, sizes: list[int]) -> None:
    """Begin and close tasks one by one, as learning does."""
    for task, size in enumerate(sizes):
        method.begin_task(size, torch.Generator().manual_seed(task))
        method.close_task()


def test_a_device_without_float64_is_refused_in_one_sentence(backbone: FrozenViT) -> None:
    """As Apple's GPUs are."""

    def to_mps(tensor: Tensor) -> Tensor:
        if tensor.dtype == torch.float64:
            raise TypeError("Cannot convert a MPS Tensor to float64 dtype as the MPS framework …")
        return tensor

    create_method("cprompt", backbone)._apply(to_mps)
    with pytest.raises(ConfigError, match=r"^strata sums in float64, .*; use cpu$"):
        create_method("strata", backbone)._apply(to_mps)
