"""Tar files as WebDataset writes them."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import fsspec
import pytest

from cprompt.data.tar_shards import read_index
from cprompt.errors import DataError


def tar_of(members: Mapping[str, bytes] | Sequence[tuple[str, bytes]]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, data in members.items() if isinstance(members, Mapping) else members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


MEMBERS = {
    "x/0001.jpg": b"first",
    "x/0001.cls": b"cat\n",
    "0002.txt": "né".encode(),  # the label may come before its image
    "0002.png": b"second one",
    "0003.jpg": b"third",
    "0003.json": b"{}",
    "._0001.jpg": b"of a Mac",
}


@pytest.mark.parametrize("root", ["memory://tars", "{tmp}"])
def test_images_come_in_order_with_their_labels_and_bytes(root: str, tmp_path: Path) -> None:
    place = root.format(tmp=tmp_path) + "/a.tar"
    with fsspec.open(place, "wb") as file:
        file.write(tar_of(MEMBERS))
    found = read_index(place)
    assert [entry.label for entry in found] == ["cat", "né", None]
    assert [entry.image.read() for entry in found] == [b"first", b"second one", b"third"]
    assert str(found[0].image) == f"{place}/x/0001.jpg"


def test_a_file_that_is_not_a_tar_or_has_no_image_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(b"no" * 700)
    (tmp_path / "b.tar").write_bytes(tar_of({"a.cls": b"cat"}))
    for name, message in (("a.tar", "not a plain tar"), ("b.tar", "no image")):
        with pytest.raises(DataError, match=message) as error:
            read_index(str(tmp_path / name))
        assert error.value.file == str(tmp_path / name)


def test_an_image_that_is_cut_short_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(tar_of({"1.jpg": b"whole"}))
    (entry,) = read_index(str(path))
    path.write_bytes(path.read_bytes()[: entry.image.offset + 2])
    with pytest.raises(DataError, match="ends in the middle"):
        entry.image.read()


@pytest.mark.parametrize(
    ("members", "what"),
    [
        ([("1.jpg", b"a"), ("1.cls", b"cat"), ("1.jpg", b"b")], "image of the key 1"),
        ([("x/1.jpg", b"a"), ("x/1.png", b"b")], "image of the key x/1"),
        ([("1.jpg", b"a"), ("1.cls", b"cat"), ("1.cls", b"dog")], "label of the key 1"),
    ],
)
def test_a_key_that_is_there_twice_is_named(
    members: list[tuple[str, bytes]], what: str, tmp_path: Path
) -> None:
    place = tmp_path / "a.tar"
    place.write_bytes(tar_of(members))
    with pytest.raises(DataError, match=f"has more than one {what}") as error:
        read_index(str(place))
    assert error.value.file == str(place)


def test_keys_may_be_equal_in_two_folders_and_a_caption_is_not_the_label(tmp_path: Path) -> None:
    members = {"x/1.jpg": b"a", "x/1.txt": b"a cat", "x/1.cls": b"cat", "y/1.jpg": b"b"}
    place = tmp_path / "a.tar"
    place.write_bytes(tar_of(members))
    found = [(entry.image.name, entry.label) for entry in read_index(str(place))]
    assert found == [("x/1.jpg", "cat"), ("y/1.jpg", None)]
