"""What a killed service was about to save."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from cprompt.classifier import model_folder
from cprompt.serve.errors import RequestError
from cprompt.serve.job import Job, Kind
from cprompt.serve.promises import done_already
from cprompt.serve.uploads import Upload
from tests.serve.common import GREEN, GREY, image
from tests.serve.fake import FakeClassifier


def job(kind: Kind, replaces: str, **result: Any) -> Job:
    found = Job(kind, Upload([], []), None)
    found.promise = {"replaces": replaces, "result": result}
    return found


def test_the_folder_tells_whether_a_batch_was_saved_even_if_others_built_on_it(
    model: Path,
) -> None:
    classifier = FakeClassifier.load(model)
    old = classifier.model_id
    classifier.learn([(image(GREEN), "green")])
    promised = job("learn", old, model=classifier.model_id, batch=asdict(classifier.history_[-1]))
    assert promised.promise is not None
    assert done_already(promised, model) is None
    classifier.save(model)
    assert done_already(promised, model) == promised.promise["result"]
    classifier.learn([(image(GREY), "grey")]).save(model)
    classifier.rename("grey", "silver").save(model)
    assert done_already(promised, model) == promised.promise["result"]
    model_folder.undo(model)
    assert done_already(promised, model) == promised.promise["result"]
    assert done_already(Job("learn", Upload([], []), None), model) is None


def test_an_undo_is_never_made_twice(model: Path) -> None:
    classifier = FakeClassifier.load(model)
    old = classifier.model_id
    classifier.learn([(image(GREEN), "green")]).save(model)
    promised = job("undo", classifier.model_id, model=old)
    assert done_already(promised, model) is None
    model_folder.undo(model)
    assert done_already(promised, model) == {"model": old}
    again = FakeClassifier.load(model)
    again.learn([(image(GREY), "grey")]).save(model)
    with pytest.raises(RequestError, match="has changed since"):
        done_already(promised, model)
