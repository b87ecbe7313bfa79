"""Stanford Cars: 196 models of car, from any of its three layouts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cprompt.data import splits
from cprompt.data.datasets import folder
from cprompt.data.image_files import require_folder
from cprompt.data.image_set import Dataset
from cprompt.data.registry import SORTED_LABELS
from cprompt.errors import DataError, some

_NAME = "stanford_cars"
_NUMBERS = {
    "Acura RL Sedan 2012": range(90, 154),
    "Acura Integra Type R 2001": range(405, 494),
    "Ferrari FF Coupe 2012": range(8177, 8261),
}
"""Where some classes are in the combined archive; sorted names would give them other places."""


def load(
    root: Path, *, class_list: Path | str | None = None, missing: splits.Missing = "error"
) -> Dataset:
    """Read the first layout that `root` has; each gives the official split of 8,144 and 8,041.

    1. `car_ims/000001.jpg…` with `cars_annos.mat`, the combined archive.
    2. `cars_train/`, `cars_test/` and `devkit/`, the two-folder download. Both folders have a
       00001.jpg, so the two must not be put into one, and the labels of the test images are in
       `cars_test_annos_withlabels.mat`.
    3. `train/CLASS/*.jpg` and `test/CLASS/*.jpg`.

    The official label ids are not the sorted class names. In the third layout they come from
    `class_list`, a file with one class name per line in the official order. Without it they come
    from the file names, where these are the six digits of the combined archive, which is sorted by
    class; a copy that was numbered anew is recognised by classes that are elsewhere. Otherwise
    labels number the sorted names, and the dataset's name says so, because class orders drawn over
    such labels are not those of published results.
    """
    require_folder(root)
    if (root / "car_ims").is_dir():
        return _combined(root, missing)
    if (root / "cars_train").is_dir() and (root / "cars_test").is_dir():
        return _two_folders(root, missing)
    parts = folder.train_and_test(root)
    if parts is None:
        raise DataError(
            "has neither car_ims/ and cars_annos.mat, nor cars_train/, cars_test/ and devkit/, "
            "nor train/ and test/ with class folders",
            file=root,
            hint="unpack Stanford Cars there",
        )
    return _class_folders(parts, class_list)


def _combined(root: Path, missing: splits.Missing) -> Dataset:
    annotations = root / "cars_annos.mat"
    if not annotations.is_file():
        raise DataError(
            "does not exist, and only it says what each image in car_ims/ shows",
            file=annotations,
            hint="get cars_annos.mat, which belongs to the same archive",
        )
    content = _read_mat(annotations)
    train: splits.Listed = []
    test: splits.Listed = []
    for row in _rows(content, annotations, ("relative_im_path", "class", "test")):
        image = root / "car_ims" / Path(str(row["relative_im_path"])).name
        (test if row["test"] else train).append((image, int(row["class"]) - 1))
    names = _class_names(content, annotations)
    return splits.dataset(_NAME, names, *splits.on_disk(_NAME, train, test, missing))


def _two_folders(root: Path, missing: splits.Missing) -> Dataset:
    meta = _in_devkit(root, "cars_meta.mat")
    train = _one_folder(root, "cars_train", "cars_train_annos.mat")
    test = _one_folder(root, "cars_test", "cars_test_annos_withlabels.mat")
    names = _class_names(_read_mat(meta), meta)
    return splits.dataset(_NAME, names, *splits.on_disk(_NAME, train, test, missing))


def _one_folder(root: Path, part: str, annotations: str) -> splits.Listed:
    file = _in_devkit(root, annotations)
    inner = root / part / part  # some archives have the folder twice
    place = inner if inner.is_dir() else root / part
    rows = _rows(_read_mat(file), file, ("fname", "class"))
    return [(place / str(row["fname"]), int(row["class"]) - 1) for row in rows]


def _in_devkit(root: Path, name: str) -> Path:
    for place in (root / "devkit", root):
        if (place / name).is_file():
            return place / name
    raise DataError(
        "does not exist. cars_train/ and cars_test/ both have files 00001.jpg, 00002.jpg, … for "
        "different cars, so labels cannot come from file names or from the lists made for car_ims/",
        file=root / "devkit" / name,
        hint="get the devkit (cars_devkit.tgz) and cars_test_annos_withlabels.mat, or the combined "
        "archive (car_ims.tgz with cars_annos.mat)",
    )


def _class_folders(parts: tuple[Path, Path], class_list: Path | str | None) -> Dataset:
    train, test = folder.read_parts(*parts)
    name = _NAME
    if class_list is not None:
        names = _named_by(Path(class_list).expanduser(), list(train))
    else:
        numbers = {c: [p.stem for p in train[c] + test.get(c, [])] for c in train}
        stems = [stem for of_class in numbers.values() for stem in of_class]
        from_archive = all(len(s) == 6 and s.isdecimal() for s in stems) and all(
            int(stem) in _NUMBERS[c]
            for c in _NUMBERS.keys() & numbers.keys()
            for stem in numbers[c]
        )
        if from_archive and len(set(stems)) == len(stems):
            names = sorted(numbers, key=lambda c: min(numbers[c]))
        else:
            names, name = sorted(train), f"{_NAME}{SORTED_LABELS}"
    return splits.dataset(name, names, splits.listed(names, train), splits.listed(names, test))


def _named_by(file: Path, found: Sequence[str]) -> list[str]:
    """The class folders in the order of the file; case and punctuation may differ.

    One official name has a slash, which a folder cannot have.
    """

    def key(name: str) -> str:
        return "".join(c for c in name.casefold() if c.isalnum())

    try:
        lines = file.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"the class_list cannot be read ({error})", file=file, hint="check the path"
        ) from error
    wanted = [line.strip() for line in lines if line.strip()]
    folders = {key(name): name for name in found}
    unknown = [name for name in wanted if key(name) not in folders]
    unlisted = sorted(set(found) - {folders.get(key(name)) for name in wanted})
    if unknown or unlisted or len(wanted) != len(found):
        raise DataError(
            f"the class_list has {len(wanted)} names for {len(found)} class folders"
            + (f"; no folder for {some(unknown)}" if unknown else "")
            + (f"; not in the list: {some(unlisted)}" if unlisted else ""),
            file=file,
            hint="it must have the name of each class folder once",
        )
    return [folders[key(name)] for name in wanted]


def _read_mat(file: Path) -> Mapping[str, Any]:
    from scipy.io import loadmat

    try:
        content: Mapping[str, Any] = loadmat(str(file), simplify_cells=True)
    except Exception as error:  # scipy meets broken files with almost any exception
        raise DataError(
            f"is damaged or not a MATLAB file ({error})", file=file, hint="copy it again"
        ) from error
    return content


def _rows(content: Mapping[str, Any], file: Path, fields: tuple[str, ...]) -> list[dict[str, Any]]:
    """The structs of the variable `annotations`, each with the given fields."""
    found = content.get("annotations", [])
    rows = [found] if isinstance(found, dict) else list(found)
    if not rows or not all(isinstance(r, dict) and set(fields) <= set(r) for r in rows):
        raise DataError(
            f"should have a struct array `annotations` with the fields {', '.join(fields)}",
            file=file,
            hint="copy it again",
        )
    return rows


def _class_names(content: Mapping[str, Any], file: Path) -> list[str]:
    names = [str(name) for name in content.get("class_names", [])]
    if not names:
        raise DataError("should have a cell array `class_names`", file=file, hint="copy it again")
    return names
