"""Learning one batch of photos: counting it in one pass, or training and then calibration."""

from __future__ import annotations

import copy
import dataclasses
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cprompt.classifier import calibration
from cprompt.classifier.answers import joined, responses
from cprompt.classifier.batch_checks import RepeatedPhotos
from cprompt.classifier.doubtful_labels import notice_doubtful
from cprompt.classifier.held_out import choose_held_out, first_of_each, spread
from cprompt.classifier.parameters import Parameters
from cprompt.classifier.photos import PhotoLike, decode, decode_in_parts
from cprompt.classifier.state import LearntBatch, ModelState
from cprompt.data.pipeline.decoded import DecodedImages
from cprompt.data.pipeline.loader import BatchLoader
from cprompt.data.pipeline.views import Preparation
from cprompt.device import inputs_at_once, pick_device
from cprompt.methods.base import Method
from cprompt.seeds import generator, mix
from cprompt.training.learner import Learner, counted_batches
from cprompt.training.observers import Observer
from cprompt.training.settings import Seeds
from cprompt.vit.promptable import Embedded

DECODED_AT_ONCE = 256
"""Photos that are decoded, then counted, at a time."""

JUDGED = 20, 5000
"""Fewest and most photos of a batch whose labels are judged while learning: with fewer there is
little to compare with, and with more their features would fill the memory."""

FEWEST, MOST = 5, 1000
"""Fewest held-out photos for a calibration, and the most that are used. Without a limit, cost would
grow with the square of the number of classes."""


def learn_batch(
    parameters: Parameters,
    start: ModelState,
    photos: Sequence[PhotoLike],
    labels: Sequence[str],
    preparation: Preparation,
    observer: Observer,
) -> ModelState:
    """The state after learning another batch, without its id; `start` does not change.

    `photos[i]` is of class `labels[i]`; `preparation` turns images into the network's input.
    """
    clock = time.perf_counter()
    when = datetime.now(timezone.utc).isoformat(timespec="seconds")
    method = copy_of(start.method)
    observer.stream_begins(method.n_tasks + 1)
    batch = _Batch(parameters, start, photos, labels, preparation, observer)
    learnt = batch.counted(method) if _is_counted(method) else batch.trained(method)
    return _entered(start, learnt, labels, when, clock)


def learn_absorbed(
    parameters: Parameters,
    start: ModelState,
    counted: Method,
    names: Sequence[str],
    labels: Sequence[str],
    seconds: float,
) -> ModelState:
    """The state after a batch that was counted elsewhere, without its id.

    `counted` knows the classes `names`; `labels` has one for each photo that was counted, which
    took so many seconds.
    """
    clock = time.perf_counter() - seconds
    when = datetime.now(timezone.utc).isoformat(timespec="seconds")
    method, task = copy_of(start.method), start.method.n_tasks
    known = tuple(dict.fromkeys([*start.names, *names]))
    position = {name: at for at, name in enumerate(known)}
    device = pick_device(parameters.device)
    method.begin_task(len(known) - len(start.names), generator(parameters.seed, task))
    method.to(device)
    method.backbone.to(device)
    method.absorb(counted.to(device), [position[name] for name in names])
    method.end_task(())
    method.close_task()
    state = dataclasses.replace(start, method=method, names=known, name_of=tuple(range(len(known))))
    learnt = _Learnt(*with_threshold(state, parameters.accept))
    return _entered(start, learnt, labels, when, clock)


def require_counting(method: Method, empty: Method) -> None:
    """Raise a ModelError unless the next batch of `method` can be counted in parts."""
    trial = copy_of(method)
    trial.begin_task(1, torch.Generator())
    trial.absorb(empty, [])


def _entered(
    start: ModelState, learnt: _Learnt, labels: Sequence[str], when: str, clock: float
) -> ModelState:
    """What was learnt, with an entry in its history."""
    entry = LearntBatch(
        number=start.method.n_tasks + 1,
        when=when,
        photos=dict(Counter(labels)),
        new=[name for name in dict.fromkeys(labels) if name not in start.names],
        returning=[name for name in dict.fromkeys(labels) if name in start.names],
        held_out=learnt.held_out,
        calibrated=learnt.calibrated,
        temperature=learnt.state.temperature,
        threshold=learnt.state.threshold,
        seconds=round(time.perf_counter() - clock, 3),
        steps=learnt.steps,
        before=start.model_id,
    )
    return dataclasses.replace(learnt.state, history=(*start.history, entry))


