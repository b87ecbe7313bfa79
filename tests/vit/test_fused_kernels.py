"""Each kernel against the same written out in float64, through Triton's interpreter."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cprompt.vit.gelu import gelu_by_sigmoid

ROWS, WIDTH = 37, 96  # not a multiple of the rows of a program, and not a power of two
HEADS, TOKENS = 3, 70


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def norm() -> nn.LayerNorm:
    made = nn.LayerNorm(WIDTH, eps=1e-6).requires_grad_(False)
    made.weight.copy_(1 + 0.3 * drawn(WIDTH, seed=1))
    made.bias.copy_(0.3 * drawn(WIDTH, seed=2))
    return made


def stream() -> tuple[Tensor, ...]:
    """x, what is added, and gradients of the norm and of the sum; rows far from zero mean."""
    x, added, g, g_x = (drawn(ROWS, WIDTH, seed=seed) for seed in (3, 4, 5, 6))
    return 5 + 3 * x, added, g, g_x


def hidden() -> tuple[Tensor, Tensor]:
    """What enters GELU, from -12 to 12 and more than one program has, and a gradient."""
    return torch.linspace(-12, 12, 2501), drawn(2501, seed=7)


def heads() -> tuple[Tensor, Tensor]:
    """Queries, keys and values (B, N, 3 D), and a gradient of what they see."""
    return 2 * drawn(2, TOKENS, 3 * WIDTH, seed=8), drawn(2, TOKENS, WIDTH, seed=9)


def by_kernels() -> dict[str, Tensor]:
    from cprompt.vit import fused_kernels as kernels

    x, added, g, g_x = stream()
    found: dict[str, Tensor] = {}
    found["sum"], found["norm of sum"] = kernels.add_norm(x, added, norm(), torch.float32)
    same, found["norm"] = kernels.add_norm(x, None, norm(), torch.float32)
    assert same is x
    found["norm, gradient"], found["norm, gradient as g"] = kernels.norm_back(x, norm(), g, g_x)
    before, g = hidden()
    found["gelu"] = kernels.gelu(before)
    found["gelu, gradient"] = kernels.gelu_back(before, g)
    qkv, g = heads()
    for asking in (TOKENS, 1):
        seen, sums = kernels.attend(qkv, HEADS, asking)
        found[f"seen by {asking}"] = seen
        part = g[:, :asking].contiguous()
        found[f"seen by {asking}, gradient"] = kernels.attend_back(qkv, seen, sums, part)
    return found


def written_out() -> dict[str, Tensor]:
    x, added, g, g_x = (tensor.double() for tensor in stream())
    layer = norm().double()
    x.requires_grad_()
    found = {"sum": x + added, "norm of sum": layer(x + added), "norm": layer(x)}
    (back,) = torch.autograd.grad(found["norm"], x, g)
    found["norm, gradient"] = found["norm, gradient as g"] = back + g_x
    before, g = hidden()
    before.requires_grad_()
    found["gelu"] = gelu_by_sigmoid(before)
    (found["gelu, gradient"],) = torch.autograd.grad(found["gelu"], before, g)
    qkv, g = (tensor.double() for tensor in heads())
    qkv.requires_grad_()
    for asking in (TOKENS, 1):
        images = []
        for rows in qkv:
            q, k, v = (part.view(TOKENS, HEADS, -1) for part in rows.chunk(3, dim=-1))
            score = torch.einsum("ihd,jhd->hij", q[:asking], k) / q.shape[-1] ** 0.5
            images.append(torch.einsum("hij,jhd->ihd", score.softmax(-1), v).flatten(1))
        seen = found[f"seen by {asking}"] = torch.stack(images)
        back = torch.autograd.grad(seen, qkv, g[:, :asking])[0]
        found[f"seen by {asking}, gradient"] = back
    return {name: value.detach() for name, value in found.items()}


@pytest.fixture(scope="module")
def interpreted(interpret: Callable[..., dict[str, NDArray[Any]]]) -> dict[str, NDArray[Any]]:
    return interpret(__file__)


EXPECTED = written_out()


def test_all_kernels_are_compared(interpreted: dict[str, NDArray[Any]]) -> None:
    assert interpreted.keys() == EXPECTED.keys()


@pytest.mark.parametrize("name", EXPECTED)
def test_a_kernel_computes_what_is_written_out(
    name: str, interpreted: dict[str, NDArray[Any]]
) -> None:
    made, expected = torch.from_numpy(interpreted[name]).double(), EXPECTED[name].double()
    assert made.shape == expected.shape
    assert (made - expected).norm() < 2e-6 * expected.norm()


if __name__ == "__main__":  # see the fixture `interpret`
    np.savez(sys.argv[1], **{name: value.numpy() for name, value in by_kernels().items()})
