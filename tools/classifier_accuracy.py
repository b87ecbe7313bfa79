"""How well the classifier keeps learning: three questions, on drawn images or on your photos.

    python tools/classifier_accuracy.py
    python tools/classifier_accuracy.py --data PHOTOS --backbone NAME --weights FILE --classes 10

PHOTOS has train/CLASS/… and test/CLASS/…. Asked, for each of several seeds, which draw the order of
the classes and, of drawn images, the images themselves:

- batches: classes in five batches, no photo of an earlier one, against all of them at once;
- returning: a class comes back with as many photos as before; is it, are the others, still known?
- one by one: five classes, then five more, one a batch; how well is each known at the end, and
  had all ten come at once?

Accuracy is the share of test photos whose best name is right. Writes JSON to results/classifier/.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cprompt import ContinualClassifier
from cprompt.data.datasets import folder, shapes
from cprompt.data.image_set import Dataset, ImageSet
from cprompt.device import pick_device
from cprompt.files import check_writable, write_json
from cprompt.research.record import environment

EMBEDDED = "vit_micro_patch8_64.tiny_imagenet"
DRAWN = {"difficulty": 0.2, "size": 64}


class Part:
    """Images of one part of a dataset, by class; at most `limit` of each."""

    def __init__(self, images: ImageSet, limit: int, rng: np.random.Generator) -> None:
        self.images = images
        self.of = [
            rng.permutation(np.flatnonzero(images.labels == c))[:limit]
            for c in range(len(images.classes))
        ]

    def pick(
        self, classes: Sequence[int], first: float = 0.0, last: float = 1.0
    ) -> tuple[list[Any], list[str]]:
        """Photos and names of these classes; of each, those from one share to another."""
        chosen = []
        for c in classes:
            n = len(self.of[c])
            chosen += self.of[c][round(first * n) : round(last * n)].tolist()
        names = [self.images.classes[self.images.labels[i]] for i in chosen]
        return [self.images.images[i] for i in chosen], names


def score(classifier: ContinualClassifier, test: Part, classes: Sequence[int]) -> dict[str, Any]:
    """How photos of these classes are answered."""
    photos, truth = test.pick(classes)
    as_told = classifier.evaluate(photos, truth)
    right = np.array([answer.best == answer.truth for answer in as_told.answers])
    names = np.array(truth)
    return {
        "accuracy": round(100 * float(right.mean()), 2),
        "per_class": {
            name: round(100 * float(right[names == name].mean()), 2)
            for name in dict.fromkeys(truth)
        },
        "unknown": round(100 * (as_told.unknown_share or 0.0), 2),
        "accuracy_if_answered": round(100 * (as_told.accuracy_if_answered or 0.0), 2),
        "ece": round(as_told.ece, 4),
    }


def in_batches(make: Any, train: Part, test: Part, order: Sequence[int]) -> dict[str, Any]:
    classifier, after, seconds = make(), [], 0.0
    for part in np.array_split(np.asarray(order), 5):
        start = time.perf_counter()
        classifier.learn(*train.pick(part.tolist()))
        seconds += time.perf_counter() - start
        known = [c for c in order if test.images.classes[c] in classifier.classes_]
        after.append(score(classifier, test, known))
    at_once = make().learn(*train.pick(order))
    return {
        "after_each": [a["accuracy"] for a in after],
        "last": after[-1],
        "at_once": score(at_once, test, order),
        "seconds_a_photo": round(seconds / sum(len(train.of[c]) for c in order), 4),
    }


def returning(make: Any, train: Part, test: Part, order: Sequence[int]) -> dict[str, Any]:
    """The first class comes with half of its photos, and again with the rest after two batches."""
    back, *others = order[:10]
    classifier = make()
    photos, names = train.pick([back], 0, 0.5)
    more, more_names = train.pick(others[:4])
    classifier.learn([*photos, *more], [*names, *more_names])
    classifier.learn(*train.pick(others[4:]))
    found = {}
    for moment in ("before", "after"):
        if moment == "after":
            classifier.learn(*train.pick([back], 0.5, 1))
        result = score(classifier, test, order[:10])
        name = test.images.classes[back]
        rest = [v for k, v in result["per_class"].items() if k != name]
        found[moment] = {
            "returning": result["per_class"][name],
            "others": round(float(np.mean(rest)), 2),
        }
    return found


def one_by_one(make: Any, train: Part, test: Part, order: Sequence[int]) -> dict[str, Any]:
    classes = order[:10]
    classifier = make().learn(*train.pick(classes[:5]))
    for c in classes[5:]:
        classifier.learn(*train.pick([c]))
    found = {}
    for how, asked in (
        ("one_by_one", classifier),
        ("at_once", make().learn(*train.pick(classes))),
    ):
        result = score(asked, test, classes)
        each = list(result["per_class"].values())
        found[how] = {
            "first_five": round(float(np.mean(each[:5])), 2),
            "single": round(float(np.mean(each[5:])), 2),
            "per_class": result["per_class"],
        }
    return found


QUESTIONS = {"batches": in_batches, "returning": returning, "one_by_one": one_by_one}


def summary(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Means over seeds, with standard deviations where there are several."""

    def over(*path: str) -> dict[str, float]:
        values = []
        for run in runs:
            value: Any = run
            for key in path:
                value = value[key]
            values.append(float(value))
        spread = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
        return {"mean": round(float(np.mean(values)), 3), "std": round(spread, 3)}

    return {
        "in 5 batches": over("batches", "last", "accuracy"),
        "at once": over("batches", "at_once", "accuracy"),
        "ece in 5 batches": over("batches", "last", "ece"),
        "returning class before": over("returning", "before", "returning"),
        "returning class after": over("returning", "after", "returning"),
        "others before": over("returning", "before", "others"),
        "others after": over("returning", "after", "others"),
        "one by one, first five": over("one_by_one", "one_by_one", "first_five"),
        "one by one, single": over("one_by_one", "one_by_one", "single"),
        "at once, the first five": over("one_by_one", "at_once", "first_five"),
        "at once, those single": over("one_by_one", "at_once", "single"),
        "seconds a photo": over("batches", "seconds_a_photo"),
    }


