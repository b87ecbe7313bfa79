"""Draw the figure of the documentation's first page from the committed records of the demo.

    python tools/readme_figure.py

The records in results/demo are those of `cprompt demo --seed 0`, `1` and `2`.
"""

from __future__ import annotations

from pathlib import Path

from cprompt.cli.demo import LEARNERS
from cprompt.methods.registry import METHODS
from cprompt.report.figures import accuracy_curves
from cprompt.report.numbers import RecordsByLabel
from cprompt.research.record import load_record

ROOT = Path(__file__).resolve().parents[1]


def demo_records() -> RecordsByLabel:
    """The records of the demo's methods, by label, in the demo's order."""
    folder = ROOT / "results" / "demo"
    found = {name: sorted(folder.glob(f"{name}-seed*.json")) for name in LEARNERS}
    return {
        f"{METHODS.title(name)} (three seeds)": [load_record(path) for path in paths]
        for name, paths in found.items()
    }


if __name__ == "__main__":
    figure = accuracy_curves(demo_records())
    figure.savefig(ROOT / "docs" / "demo.png", dpi=150, facecolor="white")
