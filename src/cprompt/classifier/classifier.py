"""The classifier that keeps learning: photos in, names out, batch by batch, no photo kept.

A researcher's method with a folder in front. One batch of photos is one task. A method numbers
classes by arrival and never changes an old one; here names stand before those positions. A class
that comes back gets a new position in the new task, beside the one it has, and its probability is
the sum of both: what was known is added to, never overwritten.

What stays of the photos: what the method learnt (for CPrompt prompts, keys, heads, and mean and
spread of features), and of each class the features of up to three photos that were held out, for
calibration.
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import timm
import torch
from numpy.typing import NDArray
from safetensors.torch import save as to_bytes
from torch import Tensor

from cprompt.classifier import calibration, model_folder, photo_sources
from cprompt.classifier.evaluation import ClassResult as ClassResult
from cprompt.classifier.evaluation import Evaluation as Evaluation
from cprompt.classifier.evaluation import assess
from cprompt.classifier.photo_sources import UNKNOWN
from cprompt.classifier.photos import PhotoLike, decode, decode_in_parts
from cprompt.classifier.prediction import Answers, predict
from cprompt.data.pipeline import views
from cprompt.data.pipeline.decoded import DecodedImages
from cprompt.data.pipeline.loader import BatchLoader
from cprompt.data.pipeline.views import NORMALIZATIONS, RECIPES, Preparation
from cprompt.device import pick_device
from cprompt.errors import BackboneError, ConfigError, DataError, ModelError
from cprompt.files import under_prefix, with_prefix
from cprompt.methods.base import Method, create_method, rebuild
from cprompt.methods.parts.gaussians import GaussianKeys
from cprompt.methods.parts.keys import PromptKeys
from cprompt.methods.registry import method_class
from cprompt.seeds import generator, mix
from cprompt.settings import check, from_mapping, to_mapping
from cprompt.training.learner import Learner, Position
from cprompt.training.observers import Observer
from cprompt.training.settings import Seeds, TrainingConfig
from cprompt.vit import embedded
from cprompt.vit.identity import describe_backbone
from cprompt.vit.loading import load_backbone
from cprompt.vit.promptable import FrozenViT

SETTINGS: dict[str, dict[str, Any]] = {"cprompt": {"align": True, "length": 5}}
"""What the classifier asks of a method unless told otherwise, where it differs from the method's
own defaults."""

TRAINING: dict[str, Any] = {"lr": 0.05}
"""How a batch is learnt unless told otherwise; `epochs_for` says how long."""

FEWEST, MOST = 5, 1000
"""Held-out photos below which nothing is calibrated, and how many at most are used for it: their
number grows with the classes, and so do the logits of each."""

AT_ONCE = 512
"""Photos to decode before they are answered."""

FIRST_TEMPERATURE: dict[str, float] = {"cprompt": 10.0}
"""Temperature before anything was calibrated, where 1 would be far from right: class statistics of
a few photos each are much too sure of themselves."""

_STRUCTURE = ("backbone", "method", "weights", "image_size", "settings", "normalization")
"""Parameters that what was learnt depends on."""


@dataclass(frozen=True)
class LearntBatch:
    """One call of `learn`."""

    number: int
    """From 1."""
    when: str
    """UTC, ISO 8601."""
    photos: dict[str, int]
    """By class, the held-out ones included."""
    new: list[str]
    returning: list[str]
    held_out: int
    calibrated: bool
    """Whether there were enough held-out photos to fit temperature and threshold anew."""
    temperature: float
    threshold: float
    seconds: float
    steps: int
    before: str
    """The model's id before this batch; empty for the first."""


@dataclass(frozen=True)
class Explanation:
    """Why a photo was answered as it was."""

    label: str
    """The answer; `UNKNOWN` where `known` is false."""
    probability: float
    """Of the best name, whether or not it was answered."""
    known: bool
    ranking: list[tuple[str, float]]
    """The best names with their probabilities."""
    prompt: int | None
    """Number of the batch, from 1, whose prompt was used; None where a method has none a batch."""
    nearest_keys: list[tuple[str, float]]
    """Names whose keys are nearest to the photo's query, with the cosine."""
    score: float
    """The largest logit, before calibration."""


