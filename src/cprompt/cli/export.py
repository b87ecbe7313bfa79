"""`cprompt export`: a model for machines without Python or torch."""

from __future__ import annotations

import json
from pathlib import Path

import typer

from cprompt.cli.arguments import MODEL, MOVED_WEIGHTS, PLUGINS
from cprompt.cli.output import say
from cprompt.errors import counted
from cprompt.files import check_writable


def export(
    model: Path = MODEL,
    onnx: Path = typer.Option(help="The file to write."),
    opset: int | None = typer.Option(
        None,
        show_default="18, the oldest that works",
        help="ONNX operator set; a newer one needs a newer runtime.",
    ),
    check: list[Path] = typer.Option(
        [], help="A photo, or a folder of photos, to compare answers on; may be given again."
    ),
    weights: str | None = MOVED_WEIGHTS,
    plugins: list[str] = PLUGINS,
) -> None:
    """Write a model as one ONNX file, from pixels to probabilities.

    The file is written only if onnxruntime gives the model's answers, on
    random images and on the photos of --check.
    """
    check_writable(onnx)

    from cprompt.classifier.classifier import ContinualClassifier
    from cprompt.classifier.onnx_export import OPSET, export_onnx
    from cprompt.cli.predict import photo_files

    photos = [file for given in check for file in photo_files(given)]
    classifier = ContinualClassifier.load(model, device="cpu", weights=weights)
    info = export_onnx(classifier, onnx, opset=opset or OPSET, check=photos)
    size, names = info.metadata["input_size"], json.loads(info.metadata["class_names"])
    say(
        f"{info.path}: {info.bytes / 2**20:.1f} MiB, {counted(len(names), 'class')}, "
        f"images of {size}×{size} pixels, opset {info.opset}",
        f"onnxruntime agrees to {info.difference:.1g} on random images"
        + (f" and {counted(info.checked, 'photo')}" if info.checked else ""),
    )
