"""Draw the README's picture from the committed records of the demo.

    python tools/readme_figure.py

The records in results/demo are those of `cprompt demo --seed 0`, `1` and `2`.
"""

from pathlib import Path

from cprompt.record import load_record
from cprompt.report.demo import NAMES
from cprompt.report.figures import accuracy_curves

ROOT = Path(__file__).parents[1]

series = {
    f"{label} (three seeds)": [
        load_record(path) for path in sorted((ROOT / "results/demo").glob(f"{name}-seed*.json"))
    ]
    for name, label in NAMES.items()
}
accuracy_curves(series).savefig(ROOT / "docs/demo.png", dpi=150, facecolor="white")
