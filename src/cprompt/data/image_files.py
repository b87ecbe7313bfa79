"""Image files: finding them, and reading any of them as upright 8-bit RGB."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from math import ceil
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError, features

from cprompt.errors import DataError

_JPEG = {".jpg", ".jpeg", ".jpe", ".jfif", ".jp2"}
_PORTABLE = {".ppm", ".pgm", ".pbm", ".pnm"}
_PHONE = {".heic", ".heif", ".hif", ".avif"}
IMAGE_SUFFIXES = frozenset(
    _JPEG | _PORTABLE | _PHONE | {".png", ".apng", ".gif", ".bmp", ".webp", ".tif", ".tiff"}
)
"""File name endings, in lower case, that `list_images` reads as images."""

MAX_PIXELS = 178_000_000
"""Largest image that is read, in pixels: just below the size that Pillow itself refuses."""

_ALWAYS_READ = ("JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF", "PPM", "JPEG2000")

# Brands in the first box of a file, and what reads such a file.
_BRANDS = {
    "AVIF": (b"avif", b"avis"),
    "HEIC": (b"heic", b"heix", b"hevc", b"hevx", b"heim", b"heis", b"mif1", b"msf1"),
}
_READERS = {
    "AVIF": ("an AVIF image", "a newer Pillow", "pip install 'pillow>=11.3'"),
    "HEIC": ("a HEIC image", "pillow-heif", "pip install 'cprompt[heic]'"),
}

REMEDY = "copy it again or delete it; `cprompt doctor` lists all such files"
"""What to do about an image that cannot be read: the hint of this module's errors."""

_SPECIAL = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}

_EXIF_ORIENTATION = 0x0112
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}

_PART = 2**18
"""Pixels that are converted at a time, which fit into a processor's cache."""

_SKIPPED_NAMES = frozenset({"__macosx", "thumbs.db"})


@cache
def formats() -> tuple[str, ...]:
    """Pillow's names of the formats that can be read here.

    Only these are tried, whatever a file is called: some other decoders of Pillow start programs.
    AVIF needs a Pillow with its decoder, HEIF the package pillow-heif.
    """
    found: tuple[str, ...] = _ALWAYS_READ
    if "avif" in features.modules and features.check("avif"):
        found += ("AVIF",)
    try:
        import pillow_heif
    except ImportError:
        return found
    pillow_heif.register_heif_opener()
    return (*found, "HEIF")


def read_image(path: Path, side: int | None = None) -> Image.Image:
    """The image in `path` as upright 8-bit RGB; see `decode_image`."""
    with opened_image(path) as file:
        return decode_image(file, str(path), side)


@contextmanager
def opened_image(path: Path) -> Iterator[BinaryIO]:
    """An image file, open for reading; a DataError if that fails or it is not a file."""
    try:
        refuse_special(path.stat(), path)  # opening a pipe waits until somebody writes to it
        with open(path, "rb", opener=_open_at_once) as file:
            refuse_special(os.fstat(file.fileno()), path)  # it may have been replaced meanwhile
            yield file
    except FileNotFoundError as error:
        raise DataError("does not exist", file=path, hint=REMEDY) from error
    except IsADirectoryError as error:
        raise DataError("is a folder, not an image", file=path, hint=REMEDY) from error
    except OSError as error:
        raise DataError(
            f"cannot be opened ({error.strerror or error})",
            file=path,
            hint="check its permissions and the disk it is on",
        ) from error


def refuse_special(found: os.stat_result, name: Path | str) -> None:
    """Raise a DataError, which calls it `name`, for a pipe, a socket or a device."""
    if not (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)):
        raise DataError(
            f"is {_SPECIAL.get(stat.S_IFMT(found.st_mode), 'a device')}, not a file",
            file=name,
            hint="store what it gives in a file, or delete it",
        )


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))  # Windows has none


