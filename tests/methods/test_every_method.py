"""One matrix that every registered method passes."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from cprompt.data.image_set import Dataset, ImageSet
from cprompt.methods.base import Batches as BatchesOfATask
from cprompt.methods.base import Method, create_method, rebuild
from cprompt.methods.registry import METHODS, MethodRegistry
from cprompt.research.checkpoint import load_checkpoint, save_checkpoint
from cprompt.research.config import resolve
from cprompt.research.experiment import CHECKPOINT, run
from cprompt.research.record import Record, load_record
from cprompt.seeds import generator
from cprompt.vit.embedded import EMBEDDED
from cprompt.vit.loading import load_backbone
from cprompt.vit.promptable import Embedded, FrozenViT, Precision
from tests.methods.common import chosen_tasks
from tests.stopping import CountSteps, StopAt, StopAtTask

SMALL: dict[str, dict[str, Any]] = {
    "strata": {"layers": [4, 5], "adaptation": "prompt", "prompt_length": 2},
    "coda": {"length": 2, "components_per_task": 3},
    "cprompt": {"length": 2},
    "dualprompt": {"g_length": 2, "e_length": 2},
    "esn": {"length": 2},
    "finetune": {"length": 2},
    "hide": {"length": 2, "samples": 6, "align_epochs": 2},
    "joint": {"length": 2},
    "l2p": {"length": 2},
    "ranpac": {"projections": 40, "adaptation": "prompt", "prompt_length": 2},
    "slca": {"samples": 6, "align_epochs": 2},
}
"""Settings that make a method quick on a model of six blocks; defaults where not named."""

NEVER_TRAINED = ("lda", "nearest_mean")
"""Methods that take no step."""

SIZES = (3, 1, 2)


def sizes_of(name: str) -> tuple[int, ...]:
    """Joint training has one task by definition."""
    return (sum(SIZES),) if METHODS[name].single_task else SIZES


def random_images(n: int, seed: int = 0, side: int = 48) -> Tensor:
    return torch.randn(n, 3, side, side, generator=torch.Generator().manual_seed(seed))


class Batches:
    """Two batches that can be gone through again."""

    def __init__(self, method: Method) -> None:
        self.first, self.n = method.known, method.task_sizes[-1]
        self.side = method.backbone.image_size[0]
        self.embed = method.embed

    def __iter__(self) -> Iterator[tuple[Embedded, Tensor]]:
        for seed in (1, 2):
            images = random_images(2 * self.n, seed, self.side)
            yield self.embed(images), self.first + torch.arange(2 * self.n) % self.n


@functools.cache  # tests only look at it
def trained(name: str, backbone: FrozenViT, close_last: bool = True) -> Method:
    """The method after a few steps on each of three unequal tasks."""
    method = create_method(name, backbone, SMALL.get(name, {}))
    for task, size in enumerate(sizes_of(name)):
        method.begin_task(size, generator(1, task))
        groups = [group for group in method.parameter_groups() if group["params"]]
        optimizer = torch.optim.SGD(groups, lr=0.05) if groups else None
        for step, (embedded, targets) in enumerate(Batches(method)):
            draws = method.draw(len(targets), generator(task, step))
            losses = method.loss(embedded, targets, draws)
            assert bool(losses) is bool(groups)  # what is trained has a loss
            if optimizer is not None:
                optimizer.zero_grad()
                torch.autograd.backward(torch.stack(list(losses.values())).sum())
                optimizer.step()
        if close_last or task < len(sizes_of(name)) - 1:
            method.end_task(Batches(method))
            method.close_task()
    return method


@pytest.fixture(params=sorted(METHODS))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(
    scope="module", params=[("test_vit", "random:0", 48), tuple(EMBEDDED)], ids=["test_vit", "own"]
)
def either(request: pytest.FixtureRequest) -> FrozenViT:
    """timm's test model with random weights, and the trained one that comes with the package."""
    return load_backbone(*request.param)


