from __future__ import annotations

import io
import socket
import struct
import subprocess
import sys
import tracemalloc
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pillow_heif
import pytest
from PIL import Image, ImageFile, features

from cprompt.data.image_files import (
    MAX_PIXELS,
    decode_image,
    formats,
    list_images,
    read_image,
    subfolders,
    upright_rgb,
)
from cprompt.errors import DataError
from tests.waiting import soon


def pixels(path: Path) -> list[tuple[int, ...]]:
    image = read_image(path)
    assert image.mode == "RGB"
    return [tuple(p) for p in np.asarray(image).reshape(-1, 3).tolist()]


def saved(tmp_path: Path, image: Image.Image, name: str = "x.png", **options: object) -> Path:
    image.save(tmp_path / name, **options)
    return tmp_path / name


def noise(height: int = 64, width: int = 64) -> Image.Image:
    values = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(values)


def test_rgb_pixels_come_back_as_stored(tmp_path: Path) -> None:
    image = noise(5, 7)
    assert np.array_equal(read_image(saved(tmp_path, image)), image)


def test_grey_and_one_bit_become_rgb(tmp_path: Path) -> None:
    grey = Image.fromarray(np.array([[0, 100, 255]], dtype=np.uint8))
    assert pixels(saved(tmp_path, grey)) == [(0, 0, 0), (100, 100, 100), (255, 255, 255)]
    bits = Image.fromarray(np.array([[False, True]]))
    assert bits.mode == "1"
    assert pixels(saved(tmp_path, bits)) == [(0, 0, 0), (255, 255, 255)]


def test_cmyk_becomes_rgb(tmp_path: Path) -> None:
    inks = Image.new("CMYK", (8, 8), (255, 0, 0, 0))
    assert pixels(saved(tmp_path, inks, "x.tif"))[0] == (0, 255, 255)
    red, green, blue = pixels(saved(tmp_path, inks, "x.jpg", quality=100))[0]
    assert red <= 3
    assert green >= 252
    assert blue >= 252


def test_transparency_is_laid_on_white(tmp_path: Path) -> None:
    values = np.array([[[10, 20, 30, 255], [10, 20, 30, 0], [0, 0, 0, 127]]], dtype=np.uint8)
    half = 128  # 255 · (1 − 127/255)
    assert pixels(saved(tmp_path, Image.fromarray(values))) == [
        (10, 20, 30),
        (255, 255, 255),
        (half, half, half),
    ]
    grey = Image.fromarray(np.array([[[40, 255], [40, 0]]], dtype=np.uint8))
    assert grey.mode == "LA"
    assert pixels(saved(tmp_path, grey)) == [(40, 40, 40), (255, 255, 255)]


@pytest.mark.parametrize("name", ["x.png", "x.gif"])
def test_a_transparent_palette_entry_becomes_white(tmp_path: Path, name: str) -> None:
    image = Image.fromarray(np.array([[0, 1]], dtype=np.uint8)).convert("P")
    image.putpalette([200, 0, 0, 0, 0, 200])
    path = saved(tmp_path, image, name, transparency=1)
    assert pixels(path) == [(200, 0, 0), (255, 255, 255)]


def test_a_transparent_colour_of_an_rgb_or_wide_grey_file_becomes_white(tmp_path: Path) -> None:
    image = Image.fromarray(np.array([[[9, 8, 7], [1, 2, 3]]], dtype=np.uint8))
    path = saved(tmp_path, image, transparency=(9, 8, 7))
    assert pixels(path) == [(255, 255, 255), (1, 2, 3)]
    wide = Image.fromarray(np.array([[0, 257 * 60]], dtype=np.uint16))
    assert pixels(saved(tmp_path, wide, transparency=0)) == [(255,) * 3, (60,) * 3]


@pytest.mark.parametrize("name", ["x.png", "x.tif"])
def test_sixteen_bits_are_divided_by_257(tmp_path: Path, name: str) -> None:
    values = np.array([[0, 256, 257, 257 * 128, 65535]], dtype=np.uint16)
    greys = [p[0] for p in pixels(saved(tmp_path, Image.fromarray(values), name))]
    assert greys == [0, 1, 1, 128, 255]


