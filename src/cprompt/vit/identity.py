"""What identifies a backbone: its name, where its weights come from, and a hash of their values."""

from __future__ import annotations

from cprompt.vit.promptable import FrozenViT


def describe_backbone(backbone: FrozenViT) -> dict[str, str]:
    """What identifies a backbone in checkpoints and records."""
    return {
        "name": backbone.name,
        "weights": backbone.weights,
        "fingerprint": backbone.fingerprint,
    }
