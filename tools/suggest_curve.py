"""How much labelling `cprompt suggest` saves: accuracy by photos labelled, against random choice.

    python tools/suggest_curve.py --data PHOTOS --weights FILE --features CACHE

PHOTOS has train/CLASS/… and test/CLASS/…. For each draw, a model learns a few photos of each class,
drawn at random. Then, round by round, more photos are chosen from the rest of train/, labelled and
learnt. Rules:

- random: any photos;
- suggested: `cprompt.classifier.suggestions.choose`, as `cprompt suggest` does;
- least sure: those whose two best names are closest, the usual rule.

Each image passes the backbone once, under its test view; CACHE keeps the features. Writes JSON to
results/suggest/NAME.json.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cached_features import Features, Laboratory
from numpy.typing import NDArray
from photo_experiment import Result, options_of

from cprompt.classifier.suggestions import choose, doubts
from cprompt.data.datasets import folder
from cprompt.device import pick_device
from cprompt.methods.strata import Strata
from cprompt.research.record import environment

Indices = NDArray[np.int64]
AT_ONCE = 2048


@torch.no_grad()
def answers(method: Strata, images: Features, at: Indices) -> tuple[NDArray[Any], NDArray[Any]]:
    """Probabilities (n, classes) and familiarity (n,)."""
    p, familiar = [], []
    for first in range(0, len(at), AT_ONCE):
        found = method.respond_to_features(images.feature[at[first : first + AT_ONCE]].float())
        assert found.familiar is not None
        p.append(found.logits.double().softmax(1).numpy())
        familiar.append(found.familiar.double().numpy())
    return np.concatenate(p), np.concatenate(familiar)


def learn(method: Strata, images: Features, at: Indices) -> None:
    method.count_features(images.feature[at].float(), images.target[at], images.key[at])
    method.solve()


def accuracy(method: Strata, test: Features) -> float:
    p, _ = answers(method, test, np.arange(len(test)))
    return 100 * float((p.argmax(axis=1) == test.target.numpy()).mean())


def at_random(p: NDArray[Any], familiar: NDArray[Any], count: int, seed: int) -> Indices:
    return np.random.default_rng(seed).permutation(len(p))[:count]


def suggested(p: NDArray[Any], familiar: NDArray[Any], count: int, seed: int) -> Indices:
    return choose(p, doubts(p, familiar), count)


def least_sure(p: NDArray[Any], familiar: NDArray[Any], count: int, seed: int) -> Indices:
    return np.argsort(-doubts(p, np.ones(len(p))), kind="stable")[:count]


Rule = Callable[[NDArray[Any], NDArray[Any], int, int], Indices]
RULES: dict[str, Rule] = {
    "random": at_random,
    "suggested": suggested,
    "least sure": least_sure,
}


def first_photos(targets: NDArray[np.int64], per_class: int, seed: int) -> Indices:
    rng = np.random.default_rng(seed)
    return np.concatenate(
        [
            rng.permutation(np.flatnonzero(targets == c))[:per_class]
            for c in range(int(targets.max()) + 1)
        ]
    )


def curve(
    method: Strata, rule: Rule, train: Features, test: Features, counts: Sequence[int], seed: int
) -> list[float]:
    """Accuracy after each of `counts` photos per class, on average; the first are drawn alike."""
    classes = method.n_classes
    known = first_photos(train.target.numpy(), counts[0], seed)
    learn(method, train, known)
    found = [accuracy(method, test)]
    for number, count in enumerate(counts[1:]):
        rest = np.setdiff1d(np.arange(len(train)), known)
        p, familiar = answers(method, train, rest)
        more = rest[rule(p, familiar, count * classes - len(known), 1000 * seed + number)]
        learn(method, train, more)
        known = np.concatenate([known, more])
        found.append(accuracy(method, test))
    return found


def equal_random(curves: dict[str, list[float]], counts: Sequence[int], at: int) -> float | None:
    """Random photos per class for the accuracy of `at` suggested ones; None: beyond the curve."""
    reached, plain = curves["suggested"][list(counts).index(at)], curves["random"]
    if reached > max(plain):
        return None
    return float(np.interp(reached, plain, counts))


def main() -> int:
    options = options_of(__doc__, "results/suggest")
    options.add_argument("--features", type=Path, required=True, help="where features are kept")
    options.add_argument("--counts", type=int, nargs="+", default=[2, 4, 6, 8, 10, 14, 20])
    options.add_argument("--train", type=int, help="most photos per class to choose from")
    options.add_argument("--test", type=int, default=20, help="most test photos per class")
    args = options.parse_args()
    result = Result(args)

    laboratory = Laboratory(args.backbone, args.weights, args.device)
    data = folder.load(args.data)
    train = laboratory.features(data.train, "train", args.features, args.train)
    test = laboratory.features(data.test, "test", args.features, args.test)
    runs: dict[str, list[list[float]]] = {rule: [] for rule in RULES}
    for seed in args.seeds:
        for rule, choose_photos in RULES.items():
            method = laboratory.method(len(data.classes))
            found = curve(method, choose_photos, train, test, args.counts, seed)
            runs[rule].append([round(value, 2) for value in found])
            print(seed, rule, runs[rule][-1], flush=True)
    means = {rule: np.mean(values, axis=0).round(2).tolist() for rule, values in runs.items()}
    spread = {r: np.std(v, axis=0, ddof=1).round(2).tolist() for r, v in runs.items() if len(v) > 1}
    equal = {
        str(at): None if (n := equal_random(means, args.counts, at)) is None else round(n, 1)
        for at in args.counts
    }
    result.write(
        backbone=laboratory.vit.identity,
        settings=laboratory.classifier.method_settings(),
        classes=len(data.classes),
        images={"train": len(train), "test": len(test)},
        photos_per_class=args.counts,
        seeds=args.seeds,
        environment=environment(pick_device(args.device)),
        accuracy=means,
        std=spread,
        random_photos_for_the_same=equal,
        runs=runs,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
