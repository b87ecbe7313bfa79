"""A model on disk: a folder with one JSON file, one safetensors file, and the previous version.

`model.json` holds everything except the tensors, and the name, size and hash of the file that holds
those. It begins with a hash of its own content. A model changes in the moment when `model.json` is
replaced, so a process that is killed at any point leaves either the old model or the new one.
Readers take no lock; they read again if the model changed meanwhile. Nothing is unpickled.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from cprompt.errors import CheckpointError, ModelError
from cprompt.files import PART_ENDING, write_bytes

FORMAT = "cprompt-model"
VERSION = 2
READABLE = (1, 2)
"""Format versions that can be read; see `check_readable`."""
FILE = "model.json"
LOCK = ".lock"

_OURS = re.compile(rf"(model|model-\d{{6}}|learnt-\d{{6}})\.(json|safetensors)({PART_ENDING})?")
_TENSORS = re.compile(r"learnt-\d{6}\.safetensors")
_TRIES = 20
_KEPT = re.compile(r"model-(\d{6})\.json")
_BEGUN = f"{FILE}.part"
"""There while a first version is written: what a killed process leaves is then not taken for a
model whose `model.json` is gone."""
_UNCHANGED = "the model did not change"


class OtherFormatError(ModelError):
    """The folder is in order and of a format that is not read here, so it is nothing to repair."""


class LockedError(ModelError):
    """Another process, or another thread of this one, is changing the model."""


@dataclass(frozen=True)
class Stored:
    """The content of a model folder."""

    about: dict[str, Any]
    """What was written, plus `format`, `version`, `generation` and `files`."""
    tensors: dict[str, Tensor]


@contextmanager
def writing(folder: str | Path) -> Iterator[None]:
    """Lock the model in `folder` for changes; a LockedError at once if it is locked already.

    To learn and then write, take the lock before reading. Otherwise a batch that another process
    learns in between would be lost. The same thread can take the lock again inside. The folder is
    made if it does not exist, and removed again if an error leaves it without a model. The lock is
    released when its process ends for any reason.
    """
    path = Path(folder).resolve()
    lock = None
    made = _missing_folders(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path / LOCK, timeout=0, is_singleton=True)
        lock.acquire()
    except Timeout:
        raise LockedError(
            "is being changed by another process",
            file=folder,
            hint="wait until it is done, or work on a copy",
        ) from None
    except OSError as error:
        raise ModelError(
            f"cannot be written to ({error.strerror or error})",
            file=folder,
            hint="check the path and its permissions, or free some disk space",
        ) from error
    try:
        yield
    except BaseException:
        _remove_empty(made)
        raise
    finally:
        lock.release()


def exists(folder: str | Path) -> bool:
    """Whether there is a model in `folder`, intact or damaged."""
    return Path(folder, FILE).is_file()


def check_new(folder: str | Path) -> None:
    """Raise a ModelError if a new model in `folder` would destroy something.

    That is another model, one whose `model.json` is gone, or other files, such as photos.
    """
    path = Path(folder)
    if exists(path):
        raise ModelError("holds a model already", file=folder, hint="name a new folder")
    names = sorted(p.name for p in path.iterdir()) if path.is_dir() else []
    others = [name for name in names if name != LOCK and not _OURS.fullmatch(name)]
    if others:
        raise ModelError(
            f"holds other files ({others[0]!r}) but not a model",
            file=folder,
            hint="name a new folder",
        )
    if _lost(path):
        ours = [name for name in names if _OURS.fullmatch(name)]
        unfinished = ours == [_tensor_file(1)]  # perhaps no version was ever finished
        raise _missing(path / FILE, ", or name a new folder" if unfinished else "")


def remedy(damaged: str | Path) -> str:
    """What to do about a damaged file of a model; `undo` is named only where it can help."""
    path = Path(damaged)
    way_back = [
        kept
        for number, kept in _kept(path.parent).items()
        if path not in (kept, kept.with_name(_tensor_file(number)))
        and kept.with_name(_tensor_file(number)).is_file()
    ]
    restore = "restore the folder from a copy"
    return f"{restore}, or go back with `cprompt undo`" if way_back else restore


def size(folder: str | Path) -> int:
    """Bytes of the model, including the previous version and leftovers of killed processes."""
    return sum(p.stat().st_size for p in Path(folder).iterdir() if _OURS.fullmatch(p.name))


def read_about(folder: str | Path) -> dict[str, Any]:
    """The content of `model.json`, checked against its own hash; no tensor is read."""
    path = Path(folder, FILE)
    return _parse(path, _bytes(path))


def check_sizes(folder: str | Path, about: Mapping[str, Any]) -> None:
    """Raise a ModelError if the tensors that go with `about` are missing or cut short.

    Nothing is read, so other damage is not noticed.
    """
    ((name, expected),) = about["files"].items()
    path = Path(folder, name)
    try:
        size = path.stat().st_size
    except OSError:
        size = None
    if size == expected["bytes"] or read_about(folder)["model"] != about["model"]:
        return  # sound, or the model has changed since
    raise _missing(path) if size is None else _wrong_size(path, size, expected["bytes"])


def previous_id(folder: str | Path) -> str | None:
    """The id of the version that `undo` would go back to; None if there is none to be read."""
    try:
        before = _previous(Path(folder), read_about(folder))
    except ModelError:
        return None
    return None if before is None else str(before["model"])


def read(folder: str | Path) -> Stored:
    """Read the model and check format, version, sizes and hashes."""
    path = Path(folder, FILE)
    for _ in range(_TRIES):
        content = _bytes(path)
        about = _parse(path, content)
        try:
            return Stored(about, _tensors(path.parent, about))
        except ModelError:
            if _bytes(path) == content:
                raise
    raise ModelError("keeps changing while it is read", file=folder, hint="try again")


def read_files(folder: str | Path) -> dict[str, bytes]:
    """The files that make up the model now, by name: a folder with just these is the same model."""
    about = read(folder).about  # checks all of them
    path = Path(folder)
    return {name: _bytes(path / name) for name in (FILE, *about["files"])}


def check_readable(folder: str | Path, about: Mapping[str, Any]) -> None:
    """Raise a ModelError if the model's method is one that version 1 had and this one has not.

    Then the default method aligned the heads of CPrompt (`aligned`, before that a setting `align`
    of CPrompt), and `strata` did not choose its own weights. Their statistics are not those that
    the default method works with now. Models of other methods are read.
    """
    method = about["method"]
    name, settings = method["name"], method["settings"]
    if about["version"] == 1 and (name in ("aligned", "strata") or settings.get("align")):
        raise ModelError(
            f"was learnt with {name!r} of an earlier cprompt, which this one does not have",
            file=folder,
            hint="learn the photos again into a new folder, which takes one pass; without them, "
            "go on with cprompt 0.1",
        )


def write(
    folder: str | Path,
    about: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    *,
    replaces: Collection[str] = (),
) -> int:
    """Make this the model in `folder`, which keeps the previous one for `undo`; its generation.

    `about["model"]` is the id of the content. If the folder holds the same model, nothing is
    written. If it holds another one, that must be in `replaces`; otherwise it would be lost, and a
    ModelError is raised. Writing the previous version again is an `undo`. Takes `writing`, which
    the caller may hold already.
    """
    with writing(folder):
        path = Path(folder)
        generation = 1
        if exists(path):
            now = read_about(path)
            if now["model"] == about["model"]:
                return int(now["generation"])
            before = _previous(path, now)
            if before is not None and before["model"] == about["model"]:
                return undo(path)
            if now["model"] not in replaces:
                raise ModelError(
                    "holds another model than the one that was loaded, or has learnt more since",
                    file=folder,
                    hint="load it and learn again, or save to another folder",
                )
            generation = int(now["generation"]) + 1
        else:
            check_new(path)
        data = save({name: t.detach().cpu().contiguous() for name, t in tensors.items()})
        file = _tensor_file(generation)
        whole = {
            "format": FORMAT,
            "version": VERSION,
            "generation": generation,
            **about,
            "files": {file: {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}},
        }
        try:
            if generation == 1:
                _begin_first(path)
            write_bytes(path / file, data)
            if generation > 1:
                write_bytes(path / _older(generation - 1), _bytes(path / FILE))
            _sync(path)
            write_bytes(path / FILE, _text(whole))
            _sync(path)
        except CheckpointError as error:
            raise ModelError(error.message, file=error.file, hint=_UNCHANGED) from error
        finally:
            _sweep(path)
        return generation


def undo(folder: str | Path) -> int:
    """Go back to the previous version; its generation. This also repairs a damaged last version."""
    with writing(folder):
        path = Path(folder)
        try:
            before = _previous(path, read_about(path))
        except OtherFormatError:
            raise
        except ModelError:
            before = _newest_kept(path)
            if before is None:
                raise
        if before is None:
            raise ModelError(
                "has no previous version: it holds the first one, or was taken back already",
                file=folder,
            )
        _tensors(path, before)
        try:
            write_bytes(path / FILE, _bytes(path / _older(before["generation"])))
            _sync(path)
        except CheckpointError as error:
            raise ModelError(error.message, file=error.file, hint=_UNCHANGED) from error
        finally:
            _sweep(path)
        return int(before["generation"])


# --- one file -----------------------------------------------------------------------------------


def _text(about: Mapping[str, Any]) -> bytes:
    """JSON that begins with a hash of the rest, byte for byte."""
    body = json.dumps(about, indent=2, ensure_ascii=False, allow_nan=False).encode() + b"\n"
    return _begin(body) + body.removeprefix(b"{\n")


def _begin(body: bytes) -> bytes:
    return b'{\n  "sha256": "%s",\n' % hashlib.sha256(body).hexdigest().encode()


def _parse(path: Path, content: bytes) -> dict[str, Any]:
    lines = content.split(b"\n", 2)
    sealed = len(lines) == 3 and content == _begin(b"{\n" + lines[2]) + lines[2]
    about = _anything(content)
    if not isinstance(about, dict) or (about.get("format") != FORMAT and not sealed):
        raise ModelError(
            "does not describe a model of cprompt, or is damaged or cut short",
            file=path,
            hint=remedy(path),
        )
    version = about.get("version")
    if not sealed and (version in READABLE or not isinstance(version, int)):
        raise ModelError("is damaged: it does not match its own hash", file=path, hint=remedy(path))
    if about.get("format") != FORMAT:
        raise OtherFormatError(
            f"is of format {about.get('format')!r}; expected {FORMAT!r}", file=path
        )
    if version not in READABLE:
        raise OtherFormatError(
            f"has format version {version!r}; this cprompt reads "
            f"{' and '.join(map(str, READABLE))}",
            file=path,
            hint="use the cprompt that wrote it, or a newer one",
        )
    files = about.get("files")
    if not (
        isinstance(files, dict)
        and len(files) == 1
        and all(_TENSORS.fullmatch(name) for name in files)
        and all(isinstance(f, dict) and {"sha256", "bytes"} <= f.keys() for f in files.values())
        and isinstance(about.get("generation"), int)
        and isinstance(about.get("model"), str)
    ):
        raise ModelError("has an invalid list of files", file=path, hint=remedy(path))
    return {name: value for name, value in about.items() if name != "sha256"}


def _anything(content: bytes) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None


def _tensors(folder: Path, about: Mapping[str, Any]) -> dict[str, Tensor]:
    ((name, expected),) = about["files"].items()
    path = folder / name
    data = _bytes(path)
    if len(data) != expected["bytes"]:
        raise _wrong_size(path, len(data), expected["bytes"])
    if hashlib.sha256(data).hexdigest() != expected["sha256"]:
        raise ModelError(
            f"is damaged: it does not match its hash in {FILE}", file=path, hint=remedy(path)
        )
    try:
        return dict(load(data))
    except SafetensorError as error:
        raise ModelError(
            f"is not a safetensors file ({error})", file=path, hint=remedy(path)
        ) from error


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        if path.name != FILE or _lost(path.parent):
            raise _missing(path) from None
        raise ModelError(
            "holds no model", file=path.parent, hint="`cprompt learn` makes one"
        ) from None
    except OSError as error:
        raise ModelError(f"cannot be read ({error.strerror or error})", file=path) from error


# --- the folder ---------------------------------------------------------------------------------


def _missing_folders(path: Path) -> list[Path]:
    """The folders that making `path` will make, the innermost first."""
    return [each for each in (path, *path.parents) if not each.exists()]


def _remove_empty(made: list[Path]) -> None:
    """Remove the folders in `made` that hold nothing, the lock apart; it is still held."""
    with suppress(OSError):
        if made and {p.name for p in made[0].iterdir()} <= {LOCK}:
            (made[0] / LOCK).unlink(missing_ok=True)
        for folder in made:
            folder.rmdir()


def _tensor_file(generation: int) -> str:
    return f"learnt-{generation:06d}.safetensors"


def _older(generation: int) -> str:
    return f"model-{generation:06d}.json"


def _previous(folder: Path, now: Mapping[str, Any]) -> dict[str, Any] | None:
    path = folder / _older(now["generation"] - 1)
    return _parse(path, _bytes(path)) if path.is_file() else None


def _kept(folder: Path) -> dict[int, Path]:
    """The descriptions of previous versions, by generation, the oldest first."""
    found = sorted(folder.glob("model-*.json")) if folder.is_dir() else []
    return {int(m[1]): p for p in found if (m := _KEPT.fullmatch(p.name))}


def _newest_kept(folder: Path) -> dict[str, Any] | None:
    """The newest previous version, for use when `model.json` itself is damaged."""
    kept = list(_kept(folder).values())
    return _parse(kept[-1], _bytes(kept[-1])) if kept else None


def _lost(folder: Path) -> bool:
    """Whether there are files of a model in the folder whose `model.json` is gone."""
    if not folder.is_dir() or exists(folder):
        return False
    names = {p.name for p in folder.iterdir()}
    has_tensors = any(_TENSORS.fullmatch(name) for name in names)
    return bool(_kept(folder)) or (has_tensors and _BEGUN not in names)


def _missing(file: Path, otherwise: str = "") -> ModelError:
    return ModelError("is missing", file=file, hint=remedy(file) + otherwise)


def _wrong_size(file: Path, found: int, written: int) -> ModelError:
    return ModelError(
        f"has {found} bytes, but {written} were written", file=file, hint=remedy(file)
    )


def _begin_first(folder: Path) -> None:
    """Mark the folder as one in which a first version is being written."""
    try:
        (folder / _BEGUN).touch()
    except OSError as error:
        raise CheckpointError(
            f"cannot be written ({error.strerror})", file=folder / _BEGUN
        ) from error
    _sync(folder)


def _sweep(folder: Path) -> None:
    """Delete files that neither the model nor the previous version needs, as far as possible."""
    with suppress(ModelError, OSError):
        needed = set()
        if exists(folder):
            last = read_about(folder)["generation"]
            needed = {FILE, _tensor_file(last)}
            if (folder / _older(last - 1)).is_file():
                needed |= {_older(last - 1), _tensor_file(last - 1)}
        elif _newest_kept(folder):
            return
        for path in folder.iterdir():
            if _OURS.fullmatch(path.name) and path.name not in needed:
                path.unlink()


def _sync(folder: Path) -> None:
    """Sync the folder's entries to disk, so that renames survive a power loss in order."""
    if os.name == "posix":
        with suppress(OSError):
            handle = os.open(folder, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
