"""What experiments and benchmarks with photos found, as blocks of Markdown for the pages.

Each is made from the files of one folder in results/; `results_page.py` puts it into its page.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parents[1] / "results"


def _read(*path: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(RESULTS.joinpath(*path).read_text("utf-8"))
    return found


def _read_all(folder: str) -> list[dict[str, Any]]:
    """The files of a folder, by name."""
    return [_read(folder, path.name) for path in sorted((RESULTS / folder).glob("*.json"))]


def learning() -> str:
    """What learning in one pass costs beside plain forward passes."""
    about = _read("benchmarks", "cpu", "learn.json")
    settings, seconds = about["settings"], about["seconds"]
    peaks = ", ".join(
        f"{bytes / 2**20:.0f} MiB with {count}" for count, bytes in about["peak_bytes"].items()
    )
    return (
        f"Learning {settings['photos']} photos under {settings['views']} views in all took "
        f"{seconds['learn']['median']:.1f} s, timm's forward over as many inputs "
        f"{seconds['timm forward']['median']:.1f} s: {about['times_forward']:.2f} times "
        f"({settings['backbone']}, {about['hardware']['cores']} cores of "
        f"{about['hardware']['processor']}; views, statistics and head included, decoding not). "
        f"Memory grew by {peaks} photos per class, with the embedded backbone: features of some "
        "hundred photos are kept, and of at most 5,000 until their labels are judged "
        "(`python -m benchmarks.learn`).\n"
    )


def slow_clients() -> str:
    """`cprompt serve` under load while others send a byte per second."""
    about = _read("benchmarks", "cpu", "serve_slow.json")
    statuses = ", ".join(f"{count:,} with {status}" for status, count in about["statuses"].items())
    return (
        f"With {about['slow_clients']} more clients that send a byte per second (`--slow`), "
        f"{about['clients']} clients got {statuses} in {about['seconds']:g} s, {about['wrong']} "
        f"wrong; {about['slow_cut']:,} slow connections were cut off, and the log had "
        f"{about['log_bytes']:,} bytes.\n"
    )


def load() -> str:
    """`cprompt serve` under load, in each precision."""
    rows, about = [], {}
    for precision, name in (("fp32", "serve_load"), ("auto", "serve_load_auto")):
        about = _read("benchmarks", "cpu", f"{name}.json")
        latency, counts = about["latency_seconds"], about["statuses"].items()
        statuses = ", ".join(f"{count:,} with {status}" for status, count in counts)
        rows.append(
            f"| {precision} | {about['clients']} | {about['seconds']:g} "
            f"| {about['answers_a_second']:.0f} | {latency['p50']:.2f} s | {latency['p99']:.2f} s "
            f"| {statuses} | {about['wrong']} | {about['jobs_done']} of {about['jobs']} |\n"
        )
    hardware = about["hardware"]
    return (
        "| `--precision` | clients | seconds | answers per second | p50 | p99 | answers by status "
        "| wrong | jobs done |\n"
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n"
        f"{''.join(rows)}\n"
        f"The embedded backbone, one photo per request ({about['photo']}); "
        f"{hardware['processor']}, {hardware['threads']} threads, which clients and service share. "
        "A new version of the model answers after each job; answers are compared with the "
        f"library's in the same precision.\n\n{slow_clients()}"
    )


QUESTIONS = [
    ("five batches", "in 5 batches"),
    ("all of it at once", "at once"),
    ("a class that returns, before", "returning class before"),
    ("… after", "returning class after"),
    ("the other classes, before", "others before"),
    ("… after", "others after"),
    ("five classes, then five more, one per batch: the first five", "one by one, first five"),
    ("… had all ten come at once", "at once, the first five"),
    ("the five single ones", "one by one, single"),
    ("… had all ten come at once", "at once, those single"),
]


def classifier() -> str:
    """What tools/classifier_accuracy.py found."""
    found = _read_all("classifier")
    head = ["", *(about["name"].replace("_", " ") for about in found)]
    lines = [f"| {' | '.join(head)} |", "| --- |" + " ---: |" * len(found)]
    for label, name in QUESTIONS:
        each = [
            f"{a['summary'][name]['mean']:.1f} ± {a['summary'][name]['std']:.1f}" for a in found
        ]
        lines.append(f"| {label} | {' | '.join(each)} |")
    errors = [f"{100 * about['summary']['ece in 5 batches']['mean']:.1f}" for about in found]
    lines.append(f"| expected calibration error after five batches | {' | '.join(errors)} |")
    said = [
        f"{about['name'].replace('_', ' ')}: {about['classes']} classes, "
        f"{about['photos_a_class']['train']} photos each to learn from and "
        f"{about['photos_a_class']['test']} to test on, `{about['backbone']}`, "
        f"{len(about['runs'])} seeds"
        for about in found
    ]
    return "\n".join(lines) + f"\n\nIn percent. {'; '.join(said)}.\n"


def suggest() -> str:
    """What tools/suggest_curve.py found."""
    lines, said = [], []
    for about in _read_all("suggest"):
        name, counts = about["name"].replace("_", " "), about["photos_per_class"]
        if lines:
            lines.append("")
        lines.append(f"| {name}: photos per class | {' | '.join(map(str, counts))} |")
        lines.append("| --- |" + " ---: |" * len(counts))
        for rule, means in about["accuracy"].items():
            cells = [f"{m:.1f} ± {s:.1f}" for m, s in zip(means, about["std"][rule], strict=True)]
            lines.append(f"| {rule} | {' | '.join(cells)} |")
        equal = about["random_photos_for_the_same"].values()
        cells = [f"> {counts[-1]}" if n is None else f"{n:.1f}" for n in equal]
        lines.append(f"| random photos for the accuracy of the suggested | {' | '.join(cells)} |")
        said.append(
            f"{name}: {about['classes']} classes, chosen from {about['images']['train']:,} photos, "
            f"tested on {about['images']['test']:,}, `{about['backbone']['name']}`, "
            f"{len(about['seeds'])} draws of the first {counts[0]} photos"
        )
    return "\n".join(lines) + f"\n\nAccuracy in percent. {'; '.join(said)}.\n"


def doubtful() -> str:
    """What tools/doubtful_labels.py found."""
    lines = []
    for about in _read_all("doubtful_labels"):
        mean = about["mean"]
        lines.append(
            f"{about['name'].replace('_', ' ')}, {about['images']:,} photos of {about['classes']} "
            f"classes, {100 * about['planted']:.0f} % of the labels made wrong, "
            f"`{about['backbone']['name']}`, {len(about['runs'])} draws: among the "
            f"{100 * about['looked_at']:.0f} % most doubtful photos are "
            f"{mean['found_in_the_worst_tenth']:.0f} % of the wrong labels. Those reported are "
            f"{100 * mean['reported'] / about['images']:.0f} % of the photos; "
            f"{mean['reported_rightly']:.0f} % of them are wrong indeed, and "
            f"{mean['found_in_reported']:.0f} % of the wrong labels are among them.\n"
        )
    return "\n".join(lines)


def unknown() -> str:
    """What tools/unknown_promise.py found."""
    found = _read_all("unknown")
    lines = [
        "| photos | draws | asked for | known refused | in the worst class | others refused "
        "| ECE |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for about in found:
        for accept, refused in about["mean"]["refused"].items():
            numbers = (refused["known"], refused["worst_class"], refused["foreign"])
            lines.append(
                f"| {about['name'].replace('_', ' ')} | {len(about['runs'])} "
                f"| {100 * (1 - float(accept)):.0f} "
                f"| {' | '.join(f'{number:.1f}' for number in numbers)} "
                f"| {about['mean']['ece']:.1f} |"
            )
    first = found[0]
    return (
        "\n".join(lines)
        + f"\n\nIn percent. {first['classes']} classes, up to {first['photos_per_class']} photos "
        f"each to learn from, `{first['backbone']['name']}`; others are photos of classes of the "
        "same set that were not learnt (`tools/unknown_promise.py`).\n"
    )


def scikit_learn() -> str:
    """What tools/beside_scikit_learn.py found."""
    lines = [
        "| | accuracy, % | learning per view | predicting per photo |",
        "| --- | ---: | ---: | ---: |",
    ]
    about: dict[str, Any] = {}
    for about in _read_all("beside_scikit_learn"):
        for contender, mean in about["mean"].items():
            lines.append(
                f"| {about['name'].replace('_', ' ')}, {contender} | {mean['accuracy']:.1f} "
                f"| {mean['learning_ms_per_view']:.0f} ms "
                f"| {mean['predicting_ms_per_photo']:.0f} ms |"
            )
    if not about:
        return "Not measured yet.\n"
    return (
        "\n".join(lines)
        + f"\n\n{about['classes']} classes, {about['photos_per_class']} photos each, mean of "
        f"{len(about['runs'])} draws; `{about['backbone']['name']}`, "
        f"{about['environment']['cpu']}, threads: {about['threads']} "
        "(`tools/beside_scikit_learn.py`).\n"
    )


def kills() -> str:
    about = _read("robustness", "kill_while_learning.json")
    return (
        f"Killed (`kill -9`) {about['killed']} times at random moments of learning and saving "
        f"(`tools/kill_while_learning.py`), {about['old']} times the old model was there "
        f"afterwards, {about['new']} times the new one, and {about['neither']} times neither.\n"
    )


PHOTO_BLOCKS = {
    "learning": learning,
    "load": load,
    "classifier": classifier,
    "suggest": suggest,
    "doubtful": doubtful,
    "kills": kills,
    "unknown": unknown,
    "scikit_learn": scikit_learn,
}
"""What makes the block of each name."""
