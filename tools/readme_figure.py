"""Draw the README's image from the committed records of the demo.

    python tools/readme_figure.py

The records in results/demo are those of `cprompt demo --seed 0`, `1` and `2`.
"""

from pathlib import Path

from cprompt.methods.registry import METHODS
from cprompt.report.figures import accuracy_curves
from cprompt.research.record import load_record

ROOT = Path(__file__).parents[1]

series = {
    f"{label} (three seeds)": [
        load_record(path) for path in sorted((ROOT / "results/demo").glob(f"{name}-seed*.json"))
    ]
    for name, label in ((n, METHODS.title(n)) for n in METHODS)
}
accuracy_curves(series).savefig(ROOT / "docs/demo.png", dpi=150, facecolor="white")
