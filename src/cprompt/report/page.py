"""A report on any runs: one HTML page, and every figure and table in files of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from matplotlib.figure import Figure

from cprompt.report import figures, html, numbers
from cprompt.report.definitions import DEFINITIONS
from cprompt.report.runs import Run
from cprompt.report.series import (
    Section,
    Series,
    backbones_of,
    hardware_of,
    repeated_seeds,
    sections,
    seeds_of,
)
from cprompt.report.tables import Grid, Value
from cprompt.research.record import Record

NAMED_CLASSES = 5
"""So many best and so many worst classes are named for each series."""

VERSIONS = ("cprompt", "torch", "torchvision", "timm", "python")


@dataclass
class Report:
    """`files` by their path below the report's folder; `report.html` needs none of the others."""

    files: dict[str, bytes] = field(default_factory=dict)
    series: int = 0
    unfinished: int = 0


def build(runs: Sequence[Run], title: str, notes: Sequence[str] = ()) -> Report:
    """The whole report in memory; `notes` are said at its top."""
    report = Report()
    body: list[str] = []
    contents = []
    for section in sections(runs):
        part = _Part(section, report.files)
        part.fill()
        body += part.body
        contents.append((section.name, section.title, part.headings))
        report.series += len(section.series)
    report.unfinished = sum(not run.record.finished for run in runs)
    counted = f"{len(runs)} run{'s' if len(runs) > 1 else ''}"
    if report.unfinished:
        counted += f", of which {report.unfinished} unfinished"
    page = html.page(
        title,
        [
            html.text("h1", title),
            html.text("p", f"Made from the records of {counted}; nothing was run again."),
            *(html.text("p", note) for note in notes),
            html.contents(contents),
            *body,
            "<footer>"
            + html.text(
                "p",
                "Beside this page, figures/ has every figure as PNG, SVG and PDF, and tables/ "
                "every table as Markdown, LaTeX and CSV.",
            )
            + "</footer>",
        ],
    )
    report.files["report.html"] = page.encode()
    return report


