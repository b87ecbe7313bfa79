import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from cprompt.data.base import ImageSet
from cprompt.data.loader import BatchLoader
from cprompt.data.transforms import build
from cprompt.errors import ConfigError, DataError
from cprompt.seeds import generator, mix

COUNT = 22
TRAIN, TEST = build("photo", 16, "inception")


def images() -> ImageSet:
    pixels = np.random.default_rng(1).integers(0, 256, (COUNT, 20, 20, 3), dtype=np.uint8)
    return ImageSet(pixels, np.zeros(COUNT, dtype=np.int64), ("thing",))


def loader(batch_size: int = 4, seed: int | None = 7, **options: int) -> BatchLoader:
    """Each picture's target is its index, so that a batch says which pictures it holds."""
    transform = TEST if seed is None else TRAIN
    return BatchLoader(images(), np.arange(COUNT), transform, batch_size, seed=seed, **options)


def flat(batches: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    return torch.cat([x for x, _ in batches]), torch.cat([y for _, y in batches])


def assert_same(one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> None:
    assert torch.equal(one[0], other[0])
    assert torch.equal(one[1], other[1])


def test_batches_are_float_pictures_and_integer_targets() -> None:
    pictures, targets = next(loader(batch_size=5).epoch(0))
    assert pictures.shape == (5, 3, 16, 16)
    assert pictures.dtype == torch.float32
    assert targets.shape == (5,)
    assert targets.dtype == torch.int64


def test_a_picture_is_the_transform_under_the_seed_of_its_epoch_and_index() -> None:
    pictures, targets = flat(list(loader(seed=7).epoch(3)))
    for picture, index in zip(pictures, targets.tolist(), strict=True):
        torch.manual_seed(mix(7, 3, index))
        assert torch.equal(picture, TRAIN(images().load(index)))


def test_an_epoch_shows_every_picture_once_in_an_order_of_its_own() -> None:
    orders = [flat(list(loader().epoch(e)))[1].tolist() for e in range(3)]
    assert all(sorted(order) == list(range(COUNT)) for order in orders)
    assert len({tuple(order) for order in [*orders, list(range(COUNT))]}) == 4


def test_another_epoch_or_seed_augments_a_picture_differently() -> None:
    def picture_0(seed: int, epoch: int) -> Tensor:
        pictures, targets = flat(list(loader(seed=seed).epoch(epoch)))
        return pictures[targets == 0]

    assert not torch.equal(picture_0(7, 0), picture_0(7, 1))
    assert not torch.equal(picture_0(7, 0), picture_0(8, 0))


def test_batch_size_does_not_change_the_pictures() -> None:
    assert_same(
        flat(list(loader(batch_size=4).epoch(2))), flat(list(loader(batch_size=8).epoch(2)))
    )


def test_workers_do_not_change_the_pictures() -> None:
    assert_same(flat(list(loader().epoch(2))), flat(list(loader(workers=2).epoch(2))))


@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_entered_in_the_middle_goes_on_as_if_never_left(workers: int) -> None:
    whole = list(loader().epoch(1))
    assert_same(flat(whole[4:]), flat(list(loader(workers=workers).epoch(1, start=4))))


def test_an_epoch_entered_at_its_end_is_empty() -> None:
    assert list(loader().epoch(0, start=6)) == []


def test_an_abandoned_epoch_leaves_no_trace_in_the_next() -> None:
    batches = loader()
    next(batches.epoch(0))
    assert_same(flat(list(batches.epoch(0))), flat(list(loader().epoch(0))))


def test_without_a_seed_pictures_come_in_order_through_the_test_transform() -> None:
    for epoch in (0, 1):
        pictures, targets = flat(list(loader(seed=None).epoch(epoch)))
        assert targets.tolist() == list(range(COUNT))
        assert torch.equal(pictures, torch.stack([TEST(images().load(i)) for i in range(COUNT)]))


@pytest.mark.parametrize("workers", [0, 2])
def test_the_callers_random_state_is_untouched(workers: int) -> None:
    torch.manual_seed(3)
    undisturbed = torch.rand(4)
    torch.manual_seed(3)
    drawn = [torch.rand(1)]
    batches = loader(batch_size=8, workers=workers).epoch(0)
    for _ in range(3):
        next(batches)
        drawn.append(torch.rand(1))
    assert torch.equal(torch.cat(drawn), undisturbed)


def test_the_callers_random_state_is_untouched_by_a_failure(tmp_path: Path) -> None:
    broken = ImageSet([tmp_path / "gone.png"], np.zeros(1, dtype=np.int64), ("thing",))
    state = torch.get_rng_state()
    with pytest.raises(DataError):
        next(BatchLoader(broken, broken.labels, TRAIN, 1, seed=0).epoch(0))
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    ("size", "drop_last", "sizes"),
    [
        (8, False, [8, 8, 6]),
        (8, True, [8, 8]),
        (11, True, [11, 11]),
        (22, False, [22]),
        (30, False, [22]),
    ],
)
def test_the_length_is_the_number_of_batches(size: int, drop_last: bool, sizes: list[int]) -> None:
    batches = loader(batch_size=size, drop_last=drop_last)
    assert len(batches) == len(sizes)
    assert [len(targets) for _, targets in batches.epoch(0)] == sizes


def test_drop_last_ends_the_same_epoch_early() -> None:
    assert_same(
        flat(list(loader(batch_size=8, drop_last=True).epoch(0))),
        flat(list(loader(batch_size=8).epoch(0))[:2]),
    )


@pytest.mark.parametrize("workers", [0, 2])
def test_an_unreadable_file_reaches_the_caller_as_a_clean_error(
    workers: int, tmp_path: Path
) -> None:
    files = [tmp_path / f"{i}.png" for i in range(6)]
    for file in files:
        Image.new("RGB", (20, 20)).save(file)
    files[4].write_bytes(files[4].read_bytes()[:40])
    with pytest.raises(DataError) as direct:
        ImageSet(files, np.zeros(6, dtype=np.int64), ("thing",)).load(4)

    pictures = ImageSet(files, np.zeros(6, dtype=np.int64), ("thing",))
    batches = BatchLoader(pictures, np.arange(6), TEST, 2, seed=None, workers=workers).epoch(0)
    assert next(batches)[1].tolist() == [0, 1]
    assert next(batches)[1].tolist() == [2, 3]
    with pytest.raises(DataError) as raised:
        next(batches)
    assert str(raised.value) == str(direct.value)
    assert "4.png" in str(raised.value)


def test_targets_must_be_one_a_picture() -> None:
    with pytest.raises(DataError, match="22 pictures but 3 targets"):
        BatchLoader(images(), np.arange(3), TEST, 4, seed=None)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"batch_size": 0}, "batch_size .* not 0"),
        ({"workers": -1}, "workers .* not -1"),
        ({"batch_size": 23, "drop_last": True}, "22 pictures .* batch of 23"),
    ],
)
def test_a_setting_out_of_range_is_named(options: dict[str, int], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        loader(**options)


@pytest.mark.parametrize("start", [-1, 7])
def test_an_epoch_cannot_start_outside_itself(start: int) -> None:
    with pytest.raises(ConfigError, match=f"6 batches.*{start}"):
        loader().epoch(0, start=start)


def test_mix_is_the_beginning_of_a_sha256() -> None:
    first = hashlib.sha256(b"1,-2,3").hexdigest()[:16]
    little_endian = int("".join(reversed([first[i : i + 2] for i in range(0, 16, 2)])), 16)
    assert mix(1, -2, 3) == little_endian // 2


def test_mix_tells_order_count_and_digits_apart() -> None:
    mixed = {mix(1, 2), mix(2, 1), mix(12), mix(1, 2, 0), mix(0, 1, 2), mix(-1, 2), mix(1), mix()}
    assert len(mixed) == 8
    assert all(0 <= seed < 2**63 for seed in mixed)


def test_mix_takes_numpy_integers_as_their_value() -> None:
    assert mix(np.int64(5), np.uint8(9)) == mix(5, 9)


def test_generators_repeat_and_leave_the_global_one_alone() -> None:
    state = torch.get_rng_state()
    first, again, other = (torch.rand(3, generator=generator(*s)) for s in ((1, 2), (1, 2), (2, 1)))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), state)
