"""One training step: loss, gradients and update of one batch."""

from __future__ import annotations

import dataclasses
import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

from cprompt.methods.base import Draws, Method
from cprompt.ranks import ALONE, Ranks, Share
from cprompt.vit.promptable import Precision


@dataclass
class Stepper:
    """Computes the loss of a batch and its gradients, and updates the parameters.

    `step` returns the loss terms as one vector on the device, in the order of `names`, which are
    known after the first step. The vector is valid until the next step.
    """

    method: Method
    optimizer: torch.optim.Optimizer
    clip: float | None
    precision: Precision = "fp32"
    ranks: Ranks = ALONE

    def __post_init__(self) -> None:
        self.names: tuple[str, ...] = ()
        self.parameters = [p for g in self.optimizer.param_groups for p in g["params"]]

    multiple = 1
    """Lengths that depend on random draws are rounded up to this; see `Method.draw`."""

    @property
    def reseeds(self) -> bool:
        """Whether torch's global generator must be seeded before each step.

        A captured step cannot draw new numbers from it.
        """
        return True

    def step(
        self, images: Tensor, targets: Tensor, draws: Draws, share: Share | None = None
    ) -> Tensor:
        """One update; `images`, `targets` and `draws` are on the device.

        They are this rank's `share` of the batch, if ranks share it. If the method has no loss,
        nothing is updated and the vector is empty.
        """
        losses = self._gradients(images, targets, draws, share)
        if self.names:
            if share is not None:
                losses = self._add_over_ranks(losses)
            self._update()
        return losses

    def _gradients(
        self, images: Tensor, targets: Tensor, draws: Draws, share: Share | None = None
    ) -> Tensor:
        embedded = self.method.embed(images, self.precision)
        if share is not None:
            embedded = dataclasses.replace(embedded, gather=share.gather)
        terms = self.method.loss(embedded, targets, draws)
        self.names = tuple(terms)
        if not terms:
            return images.new_zeros(0)
        losses = torch.stack(list(terms.values()))
        if share is not None:
            losses = losses * share.weight
        self.optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(losses.sum())
        return losses.detach()

    def _add_over_ranks(self, losses: Tensor) -> Tensor:
        """Add up losses and gradients of all ranks, in one exchange; return the losses.

        A parameter that no rank has a gradient for keeps none, so that the optimiser leaves it
        alone. Only if this rank has none must it wait to read whether another one has.
        """
        parameters = self.parameters
        mine = [p.grad is not None for p in parameters]
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        present = torch.tensor(mine, dtype=losses.dtype, device=losses.device)
        flat = torch.cat([losses, present, *(g.flatten() for g in gradients)])
        self.ranks.sum_(flat)
        sizes = [len(losses), len(present), *(p.numel() for p in parameters)]
        losses, present, *sums = torch.split(flat, sizes)
        anyone = mine if all(mine) else (present > 0).tolist()
        for parameter, total, has_gradient in zip(parameters, sums, anyone, strict=True):
            parameter.grad = total.view_as(parameter).to(parameter) if has_gradient else None
        return losses

    def _update(self) -> None:
        if self.clip is not None:
            torch.nn.utils.clip_grad_norm_(self.parameters, self.clip)
        self.optimizer.step()


_warned: set[str] = set()


def warn_once(what: str, error: BaseException) -> None:
    """Warn that training is slower, with the error's first line; once per `what` and process."""
    if what not in _warned:
        _warned.add(what)
        reason = str(error).strip().splitlines() or [type(error).__name__]
        warnings.warn(f"{what}, so training is slower: {reason[0]}", stacklevel=3)