@dataclass(frozen=True)
class _State:
    """All that was learnt so far. Never changed: another batch makes another state."""

    method: Method
    names: tuple[str, ...] = ()
    name_of: tuple[int, ...] = ()
    """For every position the index of its name."""
    history: tuple[LearntBatch, ...] = ()
    temperature: float = 1.0
    threshold: float = 0.0
    kept: Tensor = field(default_factory=lambda: torch.zeros(0))
    """Features of held-out photos of earlier batches (k, …), on the CPU."""
    kept_positions: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.long))
    model: str = ""

    def probabilities(self, logits: Tensor, temperature: float | None = None) -> NDArray[Any]:
        """(n, names), calibrated unless another temperature is given."""
        return calibration.name_probabilities(
            logits.numpy(),
            np.asarray(self.name_of, dtype=np.int64),
            len(self.names),
            temperature or self.temperature,
        )


C = TypeVar("C", bound="ContinualClassifier")


class ContinualClassifier:
    """Learns photos batch by batch and tells what is on others; knows when it does not know.

    Parameters are as given, as scikit-learn has it, so `get_params`, `set_params` and its `clone`
    work. Nothing is loaded before the first batch is learnt.

    - `backbone`, `weights`, `image_size`: see `cprompt.load_backbone`.
    - `method`, `settings`: any registered method, and its settings.
    - `training`: settings of `cprompt.training.settings.TrainingConfig`, over `TRAINING`.
    - `transform`: a recipe of `cprompt.data.pipeline.views`.
    - `normalization`: a name from there, or "auto", the backbone's own.
    - `hold_out`: share of each class's photos in a batch that calibrates instead of training.
    - `accept`: share of held-out photos that must not be called unknown.
    - `keep_held_out`: of how many held-out photos of a class the features are kept, so that later
      batches can calibrate on them; 0 keeps nothing of any single photo.
    - `seed`: of everything random.
    """

    def __init__(
        self,
        backbone: str = "auto",
        method: str = "cprompt",
        *,
        weights: str | None = None,
        image_size: int | None = None,
        settings: Mapping[str, Any] | None = None,
        training: Mapping[str, Any] | None = None,
        transform: str = "photo",
        normalization: str = "auto",
        hold_out: float = 0.15,
        accept: float = 0.95,
        keep_held_out: int = 3,
        seed: int = 0,
        device: str = "auto",
        precision: str = "fp32",
    ) -> None:
        self.backbone = backbone
        self.method = method
        self.weights = weights
        self.image_size = image_size
        self.settings = settings
        self.training = training
        self.transform = transform
        self.normalization = normalization
        self.hold_out = hold_out
        self.accept = accept
        self.keep_held_out = keep_held_out
        self.seed = seed
        self.device = device
        self.precision = precision
        self._check()
        self._vit: FrozenViT | None = None
        self._state: _State | None = None
        self._before: list[_State | None] = []
        self._past: set[str] = set()

    # --- what it knows --------------------------------------------------------------------------

    @property
    def classes_(self) -> list[str]:
        """Names, in order of first arrival."""
        return [] if self._state is None else list(self._state.names)

    @property
    def history_(self) -> list[LearntBatch]:
        """The batches learnt, oldest first."""
        return [] if self._state is None else list(self._state.history)

    @property
    def temperature_(self) -> float:
        """What logits are divided by; fitted on held-out photos."""
        return 1.0 if self._state is None else self._state.temperature

    @property
    def threshold_(self) -> float:
        """Top probability below which a photo is called unknown; 0: never."""
        return 0.0 if self._state is None else self._state.threshold

    @property
    def model(self) -> str:
        """A short id of all that was learnt, another one after every batch; "" before the first."""
        return "" if self._state is None else self._state.model

    @property
    def method_(self) -> Method:
        """The method with all that it learnt; its classes are positions, see `name_of_`."""
        return self._learnt_something().method

    @property
    def name_of_(self) -> list[int]:
        """For every position of the method, the index of its name in `classes_`."""
        return [] if self._state is None else list(self._state.name_of)

    @property
    def preparation_(self) -> Preparation:
        """How a photo becomes the network's input."""
        return views.build(self.transform, self._side, self._normalization())

    def __repr__(self) -> str:
        about = f"{len(self.classes_)} classes from {len(self.history_)} batches"
        return f"<{type(self).__name__} {self.method} on {self.backbone}: {about}>"

    # --- learning -------------------------------------------------------------------------------

    def learn(self: C, source: Any, labels: Any = None, *, observer: Observer | None = None) -> C:
        """Learn another batch: new classes, more photos of old ones, or both.

        See `cprompt.classifier.photo_sources.labelled` for what a source can be. Either all of it
        is learnt or, if anything fails or stops it, nothing has changed.
        """
        observer = observer or Observer()
        photos, names = photo_sources.labelled(source, labels)
        if not names:
            raise DataError("there is no photo to learn from; give at least one")
        start = self._state or self._nothing()
        images = decode(photos, self._side, observer.decoded)
        learnt = self._learnt(start, images, names, observer)
        self._before = [self._state]
        self._enter(learnt)
        return self

    def fit(self: C, X: Any, y: Any = None) -> C:
        """Forget everything, then learn; if learning fails nothing is forgotten."""
        state, before = self._state, self._before
        self._state = None
        try:
            return self.learn(X, y)
        except BaseException:
            self._state, self._before = state, before
            raise

    def partial_fit(self: C, X: Any, y: Any = None, classes: Any = None) -> C:
        """The same as `learn`. Classes need not be known in advance, so `classes` is not used."""
        return self.learn(X, y)

    def undo(self) -> None:
        """Back to before the last batch learnt by this object; once.

        A folder keeps the version before, too: see `cprompt.classifier.model_folder.undo`.
        """
        if not self._before:
            raise ModelError(
                "there is no batch to take back in memory; `cprompt undo MODEL` goes back to the "
                "version before in the folder"
            )
        self._enter(self._before.pop())

    def _nothing(self) -> _State:
        return _State(
            create_method(self.method, self._load(), self._settings()),
            temperature=FIRST_TEMPERATURE.get(self.method, 1.0),
        )

    def _learnt(
        self, start: _State, images: DecodedImages, labels: Sequence[str], observer: Observer
    ) -> _State:
        """The state after another batch; `start` stays as it is."""
        clock = time.perf_counter()
        when = datetime.now(timezone.utc).isoformat(timespec="seconds")
        method = _copied(start.method)
        task, known = method.n_tasks, method.n_classes
        arrivals = {name: known + i for i, name in enumerate(dict.fromkeys(labels))}
        targets = np.array([arrivals[name] for name in labels], dtype=np.int64)
        held = held_out(targets, self.hold_out, mix(self.seed, task))
        taught = np.flatnonzero(~held)

        training = self._training(len(taught))
        device = pick_device(self.device)
        loader = BatchLoader(
            images.subset(taught),
            targets[taught],
            self.preparation_,
            training.batch_size,
            seed=mix(self.seed, task),
            device=device,
        )
        learner = Learner(
            method, training, Seeds(init=self.seed, data=self.seed), device, observer=observer
        )
        learner.position = Position(task)
        observer.stream_begins(task + 1)
        learner.learn_task(len(arrivals), loader)

        names = tuple(dict.fromkeys([*start.names, *arrivals]))
        index = {name: i for i, name in enumerate(names)}
        learnt = dataclasses.replace(
            start,
            method=method,
            names=names,
            name_of=(*start.name_of, *(index[name] for name in arrivals)),
        )
        shown = images.subset(np.flatnonzero(held))
        learnt, calibrated = self._calibrated(learnt, shown, targets[held])
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
            steps=training.epochs * len(loader),
            before=start.model,
        )
        learnt = dataclasses.replace(learnt, history=(*start.history, batch))
        return dataclasses.replace(learnt, model=self._id(learnt))

    def _calibrated(
        self, state: _State, images: DecodedImages, positions: NDArray[np.int64]
    ) -> tuple[_State, bool]:
        """Temperature and threshold from held-out photos of this batch and of earlier ones."""
        features = self._features(state.method, images)
        shown = torch.from_numpy(positions)
        if not state.method.features_last:
            state = dataclasses.replace(state, kept=torch.zeros(0), kept_positions=shown[:0])
        if len(state.kept):
            features = torch.cat([state.kept, features]) if len(shown) else state.kept
            shown = torch.cat([state.kept_positions, shown])
        calibrated = len(shown) >= FEWEST
        if calibrated:
            device = next(state.method.backbone.parameters()).device
            some = _spread(shown, MOST)
            with torch.no_grad():
                logits = state.method.answer(features[some].to(device)).cpu()
            name_of = np.asarray(state.name_of, dtype=np.int64)
            temperature = calibration.fit_temperature(
                logits.numpy(), name_of[shown[some].numpy()], name_of, len(state.names)
            )
            top = state.probabilities(logits, temperature).max(axis=1)
            threshold = calibration.fit_threshold(top, self.accept)
            state = dataclasses.replace(state, temperature=temperature, threshold=threshold)
        keep = _first_of_each(shown, self.keep_held_out) if state.method.features_last else []
        if len(shown):
            state = dataclasses.replace(state, kept=features[keep], kept_positions=shown[keep])
        return state, calibrated

    @torch.no_grad()
    def _features(self, method: Method, images: DecodedImages) -> Tensor:
        """What the heads read of each photo, on the CPU: (n, …)."""
        device = next(method.backbone.parameters()).device
        nobody = np.zeros(len(images), dtype=np.int64)
        loader = BatchLoader(images, nobody, self.preparation_, 64, seed=None, device=device)
        parts = [torch.zeros(0)]
        for batch, _ in loader.epoch(0):
            embedded = method.embed(batch)
            query = method.query(embedded) if method.uses_query else None
            task = method.choose(query) if query is not None and method.selects_task else None
            parts.append(method.feature(embedded, query, task).cpu())
        return torch.cat(parts[1:]) if len(parts) > 1 else parts[0]

    # --- answering ------------------------------------------------------------------------------

    def predict(self, images: Any, *, unknown: bool = True) -> list[str]:
        """A name for each photo; `UNKNOWN` where the best is not probable enough.

        One photo or many: paths, PIL images, arrays or tensors (see
        `cprompt.classifier.photos.PhotoLike`). The answer to a photo does not depend on
        the others.
        """
        state, _, p = self._answers(photo_sources.as_photos(images))
        best = p.argmax(axis=1)
        enough = p.max(axis=1, initial=0.0) >= state.threshold
        return [
            state.names[i] if sure or not unknown else UNKNOWN
            for i, sure in zip(best, enough, strict=True)
        ]

    def predict_proba(self, images: Any) -> NDArray[np.float64]:
        """Calibrated probabilities (n, classes), columns as in `classes_`."""
        return self._answers(photo_sources.as_photos(images))[2]

    def explain(self, images: Any, top: int = 5) -> list[Explanation]:
        """The answer to each photo, with what it rests on; lists have up to `top` entries."""
        state, answers, p = self._answers(photo_sources.as_photos(images))
        nearest = _nearest_keys(state, answers.query, top)
        found = []
        for i, row in enumerate(p):
            order = np.argsort(-row, kind="stable")[:top]
            best = float(row.max())
            known = best >= state.threshold
            found.append(
                Explanation(
                    label=state.names[int(row.argmax())] if known else UNKNOWN,
                    probability=best,
                    known=known,
                    ranking=[(state.names[j], float(row[j])) for j in order],
                    prompt=None if answers.task is None else int(answers.task[i]) + 1,
                    nearest_keys=[] if nearest is None else nearest[i],
                    score=float(answers.logits[i].max()),
                )
            )
        return found

    def evaluate(
        self, source: Any, labels: Any = None, *, observer: Observer | None = None
    ) -> Evaluation:
        """Answer labelled photos and count; sources as for `learn`."""
        photos, names = photo_sources.labelled(source, labels)
        state, _, p = self._answers(photos, observer)
        first = {name: batch.number for batch in state.history for name in batch.new}
        return assess(p, state.names, first, state.threshold, names)

    def _answers(
        self, photos: Sequence[PhotoLike], observer: Observer | None = None
    ) -> tuple[_State, Answers, NDArray[np.float64]]:
        """What the method says of each photo, and the probabilities of names (n, names).

        Photos are decoded some at a time, so that any number can be asked about.
        """
        state = self._learnt_something()
        self._on_device(state)
        device, preparation = pick_device(self.device), self.preparation_
        precision = self._training(1).precision
        told = (observer or Observer()).decoded
        found: list[Answers] = []
        for images in decode_in_parts(photos, self._side, AT_ONCE, told):
            found.append(predict(state.method, images, preparation, device, precision=precision))
        answers = _joined(found, state.method.n_classes)
        return state, answers, state.probabilities(answers.logits)

    def _learnt_something(self) -> _State:
        if self._state is None:
            raise ModelError("nothing was learnt yet; call learn with labelled photos first")
        return self._state

    # --- files ----------------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Make `path`, a folder, hold this model; the version before stays there for undoing.

        Refused where the folder holds another model, or has learnt what this one has not.
        """
        state = self._learnt_something()
        about = {"model": state.model, **self._about(state)}
        model_folder.write(path, about, _tensors(state), replaces=self._past)

    @classmethod
    def load(
        cls: type[C],
        path: str | Path,
        *,
        device: str = "auto",
        precision: str = "fp32",
        weights: str | None = None,
    ) -> C:
        """The classifier in the folder `path`.

        `weights` is the backbone's file, where the model was learnt with one and it is no longer
        where it was.
        """
        pick_device(device)  # what is asked for here is not the model's fault
        from_mapping(TrainingConfig, {"precision": precision}, where="training")
        stored = model_folder.read(path)
        about = stored.about
        try:
            backbone, method = about["backbone"], about["method"]
            self = cls(
                backbone["name"],
                method["name"],
                weights=weights or _weights(backbone, path),
                image_size=backbone["image_size"],
                settings=method["settings"],
                training=about["training"],
                transform=about["transform"],
                normalization=about["normalization"],
                hold_out=about["hold_out"],
                accept=about["accept"],
                keep_held_out=about["keep_held_out"],
                seed=about["seed"],
                device=device,
                precision=precision,
            )
            vit = self._load()
            if vit.fingerprint != backbone["fingerprint"]:
                raise ModelError(
                    f"{path} was learnt on {backbone['name']} ({backbone['weights']}, "
                    f"{backbone['fingerprint'][:12]}), but the backbone at hand has other weights "
                    f"({vit.weights}, {vit.fingerprint[:12]}); pass the file of the first"
                )
            self._enter(self._restored(about, stored.tensors))
        except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            raise ModelError(
                f"{path} does not fit together ({type(error).__name__}: {error}); restore it from "
                "a copy, or go back with `cprompt undo`"
            ) from error
        return self

    def _restored(self, about: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> _State:
        names = [entry["name"] for entry in about["classes"]]
        owner = {at: i for i, entry in enumerate(about["classes"]) for at in entry["positions"]}
        sizes = about["task_sizes"]
        count = sum(len(entry["positions"]) for entry in about["classes"])
        if len(set(names)) != len(names) or sorted(owner) != list(range(count)):
            raise ValueError("its classes do not have one name and one position each")
        if sum(sizes) != count or len(sizes) != len(about["history"]):
            raise ValueError(
                f"{len(sizes)} tasks of {sum(sizes)} classes, but {len(about['history'])} batches "
                f"and {count} positions"
            )
        method = create_method(self.method, self._load(), self._settings())
        rebuild(method, sizes, under_prefix("method", tensors), open_=False)
        state = _State(
            method=method,
            names=tuple(names),
            name_of=tuple(owner[at] for at in range(count)),
            history=tuple(LearntBatch(**batch) for batch in about["history"]),
            temperature=float(about["calibration"]["temperature"]),
            threshold=float(about["calibration"]["threshold"]),
            kept=tensors["held_out/features"],
            kept_positions=tensors["held_out/positions"],
            model=about["model"],
        )
        positions = state.kept_positions
        if len(positions) != len(state.kept) or not ((positions >= 0) & (positions < count)).all():
            raise ValueError("held-out features and their positions do not match")
        return state

    def _about(self, state: _State) -> dict[str, Any]:
        """Everything about a model but its tensors and its id."""
        vit = self._load()
        weights = None
        if vit.weights.startswith("file:") and self.weights is not None:
            weights = str(Path(self.weights).absolute())
        positions: list[list[int]] = [[] for _ in state.names]
        for at, owner in enumerate(state.name_of):
            positions[owner].append(at)
        return {
            "backbone": {**describe_backbone(vit), "image_size": self.image_size, "file": weights},
            "method": {"name": self.method, "settings": to_mapping(state.method.config)},
            "training": dict(self.training or {}),
            "transform": self.transform,
            "normalization": self._normalization(),
            "hold_out": self.hold_out,
            "accept": self.accept,
            "keep_held_out": self.keep_held_out,
            "seed": self.seed,
            "classes": [
                {"name": name, "positions": at}
                for name, at in zip(state.names, positions, strict=True)
            ],
            "task_sizes": list(state.method.task_sizes),
            "calibration": {"temperature": state.temperature, "threshold": state.threshold},
            "history": [dataclasses.asdict(batch) for batch in state.history],
        }

    def _id(self, state: _State) -> str:
        about = json.dumps(self._about(state), sort_keys=True).encode()
        return hashlib.sha256(about + to_bytes(_tensors(state))).hexdigest()[:12]

    def _enter(self, state: _State | None) -> None:
        self._state = state
        if state is not None:
            self._past |= {state.model, *(batch.before for batch in state.history)}

    # --- parameters -----------------------------------------------------------------------------

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The constructor's arguments, as given."""
        return {name: getattr(self, name) for name in PARAMETERS}

    def set_params(self: C, **params: Any) -> C:
        """Change arguments; those that what was learnt depends on only before anything was."""
        for name in params:
            if name not in PARAMETERS:
                raise ConfigError(f"no parameter {name!r}; there are {', '.join(PARAMETERS)}")
            if name in _STRUCTURE and self._state is not None:
                raise ConfigError(
                    f"{name} cannot change after something was learnt; make a new classifier"
                )
        before = self.get_params()
        try:
            for name, value in params.items():
                setattr(self, name, value)
            self._check()
        except ConfigError:
            for name, value in before.items():
                setattr(self, name, value)
            raise
        if self._state is None:
            self._vit = None
        return self

    def _check(self) -> None:
        cls = method_class(self.method)
        from_mapping(cls.Config, self._settings(), where=f"method {self.method}")
        self._training(1)
        check(
            self.transform in RECIPES,
            f"transform {self.transform!r} is not one of {', '.join(RECIPES)}",
        )
        check(
            self.normalization in ("auto", *NORMALIZATIONS),
            f"normalization {self.normalization!r} is not auto or one of "
            f"{', '.join(NORMALIZATIONS)}",
        )
        check(0 <= self.hold_out < 1, f"hold_out {self.hold_out} must be in [0, 1)")
        check(0 < self.accept <= 1, f"accept {self.accept} must be in (0, 1]")
        check(self.keep_held_out >= 0, f"keep_held_out {self.keep_held_out} must be 0 or more")

    def _settings(self) -> dict[str, Any]:
        return {**SETTINGS.get(self.method, {}), **(self.settings or {})}

    def _training(self, photos: int) -> TrainingConfig:
        """For a batch of so many photos to train on."""
        usual = {"precision": self.precision, "epochs": epochs_for(photos), **TRAINING}
        given = {**usual, **(self.training or {})}
        return from_mapping(TrainingConfig, given, where="training")

    def _load(self) -> FrozenViT:
        if self._vit is None:
            self._vit = load_backbone(self.backbone, self.weights, self.image_size)
        return self._vit

    def _on_device(self, state: _State) -> None:
        device = pick_device(self.device)
        state.method.to(device)
        state.method.backbone.to(device)

    @property
    def _side(self) -> int:
        return self._load().image_size[0]

    def _normalization(self) -> str:
        if self.normalization != "auto":
            return self.normalization
        return normalization_of(self._load().name)