class _Part:
    """One section on its way into the page and the files."""

    def __init__(self, section: Section, files: dict[str, bytes]) -> None:
        self.section = section
        self.files = files
        self.body: list[str] = []
        self.headings: list[tuple[str, str]] = []
        self.shown = [series for series in section.series if series.shown]
        self.by_label: dict[str, Series] = {s.shown_label: s for s in self.shown}
        self.records: dict[str, list[Record]] = {
            s.shown_label: [run.record for run in s.shown] for s in self.shown
        }

    def fill(self) -> None:
        """Everything, in the order of the page."""
        section = self.section
        self.body.append(html.text("h2", section.title, "", section.name))
        self.body += [html.text("p", note) for note in _notes(section)]
        if any(series.finished for series in section.series):
            self._summary()
        if self.shown:
            self._accuracy()
            if section.n_tasks > 1:
                self._matrices()
            if any(len(records[0].rows) > 1 for records in self.records.values()):
                self._forgetting()
            selecting = {
                k: rs for k, rs in self.records.items() if numbers.pick_shares(rs) is not None
            }
            if selecting:
                self._picks(selecting)
            self._classes()
            if any(any(r.losses) for records in self.records.values() for r in records):
                self._losses()
            self._cost()
        self._runs()

    # --- pieces ---------------------------------------------------------------------------------

    def _heading(self, kind: str, heading: str, explanation: str) -> None:
        ident = f"{self.section.name}-{kind}"
        self.headings.append((ident, heading))
        self.body.append(html.text("h3", heading, "", ident))
        self.body.append(html.text("p", explanation))

    def _figure(
        self,
        kind: str,
        draw: Callable[[Mapping[str, Sequence[Record]]], Figure],
        series: Mapping[str, Sequence[Record]],
        caption: str,
        runs: Sequence[Run],
        label: str,
    ) -> None:
        name = f"{self.section.name}-{kind}"
        figure = figures.settle(draw(series))
        for ending, data in figures.to_files(figure).items():
            self.files[f"figures/{name}.{ending}"] = data
        source = f"Runs: {'; '.join(_who(self.section, runs))}. Backbone: {backbones_of(runs)}."
        self.body.append(html.figure(figures.to_svg(figure, name), caption, source, label))

    def _table(self, kind: str, grid: Grid, links: Mapping[str, str] | None = None) -> str:
        name = f"{self.section.name}-{kind}"
        self.files[f"tables/{name}.md"] = grid.to_markdown().encode()
        self.files[f"tables/{name}.tex"] = grid.to_latex().encode()
        self.files[f"tables/{name}.csv"] = grid.to_csv().encode()
        head, *rows = grid.lines()
        notes = "".join(html.text("p", note, "soft") for note in grid.notes)
        return html.wide(html.table(head, rows, grid.texts, links), grid.title) + notes

    def _runs_of(self, series: Mapping[str, object]) -> list[Run]:
        return [run for label in series for run in self.by_label[label].shown]

    # --- in the order of the page ---------------------------------------------------------------

    def _summary(self) -> None:
        self._heading("summary", "Summary", "Percent, mean ± sample std over the finished runs.")
        grid, metrics = summary_grid(self.section)
        links = {DEFINITIONS[name][0]: f"{self.section.name}-{name}" for name in metrics}
        self.body.append(self._table("summary", grid, links))
        entries = [
            (f"{self.section.name}-{name}", heading, f"{meaning} [{name}]")
            for name, (heading, meaning) in DEFINITIONS.items()
            if name in metrics
        ]
        self.body.append(html.definitions(entries))

    def _accuracy(self) -> None:
        self._heading(
            "accuracy",
            "Accuracy as classes arrive",
            "After each task, all test images of all classes seen so far are answered anew. "
            "A learner that forgets nothing stays up while the question gets harder.",
        )
        series = {s.label: [run.record for run in s.runs if run.record.rows] for s in self.shown}
        runs = [run for s in self.shown for run in s.runs if run.record.rows]
        values = [
            a for records in series.values() for r in records for a in numbers.curve([r]).mean
        ]
        caption = "Line: mean over the finished runs of a series. Band: from the lowest to the "
        caption += "highest of them."
        if self.section.n_tasks > 1 and any(r[0].stream.n_tasks == 1 for r in series.values()):
            caption += " Level line: all classes learnt at once."
        if any(not run.record.finished for run in runs):
            caption += " Thin dotted line that ends in a cross: a run that is not finished."
        if figures.lowest_shown(min(values)):
            caption += " The axis does not begin at 0."
        ends = [f"{k} {numbers.curve(rs).mean[-1]:.1f} %" for k, rs in self.records.items()]
        label = f"Accuracy over all classes seen after each task; at the end: {', '.join(ends)}"
        self._figure("accuracy", figures.accuracy_curves, series, caption, runs, label)

    def _matrices(self) -> None:
        self._heading(
            "matrix",
            "Accuracy by task",
            "A row is a moment, a column a task: accuracy on that task's test images, among "
            "all classes seen by then. Read down a column to see a task being forgotten.",
        )
        series = figures.of_tasks(self.records)
        self._figure(
            "matrix",
            figures.accuracy_heatmaps,
            self.records,
            "a[i,j] in percent, mean over runs, one scale for all.",
            self._runs_of(series),
            f"Heat maps of the accuracy on each task after each task: {', '.join(series)}",
        )

    def _forgetting(self) -> None:
        self._heading(
            "forgetting",
            "Forgetting by task",
            "How many points of accuracy each task has lost by the end. The last task is left "
            "out: nothing came after it.",
        )
        series = {k: rs for k, rs in self.records.items() if len(rs[0].rows) > 1}
        self._figure(
            "forgetting",
            figures.forgetting,
            self.records,
            "Bars: the best accuracy on the task before the last task minus that at the end, "
            "the terms of metrics.forgetting_paper, whose mean is FF (paper). Short lines: "
            "accuracy right after learning the task minus that at the end, the terms of "
            "metrics.backward_transfer with the sign turned. Means over runs.",
            self._runs_of(series),
            f"Bars of the points forgotten on each task: {', '.join(series)}",
        )
        self.body.append(html.details("As a table", self._table("tasks", task_grid(series))))

    def _picks(self, series: Mapping[str, Sequence[Record]]) -> None:
        self._heading(
            "prompts",
            "Which prompt answered",
            "These methods keep prompts for each task and must pick one for an image whose task "
            "they are not told. The diagonal is the right choice; a wrong prompt need not mean a "
            "wrong answer.",
        )
        self._figure(
            "prompts",
            figures.prompt_pick_maps,
            series,
            "After the last task: of each task's test images (row), the percentage answered "
            "with each task's prompt (column). Means over runs.",
            self._runs_of(series),
            f"Heat maps of the prompts picked for each task's images: {', '.join(series)}",
        )

    def _classes(self) -> None:
        self._heading(
            "classes",
            "Accuracy by class",
            "At the end, class by class, in the order in which tasks arrived.",
        )
        n_classes = self.shown[0].shown[0].record.stream.n_classes
        if n_classes <= figures.FEW_CLASSES:
            caption = "A dot is a class in one run; within a task the best classes come first."
        else:
            caption = (
                "A box a task: the middle half of its classes and their median; whiskers to the "
                "best and the worst class. Classes of all runs together."
            )
        self._figure(
            "classes",
            figures.class_accuracy,
            self.records,
            caption,
            self._runs_of(self.records),
            f"Accuracy of each class at the end, by task: {', '.join(self.records)}",
        )
        self._table("classes", class_grid(self.records))
        head, *rows = class_lines(self.records)
        table = html.table(head, rows, len(head))
        self.body.append(html.wide(table, "Best and worst classes", "names"))
        text = "Right answers at the end, over the test images of all runs of a series together."
        self.body.append(html.text("p", text, "soft"))

    def _losses(self) -> None:
        self._heading(
            "losses",
            "Losses",
            "Every term of the loss, mean over each epoch. Thin lines separate tasks.",
        )
        series = {k: rs for k, rs in self.records.items() if any(any(r.losses) for r in rs)}
        found = [c for rs in series.values() if (c := numbers.loss_curves(rs)) is not None]
        together = max(curves.together for curves in found)
        caption = "Means over runs. Panels have scales of their own, logarithmic where values "
        caption += "span more than a factor of thirty."
        if together > 1:
            caption += f" A point is the mean of up to {together} neighbouring epochs."
        self._figure(
            "losses",
            figures.losses,
            series,
            caption,
            self._runs_of(series),
            f"Loss terms by epoch: {', '.join(series)}",
        )

    def _cost(self) -> None:
        self._heading(
            "cost",
            "Cost",
            "Time depends on the machine; parameters and passes do not.",
        )
        if any(r.seconds or r.parameters for records in self.records.values() for r in records):
            self._figure(
                "cost",
                figures.costs,
                self.records,
                "Wall-clock seconds by part, mean over runs; waiting is the part of training "
                "spent waiting for images. Memory: largest peak of all runs, of the process "
                "and of the GPU.",
                self._runs_of(self.records),
                f"Bars of time, memory and parameters: {', '.join(self.records)}",
            )
        self.body.append(self._table("cost", cost_grid(self.records)))

    def _runs(self) -> None:
        self._heading(
            "runs",
            "Runs",
            "Each record. Equal settings have an equal digest; seeds are those of class order, "
            "initialisation and data, one number where all three are the same.",
        )
        self.body.append(self._table("runs", run_grid(self.section)))


