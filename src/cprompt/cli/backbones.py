"""`cprompt backbones`: which backbones there are to choose from."""

from __future__ import annotations

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import track
from rich.table import Table

from cprompt.cli.arguments import DEVICE
from cprompt.cli.output import print_whole, say


def backbones(
    measure: bool = typer.Option(
        False, "--measure", help="Also measure how many images per second each one takes here."
    ),
    device: str = DEVICE,
) -> None:
    """List backbones for --backbone: size, input, licence, whether weights are here.

    Larger ones are more accurate and slower. Weights that are not here are
    downloaded once, when a model is first learnt on them. --measure needs no
    weights, but memory and time for each model.
    """
    from cprompt.device import pick_device
    from cprompt.vit.catalogue import SHORT_NAMES, choices, images_per_second

    console, place = Console(), pick_device(device)
    found = list(choices())
    columns = ["backbone", "parameters", "input", "licence", "weights here", "methods"]
    table = Table(box=None, pad_edge=False)
    for column in [*columns, "images/s"] if measure else columns:
        right = column in ("parameters", "input", "images/s")
        table.add_column(column, justify="right" if right else "left", no_wrap=column == "backbone")
    rows = track(found, "measuring", console=Console(stderr=True), transient=True)
    for choice in rows if measure else found:
        cells = [
            choice.name,
            f"{choice.parameters / 1e6:.1f} M",
            f"{choice.image_size} px",
            choice.licence,
            "yes" if choice.here else "no",
            "all" if choice.promptable else "strata",
        ]
        if measure:
            cells.append(f"{images_per_second(choice, place):.0f}")
        table.add_row(*(escape(cell) for cell in cells))
    print_whole(table, console)
    say(
        *(f"{name} is {short.tag}" for name, short in SHORT_NAMES.items()),
        *([f"measured on {place.type}, 8 images at a time, all layers read"] if measure else []),
        console=console,
    )
