"""Evaluation against counting one image after another."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from cprompt.data.image_set import ImageSet
from cprompt.data.pipeline import views
from cprompt.data.pipeline.cache import CacheConfig, open_images
from cprompt.data.pipeline.decoded import DecodedImages
from cprompt.data.pipeline.loader import BatchLoader
from cprompt.errors import ConfigError
from cprompt.methods.base import Method, create_method
from cprompt.methods.cprompt import CPrompt
from cprompt.research.config import resolve
from cprompt.research.evaluation import (
    EvaluationConfig,
    Evaluator,
    Mode,
    RowStore,
    TaskCounts,
    matrix_of,
    selection_accuracy,
    usable_modes,
)
from cprompt.research.record import Record
from cprompt.research.stream import TaskStream
from cprompt.vit.promptable import Embedded, FrozenViT, Precision
from tests.methods.common import chosen_tasks

CPU = torch.device("cpu")
STREAM = TaskStream(order=(4, 0, 6, 2, 5, 1, 3), sizes=(3, 1, 2, 1))
ALL: tuple[Mode, ...] = ("selected", "given", "first")


class Stub(Method):
    """Answers from a table; an image's red value is its line there."""

    name = "stub"
    uses_query = True
    selects_task = True

    def __init__(self, sizes: Sequence[int], n_images: int = 60) -> None:
        super().__init__(None, None)  # type: ignore[arg-type]
        self.task_sizes = list(sizes)
        rng = torch.Generator().manual_seed(len(sizes))
        tasks = len(sizes)
        self.logits = torch.randn(n_images, tasks, sum(sizes), generator=rng)
        self.chosen = torch.randint(tasks, (n_images,), generator=rng)
        self.queried: list[int] = []
        self.asked: list[tuple[int, int]] = []

    def embed(self, images: Tensor, precision: Precision = "fp32") -> Embedded:
        return Embedded((images[:, 0, 0, :1] * 255).round(), precision)

    def query(self, embedded: Embedded) -> Tensor:
        self.queried += embedded.tokens[:, 0].long().tolist()
        return embedded.tokens

    def choose(self, query: Tensor) -> Tensor:
        return self.chosen[query[:, 0].long()]

    def feature(self, embedded: Embedded, query: Tensor | None, task: Tensor | None) -> Tensor:
        assert query is None or torch.equal(embedded.tokens, query)
        line = embedded.tokens[:, 0].long()
        task = torch.zeros_like(line) if task is None else task
        self.asked += zip(line.tolist(), task.tolist(), strict=True)
        return torch.stack([line, task], dim=1).float()

    def answer(self, feature: Tensor) -> Tensor:
        line, task = feature.long().unbind(1)
        return self.logits[line, task]


class Growing(Stub):
    """One that learns task after task: chosen prompts and logits change, features do not."""

    features_are_final = True

    def learn(self, tasks: int) -> None:
        self.task_sizes = list(STREAM.sizes[:tasks])
        rng = torch.Generator().manual_seed(tasks)
        self.logits = torch.randn(60, tasks, self.n_classes, generator=rng)
        self.chosen = torch.randint(tasks, (60,), generator=rng)


class OneAnswer(Stub):
    """The same without prompts of tasks."""

    selects_task = False

    def feature(self, embedded: Embedded, query: Tensor | None, task: Tensor | None) -> Tensor:
        assert query is not None
        assert task is None
        return super().feature(embedded, query, self.choose(query))


def some_images(classes: int, n: int = 60) -> tuple[ImageSet, Any]:
    """n images of one pixel, numbered in red, over the first `classes` arrivals, unevenly."""
    numbered = np.zeros((n, 1, 1, 3), dtype=np.uint8)
    numbered[:, 0, 0, 0] = np.arange(n)
    rng = np.random.default_rng(0)
    position = np.concatenate([np.arange(classes), rng.integers(0, classes, n - classes) ** 2])
    position = rng.permutation(position % classes)
    labels = np.array(STREAM.order)[position]
    return ImageSet(numbered, labels, tuple("abcdefg")), position


def loader(images: ImageSet, batch_size: int = 8) -> BatchLoader:
    preparation = views.build("plain", images.load(0).height, "none")
    targets = STREAM.targets(images.labels)
    return BatchLoader(_opened(images), targets, preparation, batch_size, seed=None)


def _opened(images: ImageSet) -> DecodedImages:
    return open_images(images, CacheConfig(where="memory"))