def decode_image(file: BinaryIO, name: str, side: int | None = None) -> Image.Image:
    """Decode an open file as upright 8-bit RGB; `name` stands for it in errors.

    With `side`, a JPEG whose short side is at least twice as long is decoded at a half, a quarter
    or an eighth of its size, as long as the short side stays `side` or more: several times faster.

    The EXIF rotation is applied, transparency is laid on white, and an animation gives its first
    frame. Grey values wider than 8 bits are scaled by the range they lie in, because a file seldom
    says which it uses: the smallest that holds every value of 0..1 (floats only), 0..255 (not for
    16-bit files), 0..4095 (12-bit sensors store their values in 16 bits) and 0..65535, otherwise
    the image's own minimum and maximum.
    """
    try:
        with Image.open(file, formats=formats()) as image:
            if image.width * image.height > MAX_PIXELS:
                raise Image.DecompressionBombError
            if side is not None:
                scale = side / min(image.size)
                image.draft(None, (ceil(scale * image.width), ceil(scale * image.height)))
            image.load()
            rgb = image if _is_upright_rgb(image) else upright_rgb(image)
            rgb.info = {}
    except MemoryError:
        raise
    except Image.DecompressionBombError as error:
        raise too_many_pixels(name) from error
    except UnidentifiedImageError as error:
        raise unidentified(file, name) from error
    except Exception as error:  # decoders meet broken files with almost any exception
        raise damaged(name, error) from error
    return rgb


def unidentified(file: BinaryIO, name: str) -> DataError:
    """The error for a file of none of the `formats`: what it is instead, if that is known."""
    file.seek(0)
    begin = file.read(64)
    if not begin:
        return DataError("is empty (0 bytes)", file=name, hint=REMEDY)
    kind = _kind_of_box(begin)
    if kind is not None:
        what, reader, install = _READERS[kind]
        return DataError(f"is {what}, which only {reader} reads", file=name, hint=install)
    read = ", ".join(formats())
    return DataError(f"is not an image that can be read ({read})", file=name, hint=REMEDY)


def _kind_of_box(begin: bytes) -> str | None:
    """AVIF or HEIC, by the brands in a file's first box; None for anything else."""
    if begin[4:8] != b"ftyp":
        return None
    size = int.from_bytes(begin[:4], "big")
    brands = {begin[at : at + 4] for at in range(8, min(size, len(begin)), 4)}
    return next((kind for kind, known in _BRANDS.items() if brands & {*known}), None)


def too_many_pixels(name: str) -> DataError:
    """The error for an image of more than `MAX_PIXELS`."""
    return DataError(
        f"has more than {MAX_PIXELS // 10**6} million pixels",
        file=name,
        hint="store a smaller version of it, or leave it out",
    )


def damaged(name: str, error: Exception) -> DataError:
    """The error for an image whose decoder failed."""
    return DataError(f"is damaged or cut short ({error})", file=name, hint=REMEDY)


def upright_rgb(image: Image.Image) -> Image.Image:
    """A loaded image of any mode as upright 8-bit RGB, without its metadata.

    The one place that rotates an image by its EXIF orientation. The result has no orientation tag,
    so a second call changes nothing. The image given is left as it is.
    """
    turn = _UPRIGHT.get(_orientation(image))
    if turn is None:
        turned = _as_rgb(image)
    else:
        turned = (image if _is_plain_rgb(image) else _as_rgb(image)).transpose(turn)
    turned.info = {}
    return turned


def _is_upright_rgb(image: Image.Image) -> bool:
    """Whether `upright_rgb` would return a mere copy, which takes a tenth of decoding a JPEG."""
    return _is_plain_rgb(image) and _orientation(image) not in _UPRIGHT


def _is_plain_rgb(image: Image.Image) -> bool:
    return image.mode == "RGB" and not image.has_transparency_data


def list_images(folder: Path) -> list[Path]:
    """Every image file below `folder`, in the order of their paths as strings.

    Hidden files and folders, and what operating systems leave behind (`__MACOSX`, `Thumbs.db`),
    are skipped. Links to folders are followed, each folder once.
    """
    return [p for p in list_files(folder) if p.suffix.lower() in IMAGE_SUFFIXES]


def list_files(folder: Path) -> list[Path]:
    """Every file below `folder` that `list_images` would not skip for its name or place."""
    found: list[Path] = []
    visited: set[str] = set()
    for here, folders, names in os.walk(folder, followlinks=True, onerror=_raise_unlistable):
        real = os.path.realpath(here)
        if real in visited:
            folders.clear()
            continue
        visited.add(real)
        folders[:] = sorted(name for name in folders if is_listed(name))
        found += [Path(here, name) for name in names if is_listed(name)]
    return sorted(found, key=lambda path: path.relative_to(folder).as_posix())


def subfolders(folder: Path) -> list[Path]:
    """The folders directly inside `folder` that `list_images` would look into, sorted by name."""
    try:
        with os.scandir(folder) as entries:
            names = [e.name for e in entries if is_listed(e.name) and _is_folder(e)]
    except OSError as error:
        _raise_unlistable(error)
    return sorted((folder / name for name in names), key=str)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """Whether it is a folder or a link to one, and no error for a link to itself.

    The disk is asked about links only.
    """
    return Path(entry).is_dir() if entry.is_symlink() else entry.is_dir()


