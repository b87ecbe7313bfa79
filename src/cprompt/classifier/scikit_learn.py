"""What scikit-learn's own tools ask of a classifier beyond `fit`, `predict` and `get_params`.

With this, `clone`, `cross_val_score`, `GridSearchCV` and `Pipeline` take a `ContinualClassifier`.
scikit-learn is imported only when it asks, so it need not be installed.
"""

from __future__ import annotations

from typing import Any

from cprompt.classifier import photo_sources


class ScikitLearnMixin:
    """Says what kind of estimator it is, whether it has learnt, and how often it is right."""

    _estimator_type = "classifier"
    """Asked for by scikit-learn before 1.6."""

    classes_: Any

    def predict(self, images: Any, *, unknown: bool = True) -> list[str]:
        """See `ContinualClassifier.predict`."""
        raise NotImplementedError

    def score(self, X: Any, y: Any = None) -> float:
        """Share of photos that `predict` names right; sources as for `learn`.

        `UNKNOWN` counts as wrong, as in `Evaluation.accuracy`.
        """
        photos, names = photo_sources.labelled(X, y)
        answers = self.predict(photos)
        right = sum(answer == name for answer, name in zip(answers, names, strict=True))
        return right / len(names) if names else float("nan")

    def __sklearn_is_fitted__(self) -> bool:
        return bool(self.classes_)

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import ClassifierTags, InputTags, Tags, TargetTags

        return Tags(
            estimator_type="classifier",
            target_tags=TargetTags(required=False),  # a folder has its own labels
            classifier_tags=ClassifierTags(),
            input_tags=InputTags(two_d_array=False, three_d_array=True, string=True),
        )
