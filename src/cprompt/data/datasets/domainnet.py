"""DomainNet-200: 200 classes of DomainNet, each from one of its six domains."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from cprompt.data import splits
from cprompt.data.datasets import folder
from cprompt.data.image_files import require_folder
from cprompt.data.image_set import Dataset
from cprompt.errors import DataError, some

_PER_BLOCK = 20
_BLOCKS = (
    "real",
    "sketch",
    "painting",
    "quickdraw",
    "quickdraw",
    "painting",
    "real",
    "clipart",
    "sketch",
    "infograph",
)
"""The domain of each run of 20 labels: 40 classes of the first four, 20 of the other two."""


def load(
    root: Path,
    *,
    split: Literal["lists", "rule"] = "lists",
    split_train: Path | str | None = None,
    split_test: Path | str | None = None,
    seed: int = 0,
    missing: splits.Missing = "error",
) -> Dataset:
    """Read `DOMAIN/CLASS/*.jpg` below `root`; classes are called "DOMAIN/CLASS".

    Results are published for two lists, 47,532 images to learn from and 20,450 to test on. They
    cannot be worked out from the images; name them as `split_train` and `split_test`.

    `split="rule"` needs no lists. It takes the 200 categories with the most images over all
    domains (of equals, the alphabetically first), in alphabetical order, and gives each run of 20
    to one domain: real, sketch, painting, quickdraw, quickdraw, painting, real, clipart, sketch,
    infograph. The label is the place in that order. The images of a domain are split by
    DomainNet's own `DOMAIN_train.txt` and `DOMAIN_test.txt` in `root`, else 70 to 30 within each
    class, drawn by `seed`. Its name differs, since its results cannot be compared.
    """
    named = splits.named_lists(split, ("lists", "rule"), split_train, split_test)
    require_folder(root)
    if split == "rule":
        return _by_rule(root, seed, missing)
    if named is None:
        raise DataError(
            "no split lists: which class comes from which domain cannot be worked out from the "
            "images",
            file=root,
            hint="name two files with lines 'domain/class/file.jpg label' as split_train and "
            "split_test (the CPrompt and ESN repositories have them); "
            'split="rule" makes another choice, whose results cannot be compared',
        )
    return splits.listed_dataset("domainnet", root, *named, depth=3, missing=missing)


def _by_rule(root: Path, seed: int, missing: splits.Missing) -> Dataset:
    domains = {domain: _read_domain(root, domain, seed) for domain in sorted(set(_BLOCKS))}
    counts: dict[str, int] = {}
    for parts in domains.values():
        for part in parts:
            for category, images in part.items():
                counts[category] = counts.get(category, 0) + len(images)
    wanted = _PER_BLOCK * len(_BLOCKS)
    if len(counts) < wanted:
        raise DataError(
            f"has {len(counts)} categories, but {wanted} are needed (DomainNet has 345)",
            file=root,
            hint="unpack all six domains there",
        )
    chosen = sorted(sorted(counts, key=lambda c: (-counts[c], c))[:wanted])
    origin = {c: _BLOCKS[place // _PER_BLOCK] for place, c in enumerate(chosen)}
    absent = [f"{domain}/{c}" for c, domain in origin.items() if not domains[domain][0].get(c)]
    if absent:
        raise DataError(
            f"has no training image for {some(absent)}", file=root, hint="complete the copy"
        )
    names = [f"{domain}/{c}" for c, domain in origin.items()]
    train, test = (
        splits.listed(names, {f"{d}/{c}": domains[d][i].get(c, []) for c, d in origin.items()})
        for i in (0, 1)
    )
    name = "domainnet-rule-split"
    return splits.dataset(name, names, *splits.on_disk(name, train, test, missing))


def _read_domain(
    root: Path, domain: str, seed: int
) -> tuple[dict[str, list[Path]], dict[str, list[Path]]]:
    """Category to its images of one domain, for training and for testing."""
    lists = [root / f"{domain}_train.txt", root / f"{domain}_test.txt"]
    if not all(file.is_file() for file in lists):
        require_folder(root / domain)
        return splits.split_classes(folder.read_classes(root / domain), root, 0.3, seed)
    parts: tuple[dict[str, list[Path]], dict[str, list[Path]]] = ({}, {})
    for part, file in zip(parts, lists, strict=True):
        for key, _ in splits.read_list(file, depth=3):
            part.setdefault(key.split("/")[1], []).append(root / key)
    return parts