def _raise_unlistable(error: OSError) -> NoReturn:
    raise DataError(
        f"cannot be listed ({error.strerror})",
        file=error.filename,
        hint="check its permissions and the disk it is on",
    ) from error


def require_folder(folder: Path) -> None:
    """Raise a DataError unless `folder` is a folder."""
    if folder.is_file():
        raise DataError(
            "is a file, not a folder", file=folder, hint="unpack it and name the folder instead"
        )
    if not folder.is_dir():
        raise DataError(
            "does not exist", file=folder, hint="check the path, or copy the dataset there"
        )


def is_listed(name: str) -> bool:
    """Whether a file or folder of that name is read, not skipped as hidden."""
    return not name.startswith(".") and name.lower() not in _SKIPPED_NAMES


def _orientation(image: Image.Image) -> int:
    """The EXIF orientation, 1..8; 1 (upright) where the EXIF block is absent or broken."""
    try:
        return int(image.getexif().get(_EXIF_ORIENTATION, 1))
    except Exception:  # the pixels are fine: broken metadata is no reason to refuse them
        return 1


def _as_rgb(image: Image.Image) -> Image.Image:
    """A loaded image of any mode as 8-bit RGB, transparency laid on white."""
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        return _part_by_part(image, _grey_to_rgb(image))
    if image.has_transparency_data:
        return _part_by_part(image, _on_white)
    return image.convert("RGB")


def _part_by_part(image: Image.Image, to_rgb: Callable[[Image.Image], Image.Image]) -> Image.Image:
    """`to_rgb` of an image, made of a part at a time: only the result takes memory for all of it.

    What is computed on the way takes up to 44 bytes per pixel, and a file of 100 kB can hold 50
    million pixels.
    """
    rgb = Image.new("RGB", image.size)
    for box in _parts(image.size):
        rgb.paste(to_rgb(image.crop(box)), box)
    return rgb


def _parts(size: tuple[int, int]) -> Iterator[tuple[int, int, int, int]]:
    """Boxes that cover an image of that size, in order, of at most `_PART` pixels each."""
    width, height = size
    across = min(max(width, 1), _PART)
    down = _PART // across
    for top in range(0, height, down):
        for left in range(0, width, across):
            yield left, top, min(left + across, width), min(top + down, height)


def _on_white(image: Image.Image) -> Image.Image:
    """An image with transparency, laid on white."""
    white = Image.new("RGBA", image.size, "white")
    return Image.alpha_composite(white, image.convert("RGBA")).convert("RGB")


def _grey_to_rgb(image: Image.Image) -> Callable[[Image.Image], Image.Image]:
    """What makes RGB of any part of a wide grey image, by the range of the whole image's values."""
    low, top = _value_range(image)
    transparent = image.info.get("transparency")
    sixteen_bit = image.mode.startswith("I;16")
    table = _to_8_bit(np.arange(2**16), low, top) if sixteen_bit else None

    def to_rgb(part: Image.Image) -> Image.Image:
        values = np.asarray(part)
        grey = _to_8_bit(values, low, top) if table is None else table[values]
        if transparent is not None:
            grey[values == transparent] = 255
        return Image.fromarray(grey).convert("RGB")

    return to_rgb


def _value_range(image: Image.Image) -> tuple[float, float]:
    """What to subtract from a wide grey image's values, and what then becomes 255.

    `decode_image` says which range that is. NaN and infinity do not count.
    """
    low, high = np.inf, -np.inf
    for box in _parts(image.size):
        values = np.asarray(image.crop(box))
        finite = values[np.isfinite(values)] if image.mode == "F" else values
        if finite.size:
            low, high = min(low, float(finite.min())), max(high, float(finite.max()))
    if low > high:  # there is no finite value
        low = high = 0.0
    floats = [1.0] if image.mode == "F" else []
    eight_bit = [] if image.mode.startswith("I;16") else [255.0]
    for top in (*floats, *eight_bit, 4095.0, 65535.0):
        if low >= 0 and high <= top:
            return 0.0, top
    return low, (high - low) or 1.0


def _to_8_bit(values: NDArray[Any], low: float, top: float) -> NDArray[np.uint8]:
    """Grey values scaled so that `low` becomes 0 and `low + top` 255; NaN becomes 0."""
    scaled = np.rint((values.astype(np.float64) - low) * (255.0 / top))
    return np.fmin(np.fmax(scaled, 0), 255).astype(np.uint8)  # of NaN and 0, fmax takes 0