def test_the_backbone_is_never_changed(name: str) -> None:
    backbone = load_backbone("test_vit", "random:0", 48)
    before = {n: t.clone() for n, t in backbone.state_dict().items()}
    method = trained(name, backbone)
    for n, tensor in backbone.state_dict().items():
        assert torch.equal(tensor, before[n]), n
    assert not any(p.requires_grad for p in backbone.parameters())
    assert not any(n.startswith("backbone") for n in method.state_dict())


def test_logits_cover_the_classes_seen_and_no_more(name: str, either: FrozenViT) -> None:
    method = trained(name, either)
    with torch.no_grad():
        logits = method(random_images(4, side=either.image_size[0]))
    assert logits.shape == (4, sum(SIZES))
    assert torch.isfinite(logits).all()


def test_an_answer_depends_on_its_image_alone(name: str, either: FrozenViT) -> None:
    method = trained(name, either)
    images = random_images(16, side=either.image_size[0])
    with torch.no_grad():
        whole = method(images)
        # float32 keeps seven digits of the largest logit, which for some is in the hundreds.
        near = {"rtol": 1e-5, "atol": max(1e-5, 2e-6 * float(whole.abs().max()))}
        for size in (1, 7):
            parts = torch.cat([method(part) for part in images.split(size)])
            torch.testing.assert_close(parts, whole, **near)
            assert torch.equal(parts.argmax(-1), whole.argmax(-1))
        order = torch.randperm(16, generator=torch.Generator().manual_seed(0))
        shuffled = method(images[order])
    torch.testing.assert_close(shuffled, whole[order], **near)
    assert torch.equal(shuffled.argmax(-1), whole[order].argmax(-1))


@pytest.mark.parametrize("open_", [False, True])
def test_saved_and_loaded_it_answers_the_same(
    name: str, backbone: FrozenViT, tmp_path: Path, open_: bool
) -> None:
    method = trained(name, backbone, close_last=not open_)
    save_checkpoint(tmp_path / "c", method.state_dict(), {"sizes": method.task_sizes})
    state, about = load_checkpoint(tmp_path / "c")
    loaded = create_method(name, backbone, SMALL.get(name, {}))
    rebuild(loaded, about["sizes"], state, open_=open_)
    images = random_images(5, side=backbone.image_size[0])
    with torch.no_grad():
        assert torch.equal(loaded(images), method(images))
    assert (loaded.task_sizes, loaded.known) == (method.task_sizes, method.known)
    trainable = {n for n, p in loaded.named_parameters() if p.requires_grad}
    assert trainable == {n for n, p in method.named_parameters() if p.requires_grad}


def test_every_trainable_tensor_gets_a_gradient_and_every_loss_is_finite(
    name: str, backbone: FrozenViT
) -> None:
    method = create_method(name, backbone, SMALL.get(name, {}))
    for task, size in enumerate(sizes_of(name)):
        method.begin_task(size, generator(1, task))
        reached: set[str] = set()
        for step in range(4):  # a random draw may leave a tensor out of one step
            targets = method.known + torch.arange(4) % size
            draws = method.draw(4, generator(task, step))
            losses = method.loss(method.embed(random_images(4, step)), targets, draws)
            assert all(loss.dim() == 0 and torch.isfinite(loss) for loss in losses.values())
            if losses:
                torch.autograd.backward(torch.stack(list(losses.values())).sum())
            trained = {n: p for n, p in method.named_parameters() if p.requires_grad}
            reached |= {n for n, p in trained.items() if p.grad is not None}
        assert reached == set(trained)
        method.end_task(Batches(method))
        method.close_task()


