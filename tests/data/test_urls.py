"""Files by URL: which texts are one, and what is said when one cannot be read."""

from __future__ import annotations

from pathlib import Path

import fsspec
import pytest

from cprompt.data.urls import file_system, files_below, is_folder, is_url, matching, opened
from cprompt.errors import DataError
from tests.waiting import soon


def put(url: str, data: bytes = b"x") -> str:
    with fsspec.open(url, "wb") as file:
        file.write(data)
    return url


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ("s3://bucket/a", True),
        ("memory://a", True),
        ("photos/cat", False),
        ("C:\\photos", False),
        (Path("s3://bucket"), False),
        (7, False),
    ],
)
def test_a_url_is_a_text_with_a_scheme(place: object, expected: bool) -> None:
    assert is_url(place) is expected


@pytest.mark.parametrize("scheme", ["memory://urls-read", "file://{tmp}", "{tmp}"])
def test_a_file_is_read_by_url_and_by_path(scheme: str, tmp_path: Path) -> None:
    place = scheme.format(tmp=tmp_path) + "/a.bin"
    put(place, b"seven")
    with opened(place) as file:
        assert file.read() == b"seven"


def test_all_that_is_not_hidden_below_a_url_is_listed_in_order() -> None:
    root = "memory://urls-list"
    names = ["b/2.jpg", "b/1.jpg", "a/deep/3.jpg", ".hidden/4.jpg", "a/.5.jpg"]
    for name in names:
        put(f"{root}/{name}")
    assert files_below(root) == [f"{root}/{n}" for n in ("a/deep/3.jpg", "b/1.jpg", "b/2.jpg")]
    assert is_folder(root)
    assert not is_folder(f"{root}/b/1.jpg")
    found = matching(f"{root}/b/*.jpg")
    assert [each.rpartition("/")[2] for each in found] == ["1.jpg", "2.jpg"]
    assert all(is_url(each) for each in found)


@pytest.mark.parametrize("place", ["memory://urls-none/a.jpg", "{tmp}/a.jpg"])
def test_a_missing_file_is_named(place: str, tmp_path: Path) -> None:
    place = place.format(tmp=tmp_path)
    with pytest.raises(DataError, match="does not exist") as error, opened(place):
        pass
    assert error.value.file == place


def test_a_scheme_that_fsspec_does_not_know_is_named() -> None:
    with pytest.raises(DataError, match="does not know carrier-pigeon://"):
        file_system("carrier-pigeon://home/1")


def test_a_scheme_whose_package_is_not_installed_is_told_with_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(url: str) -> None:
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr("fsspec.core.url_to_fs", missing)
    for ask in (file_system, is_folder, files_below, matching):
        with pytest.raises(DataError, match=r"not installed .*s3fs.*; install it") as error:
            ask("s3://bucket/*.tar")
        assert error.value.file == "s3://bucket/*.tar"


@pytest.mark.parametrize("scheme", ["file://", ""])
def test_a_pipe_is_refused_and_not_waited_for(pipe: Path, scheme: str) -> None:
    def look() -> None:
        with opened(f"{scheme}{pipe}"):
            pass

    with pytest.raises(DataError, match=rf"^{scheme}/.*pipe\.jpg: is a pipe, not a file"):
        soon(look)
