import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from cprompt.data.image_set import ImageSet
from cprompt.data.pipeline.cache import CacheConfig, open_images
from cprompt.data.pipeline.decoded import DecodedImages
from cprompt.data.pipeline.loader import BatchLoader, _triton_works
from cprompt.data.pipeline.views import DRAWS, apply_views, build
from cprompt.errors import ConfigError, DataError
from cprompt.seeds import generator

COUNT = 22
PHOTO = build("photo", 16, "inception")


def arrays() -> list[np.ndarray[Any, np.dtype[np.uint8]]]:
    """Of different sizes, some smaller than the input."""
    rng = np.random.default_rng(1)
    sizes = rng.integers(5, 40, (COUNT, 2)).tolist()
    return [rng.integers(0, 256, (*size, 3), dtype=np.uint8) for size in sizes]


def decoded(known: bool = True) -> DecodedImages:
    """With `known` sizes, as if decoded before; otherwise as if decoded at each access."""
    made = arrays()
    sizes = np.array([image.shape[:2] for image in made]) if known else None
    return DecodedImages(made.__getitem__, COUNT, sizes)


def loader(
    batch_size: int = 4, seed: int | None = 7, known: bool = True, **options: Any
) -> BatchLoader:
    """Each image's target is its index, so that a batch says which images it holds."""
    return BatchLoader(decoded(known), np.arange(COUNT), PHOTO, batch_size, seed=seed, **options)