@dataclass(frozen=True)
class _Learnt:
    """A state without its history, and how it came about."""

    state: ModelState
    calibrated: bool
    held_out: int = 0
    steps: int = 0


@dataclass(frozen=True)
class _Batch:
    """Photos to learn, and where from; see `learn_batch`."""

    parameters: Parameters
    start: ModelState
    photos: Sequence[PhotoLike]
    labels: Sequence[str]
    preparation: Preparation
    observer: Observer

    def counted(self, method: Method) -> _Learnt:
        """Learn in one pass: every photo is decoded and seen once, a part of them at a time."""
        parameters, task = self.parameters, method.n_tasks
        names = tuple(dict.fromkeys([*self.start.names, *self.labels]))
        new = len(names) - len(self.start.names)
        position = {name: at for at, name in enumerate(names)}
        device = pick_device(parameters.device)
        method.begin_task(new, generator(parameters.seed, task))
        method.to(device)
        method.backbone.to(device)
        self.observer.task_begins(task, new, 0, 0)
        if JUDGED[0] <= len(self.photos) <= JUDGED[1]:
            method.remember()
        method.end_task(
            counted_photos(
                parameters,
                method,
                self.photos,
                [position[name] for name in self.labels],
                self.preparation,
                self.observer,
                self.labels,
                self.start.method.kept_keys(),
            )
        )
        method.close_task()
        state = dataclasses.replace(
            self.start, method=method, names=names, name_of=tuple(range(len(names)))
        )
        judged = method.judge()
        if judged is not None:
            p = state.probabilities(judged.cpu())
            notice_doubtful(p, names, self.labels, self.photos, self.observer)
        return _Learnt(*with_threshold(state, parameters.accept))

    def trained(self, method: Method) -> _Learnt:
        """Train on the photos of the batch, but for some that calibrate the result."""
        parameters, start, labels = self.parameters, self.start, self.labels
        repeated = RepeatedPhotos()
        side = self.preparation.size
        images = decode(self.photos, side, self.observer.decoded, inspection=repeated.inspection)
        repeated.check(self.photos, labels, self.observer)
        task, known = method.n_tasks, method.n_classes
        arrivals = {name: known + i for i, name in enumerate(dict.fromkeys(labels))}
        targets = np.array([arrivals[name] for name in labels], dtype=np.int64)
        can_tell = method.left_out() is not None
        share = 0.0 if can_tell else parameters.hold_out
        held = choose_held_out(targets, share, mix(parameters.seed, task))
        taught = np.flatnonzero(~held)

        training = parameters.training_for(len(taught))
        device = pick_device(parameters.device)
        loader = BatchLoader(
            images.subset(taught),
            targets[taught],
            self.preparation,
            training.batch_size,
            seed=mix(parameters.seed, task),
            device=device,
        )
        learner = Learner(
            method,
            training,
            Seeds(init=parameters.seed, data=parameters.seed),
            device,
            first_task=task,
            observer=self.observer,
        )
        epochs = learner.learn_task(len(arrivals), loader)

        names = tuple(dict.fromkeys([*start.names, *arrivals]))
        index = {name: i for i, name in enumerate(names)}
        state = dataclasses.replace(
            start,
            method=method,
            names=names,
            name_of=(*start.name_of, *(index[name] for name in arrivals)),
        )
        if can_tell:
            state, calibrated = with_threshold(state, parameters.accept)
        else:
            shown = images.subset(np.flatnonzero(held))
            precision = training.precision
            responded = responses(method, shown, self.preparation, device, precision=precision)
            features = joined([each.feature for each in responded])
            state, calibrated = _calibrated(parameters, state, features, targets[held])
        return _Learnt(state, calibrated, int(held.sum()), len(epochs) * len(loader))