def evaluate(
    method: Method, test: BatchLoader, stream: TaskStream, config: EvaluationConfig
) -> TaskCounts:
    """From scratch."""
    return Evaluator(method, test, stream, config, CPU).evaluate()


def counted(method: Stub, position: Any, modes: Sequence[Mode], k: int) -> TaskCounts:
    """What `evaluate` should say, by going through the images."""
    classes, tasks = method.n_classes, method.n_tasks
    task_of = [task for task, size in enumerate(method.task_sizes) for _ in range(size)]
    count = [0] * classes
    correct = {mode: [0] * classes for mode in modes}
    top_k = [0] * classes
    picks = [[0] * tasks for _ in range(tasks)]
    for line, target in enumerate(position.tolist()):
        count[target] += 1
        own, chosen = task_of[target], int(method.chosen[line])
        picks[own][chosen] += 1
        for mode in modes:
            task = {"selected": chosen, "given": own, "first": 0}[mode]
            logits = method.logits[line, task].tolist()
            better = sum(value > logits[target] for value in logits)
            correct[mode][target] += better == 0
            if mode == "selected":
                top_k[target] += better < k
    return TaskCounts(
        count,
        correct,
        top_k if classes > k else None,
        picks if method.selects_task else None,
    )


@pytest.mark.parametrize("tasks", [1, 2, 3, 4])
@pytest.mark.parametrize(
    "modes", [("selected",), ALL, ("first", "selected"), ("given", "selected")]
)
@pytest.mark.parametrize("k", [2, 5])
def test_counts_equal_going_through_the_images_one_by_one(
    tasks: int, modes: tuple[Mode, ...], k: int
) -> None:
    method = Stub(STREAM.sizes[:tasks])
    images, position = some_images(method.n_classes)
    row = evaluate(method, loader(images), STREAM, EvaluationConfig(modes, k))
    assert row == counted(method, position, modes, k)
    assert sum(row.count) == 60
    assert min(row.count) > 0


def test_a_method_without_prompts_of_tasks_is_counted_without_picks() -> None:
    method = OneAnswer(STREAM.sizes[:3])
    images, position = some_images(method.n_classes)
    row = evaluate(method, loader(images), STREAM, EvaluationConfig())
    assert row == counted(method, position, ("selected",), 5)
    assert row.picks is None


def test_top_k_is_counted_once_more_than_k_classes_are_seen() -> None:
    for tasks, is_counted in ((2, False), (3, True)):  # 4 classes, 6 classes
        method = Stub(STREAM.sizes[:tasks])
        images, _ = some_images(method.n_classes)
        for k, expected in ((4, is_counted), (2, True)):
            row = evaluate(method, loader(images), STREAM, EvaluationConfig(top_k=k))
            assert (row.top_k is not None) is expected


def test_neither_batch_size_nor_order_changes_a_row() -> None:
    method = Stub(STREAM.sizes)
    images, _ = some_images(7)
    config = EvaluationConfig(ALL, 3)
    row = evaluate(method, loader(images), STREAM, config)
    for size in (1, 7, 60, 100):
        assert evaluate(method, loader(images, size), STREAM, config) == row
    shuffled = images.subset(np.random.default_rng(1).permutation(60))
    assert evaluate(method, loader(shuffled), STREAM, config) == row


def test_no_image_is_answered_twice_through_the_same_prompt() -> None:
    method = Stub(STREAM.sizes)
    images, _ = some_images(7)
    evaluate(method, loader(images), STREAM, EvaluationConfig(ALL))
    assert len(method.asked) == len(set(method.asked))
    assert 60 < len(method.asked) < 3 * 60
    assert sorted(method.queried) == list(range(60))


@pytest.mark.parametrize("memory_gib", [1.0, 0.0])
def test_over_a_stream_every_pass_is_made_once_and_counts_are_those_from_scratch(
    memory_gib: float, tmp_path: Path
) -> None:
    images, position = some_images(7)
    config = EvaluationConfig(ALL, 2)
    method = Growing(STREAM.sizes)
    evaluator = Evaluator(
        method, loader(images), STREAM, config, CPU, memory_gib=memory_gib, folder=tmp_path
    )
    needed: set[tuple[int, int]] = set()
    for tasks in (1, 2, 3, 4):
        method.learn(tasks)
        row = evaluator.evaluate()
        fresh = Growing(STREAM.sizes)
        fresh.learn(tasks)
        assert row == evaluate(fresh, loader(images), STREAM, config)
        seen = [line for line, target in enumerate(position) if target < method.n_classes]
        assert sum(row.count) == len(seen)
        needed |= set(fresh.asked)
        assert sorted(method.asked) == sorted(needed)
        assert sorted(method.queried) == seen
    assert evaluator.passes == {"query": 60, "prompted": len(needed)}
    assert evaluator._features.on_disk is (memory_gib == 0)
    assert not list(tmp_path.iterdir())


