import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from cprompt.data.image_files import read_image
from cprompt.data.image_set import ImageSet
from cprompt.data.pipeline import cache as module
from cprompt.data.pipeline.cache import CacheConfig, cached, clear, open_images
from cprompt.data.pipeline.decoded import DecodedImages
from cprompt.errors import ConfigError, DataError
from tests.waiting import soon

SHAPES = [(4, 6), (9, 5), (1, 1), (7, 7), (3, 8)]
TOTAL = 3 * sum(h * w for h, w in SHAPES)


def image_set(files: list[Path]) -> ImageSet:
    return ImageSet(files, np.zeros(len(files), dtype=np.int64), ("thing",))


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    return make_files(tmp_path / "images")


def make_files(folder: Path, seed: int = 0) -> list[Path]:
    folder.mkdir()
    rng = np.random.default_rng(seed)
    files = [folder / f"{i}.bmp" for i in range(len(SHAPES))]
    for file, shape in zip(files, SHAPES, strict=True):
        Image.fromarray(rng.integers(0, 256, (*shape, 3), dtype=np.uint8)).save(file)
    return files


@pytest.fixture
def disk(tmp_path: Path) -> CacheConfig:
    return CacheConfig(folder=str(tmp_path / "cache"))


def kept(cache: CacheConfig) -> list[str]:
    """Endings of the files in the cache's folder."""
    return sorted(path.suffix for path in cache.path.iterdir()) if cache.path.exists() else []


def assert_decoded(images: DecodedImages, files: list[Path]) -> None:
    assert len(images) == len(files)
    for i, file in enumerate(files):
        expected = np.asarray(read_image(file))
        assert images[i].dtype == np.uint8
        assert np.array_equal(images[i], expected)
        if images.sizes is not None:
            assert images.sizes[i].tolist() == list(expected.shape[:2])


