"""The model that is served, and what jobs do to it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec, TypeVar

import torch
from PIL import Image

from cprompt.classifier import model_folder
from cprompt.classifier.classifier import ContinualClassifier
from cprompt.classifier.explanation import Explanation
from cprompt.data.pipeline.processes import only_threads
from cprompt.serve.audit import note_change
from cprompt.serve.budget import Budget
from cprompt.serve.config import ServeConfig
from cprompt.serve.job import Job, JobObserver, StoppedError
from cprompt.serve.job_queue import JobQueue
from cprompt.serve.metrics import Metrics
from cprompt.serve.prediction_queue import Answered, PredictionQueue
from cprompt.serve.promises import done_already
from cprompt.serve.served_model import Load, ServedModel
from cprompt.serve.workspace import Workspace

TOP = 100
"""Largest number of classes in a ranking."""

P = ParamSpec("P")
T = TypeVar("T")


class Asked(NamedTuple):
    """An image to answer; `parts`: also which parts of it spoke for the answer."""

    image: Image.Image
    parts: bool = False


class Service:
    """Predictions by one version of the model while jobs make the next.

    A job works on its own copy, loaded from the folder. Once the copy is saved it replaces
    `model.current`, so predictions never wait for a job and never see half of one.
    """

    def __init__(self, folder: Path, config: ServeConfig, load: Load) -> None:
        self.folder = folder.absolute()
        self.model = ServedModel(self.folder, load)
        self.config = config
        self.metrics = Metrics()
        self._threads = torch.get_num_threads()
        limits = config.limits
        self.predictions: PredictionQueue[Asked, Explanation] = PredictionQueue(
            self._begin_pass,
            passes=limits.passes,
            max_pass=limits.max_pass,
            max_waiting=limits.max_waiting,
            seconds=limits.pass_seconds,
            on_pass=self.metrics.passed,
        )
        state = config.state_folder(self.folder)
        self._workspace = Workspace(state, or_temporary=config.read_only)
        self.jobs = JobQueue(
            self._workspace,
            limits.max_jobs,
            self._work,
            private=self.private,
            on_end=self._job_ended,
        )
        self.decoded = Budget(limits.max_decoded)
        self.decoding = Budget(limits.max_decoded)
        self.decoders = ThreadPoolExecutor(limits.decoders, thread_name_prefix="cprompt-decode")
        watch = self.metrics.watch
        watch("waiting", "Prediction requests under way.", lambda: self.predictions.admitted)
        watch("jobs_waiting", "Jobs waiting or under way.", lambda: self.jobs.unfinished)
        watch("classes", "Classes the model knows.", lambda: len(self.current.classes_))
        watch("batches", "Batches the model has learnt.", lambda: len(self.current.history_))

    def start(self) -> None:
        """Begin to answer; call it on the event loop."""
        self.jobs.start()
        self.model.start()
        self.predictions.start()

    async def close(self) -> None:
        """Stop everything; a job that is being saved is finished first."""
        await self.predictions.close()
        self.decoders.shutdown(wait=True, cancel_futures=True)
        self.model.close()
        self.jobs.close()

    async def in_decoder(self, work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `work` in one of the decoding threads."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.decoders, partial(work, *args, **kwargs))

    @property
    def current(self) -> ContinualClassifier:
        """The version that answers."""
        return self.model.current

    @property
    def private(self) -> tuple[str, ...]:
        """Folders that no message to a client may mention."""
        return str(self.folder), str(self.folder.resolve())

    @property
    def input_side(self) -> int:
        """Side of the network's square input, in pixels."""
        return self.current.preparation_.size

    def describe(self) -> dict[str, Any]:
        """What the present version knows: the first fields of `schemas.ModelInfo`."""
        classifier = self.current
        history = classifier.history_
        return {
            "model": classifier.model_id,
            "before": model_folder.previous_id(self.folder),
            "classes": [
                {
                    "label": name,
                    "photos": sum(batch.photos.get(name, 0) for batch in history),
                    "batches": [batch.number for batch in history if name in batch.photos],
                }
                for name in classifier.classes_
            ],
            "history": [asdict(batch) for batch in history],
            "about": {
                "backbone": classifier.backbone,
                "method": classifier.method,
                "image_size": self.input_side,
                "temperature": classifier.temperature_,
                "threshold": classifier.threshold_,
            },
        }

    def _begin_pass(self, alone: bool) -> Callable[[list[Asked]], Answered[Explanation]]:
        classifier = self.current
        alone = alone and self.jobs.idle
        torch.set_num_threads(self._threads if alone else _half(self._threads))

        def answer(asked: list[Asked]) -> Answered[Explanation]:
            answers = classifier.explain([each.image for each in asked], top=TOP)
            for i, each in enumerate(asked):
                if each.parts:
                    (answers[i],) = classifier.explain([each.image], top=TOP, parts=True)
            return Answered(classifier.model_id, answers)

        return answer

    def _job_ended(self, job: Job) -> None:
        note_change(self._workspace.folder, job)
        self.metrics.job_ended(job)

    # --- jobs, in the jobs' thread --------------------------------------------------------------

    def _work(self, job: Job) -> dict[str, Any]:
        torch.set_num_threads(_half(self._threads))
        with only_threads():  # processes would take all cores from predictions
            return self._done(job)

    def _done(self, job: Job) -> dict[str, Any]:
        if job.kind == "evaluate":
            return self._evaluate(job)
        with self.model.changing(job):
            result = done_already(job, self.folder)
            if result is not None:
                return result
            if job.cancelled:
                raise StoppedError
            self.model.check(job.expects)
            return self._undo(job) if job.kind == "undo" else self._change(job)

    def _change(self, job: Job) -> dict[str, Any]:
        """Change a copy of the model as the job says, save it, and serve it."""
        classifier = self.model.load()
        replaces = classifier.model_id
        if job.kind == "learn":
            job.warnings = []  # of an earlier start
            classifier.learn(_pairs(job), observer=JobObserver(job, "learning"))
        elif job.kind == "rename":
            classifier.rename(job.arguments["label"], job.arguments["new"])
        elif job.kind == "forget":
            classifier.forget(job.arguments["label"])
        elif job.kind == "merge":
            classifier.merge_classes(job.arguments["label"], job.arguments["into"])
        result: dict[str, Any] = {"model": classifier.model_id}
        if job.kind == "learn":
            result["batch"] = asdict(classifier.history_[-1])
        self._promise(job, replaces, result)
        classifier.save(self.folder)
        self.model.answer_with(classifier)
        return result

    def _evaluate(self, job: Job) -> dict[str, Any]:
        """Measure the model's accuracy on the job's photos."""
        classifier = self.model.load()
        evaluation = classifier.evaluate(_pairs(job), observer=JobObserver(job, "evaluating"))
        return {"model": classifier.model_id, **evaluation.to_dict()}

    def _undo(self, job: Job) -> dict[str, Any]:
        """Go back to before the last change."""
        before = model_folder.previous_id(self.folder)
        if before is not None:
            self._promise(job, model_folder.read_about(self.folder)["model"], {"model": before})
        model_folder.undo(self.folder)
        classifier = self.model.load()
        self.model.answer_with(classifier)
        return {"model": classifier.model_id}

    def _promise(self, job: Job, replaces: str, result: dict[str, Any]) -> None:
        """Note what saving will make of the model, so that it is not done twice after a kill."""
        job.show("saving")
        job.promise = {"replaces": replaces, "result": result}
        self.jobs.record(job)


def _half(threads: int) -> int:
    """Threads for a pass or a job that shares the machine.

    PyTorch's threads wait for each other after every operation: two passes with a thread each do
    more than one with two. PyTorch keeps this number separately for each calling thread.
    """
    return max(1, threads // 2)


def _pairs(job: Job) -> list[tuple[Path, str]]:
    """(photo, label) pairs, as the classifier takes them."""
    return [(photo.path, photo.label) for photo in job.upload.photos]