def counted_photos(
    parameters: Parameters,
    method: Method,
    photos: Sequence[PhotoLike],
    positions: Sequence[int],
    preparation: Preparation,
    observer: Observer,
    labels: Sequence[str] | None = None,
    before: Collection[int] = (),
) -> Iterator[tuple[Embedded, Tensor]]:
    """Photos for `Method.end_task`, decoded a part at a time, so that memory does not grow.

    With `labels`, photos of the same content are reported after the last one, also those whose
    content keys are in `before`; see `RepeatedPhotos`.
    """
    repeated, first = RepeatedPhotos(), 0
    device = pick_device(parameters.device)
    for images in decode_in_parts(
        photos, preparation.size, DECODED_AT_ONCE, observer.decoded, repeated.inspection, device
    ):
        numbers = range(first, first + len(images))
        part = positions[first : numbers.stop]
        keys = repeated.keys(numbers)
        done = first
        for embedded, targets in counted_images(
            parameters, method, images, part, preparation, keys
        ):
            yield embedded, targets
            done += len(targets) // embedded.views
            observer.counted(done, len(photos))
        first = numbers.stop
    if labels is not None:
        repeated.check(photos, labels, observer, before)


def counted_images(
    parameters: Parameters,
    method: Method,
    images: DecodedImages,
    positions: Sequence[int],
    preparation: Preparation,
    keys: NDArray[np.int64] | None = None,
) -> Iterator[tuple[Embedded, Tensor]]:
    """Decoded images for `Method.count_images`, embedded batch by batch.

    `keys` are their content keys, if they are known.
    """
    device, precision = pick_device(parameters.device), parameters.training_for(1).precision
    targets = np.asarray(positions, dtype=np.int64)
    workers = images.view_threads
    loader = BatchLoader(
        images,
        targets,
        preparation,
        inputs_at_once(device),
        seed=None,
        device=device,
        workers=workers,
        keys=keys,
    )
    yield from counted_batches(method, loader, precision)


def with_threshold(state: ModelState, accept: float) -> tuple[ModelState, bool]:
    """Fit the threshold to photos left out; whether there were enough to do so."""
    left_out = state.method.left_out()
    calibrated = left_out is not None and len(left_out.position) >= FEWEST
    threshold = 0.0
    if left_out is not None and calibrated:
        familiar = left_out.familiar.double().cpu().numpy()
        threshold = calibration.fit_threshold(familiar, accept)
    return dataclasses.replace(state, temperature=1.0, threshold=threshold), calibrated


def _is_counted(method: Method) -> bool:
    """Whether the next task is learnt in one pass, without training, returning classes included."""
    if not method.takes_returning:
        return False
    trial = copy_of(method)
    trial.begin_task(1, torch.Generator())
    return not any(parameter.requires_grad for parameter in trial.parameters())


def _calibrated(
    parameters: Parameters,
    state: ModelState,
    features: Tensor | None,
    positions: NDArray[np.int64],
) -> tuple[ModelState, bool]:
    """Fit temperature and threshold on held-out photos of this batch and of earlier ones.

    `features` (n, …) and `positions` (n,) are those of this batch. The second value is whether
    there were enough photos to calibrate.
    """
    method, shown = state.method, torch.from_numpy(positions)
    device = next(method.backbone.parameters()).device
    if not method.features_are_final:
        state = dataclasses.replace(state, kept=torch.zeros(0), kept_positions=shown[:0])
    if len(state.kept):
        features = state.kept if features is None else torch.cat([state.kept, features])
        shown = torch.cat([state.kept_positions, shown])
    if features is None:
        return state, False
    calibrated = len(shown) >= FEWEST
    if calibrated:
        some = spread(shown, MOST)
        with torch.no_grad():
            logits = method.answer(features[some].to(device)).cpu()
        truth = state.owners[shown[some].numpy()]
        temperature = calibration.fit_temperature(
            logits.numpy(), truth, state.owners, len(state.names)
        )
        top = state.probabilities(logits, temperature).max(axis=1)
        threshold = calibration.fit_threshold(top, parameters.accept)
        state = dataclasses.replace(state, temperature=temperature, threshold=threshold)
    keep = first_of_each(shown, parameters.keep_held_out) if method.features_are_final else []
    return dataclasses.replace(state, kept=features[keep], kept_positions=shown[keep]), calibrated


def copy_of(method: Method) -> Method:
    """A copy of the method on the same backbone."""
    return copy.deepcopy(method, {id(method.backbone): method.backbone})
