"""How long a backbone's class tokens are, before and after its final norm, on photos of a folder.

    python tools/feature_scale.py FOLDER --backbone NAME --weights FILE

The step that a learning rate makes in a linear head grows with the square of that length. Writes
JSON to results/feature_scale/NAME.json.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np
import torch

from cprompt.backbone import load_backbone
from cprompt.data.images import read_image
from cprompt.files import write_json
from cprompt.learner import pick_device
from cprompt.record import environment


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("folder", type=Path)
    options.add_argument("--backbone", required=True)
    options.add_argument("--weights")
    options.add_argument("--photos", type=int, default=64)
    options.add_argument("--name", help="what the photos are called in the result")
    options.add_argument("--out", type=Path, default=Path("results/feature_scale"))
    args = options.parse_args()
    files = sorted(p for p in args.folder.rglob("*") if p.suffix.lower() in (".jpg", ".png"))
    chosen = files[:: max(len(files) // args.photos, 1)][: args.photos]
    vit = load_backbone(args.backbone, args.weights, None)
    size = vit.image_size
    photos = [np.asarray(read_image(file).resize(size[::-1])) for file in chosen]
    images = torch.from_numpy(np.stack(photos)).permute(0, 3, 1, 2) / 255  # inputs in [0, 1]
    result = {
        "backbone": args.backbone,
        "photos": len(chosen),
        "data": args.name or args.folder.resolve().name,
        "normalization": "none",
        "environment": environment(pick_device("cpu")),
    }
    with torch.no_grad():
        embedded = vit.embed(images)
        for tap in ("pre_norm", "post_norm"):
            tokens = vit.read(embedded, tap=tap)
            result[tap] = {"mean_length": round(tokens.norm(dim=1).mean().item(), 3)}
    write_json(args.out / f"{args.backbone}.json", result)
    print(json.dumps({tap: result[tap] for tap in ("pre_norm", "post_norm")}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
