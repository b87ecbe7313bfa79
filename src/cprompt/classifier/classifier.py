"""The classifier that keeps learning: photos in, names out, batch by batch, no photo kept.

A researcher's method with a folder in front; one batch of photos is one task. What stays of the
photos is what the method learnt, and for calibration the features of up to three held-out photos
per class.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save as to_bytes
from torch import Tensor

from cprompt.classifier import model_folder, photo_sources
from cprompt.classifier.answers import joined, responses
from cprompt.classifier.evaluation import Evaluation, assess
from cprompt.classifier.explanation import Explanation, nearest_keys
from cprompt.classifier.learning import learn_batch
from cprompt.classifier.parameters import Parameters, normalization_of
from cprompt.classifier.photo_sources import UNKNOWN
from cprompt.classifier.photos import PhotoLike, decode, decode_in_parts
from cprompt.classifier.state import LearntBatch, ModelState
from cprompt.data.pipeline import views
from cprompt.data.pipeline.views import Preparation
from cprompt.device import pick_device
from cprompt.errors import BackboneError, DataError, ModelError
from cprompt.methods.base import Method, create_method
from cprompt.methods.registry import current_settings
from cprompt.settings import from_mapping, to_mapping
from cprompt.training.observers import Observer
from cprompt.training.settings import TrainingConfig
from cprompt.vit.loading import load_backbone
from cprompt.vit.promptable import FrozenViT

DECODED_AT_ONCE = 512
"""Photos that are decoded before they are answered."""

C = TypeVar("C", bound="ContinualClassifier")


class ContinualClassifier(Parameters):
    """Learns photos batch by batch and names what others show; says when it does not know.

    Parameters are kept as given, as scikit-learn does, so `get_params`, `set_params` and its
    `clone` work. Nothing is loaded before the first batch is learnt.

    - `backbone`, `weights`, `image_size`: see `cprompt.load_backbone`.
    - `method`, `settings`: any registered method, and its settings over the defaults that it
      declares for the classifier (`Method.classifier_defaults`).
    - `training`: settings of `cprompt.training.settings.TrainingConfig`, over those defaults.
    - `transform`: a recipe of `cprompt.data.pipeline.views`.
    - `normalization`: a name from there, or "auto", the backbone's own.
    - `hold_out`: share of each class's photos in a batch that calibrates instead of training.
    - `accept`: share of held-out photos that must not be called unknown.
    - `keep_held_out`: for how many held-out photos per class the features are kept, so that later
      batches can calibrate on them; 0 keeps nothing of any single photo.
    - `seed`: of everything random.

    >>> from PIL import Image
    >>> def photos(colour):
    ...     return [Image.new("RGB", (32, 32), (*colour[:2], colour[2] + i)) for i in range(3)]
    >>> classifier = ContinualClassifier(training={"epochs": 1})
    >>> _ = classifier.learn(photos((200, 0, 0)) + photos((0, 200, 0)), ["red"] * 3 + ["green"] * 3)
    >>> _ = classifier.learn(photos((0, 0, 200)), ["blue"] * 3)  # the first photos are gone
    >>> classifier.classes_
    ['red', 'green', 'blue']
    >>> classifier.predict(Image.new("RGB", (40, 40), (0, 190, 0)))
    ['green']
    """

    _vit: FrozenViT | None = None
    _state: ModelState | None = None
    _before: tuple[ModelState | None, ...] = ()
    """The state before the last batch, for `undo`."""
    _past: frozenset[str] = frozenset()
    """Ids of all models that this one has grown from."""

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
    def model_id(self) -> str:
        """A short id of all that was learnt, a new one after every batch; "" before the first."""
        return "" if self._state is None else self._state.model_id

    @property
    def method_(self) -> Method:
        """The method with all that it learnt; its classes are positions, see `name_of_`."""
        return self._learnt_state().method

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
        start = self._state or self._empty_state()
        images = decode(photos, self._side, observer.decoded)
        learnt = learn_batch(self, start, images, names, self.preparation_, observer)
        learnt = dataclasses.replace(learnt, model_id=self._id(learnt))
        self._before = (self._state,)
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
        (before,) = self._before
        self._before = ()
        self._enter(before)

    def _empty_state(self) -> ModelState:
        method = create_method(self.method, self._load(), self.method_settings())
        return ModelState(method, temperature=method.classifier_defaults.temperature)

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
        keys = _nearest_keys(state, answers.query, top)
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
                    nearest_keys=keys[i] if keys else [],
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
    ) -> tuple[ModelState, _Answers, NDArray[np.float64]]:
        """What the method says of each photo, and the probabilities of names (n, names).

        Photos are decoded some at a time, so that memory does not grow with their number.
        """
        state = self._learnt_state()
        self._on_device(state)
        device, preparation = pick_device(self.device), self.preparation_
        precision = self.training_for(1).precision
        told = (observer or Observer()).decoded
        found: list[_Answers] = []
        for images in decode_in_parts(photos, self._side, DECODED_AT_ONCE, told):
            answered = responses(state.method, images, preparation, device, precision=precision)
            found += [_Answers(each.logits, each.query, each.task) for each in answered]
        logits = joined([each.logits for each in found])
        answers = _Answers(
            torch.zeros(0, state.method.n_classes) if logits is None else logits,
            joined([each.query for each in found]),
            joined([each.task for each in found]),
        )
        return state, answers, state.probabilities(answers.logits)

    def _learnt_state(self) -> ModelState:
        if self._state is None:
            raise ModelError("nothing was learnt yet", hint="call learn with labelled photos first")
        return self._state

    # --- files ----------------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Make `path`, a folder, hold this model; the version before stays there for undoing.

        Refused where the folder holds another model, or has learnt what this one has not.
        """
        state = self._learnt_state()
        about = {"model": state.model_id, **self._about(state)}
        model_folder.write(path, about, state.tensors(), replaces=self._past)

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
            backbone = about["backbone"]
            settings = current_settings(
                {"name": about["method"]["name"], **about["method"]["settings"]}
            )
            self = cls(
                backbone["name"],
                settings.pop("name"),
                weights=weights or _weights(backbone, path),
                image_size=backbone["image_size"],
                settings=settings,
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
            fresh = create_method(self.method, vit, self.method_settings())
            self._enter(ModelState.from_files(fresh, about, stored.tensors))
        except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            raise ModelError(
                f"{path} does not fit together ({type(error).__name__}: {error}); restore it from "
                "a copy, or go back with `cprompt undo`"
            ) from error
        return self

    def _about(self, state: ModelState) -> dict[str, Any]:
        """Everything about a model except its tensors and its id."""
        vit = self._load()
        weights = None
        if vit.weights.startswith("file:") and self.weights is not None:
            weights = str(Path(self.weights).absolute())
        return {
            "backbone": {**vit.identity, "image_size": self.image_size, "file": weights},
            "method": {"name": self.method, "settings": to_mapping(state.method.config)},
            "training": dict(self.training or {}),
            "transform": self.transform,
            "normalization": self._normalization(),
            "hold_out": self.hold_out,
            "accept": self.accept,
            "keep_held_out": self.keep_held_out,
            "seed": self.seed,
            **state.about(),
        }

    def _id(self, state: ModelState) -> str:
        about = json.dumps(self._about(state), sort_keys=True).encode()
        return hashlib.sha256(about + to_bytes(state.tensors())).hexdigest()[:12]

    def _enter(self, state: ModelState | None) -> None:
        self._state = state
        if state is not None:
            self._past |= {state.model_id, *(batch.before for batch in state.history)}

    # --- parameters -----------------------------------------------------------------------------

    def set_params(self: C, **params: Any) -> C:
        """Change parameters; those that what was learnt depends on only before anything was."""
        super().set_params(**params)
        if self._state is None:
            self._vit = None  # another backbone may have been asked for
        return self

    @property
    def _is_fixed(self) -> bool:
        return self._state is not None

    def _load(self) -> FrozenViT:
        if self._vit is None:
            self._vit = load_backbone(self.backbone, self.weights, self.image_size)
        return self._vit

    def _on_device(self, state: ModelState) -> None:
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


@dataclass(frozen=True)
class _Answers:
    """What is needed of the responses to all photos, on the CPU; see `Response`."""

    logits: Tensor
    query: Tensor | None
    task: Tensor | None


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


def _nearest_keys(
    state: ModelState, query: Tensor | None, top: int
) -> list[list[tuple[str, float]]] | None:
    """See `nearest_keys`; None where the method has no keys to compare with."""
    if query is None:
        return None
    device = next(state.method.backbone.parameters()).device
    with torch.no_grad():
        cosines = state.method.key_similarity(query.to(device))
    if cosines is None:
        return None
    return nearest_keys(cosines.cpu().numpy(), [state.names[i] for i in state.name_of], top)
