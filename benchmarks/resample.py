"""Random crops of images on the device, resized to the network's input: four ways to make them.

    python -m benchmarks.resample
    python -m benchmarks.resample --quick --device cpu

The images are already on the device, and the crops are drawn beforehand, as the loader does once
per epoch. Every way gives normalised float32 (B, 3, 224, 224). How far its levels are from those of
PIL, which makes views on a CPU, is measured over 16 images.

- `triton`: the loader's own kernel (CUDA only).
- `interpolate`: `torch.nn.functional.interpolate(antialias=True)`, image by image.
- `grid_sample`: one call per batch over padded images; it does not filter, so it aliases.
- `grid_sample 2x2`: the same at twice the size, then the mean of every 2 x 2 pixels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from benchmarks import common
from cprompt.data.pipeline.decoded import DecodedImages, ImageArray
from cprompt.data.pipeline.views import DRAWS, Preparation, Views, apply_views, build
from cprompt.device import pick_device

SIZE = 224
BATCHES = (16, 256)
COMPARED = 16  # images whose levels are compared with PIL's


def drawn_images(count: int) -> list[ImageArray]:
    """Images of about 300 x 400 pixels: smooth colours with grain, like photographs."""
    rng = np.random.default_rng(0)
    images = []
    for _ in range(count):
        height, width = rng.integers(280, 321), rng.integers(380, 421)
        coarse = torch.from_numpy(rng.random((1, 3, 12, 16)))
        smooth = F.interpolate(coarse, (int(height), int(width)), mode="bicubic")[0]
        grain = rng.normal(0, 8, (height, width, 3))
        levels = 255 * smooth.permute(1, 2, 0).numpy() + grain
        images.append(levels.clip(0, 255).astype(np.uint8))
    return images


class Crops:
    """The same crops of the same images, for every contender."""

    def __init__(self, count: int, device: torch.device, size: int = SIZE) -> None:
        self.device = device
        self.arrays = drawn_images(count)
        self.sizes = np.array([image.shape[:2] for image in self.arrays], dtype=np.int64)
        self.preparation: Preparation = build("photo", size, "imagenet")
        uniforms = np.random.default_rng(1).random((count, DRAWS))
        self.chain = self.preparation.train_views(uniforms, self.sizes)

    @property
    def views(self) -> Views:
        """The one view of each image: a window, resized to the input, mirrored or not."""
        (views,) = self.chain
        return views

    def contenders(self) -> dict[str, Callable[[], Tensor]]:
        """What makes the batch, by name; `triton` only where there is a CUDA device."""
        ways = {
            "interpolate": self._interpolate(),
            "grid_sample": self._grid_sample(1),
            "grid_sample 2x2": self._grid_sample(2),
        }
        return {"triton": self._triton(), **ways} if self.device.type == "cuda" else ways

    def _triton(self) -> Callable[[], Tensor]:
        from cprompt.data.pipeline.resample import DeviceImages

        decoded = DecodedImages(self.arrays.__getitem__, len(self.arrays), self.sizes)
        images = DeviceImages(decoded, self.preparation.normalizer(self.device), self.device)
        plan = images.plan(self.chain, np.arange(len(decoded)))
        return lambda: images.inputs(plan, 0, len(decoded))

    def _interpolate(self) -> Callable[[], Tensor]:
        images = [torch.from_numpy(image).to(self.device) for image in self.arrays]
        windows, flips = self.views.window.tolist(), self.views.flip.tolist()
        size = (self.preparation.size, self.preparation.size)

        def crop(image: Tensor, window: Sequence[int], flip: bool) -> Tensor:
            top, left, height, width = window
            part = image[top : top + height, left : left + width].permute(2, 0, 1)[None].float()
            view = F.interpolate(part, size, mode="bilinear", antialias=True)
            return view.flip(-1) if flip else view

        def run() -> Tensor:
            batch = torch.cat([crop(*each) for each in zip(images, windows, flips, strict=True)])
            return self._normalized(batch)

        return run

    def _grid_sample(self, times: int) -> Callable[[], Tensor]:
        """`times` samples per output pixel along each side, averaged."""
        height, width = self.sizes.max(axis=0).tolist()
        padded = torch.zeros(len(self.arrays), 3, height, width, dtype=torch.uint8)
        for slot, image in zip(padded, self.arrays, strict=True):
            slot[:, : image.shape[0], : image.shape[1]] = torch.from_numpy(image).permute(2, 0, 1)
        on_device = padded.to(self.device)
        top, left, window_h, window_w = torch.from_numpy(self.views.window).to(self.device).T
        flip = torch.from_numpy(self.views.flip).to(self.device)[:, None]
        steps = self.preparation.size * times
        centres = (torch.arange(steps, device=self.device) + 0.5) / steps

        def coordinates(first: Tensor, length: Tensor, whole: int, at: Tensor) -> Tensor:
            """Where to sample in [-1, 1]; never beyond the centres of the window's border."""
            inside = (at * length[:, None] - 0.5).clamp(min=0).minimum(length[:, None] - 1.0)
            return (2 * (first[:, None] + inside) + 1) / whole - 1

        def run() -> Tensor:
            rows = centres.expand(len(self.arrays), -1)
            columns = torch.where(flip, 1 - rows, rows)
            y = coordinates(top, window_h, height, rows)
            x = coordinates(left, window_w, width, columns)
            grid = torch.stack(
                [x[:, None, :].expand(-1, steps, -1), y[:, :, None].expand(-1, -1, steps)], -1
            )
            batch = F.grid_sample(on_device.float(), grid, align_corners=False)
            return self._normalized(F.avg_pool2d(batch, times) if times > 1 else batch)

        return run

    def _normalized(self, levels: Tensor) -> Tensor:
        """float (B, 3, S, S) in 0..255, rounded to whole levels, as network input."""
        mean, std = self._statistics(levels.device)
        return levels.round().clamp(0, 255).div(255).sub(mean).div(std)

    def _statistics(self, device: torch.device) -> tuple[Tensor, Tensor]:
        preparation = self.preparation
        mean, std = (torch.tensor(c, device=device) for c in (preparation.mean, preparation.std))
        return mean.view(3, 1, 1), std.view(3, 1, 1)

    def difference(self, batch: Tensor) -> dict[str, float]:
        """Largest and mean distance from PIL's levels, over the first `COMPARED` images."""
        mean, std = self._statistics(torch.device("cpu"))
        levels = (batch[:COMPARED].cpu() * std + mean) * 255
        away = (levels - torch.from_numpy(self._by_pil(len(levels)))).abs()
        return {"max": float(away.max()), "mean": float(away.mean())}

    def _by_pil(self, count: int) -> NDArray[np.float32]:
        rows = [apply_views(self.arrays[i], self.chain, i) for i in range(count)]
        return np.stack(rows).transpose(0, 3, 1, 2).astype(np.float32)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print, write."""
    given = common.parser(__doc__).parse_args(argv)
    device = pick_device(given.device)
    seen = common.hardware(device)
    batches, size = ((4,), 32) if given.quick else (BATCHES, SIZE)

    found: dict[str, dict[str, Any]] = {}
    rows = []
    for count in batches:
        crops = Crops(count, device, size)
        ways = crops.contenders()
        timings = common.interleave(ways, device, common.rounds(device, given.quick))
        for name, timing in timings.items():
            away = crops.difference(ways[name]())
            found[f"{name}, batch {count}"] = {"seconds": asdict(timing), "levels_from_pil": away}
            rows.append(
                {
                    "way": name,
                    "batch": str(count),
                    "ms": f"{1e3 * timing.median:.2f}",
                    "": common.spread(timing),
                    "µs per image": f"{1e6 * timing.median / count:.1f}",
                    "levels from PIL, max": f"{away['max']:.1f}",
                    "mean": f"{away['mean']:.3f}",
                }
            )
    title = f"Random crops of images of about 300 x 400 pixels, resized to {size} x {size}"
    common.show(title, rows, seen)
    result = {"settings": {"size": size, "batches": batches}, "ways": found}
    print(f"Written: {common.save('resample', seen, result, given.out)}")


if __name__ == "__main__":
    main()