@pytest.mark.parametrize("name", ["x.png", "x.tif"])
def test_twelve_bits_in_sixteen_use_the_whole_range(tmp_path: Path, name: str) -> None:
    values = np.array([[0, 16, 2048, 4095]], dtype=np.uint16)
    greys = [p[0] for p in pixels(saved(tmp_path, Image.fromarray(values), name))]
    assert greys == [round(255 * v / 4095) for v in (0, 16, 2048, 4095)] == [0, 1, 128, 255]
    values[0, 3] = 4096  # one more than 12 bits can hold
    greys = [p[0] for p in pixels(saved(tmp_path, Image.fromarray(values), name))]
    assert greys == [round(v / 257) for v in (0, 16, 2048, 4096)] == [0, 0, 8, 16]


def test_a_black_sixteen_bit_image_stays_black(tmp_path: Path) -> None:
    black = Image.fromarray(np.zeros((1, 2), dtype=np.uint16))
    assert pixels(saved(tmp_path, black)) == [(0, 0, 0)] * 2


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (np.array([[0, 7, 255]], dtype=np.int32), [0, 7, 255]),
        (np.array([[0, 2048, 4095]], dtype=np.int32), [0, 128, 255]),
        (np.array([[0, 2570, 65535]], dtype=np.int32), [0, 10, 255]),
        (np.array([[-10, 0, 245]], dtype=np.int32), [0, 10, 255]),
        (np.array([[0, 500_000, 1_000_000]], dtype=np.int32), [0, 128, 255]),
        (np.array([[-5, -5]], dtype=np.int32), [0, 0]),
        (np.array([[0, 0.2, 1]], dtype=np.float32), [0, 51, 255]),
        (np.array([[0, 7, 255]], dtype=np.float32), [0, 7, 255]),
        (np.array([[-1, 0, 1]], dtype=np.float32), [0, 128, 255]),
        (np.array([[np.nan, 0.2, np.inf]], dtype=np.float32), [0, 51, 255]),
        (np.array([[np.nan]], dtype=np.float32), [0]),
    ],
)
def test_wide_integers_and_floats_are_scaled_not_clipped(
    tmp_path: Path, values: np.ndarray, expected: list[int]
) -> None:
    path = saved(tmp_path, Image.fromarray(values), "x.tif")
    assert [p[0] for p in pixels(path)] == expected


# --- large images, which are converted a part at a time -----------------------------------------

LARGE = (701, 1103)  # height and width: several parts, the last of them smaller


def scaled_as_a_whole(values: np.ndarray) -> np.ndarray:
    """Grey values in 0..255 by the rule of `decode_image`, with nothing done in parts."""
    wide = values.astype(np.float64)
    finite = wide[np.isfinite(wide)]
    low, high = (finite.min(), finite.max()) if finite.size else (0.0, 0.0)
    kind = values.dtype.kind
    tops = {"u": [4095, 65535], "i": [255, 4095, 65535], "f": [1, 255, 4095, 65535]}[kind]
    fitting = [top for top in tops if low >= 0 and high <= top]
    if fitting:
        levels = wide * (255.0 / fitting[0])
    else:
        levels = (wide - low) * (255.0 / ((high - low) or 1.0))
    levels[np.isnan(wide)] = 0
    return np.clip(np.rint(levels), 0, 255).astype(np.uint8)


def wide_image(mode: str, values: np.ndarray) -> Image.Image:
    kind = {"I;16": "<u2", "I;16B": ">u2", "I": "=i4", "F": "=f4"}[mode]
    height, width = values.shape
    return Image.frombytes(mode, (width, height), values.astype(kind).tobytes())


def between(low: float, high: float) -> np.ndarray:
    """Values of that range in any order, its ends among them in the last row."""
    values = np.random.default_rng(0).uniform(low, high, LARGE)
    values[-1, -2:] = low, high
    return values


RANGES = {
    "I;16": [(0, 0), (7, 7), (0, 255), (0, 4095), (0, 4096), (900, 65535)],
    "I;16B": [(7, 7), (0, 255), (0, 4095), (0, 4096), (900, 65535)],
    "I": [
        *[(0, 0), (9, 9), (0, 1), (0, 255), (0, 256), (3, 4096), (0, 65535), (0, 65536)],
        *[(-1, 255), (-7, -7), (-(2**31), 2**31 - 1), (2**31 - 9, 2**31 - 1)],
    ],
    "F": [
        *[(0, 0), (0.3, 0.3), (0, 1), (0.2, 0.4), (0, 1.001), (0, 255), (0, 255.5), (0, 4096)],
        *[(0, 65535), (0, 1e9), (-1, 1), (-1e-3, 255), (-9, -9), (-3e38, 3e38)],
    ],
}