PARAMETERS = tuple(
    name for name in ContinualClassifier.__init__.__annotations__ if name != "return"
)
"""Names of the constructor's arguments."""


def epochs_for(photos: int) -> int:
    """Passes over a batch of so many photos: six over up to 500, two over 1500 and more.

    More of them fit a small batch's prompt to its photos rather than to its classes, and are not
    worth their time on a large one.
    """
    return min(6, max(2, 3000 // max(photos, 1)))


def held_out(targets: NDArray[np.int64], share: float, seed: int) -> NDArray[np.bool_]:
    """Which photos (n,) to hold out: `share` of each class with four photos or more, at least one.

    A class with fewer needs all of them to learn from. Chosen at random, by `seed`.
    """
    chosen = np.zeros(len(targets), dtype=bool)
    if share == 0:
        return chosen
    order = torch.randperm(len(targets), generator=generator(seed)).numpy()
    for target in np.unique(targets):
        members = order[targets[order] == target]
        if len(members) >= 4:
            chosen[members[: min(max(1, round(share * len(members))), len(members) - 1)]] = True
    return chosen


def normalization_of(backbone: str) -> str:
    """The name of the normalisation that a backbone's weights were trained with.

    From the embedded backbone's description or timm's; inception's, that of most ViTs, where
    neither says.
    """
    if backbone in embedded.EMBEDDED:
        return embedded.EMBEDDED[backbone].normalization
    about = timm.get_pretrained_cfg(backbone, allow_unregistered=True)
    for name, (mean, std) in NORMALIZATIONS.items():
        if about is not None and (tuple(about.mean), tuple(about.std)) == (mean, std):
            return name
    return "inception"


def _joined(parts: Sequence[Answers], n_classes: int) -> Answers:
    """Answers to all photos, in order."""
    if not parts:
        return Answers(torch.zeros(0, n_classes), None, None)
    queries = [part.query for part in parts if part.query is not None]
    tasks = [part.task for part in parts if part.task is not None]
    return Answers(
        torch.cat([part.logits for part in parts]),
        torch.cat(queries) if queries else None,
        torch.cat(tasks) if tasks else None,
    )


def _copied(method: Method) -> Method:
    """A method of its own to go on with, on the same backbone."""
    return copy.deepcopy(method, {id(method.backbone): method.backbone})


def _tensors(state: _State) -> dict[str, Tensor]:
    plain = {n: t.detach().cpu().contiguous() for n, t in state.method.state_dict().items()}
    held_out = {"features": state.kept, "positions": state.kept_positions}
    return {**with_prefix("method", plain), **with_prefix("held_out", held_out)}


def _weights(backbone: Mapping[str, Any], path: str | Path) -> str | None:
    """What `load_backbone` takes for weights, as far as the model says it."""
    weights = str(backbone["weights"])
    if weights.startswith("random:"):
        return weights
    if not weights.startswith("file:"):
        return None
    file = backbone["file"]
    if file is None or not Path(file).is_file():
        raise BackboneError(
            f"{path} was learnt on weights from the file {weights.removeprefix('file:')}, which is "
            f"not at {file}; pass its path as weights"
        )
    return str(file)


def _first_of_each(positions: Tensor, count: int) -> list[int]:
    """Indices of the first `count` entries of every position."""
    seen: Counter[int] = Counter()
    first = []
    for i, position in enumerate(positions.tolist()):
        seen[position] += 1
        if seen[position] <= count:
            first.append(i)
    return first


def _spread(positions: Tensor, most: int) -> Tensor:
    """Indices of `most` entries, or all there are, spread evenly over the positions."""
    if len(positions) <= most:
        return torch.arange(len(positions))
    order = positions.argsort(stable=True)
    return order[torch.linspace(0, len(order) - 1, most).long()]


def _nearest_keys(
    state: _State, query: Tensor | None, top: int
) -> list[list[tuple[str, float]]] | None:
    """Names with the cosine of their nearest key, best first, for every query (n, D).

    None where the method has no keys.
    """
    keys = getattr(state.method, "keys", None)
    if query is None or not isinstance(keys, (PromptKeys, GaussianKeys)):
        return None
    with torch.no_grad():
        cosines = keys.similarity(query.to(keys.key_task.device)).cpu().numpy()
    owners = [state.names[i] for i in state.name_of]
    if len(owners) != cosines.shape[1]:  # one key a task
        owners = [f"batch {number}" for number in range(1, cosines.shape[1] + 1)]
    found = []
    for row in cosines:
        best: dict[str, float] = {}
        for at in np.argsort(-row, kind="stable"):
            best.setdefault(owners[at], float(row[at]))
            if len(best) == top:
                break
        found.append(list(best.items()))
    return found
