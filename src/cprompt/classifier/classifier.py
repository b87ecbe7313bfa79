"""The continual classifier: it learns photos batch by batch and answers with class names.

It wraps a method; one batch of photos is one task. No photo is stored. It keeps what the method
learnt, which may include the features of a few photos per class.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save as to_bytes
from torch import Tensor

from cprompt.classifier import batch_checks, changes, joining, model_folder, photo_sources
from cprompt.classifier.answers import joined, patch_shares, responses
from cprompt.classifier.evaluation import Evaluation, assess
from cprompt.classifier.explanation import Explanation, PhotoParts, nearest_keys
from cprompt.classifier.learning import learn_absorbed, learn_batch, require_counting
from cprompt.classifier.parameters import Parameters
from cprompt.classifier.photo_sources import UNKNOWN
from cprompt.classifier.photos import PhotoLike, decode_in_parts
from cprompt.classifier.scikit_learn import ScikitLearnMixin
from cprompt.classifier.shards import CountShards, Plan, concluded, method_of
from cprompt.classifier.state import LearntBatch, ModelState
from cprompt.data.pipeline import views
from cprompt.data.pipeline.inspection import Inspection, is_blank
from cprompt.data.pipeline.views import Preparation
from cprompt.device import move, pick_device
from cprompt.errors import BackboneError, ConfigError, DataError, ModelError, counted
from cprompt.methods.base import Method, Response, create_method
from cprompt.methods.registry import METHODS
from cprompt.settings import from_mapping, suggest, to_mapping
from cprompt.training.observers import Observer
from cprompt.training.settings import TrainingConfig
from cprompt.vit.backbone import Backbone
from cprompt.vit.catalogue import spelt_out
from cprompt.vit.fastest_precision import fastest_precision
from cprompt.vit.loading import load_backbone

DECODED_AT_ONCE = 128
"""Number of photos that are decoded, then answered, at a time."""

C = TypeVar("C", bound="ContinualClassifier")


class ContinualClassifier(ScikitLearnMixin, Parameters):
    """Learns classes from photos, batch by batch, and names the class of other photos.

    It answers `UNKNOWN` to a photo that does not look like any class learnt, or is blank. With the
    default method, learning is one pass, and neither the order of photos nor their cut into batches
    matters. Parameters are stored as given, as in scikit-learn, so `get_params`, `set_params` and
    `clone` work. Nothing is loaded before the first batch is learnt.

    - `backbone`, `weights`, `image_size`: see `cprompt.load_backbone`.
    - `method`, `settings`: any registered method, and settings that override the method's defaults
      for the classifier (`Method.classifier_defaults`).
    - `training`: settings of `cprompt.training.settings.TrainingConfig` that override those
      defaults.
    - `transform`: a recipe of `cprompt.data.pipeline.views`.
    - `normalization`: a name from there, or "auto", the backbone's own.
    - `accept`: share of photos of known classes that must not be answered `UNKNOWN`.
    - `hold_out`: with a method that is trained, share of each class's photos in a batch used for
      calibration, not for training. `strata` learns all and leaves out one at a time instead.
    - `keep_held_out`: number of held-out photos per class whose features are stored for the
      calibration of later batches. With 0, nothing of any single photo is stored; then `strata`
      cannot calibrate itself, and answers less well.
    - `seed`: the seed of all randomness.

    >>> from PIL import Image
    >>> def photos(colour):
    ...     return [Image.new("RGB", (32, 32), (*colour[:2], colour[2] + i)) for i in range(3)]
    >>> classifier = ContinualClassifier()
    >>> _ = classifier.learn(photos((200, 0, 0)) + photos((0, 200, 0)), ["red"] * 3 + ["green"] * 3)
    >>> _ = classifier.learn(photos((0, 0, 200)), ["blue"] * 3)  # the first photos are gone
    >>> classifier.classes_
    ['red', 'green', 'blue']
    >>> classifier.predict(Image.new("RGB", (40, 40), (0, 190, 0)), unknown=False)
    ['green']
    """

    _vit: Backbone | None = None
    _state: ModelState | None = None
    _before: tuple[ModelState | None, ...] = ()
    """The state before the last batch, for `undo`."""
    _past: frozenset[str] = frozenset()
    """Ids of all earlier states of this model."""

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
        """Divides the logits; fitted on held-out photos."""
        return 1.0 if self._state is None else self._state.temperature

    @property
    def threshold_(self) -> float:
        """Familiarity below which the answer is `UNKNOWN`; 0: only to blank photos."""
        return 0.0 if self._state is None else self._state.threshold

    @property
    def model_id(self) -> str:
        """A short id of all that was learnt; changes with every batch; "" before the first."""
        return "" if self._state is None else self._state.model_id

    @property
    def method_(self) -> Method:
        """The trained method; its classes are positions, see `name_of_`."""
        return self._learnt_state().method

    @property
    def name_of_(self) -> list[int]:
        """For each position of the method, the index of its name in `classes_`."""
        return [] if self._state is None else list(self._state.name_of)

    @property
    def preparation_(self) -> Preparation:
        """How a photo becomes the network's input."""
        own = self._load().mean, self._load().std
        return views.build(self.transform, self._side, self.normalization, own)

    def __repr__(self) -> str:
        about = (
            f"{counted(len(self.classes_), 'class')} from "
            f"{counted(len(self.history_), 'batch', 'batches')}"
        )
        return f"<{type(self).__name__} {self.method} on {self.backbone}: {about}>"

    # --- learning -------------------------------------------------------------------------------

    def learn(self: C, source: Any, labels: Any = None, *, observer: Observer | None = None) -> C:
        """Learn another batch: new classes, more photos of old ones, or both.

        See `cprompt.classifier.photo_sources.labelled` for what a source can be. If learning fails
        or is interrupted, the classifier does not change.
        """
        observer = observer or Observer()
        photos, names = photo_sources.labelled(source, labels)
        if not names:
            raise DataError("there are no photos to learn from", hint="give at least one")
        photo_sources.notice_layout(source, observer)
        batch_checks.check_names(names, self.classes_)
        start = self._state or self._empty_state()
        return self._become(learn_batch(self, start, photos, names, self.preparation_, observer))

    def learn_counted(
        self,
        source: Any,
        count: CountShards,
        *,
        strict: bool = False,
        observer: Observer | None = None,
    ) -> list[DataError]:
        """Learn as `learn` does, with the photos counted by `count`, in other processes say.

        Photos that cannot be read are left out, and why is returned; if `strict`, they are an
        error. See `cprompt.classifier.shards`; only for methods that count.
        """
        observer, clock = observer or Observer(), time.perf_counter()
        photos, names = photo_sources.labelled(source)
        photo_sources.notice_layout(source, observer)
        batch_checks.check_names(names, self.classes_)
        start = self._state or self._empty_state()
        require_counting(start.method, self._empty_state().method)
        plan = Plan.of(self, self._load(), start.method.extra_views, len(photos))
        observer.stream_begins(start.method.n_tasks + 1)
        counts, reports = count(plan, photos, names, observer)
        unread = concluded(reports, photos, names, observer, strict, start.method.kept_keys())
        learnt = learn_absorbed(
            self,
            start,
            method_of(counts, self._empty_state().method),
            counts.names,
            [name for i, name in enumerate(names) if i not in unread],
            time.perf_counter() - clock,
        )
        self._become(learnt)
        return list(unread.values())

    def fit(self: C, X: Any, y: Any = None) -> C:
        """Forget everything, then learn; if learning fails, nothing is forgotten."""
        state, before = self._state, self._before
        self._state = None
        try:
            self.learn(X, y)
        except BaseException:
            self._state, self._before = state, before
            raise
        self._before = (state,)
        return self

    def partial_fit(self: C, X: Any, y: Any = None, classes: Any = None) -> C:
        """The same as `learn`. Classes need not be known in advance, so `classes` is unused."""
        return self.learn(X, y)

    def undo(self) -> None:
        """Take back the last change that this object made; possible once.

        A model folder also keeps the previous version: see `cprompt.classifier.model_folder.undo`.
        """
        if not self._before:
            raise ModelError(
                "there is no change to take back in memory",
                hint="`cprompt undo MODEL` goes back to the previous version in the folder",
            )
        (before,) = self._before
        self._before = ()
        self._enter(before)

    # --- changing what was learnt ---------------------------------------------------------------

    def forget(self: C, name: str, source: Any = None) -> C:
        """Drop a class. With all of its photos as `source`, nothing of it is left.

        See `cprompt.classifier.photo_sources.photos_of_class` for what a source can be.
        Without them, its part in the covariance that all classes share stays: how its photos
        differ from their mean, not told apart from those of other classes.
        """
        state = self._state_with(name)
        if len(state.names) == 1:
            raise ModelError(
                f"{name!r} is the only class of the model", hint="delete the model instead"
            )
        photos = None if source is None else photo_sources.photos_of_class(source, name)
        return self._become(changes.forgotten(self, state, name, photos, self.preparation_))

    def rename(self: C, name: str, new: str) -> C:
        """Call a class by another name, which no class has."""
        state = self._state_with(name)
        new = photo_sources.class_name(new, "the new name")
        spelt = batch_checks.same_spelling(new)
        for other in state.names:
            if other != name and batch_checks.same_spelling(other) == spelt:
                raise ModelError(
                    f"there is a class {other!r} already",
                    hint=f"choose another name, or make them one class: `cprompt rename MODEL "
                    f"{shlex.quote(name)} {shlex.quote(other)} --merge`, in Python `merge_classes`",
                )
        return self._become(changes.renamed(state, name, new))

    def merge_classes(self: C, name: str, into: str) -> C:
        """Make two classes one, as if all their photos had been learnt as `into`."""
        state = self._state_with(name)
        self._state_with(into)
        if name == into:
            raise ModelError(f"{name!r} is one class already", hint="name two classes")
        empty = self._empty_state().method
        return self._become(joining.joined_classes(state, empty, name, into, self.accept))

    def merge(self: C, other: ContinualClassifier) -> C:
        """Add all that another classifier has learnt, as one batch; no photo is needed.

        Both must have the same backbone and settings. Classes of the same name become one.
        """
        state, theirs = self._learnt_state(), other._learnt_state()
        of_other = other._about(theirs)
        for part, value in self._about(state).items():
            if part not in _NOT_COMPARED and changes.differ(part, value, of_other[part]):
                raise ModelError(
                    f"the models differ in their {part}: "
                    f"{changes.difference(part, value, of_other[part])}",
                    hint="only models on the same backbone with the same settings can be merged",
                )
        batch_checks.check_names(list(theirs.names), state.names)
        return self._become(changes.merged(self, state, theirs))

    def _state_with(self, name: str) -> ModelState:
        state = self._learnt_state()
        if name not in state.names:
            raise ModelError(
                f"the model has no class {name!r}", hint=suggest(name, list(state.names))
            )
        return state

    def _become(self: C, learnt: ModelState) -> C:
        learnt = dataclasses.replace(learnt, model_id=self._id(learnt))
        self._before = (self._state,)
        self._enter(learnt)
        return self

    def _empty_state(self) -> ModelState:
        method = create_method(self.method, self._load(), self.method_settings())
        return ModelState(method, temperature=method.classifier_defaults.temperature)

    # --- answering ------------------------------------------------------------------------------

    def predict(self, images: Any, *, unknown: bool = True) -> list[str]:
        """A name for each photo; `UNKNOWN` if it does not look like any class learnt.

        `images` is one photo or many: paths, bytes of files, PIL images, arrays or tensors (see
        `cprompt.classifier.photos.PhotoLike`), or a Hugging Face dataset. With `unknown=False` the
        answer is always the best name. The answer to a photo does not depend on the others.
        """
        state, answers, p = self._answers(photo_sources.as_photos(images))
        return [
            state.names[i] if known or not unknown else UNKNOWN
            for i, known in zip(p.argmax(axis=1), answers.known, strict=True)
        ]

    def predict_proba(self, images: Any) -> NDArray[np.float64]:
        """Calibrated probabilities (n, classes), columns as in `classes_`."""
        return self._answers(photo_sources.as_photos(images))[2]

    def explain(self, images: Any, top: int = 5, *, parts: bool = False) -> list[Explanation]:
        """The answer to each photo and the reasons for it; lists have up to `top` entries.

        With `parts` also which parts of a photo spoke for its best name; that takes another pass.
        """
        photos = photo_sources.as_photos(images)
        state, answers, p = self._answers(photos)
        spoke = self._parts(photos, answers.logits) if parts else None
        keys = _nearest_keys(state, answers.query, top)
        found = []
        for i, row in enumerate(p):
            order = np.argsort(-row, kind="stable")[:top]
            known = bool(answers.known[i])
            found.append(
                Explanation(
                    label=state.names[int(row.argmax())] if known else UNKNOWN,
                    probability=float(row.max()),
                    known=known,
                    ranking=[(state.names[j], float(row[j])) for j in order],
                    prompt=None if answers.task is None else int(answers.task[i]) + 1,
                    nearest_keys=keys[i] if keys else [],
                    score=float(answers.logits[i].max()),
                    familiarity=float(answers.familiar[i]),
                    parts=None if spoke is None else spoke[i],
                )
            )
        return found

    def evaluate(
        self, source: Any, labels: Any = None, *, observer: Observer | None = None
    ) -> Evaluation:
        """Answer labelled photos and compare with their labels; sources as for `learn`."""
        photos, names = photo_sources.labelled(source, labels)
        state, answers, p = self._answers(photos, observer)
        return assess(p, state.names, state.first_batch(), answers.known, names)

    def _parts(self, photos: Sequence[PhotoLike], logits: Tensor) -> list[PhotoParts] | None:
        """Which parts of each photo spoke for its best name; None if the method cannot tell."""
        state, device = self._learnt_state(), pick_device(self.device)
        preparation, precision = self.preparation_, self.training_for(1).precision
        score, best = (logits - logits.mean(1, keepdim=True)).double().max(1)
        found: list[PhotoParts] = []
        for images in decode_in_parts(photos, self._side, DECODED_AT_ONCE):
            at = best[len(found) : len(found) + len(images)].numpy()
            shares = patch_shares(state.method, images, at, preparation, device, precision)
            if shares is None:
                return None
            for i, own in enumerate(shares):
                height, width = images[i].shape[:2]
                found.append(
                    PhotoParts(
                        label=state.names[state.name_of[int(at[i])]],
                        window=preparation.test_window(height, width),
                        shares=own.tolist(),
                        rest=float(score[len(found)]) - float(own.sum()),
                    )
                )
        return found

    def _answers(
        self, photos: Sequence[PhotoLike], observer: Observer | None = None
    ) -> tuple[ModelState, _Answers, NDArray[np.float64]]:
        """The method's answer to each photo, and the probabilities of names (n, names).

        Photos are decoded in parts, so that memory does not grow with their number.
        """
        state = self._learnt_state()
        self._on_device(state)
        device, preparation = pick_device(self.device), self.preparation_
        precision = self.training_for(1).precision
        progress = (observer or Observer()).decoded
        found: list[Response] = []
        blank: NDArray[np.bool_] = np.zeros(len(photos), dtype=np.bool_)

        inspection = Inspection(is_blank, blank.__setitem__)
        for images in decode_in_parts(
            photos, self._side, DECODED_AT_ONCE, progress, inspection, device
        ):
            answered = responses(state.method, images, preparation, device, precision=precision)
            # Features, which answers do not need, would fill the memory with many photos.
            found += [
                dataclasses.replace(each, feature=each.feature[:0].clone()) for each in answered
            ]
        logits = joined([each.logits for each in found])
        if logits is None:
            logits = torch.zeros(0, state.method.n_classes)
        p = state.probabilities(logits)
        told = joined([each.familiar for each in found])
        familiar = p.max(axis=1, initial=0.0) if told is None else told.double().numpy()
        familiar = np.where(blank, 0.0, familiar)
        answers = _Answers(
            logits,
            joined([each.query for each in found]),
            joined([each.task for each in found]),
            familiar,
            known=~blank & (familiar >= state.threshold),
        )
        return state, answers, p

    def _learnt_state(self) -> ModelState:
        if self._state is None:
            raise ModelError("nothing was learnt yet", hint="call learn with labelled photos first")
        return self._state

    # --- files ----------------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Save the model to the folder `path`, which keeps the previous version for undoing.

        A ModelError if the folder holds another model, or a version that has learnt more.
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

        `weights` is the file of the backbone's weights, needed if the model was learnt with such a
        file and the file has moved. `precision` "auto" is bf16 where that is clearly faster, which
        is measured when a backbone is first loaded on a machine.
        """
        pick_device(device)  # before the model is read: errors here are not the model's fault
        auto = precision == "auto"
        precision = "fp32" if auto else precision
        from_mapping(TrainingConfig, {"precision": precision}, where="training")
        stored = model_folder.read(path)
        about = stored.about
        try:
            backbone = about["backbone"]
            model_folder.check_readable(path, about)
            method, settings = about["method"]["name"], dict(about["method"]["settings"])
            _check_known(method, path)
            if method == "cprompt":
                settings.pop("align", None)  # False, in models of version 1
            self = cls(
                backbone["name"],
                method,
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
            if difference := vit.difference(backbone):
                raise ModelError(
                    f"was learnt on {backbone['name']} ({backbone['weights']}, "
                    f"{backbone['fingerprint'][:12]}), but {difference}",
                    file=path,
                    hint="name the file of the weights it was learnt on (`--weights FILE`), and "
                    "use the same version of timm",
                )
            if auto:
                self.precision = fastest_precision(vit, pick_device(device))
            fresh = create_method(self.method, vit, self.method_settings())
            self._enter(ModelState.from_files(fresh, about, stored.tensors))
        except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            raise ModelError(
                f"is inconsistent ({type(error).__name__}: {error})",
                file=path,
                hint=model_folder.remedy(Path(path, model_folder.FILE)),
            ) from error
        return self

    def _about(self, state: ModelState) -> dict[str, Any]:
        """Everything about a model except its tensors and its id."""
        vit = self._load()
        weights = None
        if vit.weights.startswith("file:") and self.weights is not None:
            weights = str(Path(self.weights).absolute())
        size = spelt_out(self.backbone, self.image_size)[1]
        return {
            "backbone": {**vit.identity, "image_size": size, "file": weights},
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
        """Change parameters; structural ones only before the first batch is learnt."""
        super().set_params(**params)
        if self._state is None:
            self._vit = None  # the backbone's parameters may have changed
        return self

    @property
    def _is_fixed(self) -> bool:
        return self._state is not None

    def _load(self) -> Backbone:
        if self._vit is None:
            self._vit = load_backbone(self.backbone, self.weights, self.image_size)
        return self._vit

    def _on_device(self, state: ModelState) -> None:
        device = pick_device(self.device)
        move(state.method, device)
        move(state.method.backbone, device)

    @property
    def _side(self) -> int:
        return self._load().image_size[0]

    def _normalization(self) -> str:
        return views.name_of(self.normalization, (self._load().mean, self._load().std))


@dataclass(frozen=True)
class _Answers:
    """The parts of all responses that are needed, on the CPU; see `Response`."""

    logits: Tensor
    query: Tensor | None
    task: Tensor | None
    familiar: NDArray[np.float64]
    known: NDArray[np.bool_]
    """Whether the answer is a name: the photo is familiar enough, and not blank."""


_NOT_COMPARED = {
    *("classes", "task_sizes", "calibration", "history"),  # what it learnt, not how
    *("hold_out", "keep_held_out"),  # of methods that are trained, which cannot be merged
}
"""Parts of a model's description in which models that are merged may differ."""


