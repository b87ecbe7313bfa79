"""Accuracy class by class: dots, or boxes."""

from __future__ import annotations

import numpy as np

from cprompt.report.figures.classes import class_accuracy
from cprompt.research.record import Record
from tests.report.figures.records import longer


def test_few_classes_are_dots_and_many_are_boxes(hand_record: Record) -> None:
    [axes] = class_accuracy({"ours": [hand_record]}).axes
    dots = [line for line in axes.lines if line.get_marker() == "o"]
    points = [(x, y) for line in dots for x, y in zip(*line.get_data(), strict=True)]
    np.testing.assert_allclose(points, [(0, 200 / 3), (1, 25), (2, 60), (3, 100), (4, 0)])
    [axes] = class_accuracy({"ours": [longer(hand_record, 7, 10)]}).axes
    assert len(axes.patches) == 7
    assert not [line for line in axes.lines if line.get_marker() == "o"]
