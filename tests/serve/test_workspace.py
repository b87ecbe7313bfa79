"""The folder in which services keep their jobs and uploads."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from cprompt.errors import ConfigError
from cprompt.serve.workspace import Workspace
from tests.serve.common import files_below


def opened(folder: Path) -> Workspace:
    workspace = Workspace(folder)
    workspace.open()
    return workspace


def test_what_a_killed_service_left_is_removed_unless_a_job_needs_it(tmp_path: Path) -> None:
    killed, living = opened(tmp_path), opened(tmp_path)
    needed, forgotten, used = killed.new_folder(), killed.new_folder(), living.new_folder()
    assert killed._lock is not None
    killed._lock.release()  # as the end of its process would
    third = opened(tmp_path)
    assert third.lives(living.service)
    assert third.lives(third.service)
    third.sweep([needed.name])
    assert needed.exists()
    assert used.exists()
    assert not forgotten.exists()
    assert not third.lives(killed.service)


def test_no_name_leads_out_of_the_folder(tmp_path: Path) -> None:
    assert opened(tmp_path / "state").upload("../../etc").parent == tmp_path / "state" / "uploads"


def test_a_service_that_stops_leaves_no_lock(tmp_path: Path) -> None:
    opened(tmp_path).close()
    assert files_below(tmp_path) == ["services", "uploads"]


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
def test_without_permission_there_is_an_error_or_a_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write anywhere
    with pytest.raises(ConfigError, match="--state"):
        Workspace(tmp_path / "state")
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    workspace = Workspace(tmp_path / "state", or_temporary=True)
    workspace.open()
    assert workspace.folder.parent == tmp_path / "temporary"
    workspace.close()
    assert files_below(tmp_path) == ["temporary"]
