"""Pack Tiny-ImageNet's training and validation images into a few .npz shards.

    python tools/pack_tiny_imagenet.py ROOT OUT

ROOT is the unpacked `tiny-imagenet-200` folder (train/WNID/images/*.JPEG, val/images/*.JPEG and
val/val_annotations.txt). The JPEG bytes are stored as they are; every image is decoded once to
prove that it can be, and one that cannot is named and left out. The unlabelled test images are
not read.

Each shard OUT/shardNN.npz is an uncompressed NumPy archive that needs no pickle:
    jpeg     uint8 (bytes,)      the files, end to end
    offsets  int64 (n + 1,)      file i is jpeg[offsets[i]:offsets[i + 1]]
    split    uint8 (n,)          0 training, 1 validation
    label    int16 (n,)          index into classes
    classes  str (200,)          WordNet ids, sorted; the same in every shard
"""

from __future__ import annotations

import argparse
import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image

SIDE = 64
TRAIN, VAL = 0, 1


def labelled_files(root: Path, classes: list[str]) -> Iterator[tuple[Path, int, int]]:
    """Yield (file, split, label) in a fixed order: training by class, then validation by name."""
    index = {wnid: label for label, wnid in enumerate(classes)}
    for wnid in classes:
        for path in sorted((root / "train" / wnid / "images").glob("*.JPEG")):
            yield path, TRAIN, index[wnid]
    rows = (root / "val" / "val_annotations.txt").read_text().splitlines()
    for name, wnid in sorted(tuple(row.split("\t")[:2]) for row in rows):
        yield root / "val" / "images" / name, VAL, index[wnid]


def unreadable(data: bytes) -> str | None:
    """Say why an image cannot be used, or None when it decodes to SIDE × SIDE pixels."""
    try:
        with Image.open(io.BytesIO(data)) as image:
            size = image.convert("RGB").size
    except (OSError, SyntaxError, ValueError) as error:
        return str(error)
    return None if size == (SIDE, SIDE) else f"{size[0]} × {size[1]} pixels, not {SIDE} × {SIDE}"


def write_shard(path: Path, files: list[tuple[bytes, int, int]], classes: list[str]) -> None:
    """Write one shard beside its place, then rename it."""
    part = path.with_name(path.name + ".part")
    with part.open("wb") as stream:
        np.savez(
            stream,
            jpeg=np.frombuffer(b"".join(data for data, _, _ in files), dtype=np.uint8),
            offsets=np.cumsum([0, *(len(data) for data, _, _ in files)], dtype=np.int64),
            split=np.array([split for _, split, _ in files], dtype=np.uint8),
            label=np.array([label for _, _, label in files], dtype=np.int16),
            classes=np.array(classes),
        )
    part.replace(path)


def main() -> None:
    parser = argparse.ArgumentParser(description="Pack Tiny-ImageNet into .npz shards.")
    parser.add_argument("root", type=Path, help="the unpacked tiny-imagenet-200 folder")
    parser.add_argument("out", type=Path, help="folder for shard00.npz, shard01.npz, …")
    parser.add_argument("--shard-mib", type=float, default=58.0, help="largest shard, in MiB")
    args = parser.parse_args()

    for needed in (args.root / "train", args.root / "val" / "val_annotations.txt"):
        if not needed.exists():
            parser.error(f"{needed} is missing: ROOT must be the unpacked tiny-imagenet-200 folder")
    classes = sorted(path.name for path in (args.root / "train").iterdir() if path.is_dir())
    args.out.mkdir(parents=True, exist_ok=True)

    # Besides its bytes a file costs 11 in the index (int64, uint8, int16); 64 KiB covers the rest.
    limit = int(args.shard_mib * 2**20) - 2**16
    pending: list[tuple[bytes, int, int]] = []
    size, shards, counts, skipped = 0, 0, {TRAIN: 0, VAL: 0}, 0
    for path, split, label in labelled_files(args.root, classes):
        data = path.read_bytes()
        if reason := unreadable(data):
            print(f"left out {path}: {reason}")
            skipped += 1
            continue
        if size + len(data) + 11 > limit:
            write_shard(args.out / f"shard{shards:02d}.npz", pending, classes)
            pending, size, shards = [], 0, shards + 1
        pending.append((data, split, label))
        size += len(data) + 11
        counts[split] += 1
    write_shard(args.out / f"shard{shards:02d}.npz", pending, classes)
    print(
        f"{counts[TRAIN]} training and {counts[VAL]} validation images of {len(classes)} classes "
        f"in {shards + 1} shards; {skipped} left out"
    )


if __name__ == "__main__":
    main()
