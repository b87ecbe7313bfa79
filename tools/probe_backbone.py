"""Measure how well a backbone's frozen features separate classes it was not trained on.

    python tools/probe_backbone.py WEIGHTS ROOT OUT.json [--device cuda]

WEIGHTS is a file that pretrain_backbone.py wrote; ROOT holds train/CLASS/*.png and
test/CLASS/*.png. Images are resized to the backbone's input (CIFAR's 32 pixels become 64). For
the class token before and after the final norm two classifiers are fitted on the training features
alone, and scored on the test features, in percent:

    nearest class mean   cosine to the mean of the class's normalised features
    linear probe         logistic regression on standardised features, fixed L2 penalty, L-BFGS
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

PENALTY = 1e-4  # on the squared weights, beside the mean loss
ITERATIONS = 150
BATCH = 500


def load_backbone(path: Path) -> tuple[VisionTransformer, int]:
    """Build the backbone that the file's metadata describes; also gives its input side."""
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata() or {}
    if "architecture" not in metadata:
        raise SystemExit(f"{path} does not describe its architecture: pass a backbone.safetensors")
    architecture = json.loads(metadata["architecture"])
    vit = VisionTransformer(**architecture)
    vit.load_state_dict({name: value.float() for name, value in load_file(path).items()})
    return vit.eval(), int(architecture["img_size"])


def read_image(path: Path) -> Tensor:
    """Pixels as uint8 (3, h, w)."""
    with Image.open(path) as image:
        return torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1)


def list_images(
    folder: Path, classes: list[str], per_class: int | None
) -> tuple[list[Path], Tensor]:
    """The folder's images, class by class, and their labels (n,)."""
    found = [sorted((folder / name).glob("*.png"))[:per_class] for name in classes]
    for name, paths in zip(classes, found, strict=True):
        if not paths:
            raise SystemExit(f"{folder / name} holds no .png image")
    labels = [label for label, paths in enumerate(found) for _ in paths]
    return [path for paths in found for path in paths], torch.tensor(labels)


@torch.no_grad()
def class_tokens(
    vit: VisionTransformer, side: int, paths: list[Path], device: torch.device
) -> dict[str, Tensor]:
    """Class-token features (n, width) of the images, `before` and `after` the final norm."""
    before = []

    def keep(_module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        before.append(inputs[0][:, 0])

    hook = vit.norm.register_forward_pre_hook(keep)
    with ThreadPoolExecutor() as pool:
        for start in range(0, len(paths), BATCH):
            pixels = torch.stack(list(pool.map(read_image, paths[start : start + BATCH])))
            inputs = pixels.to(device).float() / 127.5 - 1
            inputs = F.interpolate(inputs, (side, side), mode="bicubic", antialias=True)
            vit.forward_features(inputs.clamp(-1, 1))
    hook.remove()
    features = torch.cat(before)
    return {"before": features, "after": vit.norm(features)}


def percent(scores: Tensor, labels: Tensor) -> float:
    """Top-1 accuracy of scores (n, classes)."""
    return round(100 * (scores.argmax(1) == labels).float().mean().item(), 2)


def nearest_class_mean(train: Tensor, labels: Tensor, test: Tensor) -> Tensor:
    """Cosine scores (n_test, classes) against the means of unit-length training features."""
    unit = F.normalize(train, dim=1)
    means = torch.stack([unit[labels == label].mean(0) for label in range(int(labels.max()) + 1)])
    return F.normalize(test, dim=1) @ F.normalize(means, dim=1).T


def linear_probe(train: Tensor, labels: Tensor, test: Tensor) -> Tensor:
    """Logits (n_test, classes) of a full-batch logistic regression."""
    mean, std = train.mean(0), train.std(0) + 1e-6
    train, test = (train - mean) / std, (test - mean) / std
    layer = nn.Linear(train.shape[1], int(labels.max()) + 1, device=train.device)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    optimiser = torch.optim.LBFGS(
        layer.parameters(), max_iter=ITERATIONS, history_size=10, line_search_fn="strong_wolfe"
    )

    def closure() -> float:
        optimiser.zero_grad()
        loss = F.cross_entropy(layer(train), labels) + PENALTY * layer.weight.square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.item()

    optimiser.step(closure)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        scores: Tensor = layer(test)
    return scores


def main() -> None:
    parser = argparse.ArgumentParser(description="Probe a backbone's frozen features.")
    parser.add_argument("weights", type=Path)
    parser.add_argument(
        "root", type=Path, help="folder with train/CLASS/*.png and test/CLASS/*.png"
    )
    parser.add_argument("out", type=Path, help="JSON file to write")
    parser.add_argument("--per-class", type=int, help="most images per class")
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    if args.out.is_dir() or not args.out.absolute().parent.is_dir():  # said before the work
        parser.error(f"{args.out} is a folder, or its folder does not exist")

    started = time.monotonic()
    device = torch.device(args.device)
    vit, side = load_backbone(args.weights)
    vit.to(device)
    if not (args.root / "train").is_dir():
        parser.error(f"{args.root} has no folder train: ROOT holds train/CLASS and test/CLASS")
    classes = sorted(path.name for path in (args.root / "train").iterdir() if path.is_dir())
    splits = {}
    for split in ("train", "test"):
        paths, labels = list_images(args.root / split, classes, args.per_class)
        splits[split] = class_tokens(vit, side, paths, device), labels.to(device)
        print(f"{len(paths)} {split} features after {time.monotonic() - started:.0f} s", flush=True)
    (train, train_labels), (test, test_labels) = splits["train"], splits["test"]
    report: dict[str, object] = {
        "weights_sha256": hashlib.sha256(args.weights.read_bytes()).hexdigest(),
        "classes": len(classes),
        "train_pictures": len(train_labels),
        "test_pictures": len(test_labels),
    }
    for norm in ("before", "after"):
        for classify in (nearest_class_mean, linear_probe):
            scores = classify(train[norm], train_labels, test[norm])
            report[f"{classify.__name__}_{norm}_norm"] = percent(scores, test_labels)
    print(json.dumps(report, indent=1), f"\nfinished after {time.monotonic() - started:.0f} s")
    part = args.out.with_name(args.out.name + ".part")
    part.write_text(json.dumps(report, indent=1) + "\n")
    part.replace(args.out)


if __name__ == "__main__":
    main()
