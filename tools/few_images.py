"""How well the closed form answers from few and from many images, against what one would use.

    python tools/few_images.py --data cars=TREE cifar=TREE --backbone NAME --weights FILE

A TREE has train/CLASS/… and test/CLASS/…; an .npz file of features will do, see `stored`. Asked:

- few: 1 to 40 images per class, three draws; the product beside scikit-learn's nearest mean, LDA
  (shrinkage auto) and logistic regression on the last class token;
- unknown: half of the classes are learnt, are the others told apart? (AUROC), and how many photos
  of known classes are accepted where 95 % was asked for;
- width: how much the covariance costs, and what it gives;
- prediction views: one, two or four.

Writes JSON to results/few_images/. Needs scikit-learn.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cprompt import load_backbone
from cprompt.classifier.calibration import expected_calibration_error, fit_threshold, reliability
from cprompt.data.datasets import folder
from cprompt.data.image_set import ImageSet
from cprompt.data.pipeline import views
from cprompt.data.pipeline.decoded import from_files
from cprompt.data.pipeline.loader import BatchLoader
from cprompt.device import pick_device
from cprompt.files import check_writable, write_json
from cprompt.methods.base import create_method
from cprompt.methods.strata import Strata
from cprompt.research.record import environment
from cprompt.training.learner import counted_batches

COUNTS = (1, 2, 5, 10, 20, 40)
WIDTHS = (512, 1024, 2048, 3072)
DRAWS = 3
SETTINGS = {"width": 2048, "views": 3}
"""As the photo classifier sets them."""


@dataclass(frozen=True)
class Seen:
    """Features of images: (V, n, F), their classes (n,) and content keys (n,)."""

    feature: Tensor
    label: Tensor
    key: Tensor

    def part(self, rows: Tensor) -> Seen:
        return Seen(self.feature[:, rows], self.label[rows], self.key[rows])


def chosen(images: ImageSet, count: int) -> NDArray[np.int64]:
    """Rows: for each of `DRAWS` draws, `count` images of each class; every row once."""
    rows = [draw(images.labels, count, seed) for seed in range(DRAWS)]
    return np.unique(np.concatenate(rows))


def draw(labels: NDArray[np.int64], count: int, seed: int) -> NDArray[np.int64]:
    rng = np.random.default_rng(seed)
    rows = [rng.permutation(np.flatnonzero(labels == c))[:count] for c in np.unique(labels)]
    return np.concatenate(rows)


def passed(method: Strata, images: ImageSet, rows: Any, args: argparse.Namespace) -> Seen:
    """The features of some images under the views that `method` counts."""
    own = method.backbone.mean, method.backbone.std
    preparation = views.build("wide", method.backbone.image_size[0], "auto", own)
    decoded = from_files([Path(images.images[i]) for i in rows]).in_memory()
    loader = BatchLoader(
        decoded, images.labels[rows], preparation, 256, seed=None, device=args.device
    )
    found, labels, keys = [], [], []
    for embedded, targets in counted_batches(method, loader, args.precision):
        with torch.no_grad():
            feature = method.feature(embedded).unflatten(0, (embedded.views, -1))
        found.append(feature.float())
        labels.append(targets[: feature.shape[1]])
        keys.append(embedded.keys)
    return Seen(torch.cat(found, 1), torch.cat(labels), torch.cat(keys).to(args.device))


def stored(path: Path, args: argparse.Namespace) -> tuple[Seen, Seen, Any]:
    """Features of training and of test images from an .npz file, and what made them.

    It holds train (V, n, F), test (m, F), train_label, test_label, key and `made`, JSON.
    """
    with np.load(path) as held:
        found = {name: held[name] for name in held.files}

    def tensor(name: str) -> Tensor:
        return torch.from_numpy(found[name]).to(args.device)

    train = Seen(tensor("train"), tensor("train_label"), tensor("key"))
    test = tensor("test")[None]
    nothing = torch.zeros(test.shape[1], dtype=torch.int64, device=args.device)
    return train, Seen(test, tensor("test_label"), nothing), json.loads(str(found["made"]))


def learnt(make: Any, train: Seen, classes: int, **settings: Any) -> Strata:
    method = make(**settings)
    method.begin_task(classes, torch.Generator())
    method.to(train.feature.device)
    for rows in torch.arange(len(train.label), device=train.label.device).split(512):
        part = train.part(rows)
        method.count_features(
            part.feature.flatten(0, 1).float(), part.label.repeat(len(part.feature)), part.key
        )
    method.solve()
    return method


def percent(right: Tensor) -> float:
    return round(100 * float(right.double().mean()), 2)


def answered(method: Strata, test: Seen) -> dict[str, float]:
    logits = method.answer(test.feature[0].float())
    top, best = logits.softmax(1).max(1)
    right = (best == test.label).cpu().numpy()
    bins = reliability(top.double().cpu().numpy(), right)
    return {
        "accuracy": round(100 * float(right.mean()), 2),
        "ece": round(100 * expected_calibration_error(bins), 2),
    }


def rivals(job: tuple[Any, Any, Any, Any]) -> dict[str, float]:
    """Accuracies of what a person would use instead, on the class token alone."""
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    x, y, xt, yt = job
    z, zt = (a / np.linalg.norm(a, axis=1, keepdims=True) for a in (x, xt))
    means = np.stack([z[y == c].mean(0) for c in np.unique(y)])
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    found = {"nearest mean": 100 * float(((zt @ means.T).argmax(1) == yt).mean())}
    if np.bincount(y).max() > 1:
        lda = LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto").fit(x, y)
        found["LDA"] = 100 * lda.score(xt, yt)
    regression = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)).fit(x, y)
    found["logistic regression"] = 100 * regression.score(xt, yt)
    return {name: round(value, 2) for name, value in found.items()}


def auroc(known: Tensor, unknown: Tensor) -> float:
    """The probability that a known image looks more familiar than an unknown one, in percent."""
    both = torch.cat([known, unknown]).double()
    rank = torch.empty_like(both)
    rank[both.argsort()] = torch.arange(1.0, len(both) + 1, device=both.device).double()
    n = len(known)
    above = float(rank[:n].sum()) - n * (n + 1) / 2
    return round(100 * above / (n * len(unknown)), 2)


def familiar(method: Strata, test: Seen) -> Tensor:
    feature = test.feature[0].float()
    return method.familiarity()(feature[:, method.last], method.answer(feature))


def unknown(make: Any, train: Seen, test: Seen, classes: int, seed: int) -> dict[str, float]:
    """Half of the classes are learnt, drawn by `seed`."""
    half = np.random.default_rng(seed).permutation(classes)[: classes // 2]
    position = torch.full((classes,), -1, device=train.label.device)
    position[torch.from_numpy(np.sort(half)).to(position.device)] = torch.arange(
        len(half), device=position.device
    )

    def known_part(seen: Seen, known: bool) -> Seen:
        part = seen.part(((position[seen.label] >= 0) == known).nonzero()[:, 0])
        return Seen(part.feature, position[part.label], part.key)

    method = learnt(make, known_part(train, True), len(half))
    inside, outside = (familiar(method, known_part(test, known)) for known in (True, False))
    left_out = method.left_out()
    assert left_out is not None
    threshold = fit_threshold(left_out.familiar.double().cpu().numpy(), 0.95)
    return {
        "auroc": auroc(inside, outside),
        "accepted": percent(inside >= threshold),
        "unknown told": percent(outside < threshold),
        "accuracy": answered(method, known_part(test, True))["accuracy"],
    }


def few(make: Any, train: Seen, test: Seen, rows: Any, labels: Any, args: Any) -> dict[str, Any]:
    """For each count and draw, the product and its rivals."""
    classes = int(test.label.max()) + 1
    last = make().last
    token, token_t = (s.feature[0][:, last].float().cpu().numpy() for s in (train, test))
    y, yt = train.label.cpu().numpy(), test.label.cpu().numpy()
    jobs, found = [], {}
    for count in args.counts:
        found[count] = []
        for seed in range(DRAWS):
            at = np.searchsorted(rows, draw(labels, count, seed))
            jobs.append((token[at], y[at], token_t, yt))
            part = train.part(torch.from_numpy(at).to(train.label.device))
            method = learnt(make, part, classes)
            shares = [round(float(share), 2) for share in method.shares]
            found[count].append({"product": answered(method, test), "shares": shares})
    with ProcessPoolExecutor(args.processes) as pool:
        for at, each in enumerate(pool.map(rivals, jobs)):
            found[args.counts[at // DRAWS]][at % DRAWS] |= each
    return {str(count): values for count, values in found.items()}


def wide(make: Any, train: Seen, test: Seen, classes: int) -> dict[str, Any]:
    """Accuracy and size for several widths."""
    found = {}
    for width in (*WIDTHS, None):
        method = learnt(make, train, classes, width=width)
        size = sum(t.numel() * t.element_size() for t in method.state_dict().values())
        found[str(method.project.width)] = {
            **answered(method, test),
            "megabytes": round(size / 1e6, 1),
        }
    return found


def look_again(make: Any, train: Seen, images: ImageSet, classes: int, args: Any) -> dict[str, Any]:
    """Accuracy with several views at prediction."""
    found = {}
    method = learnt(make, train, classes)
    decoded = from_files([Path(i) for i in images.images]).in_memory()
    for count in (1, 2, 4):
        asking = make(prediction_views=count, views=1)
        asking.begin_task(classes, torch.Generator())
        asking.load_state_dict(method.state_dict())
        asking.to(args.device)
        own = asking.backbone.mean, asking.backbone.std
        preparation = views.build("wide", asking.backbone.image_size[0], "auto", own)
        loader = BatchLoader(
            decoded, images.labels, preparation, 256, seed=None, device=args.device
        )
        right = []
        for pixels, targets in loader.unaugmented():
            with torch.no_grad():
                best = asking.respond(pixels, precision=args.precision).logits.argmax(1)
            right.append(best == targets)
        found[str(count)] = percent(torch.cat(right))
    return found


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--data", nargs="+", required=True, help="NAME=TREE for each dataset")
    options.add_argument("--backbone", required=True)
    options.add_argument("--weights")
    options.add_argument("--counts", type=int, nargs="+", default=list(COUNTS))
    options.add_argument("--test", type=int, default=100, help="most test images per class")
    options.add_argument("--precision", default="fp32", choices=["fp32", "bf16"])
    options.add_argument("--processes", type=int, default=8, help="for scikit-learn")
    options.add_argument("--device", default="auto")
    options.add_argument("--out", type=Path, default=Path("results/few_images"))
    args = options.parse_args()
    args.device = pick_device(args.device)
    backbone = load_backbone(args.backbone, args.weights).to(args.device)

    def make(**settings: Any) -> Strata:
        method = create_method("strata", backbone, {**SETTINGS, **settings})
        assert isinstance(method, Strata)
        return method.to(args.device)

    for name, tree in (each.split("=", 1) for each in args.data):
        out = args.out / f"{name}.json"
        check_writable(out)
        tested = None
        if Path(tree).suffix == ".npz":
            train, test, made = stored(Path(tree), args)
            labels = train.label.cpu().numpy()
            rows, classes = np.arange(len(labels)), int(labels.max()) + 1
        else:
            data = folder.load(Path(tree))
            labels, classes = data.train.labels, len(data.classes)
            rows, made = chosen(data.train, max(args.counts)), environment(args.device)
            train = passed(make(), data.train, rows, args)
            tested = data.test.subset(np.sort(draw(data.test.labels, args.test, 0)))
            test = passed(make(views=1), tested, np.arange(len(tested)), args)
        result = {
            "name": name,
            "images": {"train": len(rows), "test": len(test.label), "classes": classes},
            "features made on": made,
            "backbone": backbone.identity,
            "settings": SETTINGS,
            "precision": args.precision,
            "environment": environment(args.device),
            "few": few(make, train, test, rows, labels, args),
            "unknown": [unknown(make, train, test, classes, seed) for seed in range(DRAWS)],
            "width": wide(make, train, test, classes),
        }
        if tested is not None:
            result["prediction views"] = look_again(make, train, tested, classes, args)
        write_json(out, result)
        print(json.dumps({**result, "few": summary(result["few"])}, indent=1))
    return 0


def summary(found: dict[str, Any]) -> dict[str, Any]:
    """Means over the draws."""

    def value(draws: Sequence[Any], name: str) -> float | None:
        values = [d[name]["accuracy"] if name == "product" else d.get(name) for d in draws]
        return None if None in values else round(float(np.mean(values)), 2)

    names = ("product", "nearest mean", "LDA", "logistic regression")
    return {count: {n: value(draws, n) for n in names} for count, draws in found.items()}


if __name__ == "__main__":
    sys.exit(main())
