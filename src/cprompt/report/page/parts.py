"""The parts of a section, in the order of the page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from matplotlib.figure import Figure

from cprompt.report import figures, html, numbers
from cprompt.report.captions import backbones_of, seeds_of
from cprompt.report.definitions import METRIC_TEXTS
from cprompt.report.grid import Grid
from cprompt.report.numbers import RecordsByLabel
from cprompt.report.page.blocks import Definitions, Drawing, Part, SectionPage, TableBlock
from cprompt.report.page.grids import (
    class_grid,
    class_lines,
    cost_grid,
    movement_grid,
    run_grid,
    summary_grid,
    task_grid,
    without_common,
)
from cprompt.report.runs import RecordedRun
from cprompt.report.series import Section, repeated_seeds
from cprompt.research.record import Record


class SectionBuilder:
    """Turns a section into its part of the page; figures and tables also go to `files`."""

    def __init__(self, section: Section, files: dict[str, bytes]) -> None:
        self.section = section
        self.files = files
        self.series = {s.shown_label: s for s in section.series if s.shown}
        """The series that figures show, by their label there."""
        self.records: RecordsByLabel = {
            label: [run.record for run in series.shown] for label, series in self.series.items()
        }

    def build(self) -> SectionPage:
        """Every part that the records have something for."""
        parts = []
        if any(series.finished for series in self.section.series):
            parts.append(self._summary())
        if self.series:
            parts.append(self._accuracy())
            if self.section.n_tasks > 1:
                parts.append(self._matrices())
            if several := self._where(lambda records: len(records[0].rows) > 1):
                parts.append(self._forgetting(several))
            if picks := self._where(lambda records: numbers.pick_shares(records) is not None):
                parts.append(self._picks(picks))
            parts.append(self._classes())
            if trained := self._where(lambda records: numbers.loss_curves(records) is not None):
                parts.append(self._losses(trained))
            if moved := self._where(lambda records: any(any(r.movement) for r in records)):
                parts.append(self._movement(moved))
            parts.append(self._cost())
        parts.append(self._runs())
        section = self.section
        return SectionPage(section.name, section.title, _notes(section), parts)

    # --- pieces ---------------------------------------------------------------------------------

    def _where(self, wanted: Callable[[Sequence[Record]], bool]) -> RecordsByLabel:
        return {label: records for label, records in self.records.items() if wanted(records)}

    def _ident(self, kind: str) -> str:
        return f"{self.section.name}-{kind}"

    def _drawing(
        self, kind: str, figure: Figure, caption: str, label: str, runs: Sequence[RecordedRun]
    ) -> Drawing:
        """label: describes the figure to readers who cannot see it. runs: what it was made from."""
        name = self._ident(kind)
        figure = figures.settle(figure)
        for ending, data in figures.to_files(figure).items():
            self.files[f"figures/{name}.{ending}"] = data
        source = f"Runs: {'; '.join(_who(self.section, runs))}. Backbone: {backbones_of(runs)}."
        return Drawing(html.drawing(figures.to_svg(figure, name), label), caption, source)

    def _table(
        self,
        kind: str,
        grid: Grid,
        links: dict[str, str] | None = None,
        shown: Literal["table", "folded_table"] = "table",
    ) -> TableBlock:
        self._write_table(kind, grid)
        return self._shown_table(grid, links, shown)

    def _shown_table(
        self,
        grid: Grid,
        links: dict[str, str] | None = None,
        shown: Literal["table", "folded_table"] = "table",
    ) -> TableBlock:
        head, *rows = grid.lines()
        return TableBlock(grid.title, head, rows, grid.texts, grid.notes, links or {}, kind=shown)

    def _write_table(self, kind: str, grid: Grid) -> None:
        name = self._ident(kind)
        self.files[f"tables/{name}.md"] = grid.to_markdown().encode()
        self.files[f"tables/{name}.tex"] = grid.to_latex().encode()
        self.files[f"tables/{name}.csv"] = grid.to_csv().encode()

    def _shown_runs(self, series: RecordsByLabel) -> list[RecordedRun]:
        return [run for label in series for run in self.series[label].shown]

    # --- in the order of the page ---------------------------------------------------------------

    def _summary(self) -> Part:
        grid, metrics = summary_grid(self.section)
        texts = {self._ident(name): (name, METRIC_TEXTS[name]) for name in metrics}
        links = {text.title: ident for ident, (_, text) in texts.items()}
        entries = [
            (ident, text.title, f"{text.meaning} [{name}]") for ident, (name, text) in texts.items()
        ]
        return Part(
            self._ident("summary"),
            "Summary",
            "Percent, mean ± sample std over the finished runs.",
            [self._table("summary", grid, links), Definitions(entries)],
        )

    def _accuracy(self) -> Part:
        runs_of = {
            s.label: [run for run in s.runs if run.record.rows] for s in self.series.values()
        }
        series = {label: [run.record for run in runs] for label, runs in runs_of.items()}
        records = [record for records in series.values() for record in records]
        caption = "Line: mean over the finished runs of a series. Band: from the lowest to the "
        caption += "highest of them."
        if self.section.n_tasks > 1 and any(r.stream.n_tasks == 1 for r in records):
            caption += " Level line: all classes learnt at once."
        if any(not record.finished for record in records):
            caption += " Thin dotted line that ends in a cross: a run that is not finished."
        if figures.accuracy_axis_start(min(numbers.curve([r]).mean.min() for r in records)):
            caption += " The axis does not begin at 0."
        ends = [f"{k} {numbers.curve(rs).mean[-1]:.1f} %" for k, rs in self.records.items()]
        drawing = self._drawing(
            "accuracy",
            figures.accuracy_curves(series),
            caption,
            f"Accuracy over all classes seen after each task; at the end: {', '.join(ends)}",
            [run for runs in runs_of.values() for run in runs],
        )
        return Part(
            self._ident("accuracy"),
            "Accuracy as classes arrive",
            "After each task, the method answers the test images of all classes seen so far. A "
            "learner that forgets nothing stays high although the question gets harder.",
            [drawing],
        )

    def _matrices(self) -> Part:
        series = figures.with_several_tasks(self.records)
        drawing = self._drawing(
            "matrix",
            figures.accuracy_heatmaps(series),
            "a[i,j] in percent, mean over runs, one scale for all.",
            f"Heat maps of the accuracy on each task after each task: {', '.join(series)}",
            self._shown_runs(series),
        )
        return Part(
            self._ident("matrix"),
            "Accuracy by task",
            "A row is a moment, a column a task: accuracy on that task's test images, among all "
            "classes seen by then. Read down a column to see a task being forgotten.",
            [drawing],
        )

    def _forgetting(self, series: RecordsByLabel) -> Part:
        of_paper = METRIC_TEXTS["forgetting_paper"].title
        drawing = self._drawing(
            "forgetting",
            figures.forgetting(self.records),
            "Bars: the best accuracy on the task before the last task minus that at the end, the "
            f"terms of metrics.forgetting_paper, whose mean is {of_paper}. Short lines: accuracy "
            "right after learning the task minus that at the end, the terms of "
            "metrics.backward_transfer with the opposite sign. Means over runs.",
            f"Bars of the points forgotten on each task: {', '.join(series)}",
            self._shown_runs(series),
        )
        return Part(
            self._ident("forgetting"),
            "Forgetting by task",
            "How many points of accuracy each task has lost by the end. The last task is left "
            "out: nothing came after it.",
            [drawing, self._table("tasks", task_grid(series), shown="folded_table")],
        )

    def _picks(self, series: RecordsByLabel) -> Part:
        drawing = self._drawing(
            "prompts",
            figures.prompt_pick_maps(series),
            "After the last task: of each task's test images (row), the percentage answered with "
            "each task's prompt (column). Means over runs.",
            f"Heat maps of the prompts picked for each task's images: {', '.join(series)}",
            self._shown_runs(series),
        )
        return Part(
            self._ident("prompts"),
            "Which prompt answered",
            "These methods keep prompts for each task and must pick one for an image whose task "
            "they are not told. The diagonal is the right choice; a wrong prompt need not mean a "
            "wrong answer.",
            [drawing],
        )

    def _classes(self) -> Part:
        first = next(iter(self.records.values()))[0]
        if first.stream.n_classes <= figures.FEW_CLASSES:
            caption = "A dot is a class in one run; within a task the best classes come first."
        else:
            caption = (
                "One box per task: the middle half of its classes and their median; whiskers to "
                "the best and the worst class. Classes of all runs together."
            )
        drawing = self._drawing(
            "classes",
            figures.class_accuracy(self.records),
            caption,
            f"Accuracy of each class at the end, by task: {', '.join(self.records)}",
            self._shown_runs(self.records),
        )
        self._write_table("classes", class_grid(self.records))
        head, *rows = class_lines(self.records)
        text = "Right answers at the end, over the test images of all runs of a series together."
        named = TableBlock("Best and worst classes", head, rows, len(head), [text], style="names")
        return Part(
            self._ident("classes"),
            "Accuracy by class",
            "At the end, class by class, in the order in which tasks arrived.",
            [drawing, named],
        )

    def _losses(self, series: RecordsByLabel) -> Part:
        found = [c for rs in series.values() if (c := numbers.loss_curves(rs)) is not None]
        together = max(curves.together for curves in found)
        caption = "Means over runs. Each panel has its own scale, logarithmic where values span "
        caption += "more than a factor of thirty."
        if together > 1:
            caption += f" A point is the mean of up to {together} neighbouring epochs."
        drawing = self._drawing(
            "losses",
            figures.losses(series),
            caption,
            f"Loss terms by epoch: {', '.join(series)}",
            self._shown_runs(series),
        )
        return Part(
            self._ident("losses"),
            "Losses",
            "Every term of the loss, mean over each epoch. Thin lines separate tasks.",
            [drawing],
        )

    def _movement(self, series: RecordsByLabel) -> Part:
        return Part(
            self._ident("movement"),
            "What training moved",
            "How far each group of parameters went from where a task began. A group that stays "
            "where it was drawn is not learnt, whatever the accuracy.",
            [self._table("movement", movement_grid(series))],
        )

    def _cost(self) -> Part:
        blocks: list[Drawing | TableBlock] = []
        if figures.any_costs(self.records):
            drawing = self._drawing(
                "cost",
                figures.costs(self.records),
                "Wall-clock seconds by part, mean over runs; waiting is the part of training "
                "spent waiting for images. Memory: largest peak of all runs, of the process and "
                "of the GPU.",
                f"Bars of time, memory and parameters: {', '.join(self.records)}",
                self._shown_runs(self.records),
            )
            blocks.append(drawing)
        blocks.append(self._table("cost", cost_grid(self.records)))
        return Part(
            self._ident("cost"),
            "Cost",
            "Time depends on the machine; parameters and passes do not.",
            blocks,
        )

    def _runs(self) -> Part:
        grid = run_grid(self.section)
        self._write_table("runs", grid)
        return Part(
            self._ident("runs"),
            "Runs",
            "Each record. Equal settings have an equal digest. Seeds are those of class order, "
            "initialisation and data; one number where all three are the same.",
            [self._shown_table(without_common(grid, grid.head.index("backbone")))],
        )


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
        notes.append(f"Unfinished, and not part of any mean: {'; '.join(unfinished)}.")
    for series in section.series:
        for run in series.runs:
            notes += [f"{series.label} {seeds_of([run])}: {w}." for w in run.record.warnings]
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


def _who(section: Section, runs: Sequence[RecordedRun]) -> list[str]:
    """`label (seeds …)` of every series that has some of the runs."""
    chosen = set(runs)
    return [
        f"{series.label} ({seeds_of(mine)})"
        for series in section.series
        if (mine := [run for run in series.runs if run in chosen])
    ]
