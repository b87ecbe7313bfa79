"""One training step, and how a CUDA device is kept busy with it."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

from cprompt.methods.base import Draws, Method


@dataclass
class Stepper:
    """Loss, gradients and update of one batch.

    The loss terms come back as one vector that stays on the device, in the order of `names`,
    which are known after the first step. It holds until the next step.
    """

    method: Method
    optimizer: torch.optim.Optimizer
    clip: float | None

    def __post_init__(self) -> None:
        self.names: tuple[str, ...] = ()
        self.parameters = [p for g in self.optimizer.param_groups for p in g["params"]]

    multiple = 1
    """To what lengths that depend on chance are rounded up; see `Method.draw`."""

    @property
    def reseeds(self) -> bool:
        """Whether torch's global generator has a say: a recorded step cannot ask it anew."""
        return True

    def step(self, images: Tensor, targets: Tensor, draws: Draws) -> Tensor:
        """One update; `images`, `targets` and `draws` are on the device."""
        losses = self._gradients(images, targets, draws)
        self._update()
        return losses

    def _gradients(self, images: Tensor, targets: Tensor, draws: Draws) -> Tensor:
        terms = self.method.loss(images, targets, draws)
        self.names = tuple(terms)
        losses = torch.stack(list(terms.values()))
        self.optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(losses.sum())
        return losses.detach()

    def _update(self) -> None:
        if self.clip is not None:
            torch.nn.utils.clip_grad_norm_(self.parameters, self.clip)
        self.optimizer.step()


_said: set[str] = set()


def warn_once(what: str, error: BaseException) -> None:
    """Warn that training is slower, with the error's first line; each `what` once per process."""
    if what not in _said:
        _said.add(what)
        reason = str(error).strip().splitlines() or [type(error).__name__]
        warnings.warn(f"{what}, so training is slower: {reason[0]}", stacklevel=3)