class Counter:
    """Progress that is remembered."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, int]] = []

    def __call__(self, done: int, total: int) -> None:
        self.calls.append((done, total))


# --- every kind ---------------------------------------------------------------------------------


def test_an_array_is_not_copied() -> None:
    array = np.random.default_rng(0).integers(0, 256, (4, 5, 6, 3), dtype=np.uint8)
    counter = Counter()
    images = ImageSet(array, np.zeros(4, dtype=np.int64), ("thing",))
    pixels = open_images(images, CacheConfig(), counter)
    assert np.shares_memory(pixels[2], array)
    assert np.array_equal(pixels[2], array[2])
    assert pixels.sizes is not None
    assert pixels.sizes.tolist() == [[5, 6]] * 4
    assert counter.calls == []


@pytest.mark.parametrize("where", ["disk", "memory", "off"])
def test_files_are_decoded(where: Any, files: list[Path], tmp_path: Path) -> None:
    cache = CacheConfig(where, str(tmp_path / "cache"))
    pixels = open_images(image_set(files), cache)
    assert_decoded(pixels, files)
    assert (pixels.sizes is None) == (where == "off")
    assert kept(cache) == ([".json", ".rgb"] if where == "disk" else [])


@pytest.mark.parametrize("where", ["disk", "memory", "off"])
def test_a_subset_is_the_images_asked_for(where: Any, files: list[Path], tmp_path: Path) -> None:
    whole = open_images(image_set(files), CacheConfig(where, str(tmp_path / "cache")))
    assert_decoded(whole.subset([3, 0, 3]), [files[3], files[0], files[3]])
    assert_decoded(whole.subset(np.array([3, 0, 1])).subset([2, 0]), [files[1], files[3]])
    assert len(whole.subset([])) == 0


@pytest.mark.parametrize("where", ["disk", "memory"])
def test_a_subset_copies_nothing(where: Any, files: list[Path], tmp_path: Path) -> None:
    whole = open_images(image_set(files), CacheConfig(where, str(tmp_path / "cache")))
    assert np.shares_memory(whole.subset([1])[0], whole[1])


@pytest.mark.parametrize("where", ["disk", "memory"])
def test_progress_counts_what_is_decoded(where: Any, files: list[Path], tmp_path: Path) -> None:
    counter = Counter()
    open_images(image_set(files), CacheConfig(where, str(tmp_path / "cache")), counter)
    assert counter.calls == [(i, 5) for i in range(1, 6)]


@pytest.mark.parametrize("where", ["disk", "memory", "off"])
def test_a_set_of_no_files_is_empty(where: Any, tmp_path: Path) -> None:
    assert len(open_images(image_set([]), CacheConfig(where, str(tmp_path / "cache")))) == 0


@pytest.mark.parametrize("where", ["disk", "memory", "off"])
def test_an_image_with_exif_rotation_is_kept_upright(where: Any, tmp_path: Path) -> None:
    lying = np.zeros((2, 4, 3), dtype=np.uint8)
    lying[0, 0] = 255
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned clockwise
    file = tmp_path / "turned.png"
    Image.fromarray(lying).save(file, exif=exif)
    pixels = open_images(image_set([file]), CacheConfig(where, str(tmp_path / "cache")))
    assert pixels[0].shape == (4, 2, 3)
    assert pixels[0][0, 1].tolist() == [255] * 3
    assert pixels.sizes is None or pixels.sizes.tolist() == [[4, 2]]


@pytest.mark.parametrize("where", ["disk", "memory"])
def test_a_pipe_is_refused_and_not_waited_for(
    where: Any, files: list[Path], pipe: Path, tmp_path: Path
) -> None:
    images = image_set([*files, pipe])
    with pytest.raises(DataError, match=r"pipe\.jpg: is a pipe, not a file"):
        soon(lambda: open_images(images, CacheConfig(where, str(tmp_path / "cache"))))


@pytest.mark.parametrize("where", ["disk", "memory"])
def test_an_unreadable_image_is_named_and_nothing_is_left(
    where: Any, files: list[Path], tmp_path: Path
) -> None:
    files[3].write_bytes(files[3].read_bytes()[:60])
    cache = CacheConfig(where, str(tmp_path / "cache"))
    with pytest.raises(DataError, match=r"3\.bmp"):
        open_images(image_set(files), cache)
    assert kept(cache) == []


@pytest.mark.parametrize("where", ["disk", "memory"])
def test_a_missing_image_is_named(where: Any, files: list[Path], tmp_path: Path) -> None:
    files[1].unlink()
    with pytest.raises(DataError, match=r"1\.bmp: does not exist"):
        open_images(image_set(files), CacheConfig(where, str(tmp_path / "cache")))


# --- sets on disk -------------------------------------------------------------------------------


def test_a_set_is_decoded_once(files: list[Path], disk: CacheConfig) -> None:
    open_images(image_set(files), disk)
    counter = Counter()
    assert_decoded(open_images(image_set(files), disk, counter), files)
    assert counter.calls == []


def test_sets_of_the_same_content_share_a_file(
    files: list[Path], disk: CacheConfig, tmp_path: Path
) -> None:
    open_images(image_set(files), disk)
    copies = make_files(tmp_path / "copies")
    counter = Counter()
    assert_decoded(open_images(image_set(copies), disk, counter), copies)
    assert counter.calls == []
    assert kept(disk) == [".json", ".rgb"]


def test_another_order_is_another_set(files: list[Path], disk: CacheConfig) -> None:
    open_images(image_set(files), disk)
    assert_decoded(open_images(image_set(files[::-1]), disk), files[::-1])
    assert kept(disk) == [".json", ".json", ".rgb", ".rgb"]


def test_a_file_whose_content_alone_changed_is_decoded_anew(
    files: list[Path], disk: CacheConfig
) -> None:
    open_images(image_set(files), disk)
    before = files[1].stat()
    content = bytearray(files[1].read_bytes())
    content[-5] ^= 255
    files[1].write_bytes(content)
    os.utime(files[1], ns=(before.st_atime_ns, before.st_mtime_ns))
    after = files[1].stat()
    assert (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    assert_decoded(open_images(image_set(files), disk), files)


def shorten(data: Path, index: Path) -> None:
    data.write_bytes(data.read_bytes()[:-1])


def lengthen(data: Path, index: Path) -> None:
    data.write_bytes(data.read_bytes() + b"x")


def lose_data(data: Path, index: Path) -> None:
    data.unlink()


def lose_index(data: Path, index: Path) -> None:
    index.unlink()


def cut_index(data: Path, index: Path) -> None:
    index.write_bytes(index.read_bytes()[:-9])


def empty_index(data: Path, index: Path) -> None:
    index.write_text("[]")


def other_version(data: Path, index: Path) -> None:
    index.write_text(index.read_text().replace('"version": 3', '"version": 2'))


def change_a_byte(data: Path, index: Path) -> None:
    content = bytearray(data.read_bytes())
    content[TOTAL // 2] ^= 1
    data.write_bytes(content)


def other_count(data: Path, index: Path) -> None:
    index.write_text(f'{{"version": 3, "source": "", "sizes": [[1, {TOTAL // 3}]]}}')


@pytest.mark.parametrize(
    "harm",
    [
        shorten,
        lengthen,
        lose_data,
        lose_index,
        cut_index,
        empty_index,
        other_version,
        change_a_byte,
        other_count,
    ],
)
def test_what_does_not_fit_is_made_anew(
    harm: Callable[[Path, Path], None], files: list[Path], disk: CacheConfig
) -> None:
    open_images(image_set(files), disk)
    (data,), (index,) = disk.path.glob("*.rgb"), disk.path.glob("*.json")
    harm(data, index)
    counter = Counter()
    assert_decoded(open_images(image_set(files), disk, counter), files)
    assert len(counter.calls) == 5
    assert kept(disk) == [".json", ".rgb"]


KILLED = """
import os, sys
from pathlib import Path
import numpy as np
from cprompt.data.image_set import ImageSet
from cprompt.data.pipeline.cache import CacheConfig, open_images
files = sorted(Path(sys.argv[1]).iterdir())
images = ImageSet(files, np.zeros(len(files), dtype=np.int64), ("thing",))
open_images(images, CacheConfig(folder=sys.argv[2]), lambda done, total: done == 3 and os._exit(9))
"""


def test_a_process_killed_in_the_middle_leaves_no_set(
    files: list[Path], disk: CacheConfig, python_without_torch: Callable[..., Any]
) -> None:
    done = python_without_torch(KILLED, str(files[0].parent), str(disk.folder))
    assert done.returncode == 9
    assert kept(disk) == [".part"]
    assert cached(disk.path) == []
    assert_decoded(open_images(image_set(files), disk), files)
    assert kept(disk) == [".json", ".part", ".rgb"]
    clear(disk.path)
    assert kept(disk) == []


def test_an_interrupted_opening_leaves_nothing(files: list[Path], disk: CacheConfig) -> None:
    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        open_images(image_set(files), disk, interrupt)
    assert kept(disk) == []


def test_a_full_disk_is_named_and_nothing_is_left(
    files: list[Path], disk: CacheConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_space(*names: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(module.os, "replace", no_space)
    with pytest.raises(DataError, match=r"cache.*\.rgb: cannot be written \(No space left"):
        open_images(image_set(files), disk)
    assert kept(disk) == []


def test_two_may_write_the_same_set_at_once(files: list[Path], disk: CacheConfig) -> None:
    barrier = threading.Barrier(2, timeout=20)
    opened = []

    def both_in_the_middle(done: int, total: int) -> None:
        if done == 3:
            barrier.wait()

    def work() -> None:
        opened.append(open_images(image_set(files), disk, both_in_the_middle))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(opened) == 2
    for pixels in opened:
        assert_decoded(pixels, files)
    assert kept(disk) == [".json", ".rgb"]


def test_a_file_that_changes_meanwhile_is_an_error(
    files: list[Path], disk: CacheConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def change(file: Path) -> int:
        Image.new("RGB", (2, 2)).save(files[2])
        return 0

    monkeypatch.setattr(module, "_decoded_bytes", change)
    with pytest.raises(DataError, match=r"2\.bmp: was changed"):
        open_images(image_set(files), disk)
    assert kept(disk) == []


def test_only_the_owner_may_look_into_the_cache(files: list[Path], disk: CacheConfig) -> None:
    open_images(image_set(files), disk)
    assert disk.path.stat().st_mode & 0o077 == 0
    assert all(path.stat().st_mode & 0o077 == 0 for path in disk.path.iterdir())


# --- room ---------------------------------------------------------------------------------------


def test_a_set_over_budget_is_decoded_at_every_access(files: list[Path], tmp_path: Path) -> None:
    cache = CacheConfig(folder=str(tmp_path / "cache"), disk_gib=(TOTAL - 1) / 2**30)
    counter = Counter()
    with pytest.warns(UserWarning, match="5 images are decoded again.*disk_gib"):
        pixels = open_images(image_set(files), cache, counter)
    assert_decoded(pixels, files)
    assert pixels.sizes is None
    assert counter.calls == []
    assert kept(cache) == []


def test_the_budget_is_for_all_sets_together(
    files: list[Path], disk: CacheConfig, tmp_path: Path
) -> None:
    others = make_files(tmp_path / "others", seed=1)
    open_images(image_set(files), disk)
    used = sum(path.stat().st_size for path in disk.path.iterdir())
    tight = CacheConfig(folder=disk.folder, disk_gib=(used + TOTAL - 1) / 2**30)
    with pytest.warns(UserWarning, match="disk_gib"):
        assert open_images(image_set(others), tight).sizes is None
    assert open_images(image_set(files), tight).sizes is not None  # is there already
    enough = CacheConfig(folder=disk.folder, disk_gib=(used + TOTAL) / 2**30)
    assert open_images(image_set(others), enough).sizes is not None


def test_a_disk_without_room_to_spare_is_left_alone(
    files: list[Path], disk: CacheConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Usage:
        free = 2 * 2**30 + TOTAL - 1

    monkeypatch.setattr(module.shutil, "disk_usage", lambda path: Usage)
    with pytest.warns(UserWarning, match="to spare"):
        assert open_images(image_set(files), disk).sizes is None
    assert kept(disk) == []
    Usage.free += 1
    assert open_images(image_set(files), disk).sizes is not None


def test_a_folder_that_cannot_be_made_is_named(files: list[Path]) -> None:
    cache = CacheConfig(folder=str(files[0]))
    with pytest.warns(UserWarning, match=r"0\.bmp.* cannot be used"):
        pixels = open_images(image_set(files), cache)
    assert_decoded(pixels, files)


# --- looking after the cache --------------------------------------------------------------------


def test_cached_sets_are_listed_with_their_bytes_and_source(
    files: list[Path], disk: CacheConfig
) -> None:
    assert cached(disk.path) == []
    open_images(image_set(files), disk)
    (found,) = cached(disk.path)
    data = disk.path / f"{found.name}.rgb"
    assert found.bytes == TOTAL == data.stat().st_size
    assert found.created == data.stat().st_mtime
    assert found.source == str(files[0].parent)


def test_clearing_deletes_sets_and_nothing_else(files: list[Path], disk: CacheConfig) -> None:
    assert clear(disk.path) == 0
    open_images(image_set(files), disk)
    mine = disk.path / "mine.json"
    mine.write_text("kept")
    (index,) = disk.path.glob("????????????????*.json")
    size = index.stat().st_size
    assert clear(disk.path) == TOTAL + size
    assert list(disk.path.iterdir()) == [mine]


def test_the_folder_is_the_users_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert CacheConfig().path == tmp_path / "cprompt" / "pixels"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", lambda: Path("/home/ann"))
    assert CacheConfig().path == Path("/home/ann/.cache/cprompt/pixels")
    assert CacheConfig(folder="/big").path == Path("/big/pixels")


@pytest.mark.parametrize("name", ["disk_gib", "device_gib"])
def test_room_cannot_be_negative(name: str) -> None:
    values: dict[str, Any] = {name: -1.0}
    with pytest.raises(ConfigError, match=f"{name} -1"):
        CacheConfig(**values)
