"""How people read the metrics: the name and the meaning of each, for every page and command."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class MetricText:
    """A metric in words: `title` names it wherever it is shown, `meaning` explains it.

    Metrics without a meaning are too special for the summary of a report and are not shown there.
    """

    title: str
    meaning: str | None = None


METRIC_TEXTS: dict[str, MetricText] = {
    "last_accuracy": MetricText(
        "Last-acc",
        "Share of the test images of all classes that are answered correctly after the last "
        "task, in percent.",
    ),
    "average_accuracy": MetricText(
        "Avg-acc",
        "The same measured after every task, over the classes seen by then; the mean of those.",
    ),
    "forgetting_paper": MetricText(
        "FF (paper's formula)",
        "Forgetting: for each task but the last, the best accuracy on it before the last task "
        "minus that at the end; the mean of those. Negative where the last task helped old ones.",
    ),
    "forgetting_released": MetricText(
        "FF (released code's formula)",
        "Forgetting as the released code computes it: the best may also be that at the end, so "
        "no task counts as negative.",
    ),
    "forgetting_stepwise": MetricText("FF (stepwise, as CODA-Prompt)"),
    "last_task_mean": MetricText("Last, mean over tasks"),
    "average_task_mean": MetricText("Avg, mean over tasks"),
    "backward_transfer": MetricText(
        "Backward transfer",
        "Backward transfer: accuracy on each earlier task at the end minus that right after "
        "learning it, mean over tasks. Negative means forgotten.",
    ),
    "learning_accuracy": MetricText("Accuracy when just learnt"),
    "first_task_accuracy": MetricText("First task, when just learnt"),
    "old_accuracy": MetricText(
        "Old classes, at the end",
        "Accuracy at the end on the classes of all tasks but the last.",
    ),
    "new_accuracy": MetricText(
        "New classes, at the end", "Accuracy at the end on the classes of the last task."
    ),
    "top_k_accuracy": MetricText(
        "Top-k accuracy",
        "How often the right class is among the k best answers at the end (evaluation.top_k, 5 by "
        "default).",
    ),
    "selection_accuracy": MetricText(
        "Prompt picked right",
        "How often the prompt of an image's own task was picked, at the end.",
    ),
    "last_accuracy_given": MetricText(
        "Last-acc, right prompt given",
        "Last-acc if the method is told for every image which task's prompt to use.",
    ),
    "average_accuracy_given": MetricText(
        "Avg-acc, right prompt given",
        "Avg-acc if the method is told for every image which task's prompt to use.",
    ),
    "last_accuracy_first": MetricText(
        "Last-acc, first prompt always (tasks 2 to T)",
        "Last-acc on the tasks after the first if the first task's prompt answers everything.",
    ),
    "average_accuracy_first": MetricText(
        "Avg-acc, first prompt always (tasks 2 to T)",
        "Avg-acc on the tasks after the first if the first task's prompt answers everything.",
    ),
}
"""By the metric's name in `cprompt.research.metrics` and `Record.summary`, in order of display."""
