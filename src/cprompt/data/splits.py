"""Which image is for training and which for testing: split lists, and splits drawn by a seed."""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Literal

import numpy as np
import yaml

from cprompt.data.image_set import Dataset, ImageSet
from cprompt.errors import ConfigError, DataError, counted

Listed = list[tuple[Path, int]]
"""Image files with their labels."""

Missing = Literal["error", "skip"]
"""What to do about listed images that are not on disk."""


class MissingImagesError(DataError):
    """Listed images that are not on disk; `files` has all of them, the message a few."""

    def __init__(self, name: str, files: Sequence[Path]) -> None:
        self.files = tuple(files)
        shown = ", ".join(str(f) for f in files[:3])
        super().__init__(
            f"{len(files)} listed image{'s are' if len(files) > 1 else ' is'} missing: "
            f"{shown}{', …' if len(files) > 3 else ''}",
            file=name,
            hint='complete the copy, or pass missing="skip" to go on without',
        )


def listed(classes: Sequence[str], images: Mapping[str, Sequence[Path]]) -> Listed:
    """The images of each class with its label, the place of the class in `classes`."""
    return [(path, label) for label, name in enumerate(classes) for path in images.get(name, ())]


def dataset(name: str, classes: Sequence[str], train: Listed, test: Listed) -> Dataset:
    """A dataset of image files, in the order given."""

    def part(rows: Listed) -> ImageSet:
        labels = np.array([label for _, label in rows], dtype=np.int64)
        return ImageSet([path for path, _ in rows], labels, tuple(classes))

    return Dataset(name, part(train), part(test))


def listed_dataset(
    name: str, folder: Path, train_list: Path, test_list: Path, *, depth: int, missing: Missing
) -> Dataset:
    """The dataset that two list files describe, its images found below `folder`.

    Only the last `depth` components of a listed path count, since lists carry all sorts of
    prefixes. A class is named by what precedes the file name in them, and must have one label.
    """
    lists = [(file, read_list(file, depth)) for file in (train_list, test_list)]
    shared = {key for key, _ in lists[0][1]} & {key for key, _ in lists[1][1]}
    if shared:
        raise DataError(
            f"{counted(len(shared), 'image is', 'images are')} in both {train_list} and "
            f"{test_list}, such as {min(shared)}",
            file=name,
            hint="an image may be in one list only",
        )
    classes = _class_names(lists)
    train, test = ([(folder / key, label) for key, label in rows] for _, rows in lists)
    return dataset(name, classes, *on_disk(name, train, test, missing))


def named_lists(
    split: str, choices: tuple[str, str], train: Path | str | None, test: Path | str | None
) -> tuple[Path, Path] | None:
    """The two list files that the user named, if any: both or none.

    `split` is one of `choices`: the first reads lists, the second has no use for them.
    """
    check_choice("split", split, choices)
    if train is None and test is None:
        return None
    if split != choices[0]:
        raise ConfigError(
            f"split={split!r} reads no lists", hint="leave out split_train and split_test"
        )
    if train is None or test is None:
        raise ConfigError(
            "split_train and split_test go together", hint="name both list files, or none"
        )
    return Path(train).expanduser(), Path(test).expanduser()


def on_disk(
    name: str, train: Listed, test: Listed, missing: Missing = "error"
) -> tuple[Listed, Listed]:
    """The two parts without the images that are not on disk, if `missing` says to skip them.

    Otherwise the missing images of both parts make one MissingImagesError.
    """
    check_choice("missing", missing, ("error", "skip"))
    absent = {path for path, _ in train + test if not path.is_file()}
    if absent and missing == "error":
        raise MissingImagesError(name, sorted(absent))
    train, test = ([row for row in part if row[0] not in absent] for part in (train, test))
    if not train:
        raise DataError(
            "not one of the listed training images is on disk, not even "
            f"{min(absent, default='one')}",
            file=name,
            hint="check that the folder is the right one",
        )
    return train, test


def read_list(file: Path, depth: int) -> list[tuple[str, int]]:
    """(the last `depth` components of the path, label) for each row of a list file.

    Text files have lines "path label"; YAML files have `data`, a list of paths, and `targets`, the
    list of their labels.
    """
    try:
        text = file.read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        raise DataError(
            "the split list does not exist", file=file, hint="check the path"
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"the split list cannot be read ({error})", file=file) from error
    is_yaml = file.suffix.lower() in {".yaml", ".yml"}
    rows = _yaml_rows(file, text) if is_yaml else _text_rows(file, text)
    if not rows:
        raise DataError("the split list is empty", file=file, hint="copy it again")
    found = []
    for where, path, label in rows:
        parts = PurePosixPath(path.replace("\\", "/")).parts
        if len(parts) < depth or ".." in parts[-depth:]:
            raise DataError(
                f"{path!r} should end in {'/'.join(['folder'] * (depth - 1))}/file", file=where
            )
        if label < 0:
            raise DataError(f"label {label} is negative; labels count from 0", file=where)
        found.append(("/".join(parts[-depth:]), label))
    return found


