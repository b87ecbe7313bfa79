"""A method whose steps can be worked out by hand."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from cprompt.methods.base import Draws, LossPart, Method
from cprompt.training.optimizer import make_optimizer
from cprompt.training.step import Stepper
from cprompt.vit.promptable import Embedded, Precision

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


class Toy(Method):
    """Two tensors, `a` learnt at a tenth of the rate; what the loss is can be written down."""

    name = "toy"

    def __init__(self) -> None:
        super().__init__(None, None)  # type: ignore[arg-type]
        self.a = nn.Parameter(torch.tensor([1.0, -2.0], dtype=torch.float64))
        self.b = nn.Parameter(torch.tensor([[0.5, 3.0, -1.0]], dtype=torch.float64))

    def embed(self, images: Tensor, precision: Precision = "fp32") -> Embedded:
        return Embedded(images, precision)

    def loss(self, embedded: Embedded, targets: Tensor, draws: Draws) -> dict[str, Tensor]:
        return {
            "square": (embedded.tokens.sum() * self.a.square()).sum(),
            "cross": targets.sum() * self.a.sum() * self.b.sum(),
            "line": (draws["slopes"] * self.b).sum(),
        }

    def parameter_groups(self) -> list[dict[str, Any]]:
        return [{"params": [self.a], "lr_scale": 0.1}, {"params": [self.b]}]


class Raised(Toy):
    """A toy whose `square` is the images' sum larger; no tensor has a gradient of that."""

    def loss(self, embedded: Embedded, targets: Tensor, draws: Draws) -> dict[str, Tensor]:
        terms = super().loss(embedded, targets, draws)
        return {**terms, "square": terms["square"] + embedded.tokens.sum()}


class InParts(Raised):
    """The same loss in parts, each with some of `square`; the second one has no gradient."""

    def loss_parts(self, embedded: Embedded, targets: Tensor, draws: Draws) -> list[LossPart]:
        images = embedded.tokens.sum()

        def one() -> dict[str, Tensor]:
            return {"square": images * self.a[0].square()}

        def still() -> dict[str, Tensor]:
            return {"square": images}

        def rest() -> dict[str, Tensor]:
            return {
                "cross": targets.sum() * self.a.sum() * self.b.sum(),
                "line": (draws["slopes"] * self.b).sum(),
                "square": images * self.a[1].square(),
            }

        return [one, still, rest]


def step_inputs(step: int) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    rng = torch.Generator().manual_seed(step)
    images = torch.rand(2, 3, generator=rng, dtype=torch.float64)
    slopes = torch.randn(1, 3, generator=rng, dtype=torch.float64)
    return images, torch.tensor([1, step % 3]), {"slopes": slopes}


OPTIONS: dict[str, float] = {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01}


def toy_stepper(
    kind: type[Stepper], toy: type[Toy] = Toy, clip: float | None = 0.5
) -> tuple[Toy, Stepper]:
    method = toy()
    optimizer = make_optimizer(method.parameter_groups(), "sgd", CPU, **OPTIONS)
    return method, kind(method, optimizer, clip)
