"""The temporary folder of uploads."""

from __future__ import annotations

from pathlib import Path

from cprompt.serve.workspace import Workspace
from tests.serve.common import (
    files_below,
    photos_below,
)


def test_what_a_killed_service_left_is_removed_by_the_next(uploads: Path) -> None:
    killed, living = Workspace(), Workspace()
    for workspace in (killed, living):
        (workspace.new_folder() / "000000").write_bytes(b"somebody's photo")
    killed._lock.release()  # as the end of its process would
    stranger = uploads / "cprompt-serve-not-a-workspace"
    stranger.mkdir()
    third = Workspace()
    assert not killed.folder.exists()
    assert len(photos_below(living.folder)) == 1
    assert stranger.exists()
    third.close()
    living.close()
    assert files_below(uploads) == [stranger.name]


def test_a_link_in_the_temporary_folder_is_not_followed(uploads: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / ".lock").touch()
    (precious / "letter").write_text("dear")
    (uploads / "cprompt-serve-link").symlink_to(precious)
    Workspace().close()
    assert (precious / "letter").read_text() == "dear"