def test_features_that_do_not_last_are_made_anew_but_queries_are_kept() -> None:
    images, _ = some_images(7)
    method = Stub(STREAM.sizes)
    evaluator = Evaluator(method, loader(images), STREAM, EvaluationConfig(), CPU)
    assert evaluator.evaluate() == evaluator.evaluate()
    assert evaluator.passes == {"query": 60, "prompted": 120}


def test_rows_come_back_as_they_were_put_in_memory_and_in_a_file(tmp_path: Path) -> None:
    rows = torch.randn(5000, 2, 3, generator=torch.Generator().manual_seed(0))
    for limit, on_disk in ((10**9, False), (60_000, True), (0, True)):
        store = RowStore(limit, tmp_path)
        numbers = [store.add(part) for part in rows.split(700)]
        assert np.concatenate(numbers).tolist() == list(range(5000))
        some = np.array([4999, 0, 1024, 1024, 3])
        assert torch.equal(store[some], rows[some])
        assert torch.equal(store[np.arange(5000)], rows)
        assert store.on_disk is on_disk
    assert not list(tmp_path.iterdir())


def test_each_batch_is_told_of() -> None:
    method = Stub(STREAM.sizes)
    images, _ = some_images(7)
    told: list[int] = []
    evaluator = Evaluator(method, loader(images, 9), STREAM, EvaluationConfig(), CPU)
    evaluator.evaluate(told.append, lambda: told.append(0))
    assert told == [7, *[0] * 7, 7, *[0] * 7]  # queries, then prompted passes


def test_prompts_can_be_given_only_to_a_method_that_has_them() -> None:
    assert usable_modes(Stub((2,)), ALL) == ALL
    assert usable_modes(OneAnswer((2,)), ("selected",)) == ("selected",)
    with pytest.raises(ConfigError, match=r"\['selected', 'given'\]: stub does not select a task"):
        usable_modes(OneAnswer((2,)), ("selected", "given"))


# --- CPrompt itself -----------------------------------------------------------------------------


@pytest.fixture
def drawn(tiny: dict[str, Any]) -> tuple[ImageSet, TaskStream]:
    settings = resolve("shapes", overrides=tiny)
    return settings.data.load(0).test, settings.stream.build(6, settings.seeds.order)


def batches(images: ImageSet, stream: TaskStream, batch_size: int) -> BatchLoader:
    preparation = views.build("drawn", 48, "inception")
    targets = stream.targets(images.labels)
    return BatchLoader(_opened(images), targets, preparation, batch_size, seed=None)


@pytest.fixture
def cprompt(backbone: FrozenViT, drawn: tuple[ImageSet, TaskStream]) -> CPrompt:
    """After three tasks of random values, so that some prompts are picked wrong.

    The mean answer is taken off each class; else one class would win whatever the prompt.
    """
    method = create_method("cprompt", backbone, {"length": 30, "prompt_init": "fresh"})
    assert isinstance(method, CPrompt)
    rng = torch.Generator().manual_seed(3)
    for size in (3, 1, 2):
        method.begin_task(size, rng)
        with torch.no_grad():
            for parameter in method.parameters():
                parameter += torch.randn(parameter.shape, generator=rng)
        method.close_task()
    [(images, _)] = batches(*drawn, batch_size=18).epoch(0)
    with torch.no_grad():
        answers = [method(images, task=torch.full((18,), task)) for task in range(3)]
    method.heads.bias.frozen -= torch.cat(answers).mean(0)
    return method


def test_cprompt_is_counted_as_one_image_at_a_time_answers(
    cprompt: CPrompt, drawn: tuple[ImageSet, TaskStream]
) -> None:
    images, stream = drawn
    row = evaluate(cprompt, batches(images, stream, 8), stream, EvaluationConfig(ALL, 2))
    count, correct, top = [0] * 6, {mode: [0] * 6 for mode in ALL}, [0] * 6
    picks = [[0] * 3 for _ in range(3)]
    task_of = [0, 0, 0, 1, 2, 2]
    with torch.no_grad():
        for image, targets in batches(images, stream, 1).epoch(0):
            target = int(targets)
            own = torch.tensor([task_of[target]])
            count[target] += 1
            picks[int(own)][int(chosen_tasks(cprompt, image))] += 1
            answers = {
                "selected": cprompt(image),
                "given": cprompt(image, task=own),
                "first": cprompt(image, task=torch.tensor([0])),
            }
            for mode, logits in answers.items():
                correct[mode][target] += int(logits.argmax()) == target
            top[target] += target in answers["selected"][0].argsort(descending=True)[:2].tolist()
    assert row == TaskCounts(count, correct, top, picks)
    assert 0 < sum(picks[i][i] for i in range(3)) < 18  # some picked right, some wrong
    assert len({tuple(c) for c in correct.values()}) == 3


