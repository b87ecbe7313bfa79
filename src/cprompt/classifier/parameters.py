"""The classifier's parameters, their checks, and the defaults that a method declares."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from cprompt.data.pipeline.views import NORMALIZATIONS, RECIPES
from cprompt.errors import ConfigError
from cprompt.methods.base import ClassifierDefaults
from cprompt.methods.registry import method_class
from cprompt.settings import check, from_mapping, suggest
from cprompt.training.settings import TrainingConfig

STRUCTURAL_PARAMETERS = (
    "backbone",
    "method",
    "weights",
    "image_size",
    "settings",
    "normalization",
)
"""Parameters that cannot change after the first batch is learnt."""

P = TypeVar("P", bound="Parameters")


class Parameters:
    """Constructor arguments, stored as given, with scikit-learn's `get_params` and `set_params`."""

    def __init__(
        self,
        backbone: str = "auto",
        method: str = "strata",
        *,
        weights: str | None = None,
        image_size: int | None = None,
        settings: Mapping[str, Any] | None = None,
        training: Mapping[str, Any] | None = None,
        transform: str = "wide",
        normalization: str = "auto",
        hold_out: float = 0.15,
        accept: float = 0.95,
        keep_held_out: int = 3,
        seed: int = 0,
        device: str = "auto",
        precision: str = "fp32",
    ) -> None:
        self.backbone = backbone
        self.method = method
        self.weights = weights
        self.image_size = image_size
        self.settings = settings
        self.training = training
        self.transform = transform
        self.normalization = normalization
        self.hold_out = hold_out
        self.accept = accept
        self.keep_held_out = keep_held_out
        self.seed = seed
        self.device = device
        self.precision = precision
        self._check()

    @property
    def _is_fixed(self) -> bool:
        """Whether a batch was learnt, so that structural parameters can no longer change."""
        return False

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The constructor's arguments, as given."""
        return {name: getattr(self, name) for name in PARAMETERS}

    def set_params(self: P, **params: Any) -> P:
        """Change arguments; structural ones only before the first batch is learnt."""
        for name in params:
            if name not in PARAMETERS:
                raise ConfigError(f"no parameter {name!r}", hint=suggest(name, list(PARAMETERS)))
            if name in STRUCTURAL_PARAMETERS and self._is_fixed:
                raise ConfigError(
                    f"{name} cannot change after a batch was learnt",
                    hint="make a new classifier",
                )
        before = self.get_params()
        try:
            for name, value in params.items():
                setattr(self, name, value)
            self._check()
        except ConfigError:
            for name, value in before.items():
                setattr(self, name, value)
            raise
        return self

    def _check(self) -> None:
        cls = method_class(self.method)
        from_mapping(cls.Config, self.method_settings(), where=f"method {self.method}")
        self.training_for(1)
        check(
            self.transform in RECIPES,
            f"transform {self.transform!r} is not one of {', '.join(RECIPES)}",
        )
        check(
            self.normalization in ("auto", *NORMALIZATIONS),
            f"normalization {self.normalization!r} is not auto or one of "
            f"{', '.join(NORMALIZATIONS)}",
        )
        check(0 <= self.hold_out < 1, f"hold_out {self.hold_out} must be in [0, 1)")
        check(0 < self.accept <= 1, f"accept {self.accept} must be in (0, 1]")
        check(self.keep_held_out >= 0, f"keep_held_out {self.keep_held_out} must be 0 or more")

    def method_settings(self) -> dict[str, Any]:
        """The method's settings: its defaults for the classifier, overridden by those given."""
        nothing = {}
        if self.keep_held_out == 0 and hasattr(method_class(self.method).Config, "keep"):
            nothing = {"keep": 0}
        return {**self._defaults.settings, **nothing, **(self.settings or {})}

    @property
    def _defaults(self) -> ClassifierDefaults:
        return method_class(self.method).classifier_defaults

    def training_for(self, photos: int) -> TrainingConfig:
        """How a batch with this number of photos is trained."""
        usual = {
            "precision": self.precision,
            "epochs": epochs_for(photos),
            **self._defaults.training,
        }
        given = {**usual, **(self.training or {})}
        return from_mapping(TrainingConfig, given, where="training")


PARAMETERS = tuple(name for name in Parameters.__init__.__annotations__ if name != "return")
"""Names of the constructor's arguments."""


def epochs_for(photos: int) -> int:
    """Epochs for a batch of this size: 6 for up to 500 photos, falling to 2 for 1500 and more.

    More epochs would overfit the prompt of a small batch, and are not worth their time on a large
    one.
    """
    return min(6, max(2, 3000 // max(photos, 1)))
