"""Photos at a path or a URL: a folder, a manifest (text, CSV, TSV, Parquet) or tar files.

A manifest lists a photo per row, with its label where there is one. Its paths are relative to its
own folder. Every kind may be local or at a URL that fsspec knows.
"""

from __future__ import annotations

import csv
import glob
import io
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from cprompt.data import tar_shards, urls
from cprompt.data.datasets import folder
from cprompt.data.image_files import IMAGE_SUFFIXES, list_images, require_folder, subfolders
from cprompt.errors import DataError

IMAGE_COLUMNS = ("path", "image", "file", "filename")
"""What the column of photos is called in a table, the first that is there."""
LABEL_COLUMN = "label"


class PhotosAtPlace(NamedTuple):
    """Photos that are not decoded yet, and the label of each; None where there is none."""

    photos: list[Any]
    """Paths, URLs as text, or images in tar files."""
    labels: list[str | None]


def photos_at(place: str | os.PathLike[str], labelled: bool) -> PhotosAtPlace:
    """All photos at a place, in its order.

    With `labelled`, a folder has one folder per class and every photo must have a label.
    """
    text = os.fspath(place)
    is_url = urls.is_url(text)
    suffix = PurePosixPath(text).suffix.lower()
    is_folder = urls.is_folder(text) if is_url else os.path.isdir(text)
    if is_folder:
        found = _in_folder(text, labelled)
    elif suffix == tar_shards.SUFFIX:
        found = _in_tars(_matching(text))
    elif suffix in _READERS:
        found = _READERS[suffix](text)
    elif not is_url and not labelled and not os.path.lexists(text):
        raise DataError("does not exist", file=text, hint="check the path")
    elif is_url or not labelled:
        found = PhotosAtPlace([text if is_url else Path(text)], [None])
    else:
        require_folder(Path(text))
        raise AssertionError("not a folder")
    if labelled and None in found.labels:
        at = found.labels.index(None)
        raise DataError(
            f"has no label for {found.photos[at]}", file=text, hint="give every photo a label"
        )
    return found


# --- folders ------------------------------------------------------------------------------------


def _in_folder(text: str, labelled: bool) -> PhotosAtPlace:
    if urls.is_url(text):
        return _in_url_folder(text, labelled)
    root = Path(text)
    tars = sorted(root.glob(f"*{tar_shards.SUFFIX}"))
    if tars and not subfolders(root):
        return _in_tars([str(tar) for tar in tars])
    if not labelled:
        files = list_images(root)
        if not files:
            raise DataError("has no photo in it", file=root, hint="name photos, or another folder")
        return PhotosAtPlace(files, [None] * len(files))
    parts = folder.train_and_test(root)
    if parts is not None:
        raise DataError(
            f"has parts {parts[0].name}/ and {parts[1].name}/, but class folders were expected",
            file=root,
            hint=f"give {parts[0]} to learn from or {parts[1]} to evaluate on",
        )
    found = folder.read_classes(root)
    folder.require_images(found, root)
    files = [file for paths in found.values() for file in paths]
    return PhotosAtPlace(files, [name for name, paths in found.items() for _ in paths])


def _in_url_folder(url: str, labelled: bool) -> PhotosAtPlace:
    """The same below a URL: the first folder below it is the class."""
    files = urls.files_below(url)
    start = len(url.rstrip("/")) + 1
    if files and all(file.endswith(tar_shards.SUFFIX) for file in files):
        return _in_tars(files)
    images = [file for file in files if PurePosixPath(file).suffix.lower() in IMAGE_SUFFIXES]
    classes = [file[start:].partition("/")[0] if "/" in file[start:] else None for file in images]
    if labelled:
        kept = [(file, name) for file, name in zip(images, classes, strict=True) if name]
        kept.sort(key=lambda pair: pair[1])
        images, classes = [file for file, _ in kept], [name for _, name in kept]
    if not images:
        expected = "a folder of photos per class" if labelled else "photos"
        raise DataError(f"has no photo; expected {expected}", file=url)
    return PhotosAtPlace(images, [*classes])


# --- tar files ----------------------------------------------------------------------------------


