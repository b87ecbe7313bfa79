"""Learning one batch of photos: training, then calibration on the photos held out."""

from __future__ import annotations

import copy
import dataclasses
import time
from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timezone

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cprompt.classifier import calibration
from cprompt.classifier.answers import joined, responses
from cprompt.classifier.held_out import choose_held_out, first_of_each, spread
from cprompt.classifier.parameters import Parameters
from cprompt.classifier.state import LearntBatch, ModelState
from cprompt.data.pipeline.decoded import DecodedImages
from cprompt.data.pipeline.loader import BatchLoader
from cprompt.data.pipeline.views import Preparation
from cprompt.device import pick_device
from cprompt.methods.base import Method
from cprompt.seeds import mix
from cprompt.training.learner import Learner
from cprompt.training.observers import Observer
from cprompt.training.settings import Seeds

FEWEST, MOST = 5, 1000
"""Fewest held-out photos for a calibration, and the most that are used. Without a limit, cost would
grow with the square of the number of classes."""


def learn_batch(
    parameters: Parameters,
    start: ModelState,
    images: DecodedImages,
    labels: Sequence[str],
    preparation: Preparation,
    observer: Observer,
) -> ModelState:
    """The state after learning another batch, without its id; `start` does not change.

    `images[i]` is of class `labels[i]`; `preparation` turns images into the network's input.
    """
    clock = time.perf_counter()
    when = datetime.now(timezone.utc).isoformat(timespec="seconds")
    method = _copy_of(start.method)
    task, known = method.n_tasks, method.n_classes
    arrivals = {name: known + i for i, name in enumerate(dict.fromkeys(labels))}
    targets = np.array([arrivals[name] for name in labels], dtype=np.int64)
    held = choose_held_out(targets, parameters.hold_out, mix(parameters.seed, task))
    taught = np.flatnonzero(~held)

    training = parameters.training_for(len(taught))
    device = pick_device(parameters.device)
    loader = BatchLoader(
        images.subset(taught),
        targets[taught],
        preparation,
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
        observer=observer,
    )
    observer.stream_begins(task + 1)
    epochs = learner.learn_task(len(arrivals), loader)

    names = tuple(dict.fromkeys([*start.names, *arrivals]))
    index = {name: i for i, name in enumerate(names)}
    learnt = dataclasses.replace(
        start,
        method=method,
        names=names,
        name_of=(*start.name_of, *(index[name] for name in arrivals)),
    )
    shown = images.subset(np.flatnonzero(held))
    responded = responses(method, shown, preparation, device, precision=training.precision)
    features = joined([each.feature for each in responded])
    learnt, calibrated = _calibrated(parameters, learnt, features, targets[held])
    batch = LearntBatch(
        number=task + 1,
        when=when,
        photos=dict(Counter(labels)),
        new=[name for name in arrivals if name not in start.names],
        returning=[name for name in arrivals if name in start.names],
        held_out=int(held.sum()),
        calibrated=calibrated,
        temperature=learnt.temperature,
        threshold=learnt.threshold,
        seconds=round(time.perf_counter() - clock, 3),
        steps=len(epochs) * len(loader),
        before=start.model_id,
    )
    return dataclasses.replace(learnt, history=(*start.history, batch))


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


def _copy_of(method: Method) -> Method:
    """A copy of the method on the same backbone."""
    return copy.deepcopy(method, {id(method.backbone): method.backbone})
