import json

import numpy as np
import pytest

from cprompt.errors import ConfigError, DataError
from cprompt.research.stream import TaskStream, class_order, task_sizes

# The first labels of the released code's class orders, per number of classes and seed.
FIRST_LABELS = {
    (196, 1993): (59, 134, 162, 9, 42, 72, 118, 99),
    (196, 87): (115, 177, 126, 67, 13, 54, 26, 140),
    (196, 1013): (172, 69, 181, 155, 4, 39, 63, 27),
    (200, 1993): (168, 136, 51, 9, 183, 101, 171, 99),
    (200, 87): (32, 145, 180, 80, 12, 125, 194, 44),
    (200, 1013): (90, 41, 176, 4, 74, 155, 191, 182),
    (100, 1993): (68, 56, 78, 8, 23, 84, 90, 65),
    (100, 87): (16, 81, 85, 32, 39, 25, 26, 29),
    (100, 1013): (42, 36, 34, 41, 25, 29, 10, 82),
}


@pytest.mark.parametrize(("n_classes", "seed"), FIRST_LABELS)
def test_a_seed_gives_the_class_order_of_the_released_code(n_classes: int, seed: int) -> None:
    order = class_order(n_classes, seed)
    assert order[:8] == FIRST_LABELS[n_classes, seed]
    assert sorted(order) == list(range(n_classes))


def test_drawing_an_order_leaves_the_global_generator_alone() -> None:
    np.random.seed(3)
    expected = np.random.random(4)
    np.random.seed(3)
    class_order(50, 1993)
    assert np.array_equal(np.random.random(4), expected)


def test_an_order_may_be_natural_or_written_out() -> None:
    assert class_order(4, "natural") == (0, 1, 2, 3)
    assert class_order(4, [2, 0, 3, 1]) == (2, 0, 3, 1)


def test_labels_are_plain_integers_that_json_can_write() -> None:
    assert json.dumps(class_order(3, [np.int64(2), np.int64(0), np.int64(1)])) == "[2, 0, 1]"
    assert json.loads(json.dumps(class_order(9, 87))) == list(class_order(9, 87))


