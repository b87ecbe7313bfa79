"""Jobs on disk."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path

import pytest

from cprompt.errors import ConfigError
from cprompt.serve.job import Job
from cprompt.serve.job_store import JobStore
from cprompt.serve.uploads import Upload, UploadedPhoto

FORGOTTEN = {"stop", "progress", "ending"}
"""Fields of a job that make sense in its process only."""


def store(folder: Path) -> JobStore:
    return JobStore(folder / "jobs.sqlite", lambda name: folder / "uploads" / name)


def some_job(folder: Path) -> Job:
    own = folder / "uploads" / "abc"
    upload = Upload([UploadedPhoto(own / "000000", "mug", "../m\u00fcg.jpg")], ["notes.txt"])
    job = Job("learn", upload, own, {"label": "x"}, "1234", "teach")
    job.state, job.started, job.starts, job.cancelled = "running", "now", 2, True
    job.error, job.result, job.promise = {"code": "c"}, {"model": "m"}, {"replaces": "r"}
    return job


def test_a_job_comes_back_as_it_was(tmp_path: Path) -> None:
    job = some_job(tmp_path)
    store(tmp_path).put(job, "one")
    back = store(tmp_path).get(job.id)
    assert back is not None
    for field in fields(Job):
        if field.name not in FORGOTTEN:
            assert getattr(back, field.name) == getattr(job, field.name), field.name


def test_an_unknown_job_is_none(tmp_path: Path) -> None:
    assert store(tmp_path).get("1") is None


def test_only_unfinished_jobs_of_the_dead_are_taken_over_and_once(tmp_path: Path) -> None:
    first = store(tmp_path)
    jobs = {name: some_job(tmp_path) for name in ("dead", "ended", "living", "later")}
    jobs["ended"].finished = "now"
    for name, job in jobs.items():
        first.put(job, "living" if name == "living" else "dead")
    second = store(tmp_path)
    taken = second.take_over("new", lambda service: service != "dead")
    assert [job.id for job in taken] == [jobs["dead"].id, jobs["later"].id]
    assert store(tmp_path).take_over("third", lambda service: service != "dead") == []
    assert [job.id for job in second.all()] == [job.id for job in jobs.values()]


def test_a_job_that_has_ended_stays_ended(tmp_path: Path) -> None:
    """A thread that has not heard of the end may still want to write something down."""
    kept = store(tmp_path)
    job = some_job(tmp_path)
    kept.put(replace(job, state="done", finished="now"), "one")
    job.cancelled = True
    kept.put(job, "one")
    back = kept.get(job.id)
    assert back is not None
    assert (back.state, back.finished) == ("done", "now")
    assert store(tmp_path).take_over("new", lambda service: False) == []


def test_of_two_threads_that_write_a_job_down_the_later_one_knows_more(tmp_path: Path) -> None:
    reading, read_on = threading.Event(), threading.Event()

    class Slow(list[UploadedPhoto]):
        """Photos that the first reader does not get past."""

        def __iter__(self) -> Iterator[UploadedPhoto]:
            if not reading.is_set():
                reading.set()
                assert read_on.wait(10)
            return super().__iter__()

    kept = store(tmp_path)
    job = some_job(tmp_path)
    job.upload, job.promise = Upload(Slow(job.upload.photos), []), None
    first = threading.Thread(target=kept.put, args=(job, "one"))
    first.start()
    assert reading.wait(10)
    job.promise = {"replaces": "r"}
    second = threading.Thread(target=kept.put, args=(job, "one"))
    second.start()
    second.join(0.5)
    read_on.set()
    first.join(10)
    second.join(10)
    back = kept.get(job.id)
    assert back is not None
    assert back.promise == job.promise


def test_only_the_last_ended_jobs_are_kept(tmp_path: Path) -> None:
    kept = store(tmp_path)
    jobs = [some_job(tmp_path) for _ in range(5)]
    for job in jobs:
        job.finished = None if job is jobs[0] else "now"
        kept.put(job, "one")
    kept.drop_old(2)
    assert [job.id for job in kept.all()] == [jobs[i].id for i in (0, 3, 4)]


def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    (tmp_path / "jobs.sqlite").write_bytes(b"something else entirely" * 100)
    with pytest.raises(ConfigError, match="move it away"):
        store(tmp_path)
