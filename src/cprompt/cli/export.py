"""`cprompt export`: a model for where there is no Python, or no torch."""

from __future__ import annotations

import json
from pathlib import Path

import typer
from rich.console import Console

from cprompt.classifier.classifier import ContinualClassifier
from cprompt.classifier.onnx_export import OPSET, export_onnx
from cprompt.cli import app
from cprompt.cli.predict import photo_files


@app.command()
def export(
    model: Path = typer.Argument(help="A model folder, made by `cprompt learn`."),
    onnx: Path = typer.Option(help="The file to write."),
    opset: int = typer.Option(OPSET, help="ONNX operators to use; newer ones need newer runtimes."),
    check: list[Path] = typer.Option(
        [], help="A photo, or a folder of photos, to compare answers on; may be given again."
    ),
    weights: str | None = typer.Option(
        None, help="The backbone's weights, where the model was learnt on a file that has moved."
    ),
) -> None:
    """Write a model as one ONNX file, from pixels to probabilities.

    The file is only written if onnxruntime answers as the model does: random images always, and
    the photos of --check.
    """
    photos = [file for given in check for file in photo_files(given)]
    classifier = ContinualClassifier.load(model, device="cpu", weights=weights)
    info = export_onnx(classifier, onnx, opset=opset, check=photos)
    size, names = info.metadata["input_size"], json.loads(info.metadata["class_names"])
    console = Console()
    for line in (
        f"{info.path}: {info.bytes / 2**20:.1f} MiB, {len(names)} classes, "
        f"images of {size}×{size} pixels, opset {info.opset}",
        f"onnxruntime agrees to {info.difference:.1g} on random images"
        + (f" and {info.checked} photos" if info.checked else ""),
    ):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