@pytest.mark.parametrize(
    ("order", "message"),
    [
        ([0, 1, 1, 3], r"0 to 3 once; missing: 2; duplicated: 1$"),
        ([0, 1, 2], r"missing: 3$"),
        ([0, 1, 2, 4], r"missing: 3; out of range: 4$"),
        ([-1, 1, 2, 3], r"missing: 0; out of range: -1$"),
        ([], r"missing: 0, 1, 2, 3$"),
        ([0, 1, 2, 2.5], r"whole numbers; got \[0, 1, 2, 2.5\]"),
        (1993.0, r"whole numbers; got 1993.0"),
        ("random", r"'random' is unknown; .*seed, 'natural'"),
        (-1, r"seed -1 is not between 0 and 4294967295"),
        (2**32, r"seed 4294967296 is not between"),
    ],
)
def test_an_order_that_makes_no_sense_is_explained(order: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        class_order(4, order)  # type: ignore[arg-type]


def test_a_long_list_of_missing_labels_is_cut_short() -> None:
    with pytest.raises(ConfigError, match=r"missing: 3, 4, 5, 6, 7 and 192 more$"):
        class_order(200, [0, 1, 2])


@pytest.mark.parametrize("n_classes", [0, -3])
def test_a_stream_without_classes_is_refused(n_classes: int) -> None:
    with pytest.raises(ConfigError, match=f"number of classes .* at least 1; got {n_classes}"):
        class_order(n_classes, 1993)
    with pytest.raises(ConfigError, match=f"number of classes .* at least 1; got {n_classes}"):
        task_sizes(n_classes, increment=1)


@pytest.mark.parametrize(
    ("n_classes", "tasks", "increment", "expected"),
    [
        (196, 10, 20, (20,) * 9 + (16,)),  # Stanford Cars
        (196, 20, 10, (10,) * 19 + (6,)),
        (200, 10, 20, (20,) * 10),  # ImageNet-R, DomainNet
        (200, 20, 10, (10,) * 20),
        (100, 10, 10, (10,) * 10),  # CIFAR-100
    ],
)
def test_benchmarks_are_cut_as_the_released_code_cuts_them(
    n_classes: int, tasks: int, increment: int, expected: tuple[int, ...]
) -> None:
    assert task_sizes(n_classes, increment=increment) == expected
    assert task_sizes(n_classes, tasks=tasks) == expected


@pytest.mark.parametrize(
    ("n_classes", "first", "increment", "expected"),
    [
        (196, 16, 20, (16,) + (20,) * 9),  # the other split of Stanford Cars: short task first
        (100, 50, 10, (50, 10, 10, 10, 10, 10)),
        (10, 4, 3, (4, 3, 3)),
        (10, 3, 4, (3, 4, 3)),
        (10, 10, 1, (10,)),
        (10, 9, 5, (9, 1)),
        (5, 1, 1, (1, 1, 1, 1, 1)),
        (1, 1, 1, (1,)),
    ],
)
def test_the_first_task_may_differ_and_the_remainder_comes_last(
    n_classes: int, first: int, increment: int, expected: tuple[int, ...]
) -> None:
    assert task_sizes(n_classes, first=first, increment=increment) == expected


@pytest.mark.parametrize(
    ("n_classes", "tasks", "expected"),
    [
        (10, 1, (10,)),
        (10, 4, (3, 3, 3, 1)),
        (10, 6, (2, 2, 2, 2, 1, 1)),  # steps of two would end after five tasks
        (10, 9, (2, 1, 1, 1, 1, 1, 1, 1, 1)),
        (10, 10, (1,) * 10),
    ],
)
def test_a_number_of_tasks_is_kept_exactly(
    n_classes: int, tasks: int, expected: tuple[int, ...]
) -> None:
    assert task_sizes(n_classes, tasks=tasks) == expected


def test_every_number_of_tasks_gives_that_many_and_every_class_once() -> None:
    for n_classes in range(1, 30):
        for tasks in range(1, n_classes + 1):
            sizes = task_sizes(n_classes, tasks=tasks)
            assert (len(sizes), sum(sizes), min(sizes) >= 1) == (tasks, n_classes, True)


def test_sizes_may_be_written_out() -> None:
    assert task_sizes(10, sizes=[1, 6, 3]) == (1, 6, 3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "exactly one of increment, tasks and sizes"),
        ({"increment": 2, "tasks": 5}, "exactly one .* got increment=2, tasks=5"),
        ({"first": 2, "tasks": 5}, "first=2 goes with increment"),
        ({"first": 2}, "exactly one"),
        ({"increment": 0}, "the first task .* at least 1; got 0"),
        ({"first": 2, "increment": 0}, "increment must be .* at least 1; got 0"),
        ({"first": 0, "increment": 2}, "the first task .* at least 1; got 0"),
        ({"increment": 11}, "first task would have 11 classes, but there are only 10"),
        ({"increment": 2.5}, "whole number .* got 2.5"),
        ({"tasks": 0}, "number of tasks .* at least 1; got 0"),
        ({"tasks": 11}, "11 tasks need at least 11 classes, but there are only 10"),
        ({"sizes": [4, 5]}, r"\[4, 5\] sum to 9, but there are 10 classes"),
        ({"sizes": [4, 0, 6]}, "size of task 1 .* at least 1; got 0"),
        ({"sizes": [12, -2]}, "size of task 1 .* at least 1; got -2"),
        ({"sizes": []}, "sum to 0"),
        ({"sizes": 10}, "whole numbers; got 10"),
    ],
)
def test_sizes_that_make_no_sense_are_explained(options: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        task_sizes(10, **options)  # type: ignore[arg-type]


# Labels 3 | 0 5 1 | 4 2: a short first task, a long one, a short last one.
UNEQUAL = TaskStream(order=(3, 0, 5, 1, 4, 2), sizes=(1, 3, 2))


def test_an_unequal_stream_worked_by_hand() -> None:
    assert (UNEQUAL.n_classes, UNEQUAL.n_tasks) == (6, 3)
    assert UNEQUAL.position.tolist() == [1, 3, 5, 0, 4, 2]
    assert UNEQUAL.task_of_position.tolist() == [0, 1, 1, 1, 2, 2]
    assert [UNEQUAL.known(t) for t in range(3)] == [0, 1, 4]
    assert [UNEQUAL.positions(t) for t in range(3)] == [range(1), range(1, 4), range(4, 6)]
    assert [UNEQUAL.labels(t) for t in range(3)] == [(3,), (0, 5, 1), (4, 2)]


def test_images_are_found_by_the_task_of_their_class() -> None:
    labels = np.array([2, 3, 1, 0, 4, 3, 5])
    assert UNEQUAL.targets(labels).tolist() == [5, 0, 3, 1, 4, 0, 2]
    assert [UNEQUAL.indices(labels, t).tolist() for t in range(3)] == [[1, 5], [2, 3, 6], [0, 4]]
    assert [UNEQUAL.seen_indices(labels, t).tolist() for t in range(3)] == [
        [1, 5],
        [1, 2, 3, 5, 6],
        [0, 1, 2, 3, 4, 5, 6],
    ]


def test_a_task_without_images_has_no_indices() -> None:
    assert UNEQUAL.indices(np.array([3, 4]), 1).tolist() == []
    assert UNEQUAL.indices(np.array([], dtype=np.int64), 0).tolist() == []


@pytest.mark.parametrize(
    "sizes",
    [
        task_sizes(196, increment=20),  # short last
        task_sizes(196, first=16, increment=20),  # short first
        task_sizes(196, increment=1),  # one class a task
        task_sizes(196, tasks=1),
        (1, 90, 5, 100),
    ],
)
def test_every_table_agrees_with_walking_through_the_order(sizes: tuple[int, ...]) -> None:
    stream = TaskStream(class_order(196, 1993), sizes)
    labels = np.random.default_rng(0).integers(0, 196, 500)

    task_of_label = {}
    place_of_label = {}
    arriving = iter(stream.order)
    for task, size in enumerate(sizes):
        assert stream.known(task) == len(task_of_label)
        for _ in range(size):
            label = next(arriving)
            place_of_label[label] = len(place_of_label)
            task_of_label[label] = task

    assert stream.targets(labels).tolist() == [place_of_label[y] for y in labels.tolist()]
    for task in range(len(sizes)):
        of_task = [i for i, y in enumerate(labels.tolist()) if task_of_label[y] == task]
        seen = [i for i, y in enumerate(labels.tolist()) if task_of_label[y] <= task]
        assert stream.indices(labels, task).tolist() == of_task
        assert stream.seen_indices(labels, task).tolist() == seen
        assert set(stream.labels(task)) == {y for y, t in task_of_label.items() if t == task}
        assert all(stream.task_of_position[p] == task for p in stream.positions(task))


@pytest.mark.parametrize("label", [-1, 6])
def test_a_label_outside_the_stream_is_an_error_and_never_wraps_round(label: int) -> None:
    with pytest.raises(DataError, match=r"labels run from .* classes 0 to 5"):
        UNEQUAL.targets(np.array([0, label]))


@pytest.mark.parametrize("task", [-1, 3])
def test_a_task_outside_the_stream_is_an_error_and_never_wraps_round(task: int) -> None:
    labels = np.array([0, 1])
    for ask in (
        lambda: UNEQUAL.known(task),
        lambda: UNEQUAL.positions(task),
        lambda: UNEQUAL.labels(task),
        lambda: UNEQUAL.indices(labels, task),
        lambda: UNEQUAL.seen_indices(labels, task),
    ):
        with pytest.raises(ConfigError, match=f"task {task} does not exist; .* tasks 0 to 2"):
            ask()


def test_the_tables_cannot_be_written_to() -> None:
    with pytest.raises(ValueError, match="read-only"):
        UNEQUAL.position[0] = 5
    with pytest.raises(ValueError, match="read-only"):
        UNEQUAL.task_of_position[0] = 5


def test_a_stream_survives_json() -> None:
    again = TaskStream.from_dict(json.loads(json.dumps(UNEQUAL.to_dict())))
    assert again == UNEQUAL
    assert hash(again) == hash(UNEQUAL)
    assert again.task_of_position.tolist() == [0, 1, 1, 1, 2, 2]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"order": [0, 1]}, r"keys 'order' and 'sizes'; got \['order'\]"),
        ({"order": [0, 1], "sizes": [2], "seed": 1}, r"got \['order', 'seed', 'sizes'\]"),
        ({"order": [0, 0], "sizes": [2]}, "missing: 1; duplicated: 0"),
        ({"order": [0, 1], "sizes": [1, 2]}, r"\[1, 2\] sum to 3, but there are 2 classes"),
        ({"order": [], "sizes": []}, "number of classes"),
        ({"order": "natural", "sizes": [2]}, "whole numbers; got 'natural'"),
        ({"order": None, "sizes": [2]}, "class order must be a list of whole numbers; got None"),
        ({"order": 0, "sizes": [1]}, "class order must be a list of whole numbers; got 0"),
    ],
)
def test_a_broken_stream_is_refused(data: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TaskStream.from_dict(data)