def dataset(args: argparse.Namespace, seed: int) -> Dataset:
    if args.data is not None:
        return folder.load(args.data)
    return shapes.load(
        classes=args.classes,
        train_per_class=args.train,
        test_per_class=args.test,
        seed=seed,
        **DRAWN,
    )


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument(
        "--data", type=Path, help="a folder with train/ and test/; by default images are drawn"
    )
    options.add_argument("--backbone", default=EMBEDDED)
    options.add_argument("--weights", help="a file with the backbone's weights")
    options.add_argument("--image-size", type=int)
    options.add_argument("--transform", default="photo")
    options.add_argument(
        "--classes", type=int, default=20, help="number of classes, drawn by the seed"
    )
    options.add_argument("--train", type=int, default=20, help="most training photos per class")
    options.add_argument("--test", type=int, default=20, help="most test photos per class")
    options.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    options.add_argument("--settings", type=json.loads, help="settings of the method, as JSON")
    options.add_argument("--training", type=json.loads, help="settings of training, as JSON")
    options.add_argument("--device", default="auto")
    options.add_argument("--name", help="name of the result; by default that of the data")
    options.add_argument("--out", type=Path, default=Path("results/classifier"))
    args = options.parse_args()
    name = args.name or (f"{args.data.resolve().name}" if args.data else "shapes")
    out = args.out / f"{name}.json"
    check_writable(out)

    runs = []
    for seed in args.seeds:
        data = dataset(args, seed)
        rng = np.random.default_rng(seed)
        order = rng.permutation(len(data.classes))[: args.classes].tolist()
        train, test = Part(data.train, args.train, rng), Part(data.test, args.test, rng)

        def make(seed: int = seed) -> ContinualClassifier:
            return ContinualClassifier(
                args.backbone,
                weights=args.weights,
                image_size=args.image_size,
                transform=args.transform,
                settings=args.settings,
                training=args.training,
                seed=seed,
                device=args.device,
            )

        run = {name: ask(make, train, test, order) for name, ask in QUESTIONS.items()}
        print(json.dumps({"seed": seed, **summary([run])}), file=sys.stderr)
        runs.append({"seed": seed, **run})
    result = {
        "name": name,
        "backbone": args.backbone,
        "data": name if args.data else {"shapes": DRAWN},
        "classes": args.classes,
        "photos_a_class": {"train": args.train, "test": args.test},
        "transform": args.transform,
        "settings": args.settings or {},
        "training": args.training or {},
        "environment": environment(pick_device(args.device)),
        "summary": summary(runs),
        "runs": runs,
    }
    write_json(out, result)
    print(json.dumps(result["summary"], indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
