"""One job: what it counts, and how a learner's progress becomes its own."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from cprompt.serve.job import Job, JobObserver, Progress, StoppedError
from cprompt.serve.uploads import Upload, UploadedPhoto


def new_job() -> Job:
    photos = [UploadedPhoto(Path(str(i)), label, f"{i}.png") for i, label in enumerate("aba")]
    return Job("learn", Upload(photos, []), None)


def test_a_job_counts_photos_per_class() -> None:
    assert new_job().photos == {"a": 2, "b": 1}


def test_a_learners_progress_is_shown_phase_by_phase() -> None:
    job = new_job()
    observer = JobObserver(job, "learning")
    observer.decoded(1, 3)
    assert job.progress == Progress("reading photos", 1, 3)
    observer.decoded(3, 3)
    assert job.progress == Progress("learning")
    observer.task_begins(0, 2, steps=2, done=0)
    observer.stepped(0, ("loss",), torch.zeros(1))
    assert job.progress == Progress("learning", 1, 2)
    observer.stepped(0, ("loss",), torch.zeros(1))
    assert job.progress == Progress("finishing")


def test_photos_that_are_counted_are_shown() -> None:
    job = new_job()
    JobObserver(job, "learning").counted(2, 3)
    assert job.progress == Progress("learning", 2, 3)


def test_progress_does_not_run_back_while_more_photos_are_read() -> None:
    job = new_job()
    observer = JobObserver(job, "learning")
    observer.decoded(256, 300)
    observer.counted(256, 300)
    observer.decoded(257, 300)
    assert job.progress == Progress("learning", 256, 300)
    observer.decoded(300, 300)
    assert job.progress == Progress("learning", 256, 300)
    job.stop.set()
    with pytest.raises(StoppedError):
        observer.decoded(300, 300)


def test_what_a_learner_notices_is_kept_in_the_senders_words() -> None:
    photos = [UploadedPhoto(Path(f"/private/00000{i}"), "a", f"cat {i}.png") for i in range(2)]
    job = Job("learn", Upload(photos, []), None)
    observer = JobObserver(job, "learning")
    observer.noticed("1 photos are there twice: /private/000000 = /private/000001")
    observer.noticed("and more")
    assert job.warnings == ["1 photos are there twice: cat 0.png = cat 1.png", "and more"]


def test_a_job_that_is_asked_to_stop_stops_its_learner() -> None:
    job = new_job()
    job.stop.set()
    with pytest.raises(StoppedError):
        JobObserver(job, "learning").stepped(0, ("loss",), torch.zeros(1))
    assert job.progress == Progress("waiting")
