"""What the columns of a report mean, in one plain sentence each."""

from __future__ import annotations

DEFINITIONS: dict[str, tuple[str, str]] = {
    "last_accuracy": (
        "Last-acc",
        "Right answers among the test images of all classes, after the last task, in percent.",
    ),
    "average_accuracy": (
        "Avg-acc",
        "The same measured after every task, over the classes seen by then; the mean of those.",
    ),
    "forgetting_paper": (
        "FF (paper)",
        "Forgetting: for each task but the last, the best accuracy on it before the last task "
        "minus that at the end; the mean of those. Negative where the last task helped old ones.",
    ),
    "forgetting_released": (
        "FF (code)",
        "Forgetting as the released code counts it: the best may also be that at the end, so no "
        "task counts as negative.",
    ),
    "backward_transfer": (
        "BWT",
        "Backward transfer: accuracy on each earlier task at the end minus that right after "
        "learning it, mean over tasks. Negative means forgotten.",
    ),
    "old_accuracy": ("Old", "Accuracy at the end on the classes of all tasks but the last."),
    "new_accuracy": ("New", "Accuracy at the end on the classes of the last task."),
    "top_k_accuracy": (
        "Top-k",
        "How often the right class is among the k best answers at the end (evaluation.top_k, 5 "
        "unless told).",
    ),
    "selection_accuracy": (
        "Picked right",
        "How often the prompt of an image's own task was picked, at the end.",
    ),
    "last_accuracy_given": (
        "Last, right prompt",
        "Last-acc if every image is told which task's prompt to use.",
    ),
    "average_accuracy_given": (
        "Avg, right prompt",
        "Avg-acc if every image is told which task's prompt to use.",
    ),
    "last_accuracy_first": (
        "Last, first prompt",
        "Last-acc on the tasks after the first if the first task's prompt answers everything.",
    ),
    "average_accuracy_first": (
        "Avg, first prompt",
        "Avg-acc on the tasks after the first if the first task's prompt answers everything.",
    ),
}
"""Heading and meaning by the metric's name in `cprompt.research.metrics` and `Record.summary`."""