def split_classes(
    images: Mapping[str, Sequence[Path]], root: Path, fraction: float, seed: int
) -> tuple[dict[str, list[Path]], dict[str, list[Path]]]:
    """Split the images of each class: `fraction` of them are for testing, the rest for training.

    Images of a class are ranked by a hash of the seed and their path below `root`, and the first
    are for testing. So other classes have no influence, and images added later rarely move an
    earlier one to the other side. Of two or more images at least one goes to each side; a single
    image is for training.
    """
    if isinstance(fraction, bool) or not isinstance(fraction, (int, float)) or not 0 < fraction < 1:
        raise ConfigError(f"test fraction {fraction!r} is not a number between 0 and 1")

    def rank(path: Path) -> bytes:
        key = unicodedata.normalize("NFC", path.relative_to(root).as_posix())
        return hashlib.sha256(f"{seed}:{key}".encode("utf-8", "surrogateescape")).digest()

    train: dict[str, list[Path]] = {}
    test: dict[str, list[Path]] = {}
    for name, paths in images.items():
        n_held_out = min(max(1, round(fraction * len(paths))), len(paths) - 1)
        held_out = set(sorted(paths, key=rank)[: max(n_held_out, 0)])
        train[name] = [p for p in paths if p not in held_out]
        test[name] = [p for p in paths if p in held_out]
    return train, test


def check_choice(option: str, value: str, choices: Sequence[str]) -> None:
    """Raise a ConfigError unless `value` is one of `choices`."""
    if value not in choices:
        raise ConfigError(f"{option}={value!r}: expected {' or '.join(map(repr, choices))}")


def _text_rows(file: Path, text: str) -> list[tuple[str, str, int]]:
    """(where, path, label) of each line; the path may contain spaces."""
    rows = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        path, _, label = line.strip().replace("\t", " ").rpartition(" ")
        if not path or not label.isdecimal():
            raise DataError(f"{line.strip()!r} is not 'path label'", file=f"{file}, line {number}")
        rows.append((f"{file}, line {number}", path.strip(), int(label)))
    return rows


def _yaml_rows(file: Path, text: str) -> list[tuple[str, str, int]]:
    """(where, path, label) of each entry."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the lists are long: C where there is
    try:
        content = yaml.load(text, Loader=loader)
    except yaml.YAMLError as error:
        raise DataError(
            f"the split list is not valid YAML ({error})", file=file, hint="copy it again"
        ) from error
    paths, labels = (
        content.get(key) if isinstance(content, dict) else None for key in ("data", "targets")
    )
    if not isinstance(paths, list) or not isinstance(labels, list):
        raise DataError("the split list should have two lists, `data` and `targets`", file=file)
    if len(paths) != len(labels):
        raise DataError(
            f"the split list has {len(paths)} entries in `data` but {len(labels)} in `targets`",
            file=file,
        )
    rows = []
    for number, (path, label) in enumerate(zip(paths, labels, strict=True), start=1):
        if not isinstance(path, str) or not isinstance(label, int):
            raise DataError(
                f"{path!r} with label {label!r} is not a path with a whole number",
                file=f"{file}, entry {number}",
            )
        rows.append((f"{file}, entry {number}", path, label))
    return rows


def _class_names(lists: Sequence[tuple[Path, Sequence[tuple[str, int]]]]) -> tuple[str, ...]:
    """The class folder of each label 0, 1, …; one per label, without gaps."""
    names: dict[int, str] = {}
    labels: dict[str, int] = {}
    for file, rows in lists:
        for key, label in rows:
            name = key.rpartition("/")[0]
            if names.setdefault(label, name) != name or labels.setdefault(name, label) != label:
                raise DataError(
                    f"{key} has label {label}, but label {label} is for "
                    f"{names[label]!r} and {name!r} has label {labels.get(name, label)}",
                    file=file,
                    hint="the two lists must agree, with one label per class",
                )
    absent = sorted(set(range(max(names) + 1)) - set(names))
    if absent:
        raise DataError(
            f"no image with label {absent[0]} ({len(absent)} labels below {max(names)} are "
            "missing)",
            file=" and ".join(str(file) for file, _ in lists),
            hint="labels must count 0, 1, 2, …",
        )
    return tuple(names[label] for label in range(len(names)))