def test_a_choice_of_prompt_is_a_task_seen(name: str, backbone: FrozenViT) -> None:
    method = trained(name, backbone)
    with torch.no_grad():
        if not method.uses_query:
            with pytest.raises(TypeError, match="does not define a query"):
                method.ask(random_images(2))
        if not method.selects_task:
            with pytest.raises(TypeError, match="does not choose"):
                method.choose(torch.zeros(2, backbone.dim))
            return
        chosen = chosen_tasks(method, random_images(9))
        assert chosen.shape == (9,)
        assert set(chosen.tolist()) <= {0, 1, 2}
        given = method(random_images(9), task=chosen)
        torch.testing.assert_close(given, method(random_images(9)), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "name", sorted(n for n, kind in METHODS.items() if kind.uses_query or kind.features_are_final)
)
def test_what_is_said_to_last_is_not_changed_by_later_tasks(name: str, backbone: FrozenViT) -> None:
    """Queries always; features under the prompt of each task where the method says so."""
    method = create_method(name, backbone, SMALL.get(name, {}))
    images = random_images(3)
    kept: dict[tuple[str, int], Tensor] = {}
    for task, size in enumerate(SIZES):
        method.begin_task(size, generator(1, task))
        with torch.no_grad():
            for parameter in (p for p in method.parameters() if p.requires_grad):
                parameter += 0.3 * torch.randn(parameter.shape, generator=generator(2, task))
        method.end_task(Batches(method))
        method.close_task()
        with torch.no_grad():
            embedded = method.embed(images)
            query = method.query(embedded) if method.uses_query else None
            now = {} if query is None else {("query", 0): query}
            for i in range(task + 1) if method.features_are_final else ():
                own = torch.full((3,), i) if method.selects_task else None
                now["feature", i] = method.feature(embedded, query, own)
        for key, value in now.items():
            assert torch.equal(value, kept.setdefault(key, value)), key
    assert len(kept) == method.uses_query + method.features_are_final * len(SIZES)


