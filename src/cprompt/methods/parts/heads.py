"""Linear heads that grow with the classes, and the paper's consistency losses on them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cprompt.methods.base import Draws
from cprompt.methods.parts.consistency import Smoothing, ccl_loss
from cprompt.methods.parts.growing_rows import GrowingRows
from cprompt.settings import check, setting

HeadInit = Literal["kaiming", "linear", "normal", "zero"]


@dataclass(frozen=True)
class HeadConfig:
    """How a new head starts; the default is CPrompt's."""

    head_init: HeadInit = setting(
        "kaiming", "a new head's weights: kaiming U(±√(3/D)), linear U(±1/√D), normal 0.02, zero"
    )


class TaskHeads(nn.Module):
    """One linear head per task, D to n_t; stored as one matrix, so all old heads are one matmul."""

    def __init__(self, dim: int, init: HeadInit = "kaiming") -> None:
        super().__init__()
        self.dim = dim
        self.init = init
        self.sizes: list[int] = []
        self.weight = GrowingRows(dim)
        self.bias = GrowingRows()

    def open(self, n_classes: int, rng: torch.Generator) -> None:
        """Add the head of a new task."""
        self.sizes.append(n_classes)
        weight, bias = new_head(n_classes, self.dim, rng, self.init)
        self.weight.open(weight)
        self.bias.open(bias)

    def close(self) -> None:
        """Freeze the current task's head."""
        self.weight.close()
        self.bias.close()

    def old(self, features: Tensor) -> Tensor:
        """Logits (B, C_old) of the frozen heads; gradient reaches the features only."""
        logits: Tensor = _FrozenLinear.apply(features, self.weight.frozen, self.bias.frozen)
        return logits

    def current(self, features: Tensor) -> Tensor:
        """Logits (B, n_t) of the head being trained."""
        assert self.weight.current is not None
        return F.linear(features, self.weight.current, self.bias.current)

    def forward(self, features: Tensor) -> Tensor:
        """Logits (B, C_seen) of every head, in order of arrival."""
        return F.linear(features, self.weight.all(), self.bias.all())


