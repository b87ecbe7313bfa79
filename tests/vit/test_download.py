"""timm's weights: which are on this machine, and what is said at once if none can be had."""

from __future__ import annotations

import email.message
import hashlib
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import timm

from cprompt.errors import BackboneError
from cprompt.vit import download
from cprompt.vit.loading import PAPER_BACKBONE, load_backbone


@pytest.fixture
def nothing_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda repo, file: None)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)


def answering(monkeypatch: pytest.MonkeyPatch, error: Exception) -> list[tuple[str, float]]:
    asked: list[tuple[str, float]] = []

    def urlopen(request: urllib.request.Request, timeout: float) -> Any:
        asked.append((request.full_url, timeout))
        raise error

    monkeypatch.setattr(urllib.request, "urlopen", urlopen)
    return asked


def test_without_a_network_one_short_question_is_asked(
    monkeypatch: pytest.MonkeyPatch, nothing_cached: None
) -> None:
    asked = answering(monkeypatch, urllib.error.URLError("no route to host"))
    monkeypatch.setattr(timm, "create_model", lambda *_, **__: pytest.fail("tried to download"))
    with pytest.raises(BackboneError) as caught:
        load_backbone(PAPER_BACKBONE)
    [(address, timeout)] = asked
    assert address.endswith(f"timm/{PAPER_BACKBONE}/resolve/main/model.safetensors")
    assert timeout <= 10
    assert "no route to host" in caught.value.message
    assert caught.value.hint is not None
    assert address in caught.value.hint
    assert f"{PAPER_BACKBONE}.safetensors and pass --weights FILE" in caught.value.hint


def test_offline_by_choice_nothing_is_asked(
    monkeypatch: pytest.MonkeyPatch, nothing_cached: None
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    asked = answering(monkeypatch, OSError("asked"))
    with pytest.raises(BackboneError, match=r"HF_HUB_OFFLINE is set.*--weights FILE"):
        download.check_reachable(PAPER_BACKBONE)
    assert not asked


def test_a_server_that_answers_is_left_to_the_downloader(
    monkeypatch: pytest.MonkeyPatch, nothing_cached: None
) -> None:
    refused = urllib.error.HTTPError("u", 401, "gated", email.message.Message(), None)
    asked = answering(monkeypatch, refused)
    download.check_reachable(PAPER_BACKBONE)
    assert len(asked) == 1


def test_what_is_cached_is_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda repo, file: "/a/file")
    asked = answering(monkeypatch, OSError("asked"))
    assert download.is_cached(PAPER_BACKBONE)
    download.check_reachable(PAPER_BACKBONE)
    assert not asked


def test_weights_that_torch_fetched_are_found_in_its_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class About:
        hf_hub_id = None
        url = "https://example.org/some/net.pth"

    monkeypatch.setattr(timm, "get_pretrained_cfg", lambda name: About())
    monkeypatch.setattr(download.torch.hub, "get_dir", lambda: str(tmp_path))
    assert not download.is_cached("net.tag")
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "net.pth").touch()
    assert download.is_cached("net.tag")


def test_a_tag_may_be_left_out_if_there_is_only_one() -> None:
    assert download.with_tag("test_vit", "") == "test_vit.r160_in1k"
    assert download.with_tag("test_vit", "r160_in1k") == "test_vit.r160_in1k"
    with pytest.raises(BackboneError, match="no weights 'other' for test_vit; it has: test_vit"):
        download.with_tag("test_vit", "other")


# --- checking what was fetched ------------------------------------------------------------------


def in_cache(folder: Path, content: bytes, name: str) -> Path:
    """A file as the hub's cache stores it: a link to a blob that is named after its hash."""
    blob = folder / "blobs" / name
    blob.parent.mkdir()
    blob.write_bytes(content)
    link = folder / "model.safetensors"
    link.symlink_to(blob)
    return link


def fetching(monkeypatch: pytest.MonkeyPatch, file: Path) -> list[tuple[str, str]]:
    asked: list[tuple[str, str]] = []

    def hf_hub_download(repo: str, name: str) -> str:
        asked.append((repo, name))
        return str(file)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", hf_hub_download)
    return asked


def test_a_download_whose_hash_is_right_is_kept(
    monkeypatch: pytest.MonkeyPatch, nothing_cached: None, tmp_path: Path
) -> None:
    file = in_cache(tmp_path, b"weights", hashlib.sha256(b"weights").hexdigest())
    asked = fetching(monkeypatch, file)
    download.fetch(PAPER_BACKBONE)
    assert asked == [(f"timm/{PAPER_BACKBONE}", "model.safetensors")]
    assert file.exists()


def test_a_damaged_download_is_deleted_and_named(
    monkeypatch: pytest.MonkeyPatch, nothing_cached: None, tmp_path: Path
) -> None:
    file = in_cache(tmp_path, b"weig", hashlib.sha256(b"weights").hexdigest())
    fetching(monkeypatch, file)
    with pytest.raises(BackboneError, match=rf"{PAPER_BACKBONE} is damaged.*try again"):
        download.fetch(PAPER_BACKBONE)
    assert not file.is_symlink()
    assert not any((tmp_path / "blobs").iterdir())


def test_a_small_file_has_no_hash_to_compare(tmp_path: Path) -> None:
    file = in_cache(tmp_path, b"x", "0123abcd")
    download.check_download(file, "net.tag")
    assert file.exists()


def test_what_is_here_is_not_fetched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda repo, file: "/a/file")
    asked = fetching(monkeypatch, tmp_path)
    download.fetch(PAPER_BACKBONE)
    assert not asked
