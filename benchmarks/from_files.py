"""The photo classifier from JPEG files: learning and asking beside decoding and forward alone.

    python -m benchmarks.from_files
    python -m benchmarks.from_files --quick --device cpu

Decoding and the backbone's forward can at best run at the same time, so the slower of them is the
limit; "of the limit" says how near learning and asking come, views, statistics and all. An
input is one view of a photo; learning looks at several per photo and decodes each photo once. The C
library keeps freed memory, as in the process of a command. Then peak memory, in a process of its
own, as the photos that are asked about grow in number.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

import torch

from benchmarks import common, learn
from benchmarks.common import Call, Rounds
from benchmarks.images import draw_jpegs
from cprompt import ContinualClassifier
from cprompt.classifier.photos import decode
from cprompt.cli.start import keep_freed_memory
from cprompt.device import pick_device

CLASSES = 10


def decoding(files: Sequence[Path], side: int) -> Call:
    """Read and reduce every photo."""
    return partial(decode, list(files), side)


def ask(files: Sequence[Path], backbone: str, device: str, times: int) -> None:
    """Learn few photos, then ask about all files `times` times over."""
    model = learn.classifier(backbone, device)
    few = [file for file in files if file.stem in ("0", "1")]
    model.learn(few, [file.parent.name for file in few])
    model.predict(list(files) * times)


def measure(
    files: list[Path], backbone: str, device: torch.device, rounds: Rounds
) -> tuple[dict[str, common.Timing], int]:
    """Seconds of all photos for each contender, and the views that learning looks at."""
    model: ContinualClassifier = learn.classifier(backbone, device.type)
    names = [file.parent.name for file in files]
    model.fit(files, names)
    side = model.preparation_.size
    views = (model.method_.extra_views + 1) * len(files)
    asked: Call = partial(model.predict, files)
    twin = learn.classifier(backbone, device.type)
    timings = common.interleave(
        {
            "decode": decoding(files, side),
            "forward": learn.forward(backbone, device, len(files), side),
            "predict": asked,
            "learn": partial(twin.fit, files, names),
        },
        device,
        rounds,
    )
    return timings, views


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print, write."""
    options = common.parser(__doc__)
    options.add_argument("--backbone", default=learn.BACKBONE)
    options.add_argument("--photos", type=int, help="per class (default: 40; 200 on a GPU)")
    given = options.parse_args(argv)
    device = pick_device(given.device)
    seen = common.hardware(device)
    out = common.output("from_files", seen, given.out)
    usual = 40 if device.type == "cpu" else 200  # a GPU is through with 400 in half a second
    per_class = given.photos or (4 if given.quick else usual)
    growth = (1, 2) if given.quick else (1, 4, 16)

    with tempfile.TemporaryDirectory() as folder:
        draw_jpegs(Path(folder), CLASSES, per_class)
        files = sorted(Path(folder).rglob("*.jpg"))
        rounds = Rounds(1, 1, 1) if given.quick else Rounds(1, 5, 1)
        timings, views = measure(files, given.backbone, device, rounds)
        peaks = {
            times * len(files): common.peak_memory(
                partial(ask, files, learn.SMALL, device.type, times), device
            )
            for times in growth
        }
    decode_, forward = timings["decode"].median, timings["forward"].median
    limits = {
        "predict": max(decode_, forward),
        "learn": max(decode_, forward * views / len(files)),
    }
    shares = {name: limit / timings[name].median for name, limit in limits.items()}
    rows = [
        {
            "what": name,
            "photos/s": f"{len(files) / timing.median:.1f}",
            "spread": common.spread(timing),
            "of the limit": f"{shares[name]:.2f}" if name in shares else "",
        }
        for name, timing in timings.items()
    ]
    memory = ", ".join(
        f"{'unknown' if peak is None else f'{peak / 1e6:.0f} MB'} for {n}"
        for n, peak in peaks.items()
    )
    notes = [f"Peak memory of asking, by the number of photos: {memory} ({learn.SMALL})."]
    common.show(f"From {len(files)} JPEG files: {given.backbone}", rows, seen, notes)
    result = {
        "settings": {"backbone": given.backbone, "photos": len(files), "views": views},
        "rounds": asdict(rounds),
        "seconds": {name: asdict(timing) for name, timing in timings.items()},
        "of_the_limit": shares,
        "small_backbone": learn.SMALL,
        "peak_bytes": {str(n): peak for n, peak in peaks.items()},
    }
    print(f"Written: {common.save('from_files', seen, result, out)}")


if __name__ == "__main__":
    keep_freed_memory()
    main()