def test_a_stopped_run_resumes_to_the_same_bits(
    name: str, tiny: dict[str, Any], tmp_path: Path
) -> None:
    small = {f"method.{key}": value for key, value in SMALL.get(name, {}).items()}
    stream = {"stream.sizes": list(sizes_of(name)), "execution.checkpoint_seconds": 0}
    config = resolve("shapes", name, overrides=tiny | small | stream)
    steps = CountSteps()
    rarely = dataclasses.replace(
        config, execution=dataclasses.replace(config.execution, checkpoint_seconds=60.0)
    )
    run(rarely, tmp_path / "whole", observer=steps)
    trains = bool(steps.taken)
    assert trains is (name not in NEVER_TRAINED)
    stop = StopAt(11 * steps.taken // 18) if trains else StopAtTask(1)
    with pytest.raises(KeyboardInterrupt):
        run(config, tmp_path / "stopped", observer=stop)
    run(config, tmp_path / "stopped", resume=True)
    whole, stopped = (load_checkpoint(tmp_path / d / CHECKPOINT)[0] for d in ("whole", "stopped"))
    assert whole.keys() == stopped.keys()
    for n in whole:
        assert torch.equal(whole[n], stopped[n]), n


# --- names of classes ---------------------------------------------------------------------------


def by_name(record: Record, values: list[int]) -> dict[str, int]:
    """Values that a record has by arrival, by the names of the classes."""
    names = [record.classes[label] for label in record.stream.order]
    return dict(zip(names[: len(values)], values, strict=True))


def relabelled(images: ImageSet, new_label: NDArray[np.int64]) -> ImageSet:
    """The same images and names, with class l numbered `new_label[l]` instead."""
    names = [""] * len(new_label)
    for old, new in enumerate(new_label):
        names[new] = images.classes[old]
    return ImageSet(images.images, new_label[images.labels], tuple(names))


def test_how_labels_are_numbered_changes_nothing(
    name: str, tiny: dict[str, Any], tmp_path: Path
) -> None:
    """Five classes in tasks of two, two and one; the same arrivals under other numbers."""
    small = {f"method.{key}": value for key, value in SMALL.get(name, {}).items()}
    small |= {"stream.sizes": [5] if METHODS[name].single_task else [2, 2, 1], "training.epochs": 1}
    small["data.options"] = {"classes": 5, "train_per_class": 3, "test_per_class": 4, "size": 48}
    order, new_label = np.array([3, 0, 4, 2, 1]), np.array([2, 4, 1, 0, 3])

    def config(arrivals: NDArray[np.int64]) -> Any:
        return resolve("shapes", name, overrides=tiny | small | {"seeds.order": arrivals.tolist()})

    dataset = config(order).data.load(1)
    other = Dataset("shapes", *(relabelled(s, new_label) for s in (dataset.train, dataset.test)))
    assert other.classes != dataset.classes
    one = run(config(order), tmp_path / "one", dataset=dataset)
    two = run(config(new_label[order]), tmp_path / "two", dataset=other)
    assert one.rows == two.rows
    assert one.losses == two.losses
    for row, seen in zip(one.rows, two.rows, strict=True):
        assert by_name(one, row.correct["selected"]) == by_name(two, seen.correct["selected"])


@dataclass(frozen=True)
class NoSettings:
    """Nothing to set."""


class NearestGrey(Method):
    """Knows a class by the brightness of its training images; what it says can be foreseen."""

    name = "grey"
    Config = NoSettings
    features_are_final = True
    means: Tensor

    def __init__(self, backbone: FrozenViT, config: NoSettings) -> None:
        super().__init__(backbone, config)
        self.register_buffer("means", torch.zeros(0))

    def begin_task(self, n_classes: int, rng: torch.Generator) -> None:
        super().begin_task(n_classes, rng)
        self.means = torch.cat([self.means, torch.zeros(n_classes)])

    def end_task(self, batches: BatchesOfATask) -> None:
        for embedded, targets in batches:
            self.means[targets] = embedded.tokens.mean((1, 2, 3))

    def embed(self, images: Tensor, precision: Precision = "fp32") -> Embedded:
        return Embedded(images, precision)

    def feature(self, embedded: Embedded, query: Tensor | None, task: Tensor | None) -> Tensor:
        return embedded.tokens.mean((1, 2, 3))

    def answer(self, feature: Tensor) -> Tensor:
        return -(feature[:, None] - self.means).abs()


def grey_images(names: tuple[str, ...], greys: dict[str, int], counts: dict[str, int]) -> Any:
    labels = np.repeat(np.arange(len(names)), [counts[name] for name in names])
    levels = np.array([greys[names[label]] for label in labels], dtype=np.uint8)
    pixels = np.broadcast_to(levels[:, None, None, None], (len(labels), 48, 48, 3))
    return ImageSet(np.ascontiguousarray(pixels), labels, names)


def test_classes_keep_their_names_where_these_are_not_sorted(
    own_methods: MethodRegistry, tiny: dict[str, Any], tmp_path: Path
) -> None:
    """Each class has another number of test images; the mule's look like the zebra."""
    own_methods.add(NearestGrey, None)
    names = ("zebra", "apple", "mule", "bee", "yak")
    greys = {"zebra": 20, "apple": 70, "mule": 120, "bee": 170, "yak": 220}
    counts = {"zebra": 1, "apple": 2, "mule": 3, "bee": 4, "yak": 5}
    dataset = Dataset(
        "animals",
        grey_images(names, greys, dict.fromkeys(names, 2)),
        grey_images(names, {**greys, "mule": greys["zebra"]}, counts),
    )
    plain = {"data.transform": "plain", "stream.sizes": [2, 1, 2], "seeds.order": [3, 0, 4, 1, 2]}
    run(resolve("shapes", "grey", overrides=tiny | plain), tmp_path, dataset=dataset)
    record = load_record(tmp_path)
    assert record.classes == names
    arrivals = ("bee", "zebra", "yak", "apple", "mule")
    for row, seen in zip(record.rows, (2, 3, 5), strict=True):
        assert by_name(record, row.count) == {n: counts[n] for n in arrivals[:seen]}
    assert by_name(record, record.rows[-1].correct["selected"]) == {**counts, "mule": 0}
