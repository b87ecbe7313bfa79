"""A dataset of the Hugging Face Hub, saved to disk by `Dataset.save_to_disk`."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from cprompt.data import splits
from cprompt.data.image_files import require_folder
from cprompt.data.image_set import Dataset
from cprompt.errors import DataError, some
from cprompt.files import cache_home

_TEST_NAMES = ("test", "validation", "val", "valid")


def load(
    root: Path,
    *,
    image: str | None = None,
    label: str | None = None,
    test_fraction: float = 0.2,
    seed: int = 0,
) -> Dataset:
    """Read what `save_to_disk` wrote to `root`: a DatasetDict with `train` and `test`, or one part.

    Without `test`, `validation` stands in for it. One part alone is split: `test_fraction` of each
    class, drawn by `seed`. `image` and `label` name the columns; by default the only Image and the
    only ClassLabel. Images are unpacked once, as they are, into the cache folder, from where every
    other dataset's reader can take them.
    """
    require_folder(root)
    parts = _parts(_from_disk(root), root)
    names = _names(parts["train"], _column(parts["train"], label, "ClassLabel", root))
    where = cache_home() / "hub" / _digest(root)
    found = {
        part: _unpacked(
            where / part,
            data,
            _column(data, image, "Image", root),
            _column(data, label, "ClassLabel", root),
        )
        for part, data in parts.items()
    }
    if "test" in found:
        train, test = found["train"], found["test"]
    else:
        by_name = {str(i): files for i, files in found["train"].items()}
        drawn = splits.split_classes(by_name, where, test_fraction, seed)
        train, test = ({int(i): files for i, files in part.items()} for part in drawn)
    return splits.dataset(root.resolve().name, names, _listed(train), _listed(test))


def _from_disk(root: Path) -> Any:
    try:
        import datasets
    except ImportError as error:
        raise DataError(
            "is read by the package datasets, which is not installed",
            file=root,
            hint="pip install datasets",
        ) from error
    try:
        return datasets.load_from_disk(str(root))
    except FileNotFoundError as error:
        raise DataError(
            "is not a dataset that save_to_disk wrote",
            file=root,
            hint="for a folder of class folders use the dataset folder",
        ) from error


def _parts(found: Any, root: Path) -> dict[str, Any]:
    """The datasets of the two parts; only train if there is one dataset."""
    if not isinstance(found, Mapping):
        return {"train": found}
    test = next((name for name in _TEST_NAMES if name in found), None)
    if "train" in found and test is not None:
        return {"train": found["train"], "test": found[test]}
    if len(found) == 1:
        return {"train": next(iter(found.values()))}
    raise DataError(
        f"has the parts {some(list(found))}; expected train and one of {', '.join(_TEST_NAMES)}",
        file=root,
        hint="rename them before saving",
    )


def _column(data: Any, wanted: str | None, kind: str, root: Path) -> str:
    features = data.features
    if wanted is not None:
        if type(features.get(wanted)).__name__ != kind:
            raise DataError(
                f"has no column {wanted!r} of the feature {kind}, only {some(list(features))}",
                file=root,
                hint=f"name another column, or cast it to {kind}",
            )
        return wanted
    found = [str(name) for name, feature in features.items() if type(feature).__name__ == kind]
    if len(found) != 1:
        raise DataError(
            f"has {f'columns {some(found)}' if found else 'no column'} of the feature {kind}",
            file=root,
            hint=f"say which by --data.options, or cast one to {kind} before saving",
        )
    return found[0]


def _names(data: Any, label: str) -> list[str]:
    return [str(name) for name in data.features[label].names]


def _unpacked(folder: Path, data: Any, image: str, label: str) -> dict[int, list[Path]]:
    """The images as files by label; written once, beside and renamed."""
    import datasets

    labels = [-1 if value is None else int(value) for value in data[label]]
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", suffix=".part", dir=folder.parent))
        try:
            stored = data.select_columns([image]).cast_column(image, datasets.Image(decode=False))
            for number, row in enumerate(stored):
                (part / _file_name(number)).write_bytes(_content(row[image]))
            part.rename(folder)
        except OSError:
            if not folder.is_dir():  # another process may have been faster
                raise
        finally:
            shutil.rmtree(part, ignore_errors=True)
    by_label: dict[int, list[Path]] = {}
    for number, value in enumerate(labels):
        if value >= 0:  # the Hub marks images without a label by -1
            by_label.setdefault(value, []).append(folder / _file_name(number))
    return by_label


def _file_name(number: int) -> str:
    return f"{number:08d}.img"


def _content(stored: Mapping[str, Any]) -> bytes:
    """The bytes of an image file, embedded or named by its path."""
    if stored.get("bytes") is not None:
        return bytes(stored["bytes"])
    return Path(stored["path"]).read_bytes()


def _listed(by_label: Mapping[int, Iterable[Path]]) -> splits.Listed:
    return [(file, label) for label in sorted(by_label) for file in by_label[label]]


def _digest(root: Path) -> str:
    """Changes when the dataset is saved anew."""
    told = hashlib.sha256()
    for file in sorted([*root.rglob("state.json"), *root.rglob("dataset_info.json")]):
        told.update(file.relative_to(root).as_posix().encode() + b"\0" + file.read_bytes())
    return told.hexdigest()[:16]
