"""One training step: loss, gradients and update of one batch."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from cprompt.errors import ConfigError
from cprompt.methods.base import Draws, LossPart, Method, add_terms
from cprompt.ranks import ALONE, Ranks, Share
from cprompt.training.streams import run_on_streams
from cprompt.vit.promptable import Precision


@dataclass(frozen=True)
class _Part:
    """What one part of the loss gave: its terms and, unless added already, its gradients."""

    terms: dict[str, Tensor]
    gradients: Sequence[Tensor | None] = ()


def _differentiate(
    part: LossPart,
    weight: float | None,
    differentiate: Callable[[Tensor], Sequence[Tensor | None] | None],
) -> _Part:
    """The part, and what `differentiate` returns for its sum, if that has a gradient."""
    terms = part()
    gradients = None
    if any(term.requires_grad for term in terms.values()):
        total = torch.stack(list(terms.values())).sum()
        gradients = differentiate(total if weight is None else total * weight)
    return _Part({name: term.detach() for name, term in terms.items()}, gradients or ())


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
        parts = self.method.loss_parts(embedded, targets, draws)
        weight = None if share is None else share.weight
        self.optimizer.zero_grad(set_to_none=True)
        first, *others = parts
        found = run_on_streams(
            partial(_differentiate, first, weight, torch.autograd.backward),
            *(partial(_differentiate, part, weight, self._gradients_of) for part in others),
        )
        terms = add_terms(part.terms for part in found)
        self.names = tuple(terms)
        if not terms:
            return images.new_zeros(0)
        for part in found:
            self._add(part.gradients)
        if share is None and all(p.grad is None for p in self.parameters):
            raise ConfigError(
                f"the loss of {self.method.name} has no gradient for anything that is trained",
                hint="compute it from the method's parameters, without torch.no_grad",
            )
        losses = torch.stack(list(terms.values()))
        return losses if weight is None else losses * weight

    def _gradients_of(self, total: Tensor) -> Sequence[Tensor | None]:
        """Of a part that is computed beside another, which may not add to the same tensors."""
        return torch.autograd.grad(total, self.parameters, allow_unused=True)

    def _add(self, gradients: Sequence[Tensor | None]) -> None:
        for parameter, gradient in zip(self.parameters, gradients, strict=False):
            if gradient is not None and parameter.grad is None:
                # A copy: two parameters may be given one tensor, which clipping would scale twice.
                parameter.grad = gradient.clone(memory_format=torch.contiguous_format)
            elif gradient is not None:
                assert parameter.grad is not None
                parameter.grad += gradient

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
