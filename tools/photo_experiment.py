"""What experiments on a folder of photos share: their options, and where the result goes."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from cprompt.files import check_writable, write_json


def options_of(about: str | None, out: str) -> ArgumentParser:
    """The options of every experiment, described by the first line of `about`."""
    options = ArgumentParser(description=(about or "").partition("\n")[0])
    options.add_argument("--data", type=Path, required=True, help="a folder with train/ and test/")
    options.add_argument("--backbone", default="auto")
    options.add_argument("--weights", help="a file with the backbone's weights")
    options.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    options.add_argument("--device", default="cpu")
    options.add_argument("--name", help="name of the result; by default that of the data")
    options.add_argument("--out", type=Path, default=Path(out), help="folder of the result")
    return options


class Result:
    """The file of a result, found to be writable before the work begins."""

    def __init__(self, args: Namespace) -> None:
        self.name: str = args.name or args.data.resolve().name
        self._file = args.out / f"{self.name}.json"
        check_writable(self._file)

    def write(self, **about: Any) -> None:
        write_json(self._file, {"name": self.name, **about})
