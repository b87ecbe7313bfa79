"""Figures of records: one function per figure; nothing is drawn on a screen.

Most take records by label: the order of the labels decides colours and markers. `to_svg` and
`to_files` write a figure.
"""

from cprompt.report.figures.classes import FEW_CLASSES, class_accuracy
from cprompt.report.figures.costs import any_costs, costs
from cprompt.report.figures.curves import accuracy_axis_start, accuracy_curves
from cprompt.report.figures.evaluation import MOST_CLASSES, confusion, reliability
from cprompt.report.figures.files import settle, to_files, to_svg
from cprompt.report.figures.forgetting import forgetting
from cprompt.report.figures.heatmaps import (
    accuracy_heatmap,
    accuracy_heatmaps,
    prompt_pick_maps,
    prompt_picks,
    with_several_tasks,
)
from cprompt.report.figures.losses import losses
from cprompt.report.figures.tradeoff import accuracy_against_cost

__all__ = [
    "FEW_CLASSES",
    "MOST_CLASSES",
    "accuracy_against_cost",
    "accuracy_axis_start",
    "accuracy_curves",
    "accuracy_heatmap",
    "accuracy_heatmaps",
    "any_costs",
    "class_accuracy",
    "confusion",
    "costs",
    "forgetting",
    "losses",
    "prompt_pick_maps",
    "prompt_picks",
    "reliability",
    "settle",
    "to_files",
    "to_svg",
    "with_several_tasks",
]
