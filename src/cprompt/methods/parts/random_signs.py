"""Fewer numbers per feature: one part is kept, the rest goes through random signs."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn

AT_ONCE = 256
"""Rows of signs that are turned into floats at a time on a processor. They fit into its cache; all
of them together take as long to turn as to multiply. On a GPU one large product is best."""


class RandomSigns(nn.Module):
    """Features (B, F) to (B, P): the columns of `whole` as they are, signed sums of the others.

    P is `width`, or F if that is less; then nothing changes. A signed sum adds up all other
    columns, each times +1 or -1, so that inner products are kept on average. Signs come from the
    raw bits of NumPy's PCG64, which never change: they need not be stored. No data is looked at,
    so the result does not depend on which images come first.
    """

    signs: Tensor | None

    def __init__(self, features: int, width: int, whole: slice, seed: int = 0) -> None:
        super().__init__()
        self.features, self.width = features, min(width, features)
        self.whole = whole if self.width < features else slice(0, features)
        kept = self.whole.stop - self.whole.start
        drawn = None
        if self.width < features:
            shape = (features - kept, self.width - kept)
            bits = np.random.PCG64(seed).random_raw(-(-math.prod(shape) // 64))
            signs = np.unpackbits(bits.astype("<u8").view(np.uint8), count=math.prod(shape))
            drawn = torch.from_numpy(signs.reshape(shape)).to(torch.int8) * 2 - 1
        self.register_buffer("signs", drawn, persistent=False)

    @property
    def kept(self) -> slice:
        """Where the columns of `whole` are in the result."""
        return slice(0, self.whole.stop - self.whole.start)

    def forward(self, feature: Tensor) -> Tensor:
        """(B, F) to (B, P) in float64, where a row does not depend on the others' number."""
        x = feature.double()
        if self.signs is None:
            return x
        summed = x.new_zeros(len(x), self.signs.shape[1])
        parts = self._parts()
        columns = torch.split(self._others(x), [len(part) for part in parts], dim=1)
        for some, signs in zip(columns, parts, strict=True):
            summed.addmm_(some, signs.to(x))
        return torch.cat([x[:, self.whole], summed * self._scale], dim=1)

    def fold(self, weight: Tensor) -> Tensor:
        """The weights (C, F) on features that answer as `weight` (C, P) does on the result."""
        if self.signs is None:
            return weight
        narrow = weight[:, self.kept.stop :]
        parts = [narrow @ some.T.to(weight) for some in self._parts()]
        others = torch.cat(parts, dim=1) * self._scale
        at = self.whole.start
        return torch.cat([others[:, :at], weight[:, self.kept], others[:, at:]], dim=1)

    def _parts(self) -> tuple[Tensor, ...]:
        """The rows of signs that become floats together."""
        assert self.signs is not None
        at_once = AT_ONCE if self.signs.device.type == "cpu" else len(self.signs)
        return torch.split(self.signs, at_once)

    @property
    def _scale(self) -> float:
        assert self.signs is not None
        return 1 / math.sqrt(self.signs.shape[1])

    def _others(self, x: Tensor) -> Tensor:
        return torch.cat([x[:, : self.whole.start], x[:, self.whole.stop :]], dim=1)
