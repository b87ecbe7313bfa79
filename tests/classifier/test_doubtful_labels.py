"""Labels in doubt: found by the odds, the worst first, and told while learning."""

from __future__ import annotations

import numpy as np
import pytest

from cprompt import Observer
from cprompt.classifier.doubtful_labels import NAMED, ODDS, doubtful, notice_doubtful
from tests.classifier.common import batch, photos, tiny


class Notes(Observer):
    def __init__(self) -> None:
        self.messages: list[str] = []

    def noticed(self, message: str) -> None:
        self.messages.append(message)


def test_doubtful_are_those_that_a_loop_over_photos_finds() -> None:
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.full(4, 0.15), 200)
    names = ["a", "b", "c", "d"]
    labels = [names[i] for i in rng.integers(0, 4, 200)]
    naive = []
    for i, (row, label) in enumerate(zip(p.tolist(), labels, strict=True)):
        own = row[names.index(label)]
        if max(row) >= ODDS * own:
            naive.append((own, i, label, names[row.index(max(row))], max(row)))
    found = doubtful(p, names, labels)
    assert 0 < len(found) < 200
    assert [(d.probability, d.index, d.label, d.other, d.other_probability) for d in found] == (
        sorted(naive)
    )


def test_a_label_is_doubted_where_another_is_a_hundred_times_as_probable() -> None:
    p = np.array([[0.992, 0.008], [0.985, 0.015], [0.98, 0.02], [0.991, 0.009]])
    found = doubtful(p, ["cat", "dog"], ["dog"] * 4)
    assert [each.index for each in found] == [0, 3]  # 124, 66, 49 and 110 times


def test_one_message_names_the_worst_few() -> None:
    p = np.tile([0.999, 0.001], (8, 1))
    p[5] = [0.9999, 0.0001]
    notes = Notes()
    notice_doubtful(p, ["cat", "dog"], ["dog"] * 8, [f"{i}.jpg" for i in range(8)], notes)
    (message,) = notes.messages
    assert message.startswith("8 photos may be in the wrong class: '5.jpg looks like cat'")
    assert f"and {8 - NAMED} more" in message
    notice_doubtful(p, ["cat", "dog"], ["cat"] * 8, [], notes)
    assert len(notes.messages) == 1


@pytest.mark.parametrize("wrong", [True, False])
def test_learning_tells_of_a_photo_in_the_wrong_class(wrong: bool) -> None:
    notes = Notes()
    images, labels = batch(0, red=12, green=12, blue=12)
    images.append(photos("green", 1, seed=5)[0])
    labels.append("red" if wrong else "green")
    tiny().learn(images, labels, observer=notes)
    told = [message for message in notes.messages if "wrong class" in message]
    assert len(told) == (1 if wrong else 0)
    if wrong:
        assert told[0].startswith("1 photo may be in the wrong class: 'item 36 looks like green'")
