"""scikit-learn's own tools on the classifier."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cprompt import UNKNOWN, ContinualClassifier
from tests.classifier.common import batch, learnt, saved, tiny

pytest.importorskip("sklearn")

from sklearn.base import clone, is_classifier
from sklearn.exceptions import NotFittedError
from sklearn.metrics import accuracy_score, classification_report
from sklearn.model_selection import GridSearchCV, StratifiedKFold, cross_val_score
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils import get_tags
from sklearn.utils.validation import check_is_fitted


@pytest.fixture(scope="module")
def images() -> np.ndarray:
    return np.stack(batch(0, red=6, sea=6)[0])


@pytest.fixture(scope="module")
def names() -> np.ndarray:
    return np.array(batch(0, red=6, sea=6)[1])


@pytest.fixture(scope="module")
def paths(images: np.ndarray, tmp_path_factory: pytest.TempPathFactory) -> np.ndarray:
    folder = tmp_path_factory.mktemp("photos")
    files = [saved(folder / f"{i}.png", image) for i, image in enumerate(images)]
    return np.array([str(file) for file in files])


def test_it_is_a_classifier() -> None:
    assert is_classifier(tiny())
    tags = get_tags(tiny())
    assert tags.estimator_type == "classifier"
    assert tags.classifier_tags.multi_class


def test_it_is_fitted_once_something_was_learnt() -> None:
    with pytest.raises(NotFittedError):
        check_is_fitted(tiny())
    check_is_fitted(learnt({"red": 2}))


def test_a_clone_has_the_parameters_and_nothing_learnt() -> None:
    classifier = learnt({"red": 2}, seed=5)
    copy = clone(classifier)
    assert copy.get_params() == classifier.get_params()
    assert copy.classes_ == []


def test_the_score_is_the_share_that_predict_names_right() -> None:
    classifier = learnt({"red": 8, "sea": 8, "moss": 8, "sun": 8, "ash": 8}, accept=0.5)
    new, truth = batch(5, red=4, sea=4, pink=3)
    answers = classifier.predict(new)
    assert UNKNOWN in answers
    right = sum(a == t for a, t in zip(answers, truth, strict=True))
    assert classifier.score(new, truth) == right / 11 == accuracy_score(truth, answers)
    assert classifier.score(list(zip(new, truth, strict=True))) == right / 11
    assert np.isnan(classifier.score([], []))


def test_whole_number_labels_are_scored_as_the_names_they_become() -> None:
    classifier = tiny().fit(*batch(0, red=3))
    photos, _ = batch(0, red=3)
    assert tiny().fit(photos, [7, 7, 7]).score(photos, [7, 7, 7]) == 1
    assert classifier.score(photos, [7, 7, 7]) == 0


@pytest.mark.parametrize("kind", ["images", "paths"])
def test_cross_validation_scores_each_fold(
    kind: str, names: np.ndarray, request: pytest.FixtureRequest
) -> None:
    photos = request.getfixturevalue(kind)
    scores = cross_val_score(tiny(), photos, names, cv=2, error_score="raise")
    expected = []  # a classifier gets folds that are stratified
    for train, test in StratifiedKFold(2).split(np.zeros(len(names)), names):
        classifier = tiny().fit(photos[train], names[train])
        expected.append(float(np.mean(np.array(classifier.predict(photos[test])) == names[test])))
    assert scores.tolist() == expected


def test_a_grid_search_chooses_among_parameters(images: np.ndarray, names: np.ndarray) -> None:
    grid = {"hold_out": [0.0, 0.2], "seed": [3]}
    search = GridSearchCV(tiny(), grid, cv=2, error_score="raise").fit(images, names)
    assert set(search.best_params_) == {"hold_out", "seed"}
    assert isinstance(search.best_estimator_, ContinualClassifier)
    assert search.best_estimator_.seed == 3
    assert len(search.cv_results_["mean_test_score"]) == 2
    assert search.score(images, names) == search.best_estimator_.score(images, names)


def test_it_is_the_end_of_a_pipeline(images: np.ndarray, names: np.ndarray) -> None:
    pipeline = Pipeline([("invert", FunctionTransformer(lambda x: 255 - x)), ("answer", tiny())])
    pipeline.set_params(answer__seed=4).fit(images, names)
    alone = tiny(seed=4).fit(255 - images, names)
    assert pipeline.predict(images) == alone.predict(255 - images)
    assert np.array_equal(pipeline.predict_proba(images), alone.predict_proba(255 - images))
    assert pipeline.score(images, names) == alone.score(255 - images, names)
    assert is_classifier(pipeline)


def test_a_classification_report_counts_the_answers(images: np.ndarray, names: np.ndarray) -> None:
    answers = tiny().fit(images, names).predict(images)
    report = classification_report(names, answers, output_dict=True, zero_division=0)
    for name in ("red", "sea"):
        right = sum(a == t == name for a, t in zip(answers, names, strict=True))
        assert report[name]["recall"] == pytest.approx(right / 6)


def test_the_package_does_not_import_scikit_learn(tmp_path: Path) -> None:
    code = "import sys; from cprompt import ContinualClassifier as C; C(); "
    code += "sys.exit('sklearn' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=False).returncode == 0