def flat(batches: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    return torch.cat([x for x, _ in batches]), torch.cat([y for _, y in batches])


def assert_same(one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> None:
    assert torch.equal(one[0], other[0])
    assert torch.equal(one[1], other[1])


def normalized(levels: np.ndarray[Any, np.dtype[np.uint8]]) -> Tensor:
    """As "inception" says, for one image (S, S, 3)."""
    return (torch.tensor(levels.copy()).permute(2, 0, 1).float() / 255 - 0.5) / 0.5


def view_of(index: int) -> Tensor:
    return PHOTO.prepare(Image.fromarray(arrays()[index]))


def test_batches_are_float_images_and_integer_targets() -> None:
    images, targets = next(loader(batch_size=5).epoch(0))
    assert images.shape == (5, 3, 16, 16)
    assert images.dtype == torch.float32
    assert images.is_contiguous()
    assert targets.shape == (5,)
    assert targets.dtype == torch.int64


@pytest.mark.parametrize("recipe", ["photo", "cifar", "drawn"])
def test_a_view_is_made_from_the_row_of_its_image_in_the_epochs_one_draw(recipe: str) -> None:
    preparation = build(recipe, 16, "inception")
    uniforms = torch.rand(COUNT, DRAWS, generator=generator(7, 3), dtype=torch.float64).numpy()
    made = arrays()
    chain = preparation.train_views(uniforms, np.array([p.shape[:2] for p in made]))
    batches = BatchLoader(decoded(), np.arange(COUNT), preparation, 4, seed=7).epoch(3)
    for image, index in zip(*flat(list(batches)), strict=True):
        i = int(index)
        assert torch.equal(image, normalized(apply_views(made[i], chain, i)))


def test_an_epoch_shows_every_image_once_in_an_order_of_its_own() -> None:
    orders = [flat(list(loader().epoch(e)))[1].tolist() for e in range(3)]
    assert all(sorted(order) == list(range(COUNT)) for order in orders)
    assert len({tuple(order) for order in [*orders, list(range(COUNT))]}) == 4


def test_another_epoch_or_seed_augments_an_image_differently() -> None:
    def image_0(seed: int, epoch: int) -> Tensor:
        images, targets = flat(list(loader(seed=seed).epoch(epoch)))
        return images[targets == 0]

    assert not torch.equal(image_0(7, 0), image_0(7, 1))
    assert not torch.equal(image_0(7, 0), image_0(8, 0))


@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("batch_size", [1, 4, 8, 30])
@pytest.mark.parametrize("known", [True, False])
def test_batch_size_workers_and_storage_do_not_change_the_images(
    workers: int, batch_size: int, known: bool
) -> None:
    batches = loader(batch_size, known=known, workers=workers).epoch(2)
    assert_same(flat(list(batches)), flat(list(loader().epoch(2))))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("start", range(6))
def test_an_epoch_entered_in_the_middle_goes_on_as_if_never_left(workers: int, start: int) -> None:
    whole = list(loader().epoch(1))
    rest = list(loader(workers=workers).epoch(1, start=start))
    assert_same(flat(whole[start:]), flat(rest))


@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_entered_at_its_end_is_empty(workers: int) -> None:
    assert list(loader(workers=workers).epoch(0, start=6)) == []


@pytest.mark.parametrize("workers", [0, 2])
def test_an_abandoned_epoch_leaves_no_trace(workers: int) -> None:
    threads = threading.active_count()
    batches = loader(workers=workers)
    left = batches.epoch(0)
    next(left)
    left.close()
    assert threading.active_count() == threads
    assert_same(flat(list(batches.epoch(0))), flat(list(loader().epoch(0))))


@pytest.mark.parametrize("workers", [0, 2])
def test_two_epochs_may_be_read_in_turns(workers: int) -> None:
    batches = loader(workers=workers)
    turns = list(zip(batches.epoch(0), batches.epoch(1), strict=True))
    for epoch in (0, 1):
        assert_same(flat([turn[epoch] for turn in turns]), flat(list(loader().epoch(epoch))))


@pytest.mark.parametrize("workers", [0, 2])
def test_without_a_seed_images_come_in_order_under_the_test_view(workers: int) -> None:
    for epoch in (0, 1):
        images, targets = flat(list(loader(seed=None, workers=workers).epoch(epoch)))
        assert targets.tolist() == list(range(COUNT))
        assert torch.equal(images, torch.stack([view_of(i) for i in range(COUNT)]))


@pytest.mark.parametrize("seed", [None, 7])
def test_any_images_can_be_had_under_the_test_view(seed: int | None) -> None:
    batches = loader(seed=seed)
    assert torch.equal(
        batches.batch([5, 0, 5, 21]), torch.stack([view_of(i) for i in (5, 0, 5, 21)])
    )
    assert torch.equal(batches.batch(np.array([3])), view_of(3)[None])


@pytest.mark.parametrize("workers", [0, 2])
def test_groups_of_images_come_one_after_the_other(workers: int) -> None:
    groups = [[4, 2], [0], [7, 7, 1]]
    for group, images in zip(groups, loader(workers=workers).batches(groups), strict=True):
        assert torch.equal(images, torch.stack([view_of(i) for i in group]))
    assert list(loader(workers=workers).batches([])) == []


@pytest.mark.parametrize("seed", [None, 7])
@pytest.mark.parametrize("workers", [0, 2])
def test_unaugmented_batches_are_the_test_views_in_order_each_time(
    workers: int, seed: int | None
) -> None:
    targets = np.arange(COUNT) * 3 % COUNT
    batches = BatchLoader(decoded(), targets, PHOTO, 4, seed=seed, workers=workers)
    again = batches.unaugmented()
    for _ in range(2):
        parts = list(again)
        assert [len(y) for _, y in parts] == [4, 4, 4, 4, 4, 2]
        views, said = flat(parts)
        assert torch.equal(views, torch.stack([view_of(i) for i in range(COUNT)]))
        assert said.tolist() == targets.tolist()
        assert said.dtype == torch.int64


def test_what_a_loader_was_made_of_can_be_asked() -> None:
    targets = np.arange(COUNT)[::-1]
    batches = BatchLoader(decoded(), targets, PHOTO, 7, seed=1)
    assert batches.batch_size == 7
    assert batches.targets.tolist() == targets.tolist()


@pytest.mark.parametrize("workers", [0, 2])
def test_the_callers_random_state_is_untouched(workers: int) -> None:
    state = torch.get_rng_state()
    list(loader(batch_size=8, workers=workers).epoch(0))
    assert torch.equal(torch.get_rng_state(), state)


def test_the_time_spent_waiting_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock ticks once for each look at it, so each batch and the end take one tick."""
    ticks = iter(range(1000))
    monkeypatch.setattr("cprompt.data.pipeline.loader.time.perf_counter", lambda: next(ticks))
    batches = loader(batch_size=8)
    assert batches.waited == 0
    list(batches.epoch(0))
    assert batches.waited == 4
    batches.batch([0])
    assert batches.waited == 5


@pytest.mark.parametrize(("size", "sizes"), [(8, [8, 8, 6]), (11, [11, 11]), (30, [22])])
def test_the_length_is_the_number_of_batches(size: int, sizes: list[int]) -> None:
    batches = loader(batch_size=size)
    assert len(batches) == len(sizes)
    assert [len(targets) for _, targets in batches.epoch(0)] == sizes


@pytest.mark.parametrize(
    ("inputs", "views", "sizes"), [(32, 2, [11, 11]), (22, 0, [22]), (2, 5, [1] * 22)]
)
def test_images_under_several_views_fill_their_passes(
    inputs: int, views: int, sizes: list[int]
) -> None:
    passes = list(loader(batch_size=inputs, seed=None).counted(views))
    assert [len(targets) for _, targets, _ in passes] == sizes
    assert [len(pixels) for pixels, _, _ in passes] == [n * (1 + views) for n in sizes]


@pytest.mark.parametrize("workers", [0, 2])
def test_an_unreadable_file_reaches_the_caller_at_its_batch(workers: int, tmp_path: Path) -> None:
    files = [tmp_path / f"{i}.png" for i in range(6)]
    for file in files:
        Image.new("RGB", (20, 20)).save(file)
    files[4].write_bytes(files[4].read_bytes()[:40])
    images = ImageSet(files, np.zeros(6, dtype=np.int64), ("thing",))
    with pytest.raises(DataError) as direct:
        images.load(4)

    opened = open_images(images, CacheConfig("off"))
    batches = BatchLoader(opened, np.arange(6), PHOTO, 2, seed=None, workers=workers).epoch(0)
    assert next(batches)[1].tolist() == [0, 1]
    assert next(batches)[1].tolist() == [2, 3]
    with pytest.raises(DataError) as raised:
        next(batches)
    assert str(raised.value) == str(direct.value)
    assert "4.png" in str(raised.value)


def test_a_set_stays_off_a_device_that_has_no_room_for_it() -> None:
    needed = sum(image.size for image in arrays())
    assert loader(device_gib=needed / 2**30)._fits()
    assert not loader(device_gib=(needed - 1) / 2**30)._fits()
    assert not loader(device_gib=0)._fits()
    assert not loader(known=False, device_gib=1)._fits()


def test_without_triton_a_warning_says_that_the_cpu_prepares_images(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "cprompt.data.pipeline.resample", None)  # cannot be imported
    with pytest.warns(UserWarning, match="prepared on the CPU: Triton does not work here"):
        assert not _triton_works.__wrapped__(torch.device("cuda"))


def test_there_must_be_one_target_per_image() -> None:
    with pytest.raises(DataError, match="22 images but 3 targets"):
        BatchLoader(decoded(), np.arange(3), PHOTO, 4, seed=None)


@pytest.mark.parametrize(
    ("options", "said"),
    [({"batch_size": 0}, "batch_size .* not 0"), ({"workers": -1}, "workers .* not -1")],
)
def test_a_setting_out_of_range_is_named(options: dict[str, int], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        loader(**options)


@pytest.mark.parametrize("start", [-1, 7])
def test_an_epoch_cannot_start_outside_itself(start: int) -> None:
    with pytest.raises(ConfigError, match=f"6 batches.*{start}"):
        loader().epoch(0, start=start)
