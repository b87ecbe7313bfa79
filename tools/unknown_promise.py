"""Whether `unknown` keeps its promise: known photos refused against what was asked, and strangers.

    python tools/unknown_promise.py --data PHOTOS --weights FILE [--keep FOLDER]

PHOTOS has train/CLASS/… and test/CLASS/…. For each seed some classes are drawn and learnt as
`cprompt learn` does. Then the model is asked about their test photos and about test photos of half
of the other classes. Told, for each share of known photos that should be accepted: how many were
refused, of the known ones and of the strangers; and the calibration error over the known ones.

Models and features stay in FOLDER; the head is worked out anew from them, so that a change of it
can be tried without the passes. Writes results/unknown/NAME.json.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from photo_experiment import Result, options_of
from safetensors.torch import load_file, save_file
from torch import Tensor

from cprompt import ContinualClassifier
from cprompt.classifier import model_folder
from cprompt.classifier.answers import responses
from cprompt.classifier.calibration import expected_calibration_error, reliability
from cprompt.classifier.learning import with_threshold
from cprompt.classifier.photos import decode_in_parts
from cprompt.data.datasets.folder import read_parts
from cprompt.device import pick_device
from cprompt.methods.strata import Strata
from cprompt.research.record import environment

ASKED = (0.95, 0.9)
"""Shares of known photos that should be accepted."""
AT_ONCE = 256


def drawn(
    learnt: Mapping[str, Sequence[Path]],
    tested: Mapping[str, Sequence[Path]],
    classes: int,
    photos: int,
    strangers: int,
    seed: int,
) -> tuple[dict[str, list[Path]], dict[str, list[Path]], list[Path]]:
    """Photos to learn and to ask about, by class, and photos of classes that were not learnt."""
    rng = np.random.default_rng(seed)
    names = [str(name) for name in rng.permutation(sorted(learnt))]
    known, others = names[:classes], names[classes:]

    def some(files: Sequence[Path], most: int) -> list[Path]:
        return [files[i] for i in rng.permutation(len(files))[:most]]

    teach = {name: some(learnt[name], photos) for name in known}
    ask = {name: some(tested[name], 2 * photos) for name in known}
    foreign = [file for name in others[: len(others) // 2] for file in tested[name]]
    return teach, ask, some(foreign, strangers)


def features(classifier: ContinualClassifier, files: Sequence[Path]) -> Tensor:
    """What the model sees of each photo (n, F)."""
    device, preparation = pick_device(classifier.device), classifier.preparation_
    found = [
        response.feature
        for images in decode_in_parts(list(files), preparation.size, AT_ONCE)
        for response in responses(classifier.method_, images, preparation, device)
    ]
    return torch.cat(found)


def judged(
    classifier: ContinualClassifier, known: Tensor, truth: Sequence[str], foreign: Tensor
) -> dict[str, Any]:
    """How the model answers features of known photos and of strangers."""
    method, state = classifier.method_, classifier._learnt_state()
    assert isinstance(method, Strata)
    method.solve()
    mine, theirs = method.respond_to_features(known), method.respond_to_features(foreign)
    assert mine.familiar is not None
    assert theirs.familiar is not None
    p = state.probabilities(mine.logits)
    labels = np.array([state.names.index(name) for name in truth])
    right, top = p.argmax(axis=1) == labels, p.max(axis=1)
    refused: dict[str, Any] = {}
    for accept in ASKED:
        threshold = with_threshold(state, accept)[0].threshold
        unknown = mine.familiar.numpy() < threshold
        by_class = [float(unknown[labels == c].mean()) for c in range(len(state.names))]
        refused[str(accept)] = {
            "known": round(100 * float(unknown.mean()), 2),
            "worst_class": round(100 * max(by_class), 2),
            "foreign": round(100 * float((theirs.familiar.numpy() < threshold).mean()), 2),
        }
    return {
        "accuracy": round(100 * float(right.mean()), 2),
        "ece": round(100 * expected_calibration_error(reliability(top, right)), 2),
        "known_photos": len(labels),
        "foreign_photos": len(foreign),
        "refused": refused,
    }


def run(
    learnt: Mapping[str, Sequence[Path]],
    tested: Mapping[str, Sequence[Path]],
    options: argparse.Namespace,
    seed: int,
    folder: Path,
) -> tuple[ContinualClassifier, dict[str, Any]]:
    """One draw; the model and the features are in `folder`, or are put there."""
    teach, ask, foreign = drawn(
        learnt, tested, options.classes, options.photos, options.strangers, seed
    )
    model, cache = folder / "model", folder / "features.safetensors"
    if not (model / model_folder.FILE).exists():
        classifier = ContinualClassifier(
            options.backbone, weights=options.weights, device=options.device
        )
        classifier.learn(
            [file for files in teach.values() for file in files],
            [name for name, files in teach.items() for _ in files],
        )
        classifier.save(model)
    classifier = ContinualClassifier.load(model, device=options.device)
    if not cache.exists():
        asked = [file for files in ask.values() for file in files]
        found = {"known": features(classifier, asked), "foreign": features(classifier, foreign)}
        save_file(found, cache)
    seen = load_file(cache)
    truth = [name for name, files in ask.items() for _ in files]
    return classifier, judged(classifier, seen["known"], truth, seen["foreign"])


def summary(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The mean over draws, weighted equally."""

    def mean(values: Sequence[float]) -> float:
        return round(float(np.mean(values)), 2)

    return {
        **{key: mean([each[key] for each in runs]) for key in ("accuracy", "ece")},
        "refused": {
            asked: {
                kind: mean([each["refused"][asked][kind] for each in runs])
                for kind in runs[0]["refused"][asked]
            }
            for asked in runs[0]["refused"]
        },
    }


def main() -> int:
    options = options_of(__doc__, "results/unknown")
    options.add_argument("--classes", type=int, default=20)
    options.add_argument("--photos", type=int, default=40, help="learnt per class, at most")
    options.add_argument("--strangers", type=int, default=500, help="photos of other classes")
    options.add_argument("--keep", type=Path, help="where models and features stay")
    args = options.parse_args()
    result = Result(args)

    learnt, tested = read_parts(args.data / "train", args.data / "test")
    runs = []
    with TemporaryDirectory() as scratch:
        for seed in args.seeds:
            folder = (args.keep or Path(scratch)) / f"{result.name}-{args.photos}-{seed}"
            folder.mkdir(parents=True, exist_ok=True)
            classifier, found = run(learnt, tested, args, seed, folder)
            runs.append({"seed": seed, **found})
            print(runs[-1], flush=True)
    result.write(
        backbone=classifier._load().identity,
        settings=classifier.method_settings(),
        classes=args.classes,
        photos_per_class=args.photos,
        environment=environment(pick_device(args.device)),
        mean=summary(runs),
        runs=runs,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
