"""Write the comparison of results/few_images into docs/few_images.md.

    python tools/few_images_page.py

Every block between `<!-- NAME -->` and `<!-- end -->` is made from NAME.json; the text around it
stays as it is. A test checks that the page is up to date.
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from page_blocks import renewed, table

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "few_images.md"
RESULTS = ROOT / "results" / "few_images"

RIVALS = ("nearest mean", "LDA", "logistic regression")


def spread(values: list[float]) -> str:
    return f"{mean(values):.1f} ± {stdev(values):.1f}"


def few(found: dict[str, Any]) -> str:
    rows = []
    for count, draws in found.items():
        cells = [spread([each["product"]["accuracy"] for each in draws])]
        for name in RIVALS:
            known = [each[name] for each in draws if name in each]
            cells.append(spread(known) if known else "–")
        rows.append([count, *cells, f"{mean(each['product']['ece'] for each in draws):.1f}"])
    return table(["images per class", "strata", *RIVALS, "ECE of strata"], rows)


def wide(found: dict[str, Any]) -> str:
    rows = [
        [width, f"{each['accuracy']:.1f}", f"{each['megabytes']:.0f}"]
        for width, each in found.items()
    ]
    return table(["width", "accuracy, %", "MB"], rows)


def unknown(found: list[dict[str, float]]) -> str:
    names = ("auroc", "accepted", "unknown told")
    cells = [spread([each[name] for each in found]) for name in names]
    head = ["half of the classes learnt", "AUROC", "known accepted, %", "unknown told, %"]
    return table(head, [["three choices of the half", *cells]])


def block(name: str) -> str:
    result = json.loads((RESULTS / f"{name}.json").read_text())
    images, hardware = result["images"], result["environment"]
    where = hardware.get("gpu", hardware["cpu"])
    views = ", ".join(f"{n}: {v:.1f}" for n, v in result["prediction views"].items())
    return (
        f"{few(result['few'])}\n{wide(result['width'])}\n{unknown(result['unknown'])}\n"
        f"Accuracy by number of prediction views: {views}. {images['classes']} classes, "
        f"{images['train']} training and {images['test']} test images; "
        f"{result['backbone']['name']}, {result['precision']}, {where}, torch "
        f"{hardware['torch']}.\n"
    )


def render(page: str) -> str:
    """The page with every block made anew."""
    return renewed(page, r"\w+", block)


if __name__ == "__main__":
    PAGE.write_text(render(PAGE.read_text()))
