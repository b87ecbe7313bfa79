"""How well wrong labels are found: some are planted, then the most doubtful photos are looked at.

    python tools/doubtful_labels.py --data PHOTOS --weights FILE --features CACHE

PHOTOS has train/CLASS/…. For each draw, a share of the photos in train/ is given the label of
another class, drawn at random; a model learns all, and judges each photo as if it had not learnt
it, as `cprompt learn` and `cprompt doctor --model` do. Told: the share of planted labels among the
tenth of the photos whose own class is least probable, and among those that would be reported.

Each image passes the backbone once, under its test view; CACHE keeps the features. Writes JSON to
results/doubtful_labels/NAME.json.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cached_features import Features, Laboratory
from numpy.typing import NDArray
from photo_experiment import Result, options_of

from cprompt.classifier.doubtful_labels import doubtful
from cprompt.data.datasets import folder
from cprompt.device import pick_device
from cprompt.methods.strata import Strata
from cprompt.research.record import environment

LOOKED_AT = 0.1
"""Share of the photos that a person would look at."""


def planted(
    targets: NDArray[np.int64], classes: int, share: float, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Labels of which a share is wrong, and which."""
    rng = np.random.default_rng(seed)
    wrong = np.zeros(len(targets), dtype=bool)
    wrong[rng.permutation(len(targets))[: round(share * len(targets))]] = True
    moved = (targets + rng.integers(1, classes, len(targets))) % classes
    return np.where(wrong, moved, targets), wrong


def judged(method: Strata, images: Features, labels: NDArray[np.int64]) -> NDArray[Any]:
    """Probabilities (n, classes) after learning, each image left out."""
    method.remember()
    method.count_features(images.feature.float(), torch.from_numpy(labels), images.key)
    method.solve()
    logits = method.judge()
    assert logits is not None
    found: NDArray[Any] = logits.double().softmax(1).numpy()
    return found


def found_among(
    p: NDArray[Any], labels: NDArray[np.int64], wrong: NDArray[np.bool_]
) -> dict[str, float]:
    """What a person finds who looks at the most doubtful photos."""
    names = [str(c) for c in range(p.shape[1])]
    own = p[np.arange(len(labels)), labels]
    worst = np.argsort(own, kind="stable")[: round(LOOKED_AT * len(labels))]
    reported = [each.index for each in doubtful(p, names, [names[c] for c in labels])]
    total = max(1, int(wrong.sum()))
    return {
        "found_in_the_worst_tenth": round(100 * float(wrong[worst].sum()) / total, 2),
        "reported": len(reported),
        "found_in_reported": round(100 * float(wrong[reported].sum()) / total, 2),
        "reported_rightly": round(100 * float(wrong[reported].mean()) if reported else 0.0, 2),
    }


def main() -> int:
    options = options_of(__doc__, "results/doubtful_labels")
    options.add_argument("--features", type=Path, required=True, help="where features are kept")
    options.add_argument("--share", type=float, default=0.05, help="share of wrong labels")
    args = options.parse_args()
    result = Result(args)

    laboratory = Laboratory(args.backbone, args.weights, args.device)
    data = folder.load(args.data)
    train = laboratory.features(data.train, "train", args.features, None)
    runs = []
    for seed in args.seeds:
        labels, wrong = planted(train.target.numpy(), len(data.classes), args.share, seed)
        p = judged(laboratory.method(len(data.classes)), train, labels)
        runs.append({"seed": seed, **found_among(p, labels, wrong)})
        print(runs[-1], flush=True)
    keys = [key for key in runs[0] if key != "seed"]
    result.write(
        backbone=laboratory.vit.identity,
        settings=laboratory.classifier.method_settings(),
        classes=len(data.classes),
        images=len(train),
        planted=args.share,
        looked_at=LOOKED_AT,
        environment=environment(pick_device(args.device)),
        mean={key: round(float(np.mean([run[key] for run in runs])), 2) for key in keys},
        runs=runs,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