def _notes(section: Section) -> list[str]:
    """What a reader of the section must know first."""
    notes = []
    unfinished = [
        f"{series.label} {seeds_of([run])} ({run.state})"
        for series in section.series
        for run in series.runs
        if not run.record.finished
    ]
    if unfinished:
        notes.append(f"Unfinished, and in no mean: {'; '.join(unfinished)}.")
    for series in section.series:
        for seeds in repeated_seeds(series):
            notes.append(
                f"{series.label} has several runs with seed {seeds}; each counts in the means."
            )
    if len({tuple(r.seeds_text for r in s.finished) for s in section.series if s.finished}) > 1:
        notes.append(
            "The series do not all have the same seeds; “cprompt compare A B” compares two of them "
            "seed by seed."
        )
    return notes


def _who(section: Section, runs: Sequence[Run]) -> list[str]:
    """`label (seeds …)` of every series that has some of the runs."""
    chosen = set(runs)
    return [
        f"{series.label} ({seeds_of(mine)})"
        for series in section.series
        if (mine := [run for run in series.runs if run in chosen])
    ]


# --- tables ---------------------------------------------------------------------------------------


def summary_grid(section: Section) -> tuple[Grid, list[str]]:
    """Every metric of every series over its finished runs, and the metrics that any has."""
    cells = {
        s.label: numbers.summary_cells([run.record for run in s.finished]) for s in section.series
    }
    metrics = [name for name in DEFINITIONS if any(name in row for row in cells.values())]
    rows = tuple(
        (s.label, len(s.finished), *(cells[s.label].get(name) for name in metrics))
        for s in section.series
    )
    head = ("", "n", *(DEFINITIONS[name][0] for name in metrics))
    notes = ("n: finished runs that the means are over.",)
    return Grid(f"Summary of {section.title}", head, rows, notes), metrics


