"""What every frozen backbone offers: its identity, how it is fed, and taps of its layers.

`FrozenViT` in `promptable` can be prompted as well; `FrozenModel` in `frozen_model` is any other
timm model.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from cprompt.errors import ConfigError

if TYPE_CHECKING:
    from cprompt.vit.promptable import Embedded, Precision, Prompts

Channels = tuple[float, float, float]
TapTokens = Literal["both", "class", "patch"]

INCEPTION: tuple[Channels, Channels] = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
"""Mean and standard deviation for weights that do not say theirs; most ViTs use these."""


@dataclass(frozen=True)
class TapPart:
    """One part of a tapped feature."""

    layer: int
    kind: Literal["class", "patch"]
    width: int


class Backbone(nn.Module):
    """A frozen model that turns images into features of its layers.

    Layers are counted from 0: the blocks of a transformer, the stages of a hierarchical model.
    """

    name: str
    weights: str
    """Where the weights come from: "embedded", "timm:NAME", "file:NAME" or "random:SEED"."""
    dim: int
    """Width of the last layer."""
    depth: int
    """Number of layers that can be tapped."""
    image_size: tuple[int, int]
    """Height and width of the input."""
    mean: Channels
    std: Channels
    """What the weights expect inputs in [0, 1] to be normalised with."""
    _fingerprint: str | None = None

    def embed(self, images: Tensor, precision: Precision = "fp32") -> Embedded:
        """Images (B, 3, H, W) to what passes start from; passes run in `precision`."""
        raise NotImplementedError

    def taps(
        self,
        embedded: Embedded,
        layers: Sequence[int],
        tokens: TapTokens = "both",
        prompts: Prompts | None = None,
    ) -> Tensor:
        """What single layers say, in one pass: (B, F), the parts of `tap_kinds` side by side."""
        raise NotImplementedError

    def tap_widths(self, layers: Sequence[int], tokens: TapTokens = "both") -> list[int]:
        """The widths of the parts of `taps`, in order; F is their sum."""
        return [part.width for part in self.tap_parts(layers, tokens)]

    def tap_kinds(self, layers: Sequence[int], tokens: TapTokens = "both") -> list[str]:
        """What the parts of `taps` are, in order: "class" or "patch"."""
        return [part.kind for part in self.tap_parts(layers, tokens)]

    def tap_parts(self, layers: Sequence[int], tokens: TapTokens = "both") -> list[TapPart]:
        """The parts of `taps`: for each layer the class part if it has one, then the patch mean."""
        if not layers:
            raise ConfigError(f"no layer of {self.name} is named", hint=self._layers_hint())
        parts = []
        for layer in layers:
            if not 0 <= layer < self.depth:
                raise ConfigError(f"{self.name} has no layer {layer}", hint=self._layers_hint())
            width = self._class_width(layer)
            if tokens == "class" and width is None:
                raise ConfigError(
                    f"layer {layer} of {self.name} has no class token",
                    hint="use tokens patch or both, or only layers that have one "
                    f"({', '.join(map(str, self._class_layers())) or 'there are none'})",
                )
            if tokens != "patch" and width is not None:
                parts.append(TapPart(layer, "class", width))
            if tokens != "class":
                parts.append(TapPart(layer, "patch", self._patch_width(layer)))
        return parts

    @property
    def fingerprint(self) -> str:
        """SHA-256 over the names, shapes and values of all weights except the classifier's."""
        if self._fingerprint is None:
            digest = hashlib.sha256()
            for name, tensor in self._named_weights().items():
                digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
                digest.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().data)
            self._fingerprint = digest.hexdigest()
        return self._fingerprint

    @property
    def layer_widths(self) -> list[int]:
        """The width of each layer that can be tapped."""
        return [self._patch_width(layer) for layer in range(self.depth)]

    @property
    def identity(self) -> dict[str, Any]:
        """What identifies the backbone in checkpoints, records and model folders."""
        return {
            "name": self.name,
            "weights": self.weights,
            "fingerprint": self.fingerprint,
            "layers": self.layer_widths,
        }

    def difference(self, identity: Mapping[str, Any]) -> str | None:
        """How this backbone differs from the one of that identity; None if it does not.

        The same weights may be read by other layers: which ones there are is up to timm's version.
        Identities in older files do not tell.
        """
        if identity["fingerprint"] != self.fingerprint:
            mine = f"{self.weights}, {self.fingerprint[:12]}"
            return f"this is {self.name} with other weights ({mine})"
        then, now = identity.get("layers", self.layer_widths), self.layer_widths
        if then != now:
            return f"the timm installed here reads other layers of it: of widths {now}, not {then}"
        return None

    def train(self, mode: bool = True) -> Any:
        """Stay in evaluation mode: dropout and drop-path would make features random."""
        return super().train(False)

    def _class_width(self, layer: int) -> int | None:
        """Width of a layer's class part; None if it has none."""
        raise NotImplementedError

    def _patch_width(self, layer: int) -> int:
        raise NotImplementedError

    def _named_weights(self) -> Mapping[str, Tensor]:
        """All weights except the classifier's."""
        raise NotImplementedError

    def _class_layers(self) -> list[int]:
        return [layer for layer in range(self.depth) if self._class_width(layer) is not None]

    def _layers_hint(self) -> str:
        return f"it has layers 0 to {self.depth - 1}" if self.depth > 1 else "it has layer 0 only"


def normalization_of(model: nn.Module) -> tuple[Channels, Channels]:
    """Mean and standard deviation of each channel, as timm describes the model's weights."""
    about = getattr(model, "pretrained_cfg", None) or {}
    mean, std = about.get("mean"), about.get("std")
    if mean is None or std is None or len(mean) != 3 or len(std) != 3:
        return INCEPTION
    return (mean[0], mean[1], mean[2]), (std[0], std[1], std[2])
