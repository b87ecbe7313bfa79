"""Any folder of class folders."""

from __future__ import annotations

import os
import unicodedata
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from cprompt.data import splits
from cprompt.data.image_files import (
    IMAGE_SUFFIXES,
    is_listed,
    list_files,
    list_images,
    require_folder,
    subfolders,
)
from cprompt.data.image_set import Dataset
from cprompt.errors import ConfigError, DataError, counted, plural, some

_TEST_NAMES = ("test", "val", "valid", "validation")
_PART_NAMES = {"train", "training", "testing", *_TEST_NAMES}


def load(
    root: Path,
    *,
    classes: Sequence[str] | None = None,
    test_fraction: float = 0.2,
    seed: int = 0,
) -> Dataset:
    """Read `root/train/CLASS/…` and `root/test/CLASS/…`, or `root/CLASS/…` and split it.

    Where there is no `test`, `val`, `valid` or `validation` stands in for it. Folders below a
    class folder belong to that class. Labels number the sorted class names, or follow `classes`,
    which must then name each class folder. A class needs training images; without test images it
    is learnt, and its accuracy stays unknown. `test_fraction` and `seed` matter only where the
    split is made here; see `splits.split_classes`.
    """
    require_folder(root)
    parts = train_and_test(root)
    if parts is not None:
        train, test = read_parts(*parts)
    else:
        found = read_classes(root)
        require_images(found, root)
        train, test = splits.split_classes(found, root, test_fraction, seed)
    names = _in_order(list(train), classes, root)
    return splits.dataset(
        root.resolve().name, names, splits.listed(names, train), splits.listed(names, test)
    )


def train_and_test(root: Path) -> tuple[Path, Path] | None:
    """The folders of the two parts, or None where `root` has class folders directly."""
    found = {p.name.casefold(): p for p in subfolders(root)}
    test = next((found[name] for name in _TEST_NAMES if name in found), None)
    if "train" in found and test is not None:
        return found["train"], test
    if found and set(found) <= _PART_NAMES:
        raise DataError(
            f"has only {some([p.name for p in found.values()])}, which name parts, not classes; "
            f"expected train/ with one of {', '.join(n + '/' for n in _TEST_NAMES)}",
            file=root,
            hint="rename them, or give one of them as the folder to have it split",
        )
    return None


def read_parts(train: Path, test: Path) -> tuple[dict[str, list[Path]], dict[str, list[Path]]]:
    """Class name to images, for each part; the test part may have no class of its own."""
    learnt, tested = read_classes(train), read_classes(test)
    require_images(learnt, train)
    unknown = [name for name, images in tested.items() if images and name not in learnt]
    if unknown:
        raise DataError(
            f"has class {some(unknown)}, which {train} lacks",
            file=test,
            hint="add training images, or remove the class from the test part",
        )
    return learnt, tested


def read_classes(folder: Path) -> dict[str, list[Path]]:
    """Class name to its images, in the order of the names; possibly none for a class.

    Names are in Unicode's composed form: one file system returns accents as separate characters
    where another does not, and the same class must have the same name in both.
    """
    found: dict[str, list[Path]] = {}
    for sub in subfolders(folder):
        found.setdefault(unicodedata.normalize("NFC", sub.name), []).extend(list_images(sub))
    if not found:
        raise DataError(
            "has no class folder",
            file=folder,
            hint="put the images of each class into a folder with the name of the class",
        )
    return dict(sorted(found.items()))


def images_in(folder: Path) -> list[Path]:
    """The images that lie in `folder` itself, not in a folder below it, in order."""
    with os.scandir(folder) as entries:
        names = [e.name for e in entries if is_listed(e.name) and e.is_file()]
    return [folder / n for n in sorted(names) if Path(n).suffix.lower() in IMAGE_SUFFIXES]


class Oddity(NamedTuple):
    """What is allowed below a folder of class folders, and may not be meant."""

    message: str
    places: tuple[str, ...]
    hint: str


def oddities(folder: Path) -> list[Oddity]:
    """Images beside the class folders, and class folders that look like folders of classes."""
    found = []
    classes = subfolders(folder)
    loose = images_in(folder) if classes else []  # without any, say beside tar files
    if loose:
        number = len(loose)
        found.append(
            Oddity(
                f"{counted(number, 'image lies', 'images lie')} beside the class folders "
                f"and {plural(number, 'is', 'are')} left out",
                tuple(map(str, loose)),
                f"put {plural(number, 'it', 'each')} into the folder of its class",
            )
        )
    batches = [sub for sub in classes if _holds_classes(sub)]
    if batches:
        number = len(batches)
        found.append(
            Oddity(
                f"{counted(number, 'class has', 'classes have')} no image but "
                "in several folders below, which count as one class",
                tuple(map(str, batches)),
                "if the folders below are the classes, give one of these folders instead",
            )
        )
    return found


def _holds_classes(folder: Path) -> bool:
    """Whether a class folder has several folders of images in it, and no image itself."""
    inside = subfolders(folder)
    return len(inside) > 1 and not images_in(folder) and sum(map(_has_image, inside)) > 1


def _has_image(folder: Path) -> bool:
    return bool(images_in(folder) or list_images(folder))


def require_images(images: dict[str, list[Path]], folder: Path) -> None:
    """Raise a DataError that names the classes without an image, and what is there instead."""
    empty = [name for name, paths in images.items() if not paths]
    if not empty:
        return
    others = Counter(
        path.suffix.lower() or "no ending"
        for sub in subfolders(folder)
        if unicodedata.normalize("NFC", sub.name) in empty
        for path in list_files(sub)
    )
    instead = ", ".join(f"{count} × {suffix}" for suffix, count in others.most_common(3))
    raise DataError(
        f"no image ({', '.join(sorted(IMAGE_SUFFIXES))}) in class {some(empty)}"
        + (f", only other files ({instead})" if instead else ""),
        file=folder,
        hint=("convert them" if instead else "add images") + ", or delete the folder",
    )


def _in_order(found: Sequence[str], classes: Sequence[str] | None, root: Path) -> tuple[str, ...]:
    """The class names by label: as found, or as `classes` has them."""
    if classes is None:
        return tuple(found)
    if isinstance(classes, str):
        raise ConfigError(f"classes={classes!r} is a text; expected a list of class names")
    wanted = tuple(unicodedata.normalize("NFC", str(name)) for name in classes)
    twice = [name for name, count in Counter(wanted).items() if count > 1]
    if twice:
        raise ConfigError(f"classes has {some(twice)} more than once")
    absent = [name for name in wanted if name not in set(found)]
    if absent:
        raise DataError(f"has no folder for class {some(absent)}, which `classes` names", file=root)
    extra = [name for name in found if name not in set(wanted)]
    if extra:
        raise DataError(
            f"has a folder {some(extra)}, which `classes` does not name",
            file=root,
            hint="add it to the list, or move the folder away",
        )
    return wanted