def _matching(text: str) -> list[str]:
    if "*" not in text:
        return [text]
    found = urls.matching(text) if urls.is_url(text) else sorted(glob.glob(text))
    if not found:
        raise DataError("matches no file", file=text, hint="check the pattern")
    return found


def _in_tars(tars: Iterable[str]) -> PhotosAtPlace:
    entries = [entry for tar in tars for entry in tar_shards.read_index(tar)]
    return PhotosAtPlace([entry.image for entry in entries], [entry.label for entry in entries])


# --- manifests ----------------------------------------------------------------------------------


def _text_manifest(text: str) -> PhotosAtPlace:
    """A line per photo: PATH, or PATH, a tab and LABEL."""
    photos, labels = [], []
    for line in _read_text(text).splitlines():
        path, _, label = line.partition("\t")
        if path.strip():
            photos.append(_beside(text, path.strip()))
            labels.append(label.strip() or None)
    return _not_empty(text, photos, labels)


def _csv_manifest(text: str) -> PhotosAtPlace:
    delimiter = "\t" if text.lower().endswith(".tsv") else ","
    reader = csv.DictReader(io.StringIO(_read_text(text)), delimiter=delimiter)
    column, has_labels = _columns(text, reader.fieldnames or [])
    photos, labels = [], []
    try:
        for row in reader:
            if not row[column]:
                raise DataError(f"has no {column} in line {reader.line_num}", file=text)
            photos.append(_beside(text, row[column]))
            labels.append((row[LABEL_COLUMN] or None) if has_labels else None)
    except csv.Error as error:
        raise DataError(f"is not CSV after line {reader.line_num} ({error})", file=text) from error
    return _not_empty(text, photos, labels)


def _parquet_manifest(text: str) -> PhotosAtPlace:
    try:
        import pyarrow
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise DataError(
            f"needs {error.name}, which is not installed",
            file=text,
            hint="pip install 'cprompt[parquet]'",
        ) from error
    with urls.opened(text) as file:
        try:
            column, has_labels = _columns(text, parquet.read_schema(file).names)
            file.seek(0)
            wanted = [column, *([LABEL_COLUMN] if has_labels else [])]
            table = parquet.read_table(file, columns=wanted)
        except (pyarrow.ArrowException, OSError) as error:
            raise DataError(
                f"is not a Parquet file, or is damaged ({error})", file=text, hint="write it again"
            ) from error
    paths = table[column].to_pylist()
    if any(not isinstance(path, str) for path in paths):
        raise DataError(f"has no text in column {column}; expected paths", file=text)
    found: list[Any] = table[LABEL_COLUMN].to_pylist() if has_labels else [None] * len(paths)
    photos = [_beside(text, path) for path in paths]
    # A label that is missing in a column of numbers is NaN, the one value that differs from itself.
    return _not_empty(
        text, photos, [None if label is None or label != label else str(label) for label in found]
    )


_READERS: dict[str, Callable[[str], PhotosAtPlace]] = {
    ".txt": _text_manifest,
    ".csv": _csv_manifest,
    ".tsv": _csv_manifest,
    ".parquet": _parquet_manifest,
}


def _read_text(text: str) -> str:
    with urls.opened(text) as file:
        try:
            return file.read().decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise DataError(f"is not UTF-8 text ({error})", file=text) from error


def _columns(text: str, columns: Sequence[str]) -> tuple[str, bool]:
    """The column of photos, and whether there is one of labels."""
    column = next((name for name in IMAGE_COLUMNS if name in columns), None)
    if column is None:
        raise DataError(
            f"has columns {', '.join(columns) or 'of no name'}; expected one of "
            f"{', '.join(IMAGE_COLUMNS)}, and {LABEL_COLUMN}",
            file=text,
            hint="name them in the first line",
        )
    return column, LABEL_COLUMN in columns


def _beside(manifest: str, path: str) -> str:
    """A path as a manifest has it, seen from here."""
    if urls.is_url(path) or os.path.isabs(path):
        return path
    if urls.is_url(manifest):
        return f"{manifest.rpartition('/')[0]}/{path}"
    return os.path.join(os.path.dirname(manifest), path)


def _not_empty(text: str, photos: list[str], labels: list[str | None]) -> PhotosAtPlace:
    if not photos:
        raise DataError("lists no photo", file=text)
    return PhotosAtPlace(photos, labels)
