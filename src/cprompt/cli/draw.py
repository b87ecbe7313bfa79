"""`cprompt draw`: drawn photos to try the classifier on."""

from __future__ import annotations

from pathlib import Path

import typer

from cprompt.cli.output import say
from cprompt.errors import DataError
from cprompt.files import check_writable

BATCHES = ("january", "february")


def draw(
    folder: Path = typer.Argument(help="Where to put them; must not exist, or be empty."),
    classes: int = typer.Option(8, min=2, max=60, help="Classes, half of them in each batch."),
    photos: int = typer.Option(16, min=2, help="Photos per class to learn from."),
    test: int = typer.Option(6, min=1, help="Photos per class to test on."),
    seed: int = typer.Option(0, help="Seed of everything random."),
) -> None:
    """Draw two batches of photos, january and february, and photos of both to test on."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise DataError(
            "is not an empty folder", file=folder, hint="name a folder that does not exist yet"
        )
    check_writable(folder / BATCHES[0])
    from cprompt.data.datasets import shapes

    drawn = shapes.load(
        classes=classes, train_per_class=photos, test_per_class=test, difficulty=0.1, seed=seed
    )
    for images, parts in ((drawn.train, BATCHES), (drawn.test, ("test", "test"))):
        for i, label in enumerate(images.labels):
            part = parts[0] if label < (classes + 1) // 2 else parts[1]
            file = folder / part / images.classes[label] / f"{i:04d}.png"
            try:
                file.parent.mkdir(parents=True, exist_ok=True)
                images.load(i).save(file)
            except OSError as error:
                raise DataError(
                    f"cannot be written ({error.strerror or error})",
                    file=file,
                    hint="free some disk space, or name another folder",
                ) from error
    say(f"{folder}: {', '.join((*BATCHES, 'test'))}, {classes} classes")