class _FrozenLinear(torch.autograd.Function):
    """A linear layer whose gradient is for its input alone.

    The gradient is a product with a bias of zeros: without one, cuBLAS takes 53 µs instead of 3
    for 16 images, 180 classes and 192 numbers, in the middle of a step of 2,000 µs.
    """

    @staticmethod
    def forward(ctx: Any, features: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(weight)
        return F.linear(features, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (weight,) = ctx.saved_tensors
        none = weight.new_zeros(weight.shape[1])
        return F.linear(gradient, weight.t(), none), None, None


def new_head(
    n_classes: int, dim: int, rng: torch.Generator, init: HeadInit = "kaiming"
) -> tuple[Tensor, Tensor]:
    """Initial weight (n, D) and bias (n,).

    A head is trained on its own classes only, so its logits for images of other classes stay close
    to their initial values. The initialisation therefore matters when heads of several tasks
    compete, and matters more the larger the norm of the features is.

    - kaiming: U(±√(3/D)), Kaiming's rule with gain 1.
    - linear: U(±1/√D) for weight and bias, as in `nn.Linear`.
    - normal: N(0, 0.02²), as in timm's heads.
    - zero: all zeros.
    """
    weight, bias = torch.empty(n_classes, dim), torch.zeros(n_classes)
    if init == "normal":
        return weight.normal_(0, 0.02, generator=rng), bias
    bound = math.sqrt((1 if init == "linear" else 3) / dim)
    weight.uniform_(-bound, bound, generator=rng)
    if init == "linear":
        bias.uniform_(-bound, bound, generator=rng)
    return (torch.zeros_like(weight) if init == "zero" else weight), bias


@dataclass(frozen=True)
class ConsistencyConfig(HeadConfig):
    """The paper's two kinds of consistency, for any method with prompts and a head per task."""

    ccl: bool = setting(True, "classifier consistency: expose the prompt to all old heads")
    tau: float = setting(1.15, "temperature τ1 of the smooth regularisation")
    margin: float = setting(0.1, "margin m within which an old head counts as too confident")
    alpha: float = setting(1.0, "strength α of classifier consistency")
    smoothing: Smoothing = setting("adaptive", "target of CCL: adaptive, or the edl/roh variants")
    pcl: bool = setting(True, "prompt consistency: train the head under randomly drawn prompts")
    aux_loss: bool = setting(True, "with pcl: also train the current prompt by its own loss")
    aux_head: bool = setting(True, "with pcl: that loss uses its own head, not the task's")

    def __post_init__(self) -> None:
        check(self.tau >= 1, f"tau {self.tau} must be at least 1; below 1 it would sharpen")
        check(self.margin >= 0, f"margin {self.margin} must not be negative")
        check(self.alpha >= 0, f"alpha {self.alpha} must not be negative")


class ConsistentHeads(TaskHeads):
    """Task heads with classifier and prompt consistency, each if the settings turn it on.

    With prompt consistency, a task has an auxiliary head besides its own while it is open. It is
    new for every task and dropped when the task is closed.
    """

    aux_weight: nn.Parameter | None
    aux_bias: nn.Parameter | None

    def __init__(self, dim: int, config: ConsistencyConfig) -> None:
        super().__init__(dim, config.head_init)
        self.config = config
        self._drop_aux_head()

    def open(self, n_classes: int, rng: torch.Generator) -> None:
        """Add the head of a new task and, if used, its auxiliary head."""
        super().open(n_classes, rng)
        if self.config.pcl and self.config.aux_loss and self.config.aux_head:
            weight, bias = new_head(n_classes, self.dim, rng, self.init)
            self.aux_weight = nn.Parameter(weight.to(self.weight.frozen))
            self.aux_bias = nn.Parameter(bias.to(self.bias.frozen))

    def close(self) -> None:
        """Freeze the task's head and drop the auxiliary one."""
        super().close()
        self._drop_aux_head()

    def draw(self, n_images: int, rng: torch.Generator) -> dict[str, Tensor]:
        """The random numbers of `losses`: for CCL with roh, `classes` (B, old tasks) in [0, 1)."""
        old_tasks = len(self.sizes) - 1
        if not (self.config.ccl and self.config.smoothing == "roh" and old_tasks):
            return {}
        return {"classes": torch.rand(n_images, old_tasks, generator=rng)}

    def losses(
        self,
        features: Tensor,
        under_drawn_prompts: Tensor,
        local: Tensor,
        draws: Draws,
        drew: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """`ce` (eq. 8), `aux` (eq. 9) and `ccl` (eqs. 3 to 5) of one batch.

        `features` (B, D) are h, under the prompt being trained. `under_drawn_prompts` (B, D) are
        the features under prompts drawn at random (eqs. 6 and 7), used with pcl only; those of
        `drew` (B,) alone, if it is given. `local` (B,) are classes counted from the task's first.
        CCL's gradient reaches `features` only.
        """
        config = self.config
        losses: dict[str, Tensor] = {}
        if config.pcl:
            losses["ce"] = self.cross_entropy(under_drawn_prompts, local, drew)
            if config.aux_loss:
                losses["aux"] = F.cross_entropy(self._auxiliary(features), local)
        else:
            losses["ce"] = self.cross_entropy(features, local)
        if config.ccl and len(self.sizes) > 1:
            with torch.no_grad():
                current = self.current(features)
            losses["ccl"] = ccl_loss(
                self.old(features),
                self.sizes[:-1],
                current,
                tau=config.tau,
                margin=config.margin,
                alpha=config.alpha,
                smoothing=config.smoothing,
                uniforms=draws.get("classes"),
            )
        return losses

    def cross_entropy(self, features: Tensor, local: Tensor, only: Tensor | None = None) -> Tensor:
        """That of the current head, averaged over the batch; images not in `only` (B,) add 0."""
        if only is None:
            return F.cross_entropy(self.current(features), local)
        each = F.cross_entropy(self.current(features), local, reduction="none")
        return torch.where(only, each, 0.0).mean()

    def _auxiliary(self, features: Tensor) -> Tensor:
        if self.aux_weight is None:
            return self.current(features)
        return F.linear(features, self.aux_weight, self.aux_bias)

    def _drop_aux_head(self) -> None:
        self.register_parameter("aux_weight", None)
        self.register_parameter("aux_bias", None)
