"""Matrix products with frozen weights in float32 on a CPU, by oneDNN where MKL is slow.

PyTorch leaves float32 products to MKL, which gives processors that are not Intel's its AVX2 kernels
even if they have AVX-512. oneDNN, which PyTorch has too, uses what is there: on such a processor
the same product takes less than half the time. Both add up in float32; they differ in the order.
"""

from __future__ import annotations

import copy
from functools import cache
from typing import Any, Generic, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.autograd.function import once_differentiable

from cprompt.processor import processor

FEWEST = 2**15
"""Weights from which it pays, as oneDNN takes about 10 µs to start. The number of rows does not
matter, so that every batch is added up by the same library."""

_ONEDNN: Any = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
"""oneDNN's product of dense tensors; not every build of PyTorch has it."""

Module = TypeVar("Module", bound=nn.Module)


def _flop(x: torch.Size, weight: torch.Size, *_: Any, **__: Any) -> int:
    return 2 * x.numel() * weight[0]


FLOP = {} if _ONEDNN is None else {_ONEDNN: _flop}
"""For the `custom_mapping` of torch's counter of FLOP, which does not know this product."""


@cache
def mkl_is_slow() -> bool:
    """Whether MKL multiplies at half the speed of this processor, and oneDNN is there instead."""
    chip = processor()
    has_mkl: bool = torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]
    return has_mkl and _ONEDNN is not None and chip.avx512 and not chip.intel


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x (…, I) times weight (O, I), plus bias (O,): (…, O), as torch's `linear`."""
    if not _by_onednn(x, weight, bias):
        return F.linear(x, weight, bias)
    if torch.is_grad_enabled() and x.requires_grad:
        found: Tensor = _Product.apply(x, weight, bias)
        return found
    return _multiply(x, weight, bias)


class FastCopy(Generic[Module]):
    """A module with `product` in its linear layers, copied when it is first asked for.

    To be replaced when the module's weights move or change their type.
    """

    def __init__(self) -> None:
        self._copy: Module | None = None

    def of(self, module: Module) -> Module:
        """`with_fast_products`, or the module itself while it is traced into a graph."""
        if torch.compiler.is_compiling():
            return module
        if self._copy is None:
            self._copy = with_fast_products(module)
        return self._copy


def with_fast_products(module: Module) -> Module:
    """The module with `product` in its linear layers, if that is faster here.

    A copy with the same parameters; the module itself stays as it is, and is returned where
    nothing is gained.
    """
    on_cpu = all(parameter.device.type == "cpu" for parameter in module.parameters())
    if not (on_cpu and mkl_is_slow()):
        return module
    shared = {id(tensor): tensor for tensor in (*module.parameters(), *module.buffers())}
    fast = copy.deepcopy(module, shared)
    for part in fast.modules():
        if type(part) is nn.Linear:
            part.__class__ = _Linear
    return fast


class _Linear(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return product(input, self.weight, self.bias)


class _Product(torch.autograd.Function):
    """`product` by oneDNN, whose operator has no gradient of its own; weights are frozen."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(weight)
        return _multiply(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None]:
        (weight,) = ctx.saved_tensors
        return _multiply(g, weight.t(), None), None, None


def _by_onednn(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    trained = [weight] if bias is None else [weight, bias]
    return (
        x.device.type == "cpu"
        and x.dtype == weight.dtype == torch.float32
        and weight.numel() >= FEWEST
        and mkl_is_slow()
        and not torch.is_autocast_enabled("cpu")
        and (bias is None or _is_plain_bias(bias, weight))
        and not (torch.is_grad_enabled() and any(each.requires_grad for each in trained))
        and not _is_transformed(x)
    )


def _is_plain_bias(bias: Tensor, weight: Tensor) -> bool:
    """Whether oneDNN reads the bias right: it takes no note of strides."""
    return bias.dtype == torch.float32 and bias.shape == weight.shape[:1] and bias.is_contiguous()


def _is_transformed(x: Tensor) -> bool:
    """Whether a graph is traced, whose operators are torch's, or a derivative is taken forward.

    oneDNN's operator has neither a forward derivative nor rules for `torch.func`.
    """
    return bool(
        torch.compiler.is_compiling()  # first: a compiler cannot read the rest
        or torch._C._is_tracing()
        or forward_ad._current_level >= 0
        or torch._C._functorch.is_functorch_wrapped_tensor(x)
    )


def _multiply(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    found: Tensor = _ONEDNN(x, weight, bias, "none", [], "")
    return found
