"""Backbones that come with the package: each a .safetensors file beside a .json description."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class EmbeddedBackbone:
    """Weights trained for this package, and what is needed to build the model and feed it."""

    name: str
    path: Path
    architecture: dict[str, Any]
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    summary: str


def _find() -> dict[str, EmbeddedBackbone]:
    found = {}
    for card in sorted(Path(__file__).parent.glob("*.json")):
        about = json.loads(card.read_text(encoding="utf-8"))
        inputs = about["training"]["normalisation"]
        found[card.stem] = EmbeddedBackbone(
            name=card.stem,
            path=card.with_suffix(".safetensors"),
            architecture=about["architecture"],
            mean=(inputs["mean"],) * 3,
            std=(inputs["std"],) * 3,
            summary=about["summary"],
        )
    return found


EMBEDDED: dict[str, EmbeddedBackbone] = _find()