def task_grid(series: Mapping[str, Sequence[Record]]) -> Grid:
    """The numbers behind the bars of forgetting, and the accuracy on every task."""
    rows: list[tuple[Value, ...]] = []
    for label, records in series.items():
        found = numbers.forgetting_by_task(records)
        matrix = numbers.mean_matrix(records)
        for task in range(len(matrix)):
            drop = (found.best[task], found.forgetting[task]) if task < len(found.end) else None
            best, lost = (None, None) if drop is None else map(float, drop)
            learnt, end = float(matrix[task, task]), float(matrix[-1, task])
            rows.append((label, str(task + 1), learnt, best, end, lost))
    head = ("", "task", "just learnt", "best before the last task", "at the end", "forgotten")
    return Grid("Accuracy on each task, percent, mean over runs", head, tuple(rows), texts=2)


def class_grid(series: Mapping[str, Sequence[Record]]) -> Grid:
    """Every class of every series at the end, best first."""
    rows = tuple(
        (label, one.name, one.percent, one.images)
        for label, records in series.items()
        for one in numbers.classes_by_accuracy(records)
    )
    notes = ("Right answers at the end and test images, of all runs of the series together.",)
    return Grid("Accuracy by class", ("", "class", "%", "pictures"), rows, notes, texts=2)


def class_lines(series: Mapping[str, Sequence[Record]]) -> list[list[str]]:
    """The names of the best and the worst classes, two lines a series, no class in both."""
    lines = [["", "", *(f"{i + 1}." for i in range(NAMED_CLASSES))]]
    for label, records in series.items():
        found = numbers.classes_by_accuracy(records)
        best = found[:NAMED_CLASSES]
        worst = found[len(best) :][::-1][:NAMED_CLASSES]
        for kind, classes in (("best", best), ("worst", worst)):
            names = [f"{one.name}: {one.percent:.0f} %" for one in classes]
            lines.append([label, kind, *names, *[""] * (NAMED_CLASSES - len(names))])
    return lines


def cost_grid(series: Mapping[str, Sequence[Record]]) -> Grid:
    """Seconds by part, peak memory, parameters, passes a test image and the machine."""
    found = {label: numbers.cost(records) for label, records in series.items()}
    parts = list(dict.fromkeys(part for c in found.values() for part in c.seconds))
    kinds = list(dict.fromkeys(kind for c in found.values() for kind in c.passes))
    rows = []
    for label, c in found.items():
        memory = [c.memory[p] / 2**30 if p in c.memory else None for p in ("process", "device")]
        rows.append(
            (
                label,
                c.hardware,
                len(series[label]),
                *(c.seconds.get(part) for part in parts),
                *memory,
                c.parameters.get("learnt"),
                c.parameters.get("backbone"),
                *(c.passes.get(kind) for kind in kinds),
            )
        )
    head = (
        "",
        "hardware",
        "runs",
        *(f"{part}, s" for part in parts),
        "peak process, GiB",
        "peak device, GiB",
        "parameters learnt",
        "backbone parameters",
        *(f"{kind} passes" for kind in kinds),
    )
    notes = (
        "Seconds: mean wall-clock of a run; training without waiting for images. Passes: through "
        "the backbone, for one test image over the whole stream.",
    )
    return Grid("Cost", head, tuple(rows), notes, texts=2)


def run_grid(section: Section) -> Grid:
    """Every run with what it came from."""
    rows = []
    for series in section.series:
        for run in series.runs:
            record = run.record
            summary = record.summary()
            about = record.environment
            rows.append(
                (
                    run.name,
                    series.label,
                    run.seeds_text,
                    run.state,
                    series.digest,
                    record.backbone.get("name"),
                    record.backbone.get("weights"),
                    record.backbone.get("fingerprint", "")[:12] or None,
                    ", ".join(f"{name} {about[name]}" for name in VERSIONS if name in about)
                    or None,
                    hardware_of(record),
                    summary.get("last_accuracy"),
                    summary.get("average_accuracy"),
                    record.images.get("train"),
                    record.images.get("test"),
                )
            )
    head = (
        "run",
        "series",
        "seeds",
        "state",
        "settings",
        "backbone",
        "weights",
        "fingerprint",
        "versions",
        "hardware",
        "Last-acc",
        "Avg-acc",
        "train images",
        "test images",
    )
    return Grid(f"Runs of {section.title}", head, tuple(rows), texts=10)
