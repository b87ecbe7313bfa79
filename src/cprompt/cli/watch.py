"""`cprompt watch`: photos are sorted into class folders as they arrive."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from cprompt.cli.arguments import DEVICE, MODEL, MOVED_WEIGHTS, PLUGINS, SOME_UNREAD
from cprompt.cli.output import say
from cprompt.errors import DataError, counted

if TYPE_CHECKING:
    from cprompt.classifier.inbox import Sorted


def watch(
    model: Path = MODEL,
    inbox: Path = typer.Argument(help="The folder in which photos arrive."),
    sort: Path = typer.Option(help="A folder that gets one folder per class; made if needed."),
    copy: bool = typer.Option(False, "--copy", help="Leave the photos in the inbox too."),
    every: float = typer.Option(2.0, min=0.05, help="Seconds between two looks at the inbox."),
    once: bool = typer.Option(
        False, "--once", help="End when all photos that are there have been sorted."
    ),
    device: str = DEVICE,
    weights: str | None = MOVED_WEIGHTS,
    plugins: list[str] = PLUGINS,
) -> None:
    """Answer photos as they arrive in a folder, and move each into the folder of its class.

    Photos that no class is probable for go to the folder `unknown`. A photo is
    touched only when two looks found it unchanged. Photos that cannot be read
    or moved stay in the inbox and are named once; the others are sorted. The
    model may learn meanwhile. Ctrl-C ends it at any time. With --once, the status
    is 3 if some cannot be read.
    """
    from cprompt.classifier import model_folder
    from cprompt.classifier.classifier import ContinualClassifier
    from cprompt.classifier.inbox import Inbox

    box = Inbox(inbox, sort, copy=copy)
    classifier = ContinualClassifier.load(model, device=device, weights=weights)
    trouble = ""
    stuck = set()  # answered, but still in the inbox
    unread = set()
    with box.alone():
        try:
            while True:
                if model_folder.read_about(model)["model"] != classifier.model_id:
                    classifier = ContinualClassifier.load(model, device=device, weights=weights)
                    say(
                        f"{model} has learnt meanwhile: "
                        f"{counted(len(classifier.classes_), 'class')}"
                    )
                try:
                    for each in box.look(classifier):
                        say(_line(each, inbox, sort))
                        stuck.discard(each.photo)
                        unread.discard(each.photo)
                        if each.error is not None:
                            (unread if each.label is None else stuck).add(each.photo)
                    trouble = ""
                except DataError as error:  # a folder that went away, or a disk that sleeps
                    if once:
                        raise
                    if trouble != str(error):
                        trouble = str(error)
                        say(trouble)
                if once and not box.waiting:
                    break
                time.sleep(every)
        except KeyboardInterrupt:
            say("stopped; photos that were not sorted are still in the inbox")
            return
    if stuck:
        raise DataError(
            f"{counted(len(stuck), 'photo was', 'photos were')} answered and could not be moved",
            file=inbox,
            hint="put right what is named for each above, and start again",
        )
    if unread:
        raise typer.Exit(SOME_UNREAD)


def _line(sorted_photo: Sorted, inbox: Path, folder: Path) -> str:
    name = sorted_photo.photo.relative_to(inbox)
    stays = sorted_photo.error and f"stays in the inbox: {sorted_photo.error.message}"
    if sorted_photo.target is None:
        return f"{name} {stays}"
    probability = 100 * (sorted_photo.probability or 0.0)
    moved = f"{name} → {sorted_photo.target.relative_to(folder)}, {probability:.0f} %"
    return f"{moved}, but {stays}" if stays else moved
