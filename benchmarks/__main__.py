"""Run all benchmarks, one after the other, as `python -m benchmarks.NAME` runs each.

python -m benchmarks
python -m benchmarks --quick --only train_step predict
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from benchmarks import closed_form, common, epoch, evaluate, memory, predict, train_step
from cprompt.device import pick_device

BENCHMARKS: dict[str, Callable[[Sequence[str]], None]] = {
    "train_step": train_step.main,
    "predict": predict.main,
    "closed_form": closed_form.main,
    "evaluate": evaluate.main,
    "epoch": epoch.main,
    "memory": memory.main,
}
WITH_DATA = ("evaluate", "epoch")


def main(argv: Sequence[str] | None = None) -> None:
    """Run the chosen ones; one that fails is reported at the end and does not stop the others."""
    options = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    options.add_argument("--device", default="auto", help="auto, cuda or cpu (default: auto)")
    options.add_argument("--quick", action="store_true", help="small sizes, to see that it works")
    options.add_argument("--only", nargs="+", choices=BENCHMARKS, default=list(BENCHMARKS))
    options.add_argument(
        "--data", type=Path, metavar="FOLDER", help=f"images for {' and '.join(WITH_DATA)}"
    )
    options.add_argument(
        "--out",
        type=Path,
        metavar="FOLDER",
        help=f"for the JSON files (default: {common.RESULTS}/MACHINE)",
    )
    given = options.parse_args(argv)
    device = pick_device(given.device)
    seen = common.hardware(device)
    print(f"Hardware: {seen}")
    for name in given.only:
        common.output(name, seen, given.out and given.out / f"{name}.json")

    failures = []
    for name in given.only:
        arguments = ["--device", str(device)] + ["--quick"] * given.quick
        if given.out:
            arguments += ["--out", str(given.out / f"{name}.json")]
        if given.data and name in WITH_DATA:
            arguments += ["--data", str(given.data)]
        start = time.perf_counter()
        try:
            BENCHMARKS[name](arguments)
        except SystemExit as failure:
            failures.append(f"{name}: {failure}")
        print(f"{name} took {time.perf_counter() - start:.0f} s.")
        gc.collect()  # the next benchmark must not share memory with this one's models
        if device.type == "cuda":
            torch.cuda.empty_cache()
    if failures:
        raise SystemExit("\n".join(failures))


if __name__ == "__main__":
    main()
