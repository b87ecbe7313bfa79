"""Make the runs that docs/results.md lists as missing.

    python tools/missing_runs.py --data stanford_cars=CARS --data cifar100=CIFAR \\
        --weights vit_tiny_patch16_224.augreg_in21k_ft_in1k.safetensors --together 4
    python tools/missing_runs.py --list --only "protocol: cprompt"

Each run is the one of its command on the page, in the page's order. They are made in runs/vit_ti,
where a stopped one goes on when the command is given again, and the records of finished ones are
copied to results/vit_ti. After more tries (`cprompt tune`) choices may change, and with them what
is missing. Runs to be made again in another class order are left out: their records are there.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from result_runs import ROOT, RUNS
from results_page import Wanted, all_wanted, wanted_runs

from cprompt.cli.runs import data_roots, run_all
from cprompt.files import write_bytes
from cprompt.research.config import RunConfig
from cprompt.research.record import FILE, load_record
from cprompt.research.tables import run_folder


def missing_runs(only: str = "") -> list[Wanted]:
    """Those without a finished record whose line contains `only`."""
    return [w for w in wanted_runs(all_wanted()) if w.record is None and only in line(w)]


def line(wanted: Wanted) -> str:
    """Benchmark, row and class order."""
    return f"{wanted.benchmark}, {wanted.label}, {wanted.seed}"


def here(config: RunConfig, roots: Mapping[str, str], weights: str | None) -> RunConfig:
    """The same run with this machine's paths."""
    return replace(
        config,
        data=replace(config.data, root=roots.get(config.benchmark)),
        backbone=replace(config.backbone, weights=weights or config.backbone.weights),
    )


def keep_finished(configs: Sequence[RunConfig], made: Path, kept: Path) -> None:
    """Copy the records of finished runs from below `made` to below `kept`."""
    for config in configs:
        record = run_folder(config, made) / FILE
        if record.exists() and load_record(record.parent).finished:
            write_bytes(run_folder(config, kept) / FILE, record.read_bytes())


def main(argv: Sequence[str] | None = None) -> None:
    """Run what is missing, or list it."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--data", action="append", default=[], metavar="DATASET=FOLDER")
    options.add_argument("--weights", metavar="FILE", help="the backbone's weights")
    options.add_argument("--only", default="", metavar="TEXT", help="runs whose line contains it")
    options.add_argument("--together", type=int, default=1, metavar="N", help="runs at a time")
    options.add_argument("--list", action="store_true", help="run nothing")
    given = options.parse_args(argv)
    found = missing_runs(given.only)
    if given.list:
        print("\n".join(map(line, found)))
        return
    roots = data_roots(sorted({wanted.benchmark for wanted in found}), given.data)
    made = ROOT / "runs" / Path(RUNS).name
    configs = [wanted.config for wanted in found]
    try:
        run_all(
            {run_folder(c, made): here(c, roots, given.weights) for c in configs},
            together=given.together,
            may_diverge=True,
        )
    finally:
        keep_finished(configs, made, ROOT / RUNS)


if __name__ == "__main__":
    main()
