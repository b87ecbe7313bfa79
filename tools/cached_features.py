"""Features of image files, computed once and kept in a folder; for scripts that learn many times.

What is kept is what `Strata.count_features` takes: of each image the feature under the test view,
in float16, and its content key.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from cprompt import ContinualClassifier
from cprompt.classifier.learning import counted_photos
from cprompt.data.image_set import ImageSet
from cprompt.methods.base import create_method
from cprompt.methods.strata import Strata
from cprompt.training.observers import Observer
from cprompt.vit.loading import load_backbone

AT_ONCE = 512
"""Images per file; an interrupted script goes on after the last."""


@dataclass(frozen=True)
class Features:
    """Of n images: features (n, F), content keys (n,) and classes (n,)."""

    feature: Tensor
    key: Tensor
    target: Tensor

    def __len__(self) -> int:
        return len(self.key)


class Laboratory:
    """Strata as the classifier uses it, with one view per image, on one backbone."""

    def __init__(self, backbone: str, weights: str | None, device: str = "auto") -> None:
        self.classifier = ContinualClassifier(
            backbone, weights=weights, settings={"views": 1}, device=device
        )
        self.vit = load_backbone(backbone, weights)

    def method(self, n_classes: int = 0) -> Strata:
        """A method that has room for so many classes and has seen nothing."""
        settings = self.classifier.method_settings()
        made = create_method("strata", self.vit, settings)
        assert isinstance(made, Strata)
        if n_classes:
            made.begin_task(n_classes, torch.Generator())
        return made

    def features(self, images: ImageSet, name: str, cache: Path, most: int | None) -> Features:
        """Of the first `most` images of each class; read from `cache` where they are there."""
        chosen = [
            i
            for c in range(len(images.classes))
            for i in (images.labels == c).nonzero()[0][:most].tolist()
        ]
        method = self.method()
        parts = []
        for first in range(0, len(chosen), AT_ONCE):
            part = chosen[first : first + AT_ONCE]
            of = f"{name}-{most or 'all'}-{self.vit.fingerprint[:12]}"
            file = cache / f"{of}-{first:06d}.safetensors"
            if not file.exists():
                cache.mkdir(parents=True, exist_ok=True)
                files = [Path(str(images.images[i])) for i in part]
                save_file(self._computed(method, files), file)
                print(f"{name}: {first + len(part)} of {len(chosen)}", file=sys.stderr, flush=True)
            parts.append(load_file(file))
        return Features(
            torch.cat([part["feature"] for part in parts]),
            torch.cat([part["key"] for part in parts]),
            torch.as_tensor(images.labels[chosen]).long(),
        )

    @torch.no_grad()
    def _computed(self, method: Strata, files: Sequence[Path]) -> dict[str, Tensor]:
        feature, key = [], []
        for embedded, _ in counted_photos(
            self.classifier,
            method,
            files,
            [0] * len(files),
            self.classifier.preparation_,
            Observer(),
        ):
            assert embedded.keys is not None
            feature.append(method.feature(embedded).half().cpu())
            key.append(embedded.keys.cpu())
        return {"feature": torch.cat(feature), "key": torch.cat(key)}
