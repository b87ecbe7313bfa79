"""Folders, manifests and tar files, local and by URL: the same photos with the same labels."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image

from cprompt.classifier.photo_places import photos_at
from cprompt.classifier.photo_sources import labelled
from cprompt.classifier.photos import load_photo
from cprompt.errors import DataError
from tests.data.test_tar_shards import tar_of

PHOTOS = {"bee/1.png": 10, "bee/in/2.png": 20, "ant/3.png": 30}
"""A grey for each photo; classes in another order than their names."""


def png(level: int) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (6, 4), (level, level, level)).save(out, "png")
    return out.getvalue()


def put(place: str, data: bytes) -> None:
    with fsspec.open(place, "wb", auto_mkdir=True) as file:
        file.write(data)


@pytest.fixture(params=["memory", "file", "path"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty place of each kind, with the photos in class folders."""
    found = {
        "memory": f"memory://{tmp_path.name}",
        "file": f"file://{tmp_path}",
        "path": str(tmp_path),
    }[request.param]
    for name, level in PHOTOS.items():
        put(f"{found}/photos/{name}", png(level))
    return found


def in_folder(root: str) -> str:
    return f"{root}/photos"


def in_text(root: str) -> str:
    lines = [f"photos/{name}\t{name.partition('/')[0]}\n" for name in PHOTOS]
    put(f"{root}/list.txt", "".join(lines).encode())
    return f"{root}/list.txt"


def in_csv(root: str) -> str:
    lines = [f"{name.partition('/')[0]},photos/{name}\n" for name in PHOTOS]
    put(f"{root}/list.csv", ("label,path\n" + "".join(lines)).encode())
    return f"{root}/list.csv"


def in_parquet(root: str) -> str:
    out = io.BytesIO()
    columns = {
        "file": [f"photos/{name}" for name in PHOTOS],
        "label": [name.partition("/")[0] for name in PHOTOS],
    }
    pyarrow.parquet.write_table(pyarrow.table(columns), out)
    put(f"{root}/list.parquet", out.getvalue())
    return f"{root}/list.parquet"


def in_tars(root: str) -> str:
    for number, (name, level) in enumerate(PHOTOS.items()):
        label = name.partition("/")[0].encode()
        put(f"{root}/tars/{number}.tar", tar_of({"1.png": png(level), "1.cls": label}))
    return f"{root}/tars/*.tar"


def in_folder_of_tars(root: str) -> str:
    return in_tars(root).removesuffix("/*.tar")


@pytest.mark.parametrize(
    "make", [in_folder, in_text, in_csv, in_parquet, in_tars, in_folder_of_tars]
)
def test_every_place_gives_the_same_photos(make: Callable[[str], str], root: str) -> None:
    photos, names = labelled(make(root))
    pairs = [
        (name, int(np.asarray(load_photo(photo, "item"))[0, 0, 0]))
        for photo, name in zip(photos, names, strict=True)
    ]
    expected = [(name.partition("/")[0], level) for name, level in PHOTOS.items()]
    assert pairs == (sorted(expected) if make is in_folder else expected)


@pytest.mark.parametrize("make", [in_folder, in_csv, in_tars])
def test_without_labels_all_photos_are_found(make: Callable[[str], str], root: str) -> None:
    assert len(photos_at(make(root), labelled=False).photos) == len(PHOTOS)


def test_one_photo_is_a_place_without_labels(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not exist; check the path"):
        photos_at(tmp_path / "a.png", labelled=False)
    (tmp_path / "a.png").touch()
    assert photos_at(tmp_path / "a.png", labelled=False) == ([tmp_path / "a.png"], [None])


def test_paths_of_a_manifest_may_be_absolute_or_urls(tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text("/a/1.jpg\nmemory://b/2.jpg\nc/3.jpg\n\n")
    found = photos_at(tmp_path / "list.txt", labelled=False)
    assert found.photos == ["/a/1.jpg", "memory://b/2.jpg", str(tmp_path / "c" / "3.jpg")]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"1.jpg\tcat\n2.jpg\n", r"no label for .*2\.jpg"),
        ("a.txt", b"\n", "lists no photo"),
        ("a.txt", b"\xff\xfe", "not UTF-8"),
        ("a.csv", b"picture,label\n1.jpg,cat\n", "has columns picture, label"),
        ("a.csv", b"path,label\n,cat\n", "no path in line 2"),
        ("a.csv", b"path\n1.jpg\n", "no label for"),
        ("a.csv", b"path,label\n1.jpg\n", r"no label for .*1\.jpg"),
        ("a.csv", b"path,label\n1.jpg,c\rat\n", "not CSV after line 1"),
        ("a.parquet", b"nothing", "not a Parquet file"),
        ("a.zip", b"", "is a file, not a folder"),
        ("*.tar/x.tar", None, "matches no file"),
    ],
)
def test_what_cannot_be_learnt_from_is_named(
    name: str, content: bytes | None, message: str, tmp_path: Path
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message) as error:
        photos_at(tmp_path / name, labelled=True)
    assert error.value.file == str(tmp_path / name)


def test_a_parquet_file_that_is_cut_short_or_damaged_is_named(tmp_path: Path) -> None:
    place = tmp_path / "a.parquet"
    table = pyarrow.table({"path": [f"{i}.jpg" for i in range(999)], "label": ["cat"] * 999})
    pyarrow.parquet.write_table(table, place)
    whole = place.read_bytes()
    for broken in (whole[:-9], whole[:200] + b"x" * 600 + whole[800:]):
        place.write_bytes(broken)
        with pytest.raises(DataError, match="is not a Parquet file, or is damaged") as error:
            photos_at(place, labelled=True)
        assert error.value.file == str(place)


@pytest.mark.parametrize("labels", [[1.5, float("nan")], ["cat", None]])
def test_a_label_that_is_missing_in_parquet_is_named(labels: list[Any], tmp_path: Path) -> None:
    place = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"path": ["1.jpg", "2.jpg"], "label": labels}), place)
    with pytest.raises(DataError, match=r"no label for .*2\.jpg"):
        photos_at(place, labelled=True)
    assert photos_at(place, labelled=False).labels == [str(labels[0]), None]