def _check_known(method: str, path: str | Path) -> None:
    """Raise a ModelError if there is no such method here: the model itself is in order."""
    learnt = f"was learnt with the method {method!r}"
    if method not in METHODS:
        raise ModelError(
            f"{learnt}, which is not known here",
            file=path,
            hint="pass --plugin MODULE, or import the module that registers it",
        )
    try:
        METHODS[method]
    except ConfigError as error:  # a package that offers it cannot be imported
        raise ModelError(f"{learnt}, but {error.message}", file=path, hint=error.hint) from error


def _weights(backbone: Mapping[str, Any], path: str | Path) -> str | None:
    """The `weights` for `load_backbone` that the model was learnt with."""
    weights = str(backbone["weights"])
    if weights.startswith("random:"):
        return weights
    if not weights.startswith("file:"):
        return None
    file = backbone["file"]
    if file is None or not Path(file).is_file():
        raise BackboneError(
            f"was learnt on weights from the file {weights.removeprefix('file:')}, which is not "
            f"at {file}",
            file=path,
            hint="name it: `--weights FILE`, in Python weights=FILE",
        )
    return str(file)


def _nearest_keys(
    state: ModelState, query: Tensor | None, top: int
) -> list[list[tuple[str, float]]] | None:
    """See `nearest_keys`; None if the method has no keys."""
    if query is None:
        return None
    device = next(state.method.backbone.parameters()).device
    with torch.no_grad():
        cosines = state.method.key_similarity(query.to(device))
    if cosines is None:
        return None
    return nearest_keys(cosines.cpu().numpy(), [state.names[i] for i in state.name_of], top)