@pytest.mark.parametrize(
    ("mode", "low", "high"), [(mode, *ends) for mode in RANGES for ends in RANGES[mode]]
)
def test_a_large_wide_grey_image_is_scaled_by_the_range_of_all_its_values(
    mode: str, low: float, high: float
) -> None:
    image = wide_image(mode, between(low, high))
    grey = scaled_as_a_whole(np.asarray(image))
    assert np.array_equal(upright_rgb(image), np.repeat(grey[:, :, None], 3, axis=2))


@pytest.mark.parametrize(
    "values",
    [
        np.select([between(0, 1) < 0.2, between(0, 1) > 0.9], [np.nan, np.inf], between(0, 1)),
        np.where(between(0, 1) < 0.2, -np.inf, between(-5, 9)),
        np.where(np.arange(LARGE[0])[:, None] < 600, np.nan, between(0, 99)),
        np.full(LARGE, np.nan),
        np.full(LARGE, np.inf),
    ],
    ids=["NaN and infinity", "-infinity, shifted", "NaN first", "only NaN", "only infinity"],
)
def test_nan_and_infinity_do_not_count_for_the_range(values: np.ndarray) -> None:
    image = wide_image("F", values)
    grey = scaled_as_a_whole(np.asarray(image))
    assert np.array_equal(np.asarray(upright_rgb(image))[:, :, 0], grey)


@pytest.mark.parametrize("shape", [(1, 300_000), (300_000, 1), (2, 270_000), (3, 5)])
def test_parts_cover_images_of_any_shape(shape: tuple[int, int]) -> None:
    values = np.random.default_rng(0).integers(0, 65536, shape)
    grey = np.asarray(upright_rgb(wide_image("I;16", values)))[:, :, 0]
    assert np.array_equal(grey, scaled_as_a_whole(values.astype(np.uint16)))


def test_a_transparent_wide_grey_value_is_white_in_every_part() -> None:
    values = np.random.default_rng(0).integers(0, 9, LARGE).astype(np.uint16) * 8000
    image = wide_image("I;16", values)
    image.info["transparency"] = 16_000
    expected = np.where(values == 16_000, 255, scaled_as_a_whole(values))
    assert np.array_equal(np.asarray(upright_rgb(image))[:, :, 0], expected)