def test_all_modes_at_once_equal_each_by_itself(
    cprompt: CPrompt, drawn: tuple[ImageSet, TaskStream]
) -> None:
    images, stream = drawn

    def row(*modes: Mode) -> TaskCounts:
        test = batches(images, stream, 5)
        return evaluate(cprompt, test, stream, EvaluationConfig(modes))

    together = row(*ALL)
    assert together.correct == {
        "selected": row("selected").correct["selected"],
        "given": row("selected", "given").correct["given"],
        "first": row("selected", "first").correct["first"],
    }


def test_cprompt_s_row_depends_on_neither_batch_size_nor_order(
    cprompt: CPrompt, drawn: tuple[ImageSet, TaskStream]
) -> None:
    images, stream = drawn
    config = EvaluationConfig(ALL, 2)
    row = evaluate(cprompt, batches(images, stream, 18), stream, config)
    shuffled = images.subset(np.random.default_rng(3).permutation(18))
    for size in (1, 7):
        assert evaluate(cprompt, batches(shuffled, stream, size), stream, config) == row


def test_cprompt_s_rows_and_features_over_a_stream_are_those_from_scratch(
    backbone: FrozenViT, drawn: tuple[ImageSet, TaskStream]
) -> None:
    images, stream = drawn
    config = EvaluationConfig(ALL, 2)
    method = create_method("cprompt", backbone, {"length": 30, "prompt_init": "fresh"})
    evaluator = Evaluator(method, batches(images, stream, 4), stream, config, CPU)
    rng = torch.Generator().manual_seed(3)
    scratch = 0
    for size in (3, 1, 2):
        method.begin_task(size, rng)
        with torch.no_grad():
            for parameter in method.parameters():
                parameter += torch.randn(parameter.shape, generator=rng)
        method.close_task()
        again = Evaluator(method, batches(images, stream, 4), stream, config, CPU)
        assert evaluator.evaluate() == again.evaluate()
        scratch += sum(again.passes.values())
        for image, task in zip(*np.nonzero(again._feature_row >= 0), strict=True):
            kept = evaluator._features[evaluator._feature_row[[image], task]]
            made = again._features[again._feature_row[[image], task]]
            torch.testing.assert_close(kept, made, rtol=1e-5, atol=1e-5)
    assert evaluator.passes["query"] == 18
    assert sum(evaluator.passes.values()) < 0.8 * scratch


# --- from rows to the matrix --------------------------------------------------------------------


def test_the_matrix_sums_classes_to_tasks(hand_record: Record) -> None:
    matrix = matrix_of(hand_record.rows, hand_record.stream)
    assert matrix.correct.tolist() == [[8, 0, 0], [7, 4, 0], [5, 3, 1]]
    assert matrix.count.tolist() == [10, 5, 3]
    first = matrix_of(hand_record.rows, hand_record.stream, "first")
    assert first.correct.tolist() == [[3, 0, 0], [4, 2, 0], [3, 1, 1]]


def test_the_matrix_of_a_run_under_way_speaks_of_the_tasks_done(hand_record: Record) -> None:
    matrix = matrix_of(hand_record.rows[:2], hand_record.stream)
    assert matrix.correct.tolist() == [[8, 0], [7, 4]]
    assert matrix.count.tolist() == [10, 5]


def test_skipped_tasks_leave_the_matrix_as_rows_and_as_columns(hand_record: Record) -> None:
    matrix = matrix_of(hand_record.rows, hand_record.stream, "first", skip=1)
    assert matrix.correct.tolist() == [[2, 0], [1, 1]]
    assert matrix.count.tolist() == [5, 3]


def test_selection_accuracy_weighs_every_image_the_same(hand_record: Record) -> None:
    assert selection_accuracy(hand_record.rows[-1]) == pytest.approx(100 * (6 + 3 + 2) / 18)


def test_a_row_survives_being_written_down(hand_record: Record) -> None:
    for row in hand_record.rows:
        assert TaskCounts.from_dict(row.to_dict()) == row
