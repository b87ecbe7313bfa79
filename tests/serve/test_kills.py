"""A service killed with SIGKILL, in real processes: no job is lost, and none is done twice."""

from __future__ import annotations

from pathlib import Path

from benchmarks.serve_kills import measure
from cprompt import ContinualClassifier


def test_no_job_is_lost_or_done_twice_when_the_service_is_killed(tmp_path: Path) -> None:
    tiny = ContinualClassifier(
        "test_vit", weights="random:0", image_size=48, transform="plain", device="cpu"
    )
    result = measure(tmp_path, tiny, kills=3, seconds=600, seed=1)
    assert result["kills"] == 3
    assert result["jobs"] == result["jobs_done"] == 4  # and the first, which nobody disturbed
    assert result["jobs_lost"] == result["wrong_classes"] == result["photos_left"] == 0
    assert result["models_old"] + result["models_new"] == 3
    assert result["models_neither"] == 0