def with_transparency(mode: str) -> Image.Image:
    """A large image of that mode, opaque, transparent and in between."""
    bands = np.random.default_rng(0).integers(0, 256, (*LARGE, 4), dtype=np.uint8)
    colours, grey = Image.fromarray(bands), Image.fromarray(bands[:, :, 0])
    if mode == "P":
        grey = grey.convert("P")
        grey.info["transparency"] = bytes(reversed(range(256)))
        return grey
    if mode == "RGB":
        few = Image.fromarray(bands[:, :, :3] // 64 * 64)
        few.info["transparency"] = few.getpixel((3, 3))
        return few
    if mode == "L":
        grey.info["transparency"] = 77
        return grey
    return colours if mode == "RGBA" else colours.convert(mode)


@pytest.mark.parametrize("orientation", [1, 6])
@pytest.mark.parametrize("mode", ["RGBA", "LA", "RGBa", "P", "RGB", "L"])
def test_a_large_image_with_transparency_is_laid_on_white(mode: str, orientation: int) -> None:
    image = with_transparency(mode)
    assert image.mode == mode
    assert image.has_transparency_data
    white = Image.new("RGBA", image.size, "white")
    laid = np.asarray(Image.alpha_composite(white, image.convert("RGBA")))[:, :, :3]
    exif = Image.Exif()
    exif[0x0112] = orientation
    image.info["exif"] = exif.tobytes()
    before = image.tobytes()
    upright = upright_rgb(image)
    assert np.array_equal(upright, laid if orientation == 1 else np.rot90(laid, -1))
    assert np.ptp(laid) > 200
    assert image.tobytes() == before


PEAK = r"""
import re, sys
from pathlib import Path
from cprompt.data.image_files import read_image
from PIL import Image

def memory(name):
    return 1024 * int(re.search(name + r":\s+(\d+)", Path("/proc/self/status").read_text())[1])

read_image(Path(sys.argv[1]))  # what Pillow and NumPy load on the way
before = memory("VmRSS")
width, height = read_image(Path(sys.argv[2])).size
print((memory("VmHWM") - before) / (width * height))
"""
"""Prints the most memory that reading an image takes, in bytes per pixel, Pillow's included."""

COST = {  # bytes per pixel: those of the image and of its RGB, which Pillow stores in 4
    "I;16": 2 + 4,
    "I;16B": 2 + 4,
    "I": 4 + 4,
    "F": 4 + 4,
    "RGBA": 4 + 4,
    "LA": 4 + 4,
    "RGB": 4,
    "RGB turned": 4 + 4,
}


def smooth_image(kind: str, side: int) -> Image.Image:
    """An image whose file is small beside its pixels."""
    mode = kind.partition(" ")[0]
    values = np.broadcast_to(np.linspace(0, 60_000, side), (side, side))
    if mode in ("I;16", "I;16B", "I", "F"):
        return wide_image(mode, values)
    return Image.fromarray((values // 256).astype(np.uint8)).convert(mode)


def stored_smoothly(folder: Path, kind: str, side: int) -> Path:
    exif = Image.Exif()
    if "turned" in kind:
        exif[0x0112] = 6
    name = f"{kind}-{side}"
    image = smooth_image(kind, side)
    if kind in ("I;16", "LA", "RGBA", "RGB", "RGB turned"):
        return saved(folder, image, f"{name}.png", exif=exif)
    return saved(folder, image, f"{name}.tif", compression="tiff_deflate")


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux's /proc")
@pytest.mark.parametrize("kind", COST)
def test_reading_takes_memory_for_the_image_and_its_result_only(tmp_path: Path, kind: str) -> None:
    small, large = (stored_smoothly(tmp_path, kind, side) for side in (64, 2500))
    command = [sys.executable, "-c", PEAK, str(small), str(large)]
    told = subprocess.run(command, capture_output=True, text=True, check=True)
    assert COST[kind] - 1 < float(told.stdout) < COST[kind] + 3


@pytest.mark.parametrize("mode", ["I;16", "I;16B", "I", "F"])
def test_arrays_of_a_wide_grey_image_are_small_beside_it(mode: str) -> None:
    image = smooth_image(mode, 2500)
    tracemalloc.start()
    upright_rgb(image)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak / (image.width * image.height) < 3  # all at once, they took 40


STORED = {  # how a camera that was held that way stores the upright image
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.swapaxes(0, 1),
    6: lambda a: np.rot90(a, 1),
    7: lambda a: a.swapaxes(0, 1)[::-1, ::-1],
    8: lambda a: np.rot90(a, -1),
}


@pytest.mark.parametrize("name", ["x.png", "x.tif", "x.webp"])
@pytest.mark.parametrize("orientation", STORED)
def test_the_exif_rotation_is_applied(tmp_path: Path, orientation: int, name: str) -> None:
    upright = np.asarray(noise(2, 3))
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored = Image.fromarray(np.ascontiguousarray(STORED[orientation](upright)))
    options = {"lossless": True} if name == "x.webp" else {}
    path = saved(tmp_path, stored, name, exif=exif, **options)
    assert np.array_equal(read_image(path), upright)


@pytest.mark.parametrize("orientation", STORED)
def test_an_upright_image_has_no_tag_and_is_not_turned_again(orientation: int) -> None:
    upright = np.asarray(noise(2, 3))
    tagged = Image.fromarray(np.ascontiguousarray(STORED[orientation](upright)))
    exif = Image.Exif()
    exif[0x0112] = orientation
    tagged.info["exif"] = exif.tobytes()
    assert tagged.getexif()[0x0112] == orientation

    once = upright_rgb(tagged)
    assert np.array_equal(once, upright)
    assert once.mode == "RGB"
    assert dict(once.getexif()) == {}
    assert once.info == {}
    assert np.array_equal(upright_rgb(once), upright)
    assert tagged.getexif()[0x0112] == orientation  # the image given keeps its tag


@pytest.mark.parametrize("orientation", [0, 9])
def test_an_orientation_that_does_not_exist_turns_nothing(orientation: int) -> None:
    image = noise(2, 3)
    exif = Image.Exif()
    exif[0x0112] = orientation
    image.info["exif"] = exif.tobytes()
    assert np.array_equal(upright_rgb(image), noise(2, 3))


def test_a_broken_exif_block_does_not_cost_the_image(tmp_path: Path) -> None:
    path = saved(tmp_path, noise(4, 4), exif=b"Exif\x00\x00garbage")
    assert np.array_equal(read_image(path), noise(4, 4))


@pytest.mark.parametrize(
    ("name", "options"),
    [("x.gif", {}), ("x.png", {}), ("x.webp", {"lossless": True})],
)
def test_an_animation_gives_its_first_frame(
    tmp_path: Path, name: str, options: dict[str, bool]
) -> None:
    frames = [Image.new("RGB", (6, 6), colour) for colour in ((200, 0, 0), (0, 0, 200))]
    path = saved(tmp_path, frames[0], name, save_all=True, append_images=frames[1:], **options)
    with Image.open(path) as check:
        assert check.n_frames == 2
    assert set(pixels(path)) == {(200, 0, 0)}


def png_header(width: int, height: int) -> bytes:
    """The start of a 1-bit PNG of that size, with no pixel data worth the name."""
    chunks = b""
    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    for kind, body in ((b"IHDR", header), (b"IDAT", zlib.compress(b"")), (b"IEND", b"")):
        chunks += struct.pack(">I", len(body)) + kind + body
        chunks += struct.pack(">I", zlib.crc32(kind + body))
    return b"\x89PNG\r\n\x1a\n" + chunks


def bmp_of_no_width() -> bytes:
    head = b"BM" + struct.pack("<IHHI", 54, 0, 0, 54)
    return head + struct.pack("<IiiHHIIiiII", 40, 0, 4, 1, 24, 0, 0, 0, 0, 0, 0)


def jpeg() -> bytes:
    file = io.BytesIO()
    noise().save(file, "JPEG")
    return file.getvalue()


def png() -> bytes:
    file = io.BytesIO()
    noise().save(file, "PNG")
    return file.getvalue()


BAD = {
    "empty.jpg": (b"", "is empty (0 bytes)"),
    "text.jpg": (b"not an image at all", "is not an image that can be read"),
    "script.jpg": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "is not an image that"),
    "cut.jpg": (jpeg()[:-1000], "is damaged or cut short"),
    "cut.png": (png()[:-1000], "is damaged or cut short"),
    "flipped.png": (png()[:300] + b"\x00" * 40 + png()[340:], "is damaged or cut short"),
    "flat.bmp": (bmp_of_no_width(), "is not an image that can be read"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_named_with_what_is_wrong_and_what_to_do(tmp_path: Path, name: str) -> None:
    content, wrong = BAD[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError) as caught:
        read_image(tmp_path / name)
    message = str(caught.value)
    assert message.startswith(f"{tmp_path / name}: {wrong}")
    assert "copy it again or delete it" in message
    assert "cprompt doctor" in message


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("side", [13_400, 60_000])
def test_an_image_with_too_many_pixels_is_refused_unread(tmp_path: Path, side: int) -> None:
    assert side * side > MAX_PIXELS
    (tmp_path / "bomb.png").write_bytes(png_header(side, side))
    with pytest.raises(DataError, match=r"bomb\.png: has more than 178 million pixels; store a"):
        read_image(tmp_path / "bomb.png")


def test_a_missing_file_and_a_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"gone\.jpg: does not exist; copy it again"):
        read_image(tmp_path / "gone.jpg")
    (tmp_path / "folder.jpg").mkdir()
    with pytest.raises(DataError, match=r"folder\.jpg: is a folder, not an image"):
        read_image(tmp_path / "folder.jpg")


@pytest.mark.parametrize("name", ["pipe.jpg", "link.jpg"])
def test_a_pipe_is_refused_and_not_waited_for(pipe: Path, name: str) -> None:
    pipe.with_name("link.jpg").symlink_to(pipe)
    with pytest.raises(DataError, match=rf"{name}: is a pipe, not a file; store") as caught:
        soon(lambda: read_image(pipe.with_name(name)))
    assert caught.value.file == str(pipe.with_name(name))


def test_a_pipe_that_takes_a_files_place_after_the_check_is_refused(
    pipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    regular = saved(tmp_path, noise()).stat()
    with monkeypatch.context() as patch:
        patch.setattr(Path, "stat", lambda path, **options: regular)
        with pytest.raises(DataError, match="is a pipe"):
            soon(lambda: read_image(pipe))


@pytest.mark.skipif(sys.platform == "win32", reason="has neither")
def test_devices_and_sockets_are_refused_and_links_to_images_read(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="/dev/zero: is a device, not a file"):
        read_image(Path("/dev/zero"))
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket.jpg"))
        with pytest.raises(DataError, match=r"socket\.jpg: is a socket, not a file"):
            read_image(tmp_path / "socket.jpg")
    (tmp_path / "link.png").symlink_to(saved(tmp_path, noise()))
    assert np.array_equal(read_image(tmp_path / "link.png"), noise())


def test_an_image_is_read_from_an_open_file_under_a_name() -> None:
    assert decode_image(io.BytesIO(png()), "upload").size == (64, 64)
    with pytest.raises(DataError, match="upload: is not an image"):
        decode_image(io.BytesIO(b"words"), "upload")


def test_importing_and_reading_leave_pillow_as_it_was(tmp_path: Path) -> None:
    read_image(saved(tmp_path, noise(4, 4)))
    assert Image.MAX_IMAGE_PIXELS == 2**30 // 4 // 3  # Pillow's own limit
    assert not ImageFile.LOAD_TRUNCATED_IMAGES


def test_images_are_listed_in_order_without_what_systems_leave_behind(tmp_path: Path) -> None:
    kept = ["B.JPG", "a/1.png", "a/z/2.jpeg", "b.webp", "ä/3.tiff"]
    left = [".hidden.jpg", ".git/x.jpg", "__MACOSX/x.jpg", "Thumbs.db", "a/notes.txt", "a/._1.png"]
    for name in kept + left:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert [p.relative_to(tmp_path).as_posix() for p in list_images(tmp_path)] == kept


def test_linked_folders_are_followed_and_a_loop_ends(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "1.png").touch()
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "root" / "loop").symlink_to(tmp_path / "root")
    assert list_images(tmp_path / "root") == [tmp_path / "root" / "link" / "1.png"]


def test_folders_inside_a_folder_are_told_without_a_look_at_each_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("b", "a", ".hidden", "elsewhere"):
        (tmp_path / name).mkdir()
    (tmp_path / "1.png").touch()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    asked = []
    is_dir = Path.is_dir

    def noted(path: Path) -> bool:
        asked.append(path.name)
        return is_dir(path)

    monkeypatch.setattr(Path, "is_dir", noted)
    assert [p.name for p in subfolders(tmp_path)] == ["a", "b", "elsewhere", "link"]
    assert sorted(asked) == ["gone", "link", "loop"]


def test_a_folder_that_cannot_be_listed_is_named(tmp_path: Path) -> None:
    for look in (list_images, subfolders):
        with pytest.raises(DataError, match=r"gone: cannot be listed \(No such file"):
            look(tmp_path / "gone")


# --- AVIF and HEIC ------------------------------------------------------------------------------


def smooth() -> Image.Image:
    """Colours that change slowly, which a lossy format keeps nearly as they are."""
    at = np.linspace(0, 255, 48)
    rows, columns = np.meshgrid(at[:32], at, indexing="ij")
    return Image.fromarray(np.stack([rows, columns, 255 - columns], axis=2).astype(np.uint8))


@pytest.fixture
def without_readers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No pillow-heif, and a Pillow that cannot read AVIF."""
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    monkeypatch.setattr(features, "check", lambda feature: False)
    formats.cache_clear()
    yield
    formats.cache_clear()


needs_avif = pytest.mark.skipif(not features.check("avif"), reason="Pillow has no AVIF")


@needs_avif
def test_avif_is_read_and_turned_upright(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    turned = smooth().transpose(Image.Transpose.ROTATE_90)
    path = saved(tmp_path, turned, "x.avif", quality=100, exif=exif)
    read = read_image(path)
    assert read.size == (48, 32)
    difference = np.asarray(read, np.int64) - np.asarray(smooth(), np.int64)
    assert np.abs(difference).max() <= 8


def test_heic_is_read(tmp_path: Path) -> None:
    pillow_heif.from_pillow(smooth()).save(tmp_path / "x.heic", quality=100)
    read = read_image(tmp_path / "x.heic")
    assert (read.mode, read.size) == ("RGB", (48, 32))
    difference = np.asarray(read, np.int64) - np.asarray(smooth(), np.int64)
    assert np.abs(difference).max() <= 16
    assert list_images(tmp_path) == [tmp_path / "x.heic"]


def test_heic_is_turned_upright_once(tmp_path: Path) -> None:
    """Phones store the sensor's rows and how the phone was held, as EXIF and as a rotation."""
    exif = Image.Exif()
    exif[0x0112] = 6
    turned = smooth().transpose(Image.Transpose.ROTATE_90)
    file = pillow_heif.from_pillow(turned)
    file.save(tmp_path / "x.heic", quality=100, exif=exif.tobytes())
    read = read_image(tmp_path / "x.heic")
    assert read.size == (48, 32)
    difference = np.asarray(read, np.int64) - np.asarray(smooth(), np.int64)
    assert np.abs(difference).max() <= 16


@needs_avif
@pytest.mark.usefixtures("without_readers")
def test_avif_that_cannot_be_read_says_what_to_install(tmp_path: Path) -> None:
    path = saved(tmp_path, smooth(), "x.avif")
    with pytest.raises(DataError, match=r"is an AVIF image.*; pip install 'pillow>="):
        read_image(path)


@pytest.mark.usefixtures("without_readers")
@pytest.mark.parametrize("brands", [b"heic\0\0\0\0mif1heic", b"mif1\0\0\0\0miafheix"])
def test_heic_beside_jpegs_is_found_and_says_what_to_install(tmp_path: Path, brands: bytes) -> None:
    box = struct.pack(">I", 8 + len(brands)) + b"ftyp" + brands
    (tmp_path / "b.HEIC").write_bytes(box + b"\0\0\0\x08mdat")
    first = saved(tmp_path, smooth(), "a.jpg")
    assert list_images(tmp_path) == [first, tmp_path / "b.HEIC"]
    with pytest.raises(DataError) as error:
        read_image(tmp_path / "b.HEIC")
    assert "HEIC" in error.value.message
    assert error.value.hint == "pip install 'cprompt[heic]'"


@pytest.mark.parametrize(
    "content", [b"\0\0\0\x14ftypisom\0\0\0\0mp42", b"\0\0\0\x10ftyp", b"ftyp", b"\0" * 64]
)
def test_other_files_are_not_taken_for_heic(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.heic").write_bytes(content)
    with pytest.raises(DataError, match="is not an image that can be read"):
        read_image(tmp_path / "x.heic")


def jpeg(width: int, height: int, orientation: int | None = None) -> io.BytesIO:
    """Smooth colours, so that a reduced image is nearly the full one made smaller."""
    y, x = np.mgrid[0:height, 0:width]
    pixels = np.stack([255 * x / width, 255 * y / height, 128 + 0 * x], axis=-1).astype(np.uint8)
    exif = Image.Exif()
    if orientation is not None:
        exif[0x0112] = orientation
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "JPEG", quality=95, exif=exif)
    return out


@pytest.mark.parametrize(
    ("size", "side", "reduced"),
    [
        ((1600, 1200), 300, (400, 300)),
        ((1600, 1200), 301, (800, 600)),
        ((1600, 1200), 100, (200, 150)),
        ((1601, 1203), 150, (201, 151)),
        ((500, 400), 300, (500, 400)),
        ((200, 150), 300, (200, 150)),
    ],
)
def test_a_large_jpeg_is_decoded_at_a_part_of_its_size(
    size: tuple[int, int], side: int, reduced: tuple[int, int]
) -> None:
    full = decode_image(jpeg(*size), "x")
    small = decode_image(jpeg(*size), "x", side)
    assert full.size == size
    assert small.size == reduced
    expected = np.asarray(full.resize(reduced, Image.Resampling.BOX)).astype(int)
    assert np.abs(np.asarray(small).astype(int) - expected).max() <= 4


def test_a_reduced_jpeg_is_still_turned_upright_and_other_formats_are_decoded_whole() -> None:
    turned = decode_image(jpeg(1600, 1200, orientation=6), "x", 300)
    assert turned.size == (300, 400)
    png = io.BytesIO()
    Image.new("RGB", (1600, 1200)).save(png, "PNG")
    assert decode_image(png, "x", 300).size == (1600, 1200)
