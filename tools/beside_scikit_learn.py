"""The classifier beside a script of twenty lines: features of the same backbone, scikit-learn.

    python tools/beside_scikit_learn.py --data PHOTOS --weights FILE

PHOTOS has train/CLASS/… and test/CLASS/…. For each seed some classes and photos are drawn. They are
learnt as `cprompt learn` does, and by scikit-learn's LogisticRegression and
LinearDiscriminantAnalysis on the class token after the backbone's final norm. Told: the accuracy,
where every photo gets its best name; seconds of learning per view, and of predicting per photo,
from the files on, without loading the backbone. Writes results/beside_scikit_learn/NAME.json.

Times mean something on a quiet machine only; OMP_NUM_THREADS is up to the caller.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from photo_experiment import Result
from PIL import Image
from unknown_promise import drawn

from cprompt import ContinualClassifier, load_backbone
from cprompt.data.datasets.folder import read_parts
from cprompt.data.pipeline.views import Preparation
from cprompt.device import pick_device
from cprompt.research.record import environment
from cprompt.vit.promptable import FrozenViT

AT_ONCE = 64


def by_class(photos: Mapping[str, Sequence[Path]]) -> tuple[list[Path], list[str]]:
    """All photos, and the class of each."""
    files = [file for some in photos.values() for file in some]
    return files, [name for name, some in photos.items() for _ in some]


@torch.inference_mode()
def class_tokens(
    vit: FrozenViT, preparation: Preparation, files: Sequence[Path]
) -> NDArray[np.float32]:
    """What a short script would read of each photo: the class token after the final norm."""
    found = []
    for first in range(0, len(files), AT_ONCE):
        images = [Image.open(file).convert("RGB") for file in files[first : first + AT_ONCE]]
        batch = torch.stack([preparation.prepare(image) for image in images])
        found.append(vit.vit.forward_features(batch)[:, 0].numpy())
    return np.concatenate(found)


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    """What the work returns, and its seconds."""
    began = time.perf_counter()
    return work(), time.perf_counter() - began


def rivals() -> dict[str, Any]:
    """Untrained classifiers of scikit-learn."""
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return {
        "logistic regression": make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)),
        "LDA": LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto"),
    }


def row(accuracy: float, learning: float, views: int, predicting: float) -> dict[str, float]:
    return {
        "accuracy": round(100 * accuracy, 2),
        "learning_ms_per_view": round(1000 * learning / views, 3),
        "predicting_ms_per_photo": round(1000 * predicting, 3),
    }


def compared(
    classifier: ContinualClassifier,
    vit: FrozenViT,
    teach: Mapping[str, Sequence[Path]],
    ask: Mapping[str, Sequence[Path]],
) -> dict[str, dict[str, float]]:
    """One draw: every contender learns the same photos and is asked about the same others."""
    (files, names), (asked, truth) = by_class(teach), by_class(ask)
    classifier.fit(files[:2], ["a", "b"])  # the backbone is loaded, and has run once
    preparation = classifier.preparation_
    class_tokens(vit, preparation, files[:2])

    _, learning = timed(lambda: classifier.fit(files, names))
    answers, predicting = timed(lambda: classifier.predict(asked, unknown=False))
    views = (classifier.method_.extra_views + 1) * len(files)
    right = float(np.mean([a == b for a, b in zip(answers, truth, strict=True)]))
    found = {"cprompt": row(right, learning, views, predicting / len(asked))}

    x, reading = timed(lambda: class_tokens(vit, preparation, files))
    xt, asking = timed(lambda: class_tokens(vit, preparation, asked))
    for name, rival in rivals().items():
        _, fitting = timed(lambda rival=rival: rival.fit(x, names))
        told, answering = timed(lambda rival=rival: rival.predict(xt))
        right = float((told == np.array(truth)).mean())
        found[name] = row(right, reading + fitting, len(files), (asking + answering) / len(asked))
    return found


def summary(runs: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """The mean of each number over draws."""
    contenders = [name for name in runs[0] if name != "seed"]
    return {
        name: {
            key: round(float(np.mean([run[name][key] for run in runs])), 3) for key in runs[0][name]
        }
        for name in contenders
    }


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--data", type=Path, required=True)
    options.add_argument("--weights", required=True, help="a file with the backbone's weights")
    options.add_argument("--classes", type=int, default=20)
    options.add_argument("--photos", type=int, default=20, help="learnt per class, at most")
    options.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    options.add_argument("--name", help="name of the result; by default that of the data")
    options.add_argument("--out", type=Path, default=Path("results/beside_scikit_learn"))
    args = options.parse_args()
    result = Result(args)

    vit = load_backbone("auto", args.weights)
    assert isinstance(vit, FrozenViT), "the class token of other models is not read here"
    learnt, tested = read_parts(args.data / "train", args.data / "test")
    runs = []
    for seed in args.seeds:
        classifier = ContinualClassifier(weights=args.weights, device="cpu")
        teach, ask, _ = drawn(learnt, tested, args.classes, args.photos, 0, seed)
        runs.append({"seed": seed, **compared(classifier, vit, teach, ask)})
        print(runs[-1], flush=True)
    result.write(
        backbone=vit.identity,
        settings=classifier.method_settings(),
        classes=args.classes,
        photos_per_class=args.photos,
        threads=torch.get_num_threads(),
        environment=environment(pick_device("cpu")),
        mean=summary(runs),
        runs=runs,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
