"""8-bit products for passes without a gradient: how far they move features.

    python -m benchmarks.fp8
    python -m benchmarks.fp8 --backbone NAME --weights FILE --data FOLDER

benchmarks/train_step.py times a step with them. Runs do not offer them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks import common
from benchmarks.images import draw_jpegs
from benchmarks.learn import SMALL
from cprompt.classifier.photos import decode
from cprompt.data.image_files import list_images
from cprompt.data.pipeline.loader import BatchLoader
from cprompt.data.pipeline.views import build
from cprompt.device import pick_device
from cprompt.vit.light_timm import VisionTransformer
from cprompt.vit.loading import load_backbone
from cprompt.vit.rounded import RoundedWeights

NARROW = torch.float8_e4m3fn
_LARGEST = torch.finfo(NARROW).max


class NarrowLinear(nn.Linear):
    """A frozen bfloat16 linear layer whose products without a gradient are in 8-bit floats.

    The weights' scale is fixed once. Activations are not scaled: a norm or GELU comes before
    nearly every product, so they lie well within the range of the format.
    """

    narrow: Tensor
    scale: Tensor
    one: Tensor

    @staticmethod
    def replace(linear: nn.Linear) -> None:
        """Change `linear` into one, in place."""
        scale = linear.weight.detach().float().abs().max() / _LARGEST
        linear.__class__ = NarrowLinear
        linear.register_buffer("narrow", (linear.weight.detach().float() / scale).to(NARROW))
        linear.register_buffer("scale", scale)
        linear.register_buffer("one", torch.ones_like(scale))

    def forward(self, input: Tensor) -> Tensor:
        """The layer's output, in bfloat16."""
        if torch.is_grad_enabled():
            return F.linear(input, self.weight, self.bias)
        rows = input.clamp(-_LARGEST, _LARGEST).to(NARROW).flatten(0, -2)
        return self.product(rows).view(*input.shape[:-1], -1)

    def product(self, rows: Tensor) -> Tensor:
        """The layer's output (n, out) of rows (n, in) in 8 bits, in bfloat16."""
        product: Tensor = torch._scaled_mm(
            rows, self.narrow.t(), self.one, self.scale, bias=self.bias, out_dtype=torch.bfloat16
        )
        return product


class NarrowWeights(RoundedWeights):
    """`RoundedWeights` whose linear layers are `NarrowLinear`."""

    def __init__(self, vit: VisionTransformer) -> None:
        super().__init__(vit)
        for module in self.blocks.modules():
            if isinstance(module, nn.Linear):
                NarrowLinear.replace(module)


def moved(
    backbone: str, weights: str | None, images: Sequence[Path], device: torch.device
) -> dict[str, float]:
    """How far features are from float32's, as a share of their length, in bf16 and in 8 bits."""
    plain, narrow = (load_backbone(backbone, weights).to(device) for _ in range(2))
    side = plain.image_size[0]
    preparation = build("photo", side, "auto", (plain.mean, plain.std))
    targets = np.zeros(len(images), np.int64)
    decoded = decode([str(image) for image in images], side)
    loader = BatchLoader(decoded, targets, preparation, 32, seed=None, device=device)
    exact: list[Tensor] = []
    rounded: dict[str, list[Tensor]] = {"bf16": []}
    with torch.no_grad(), patch("cprompt.vit.promptable.RoundedWeights", NarrowWeights):
        rounded["fp8"] = [narrow(batch, precision="bf16") for batch, _ in loader.epoch(0)]
    with torch.no_grad():
        for batch, _ in loader.epoch(0):
            exact.append(plain(batch))
            rounded["bf16"].append(plain(batch, precision="bf16"))
    truth = torch.cat(exact)
    return {
        name: float((torch.cat(parts) - truth).norm() / truth.norm())
        for name, parts in rounded.items()
    }


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print, write."""
    options = common.parser(__doc__)
    options.add_argument("--backbone", default=SMALL)
    options.add_argument("--weights", help="file (default: those that come with the package)")
    options.add_argument("--data", type=Path, metavar="FOLDER", help="images (default: drawn)")
    given = options.parse_args(argv)
    device = pick_device(given.device)
    seen = common.hardware(device)
    out = common.output("fp8", seen, given.out)
    with tempfile.TemporaryDirectory() as folder:
        if given.data is None:
            draw_jpegs(Path(folder), 2 if given.quick else 10, 2 if given.quick else 20)
        found = list_images(given.data or Path(folder))
        images = found[:: max(1, len(found) // 200)][:200]
        shares = moved(given.backbone, given.weights, images, device)
    rows = [{"products": n, "features off by": f"{100 * s:.1f} %"} for n, s in shares.items()]
    common.show(f"Rounding, {len(images)} images: {given.backbone}", rows, seen)
    settings = {"backbone": given.backbone, "images": len(images), "drawn": given.data is None}
    result = {"settings": settings, "of_length": shares}
    print(f"Written: {common.save('fp8', seen, result, out)}")


if __name__ == "__main__":
    main()
