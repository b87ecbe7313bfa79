"""Fused blocks against the same blocks written out, through Triton's interpreter."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from timm.layers import GluMlp, LayerScale, RmsNorm
from timm.models.vision_transformer import Block
from torch import Tensor, nn

from cprompt.vit.fused import can_fuse, run_fused
from cprompt.vit.gelu import gelu_by_sigmoid

Interpret = Callable[..., dict[str, NDArray[Any]]]

IMAGES, TOKENS = 2, 70  # more tokens than one program has, and not a multiple of that


@dataclass(frozen=True)
class Case:
    width: int
    heads: int
    asking: int | None = None
    prefix: bool = False
    gradient: bool = True


CASES = {
    "a power of two wide": Case(64, 2),
    "another width": Case(96, 3),
    "asked for the class token": Case(96, 3, asking=1),
    "with a prefix": Case(64, 2, prefix=True),
    "with a prefix, asked for two tokens": Case(64, 2, asking=2, prefix=True),
    "without gradient": Case(96, 3, gradient=False),
    "without gradient, with a prefix": Case(64, 2, asking=2, prefix=True, gradient=False),
}


def block(width: int, heads: int, seed: int, **options: Any) -> Block:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        made = Block(width, heads, qkv_bias=True, **options).eval().requires_grad_(False)
        for parameter in made.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return made


def two_blocks(case: Case, run: Callable[..., tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
    """The end of two blocks, of which the second adds what the first left, and all gradients."""
    blocks = [block(case.width, case.heads, seed) for seed in (1, 2)]
    rng = torch.Generator().manual_seed(3)
    x = torch.randn(IMAGES, TOKENS, case.width, generator=rng)
    pair = [torch.randn(5, case.width, generator=rng) for _ in range(2)]
    for leaf in (x, *pair):
        leaf.requires_grad_(case.gradient)
    prefix = (pair[0], pair[1]) if case.prefix else None
    between, pending = run(blocks[0], x, None, prefix)
    end, left = run(blocks[1], between, pending, None, case.asking)
    if not case.gradient:
        return {"end": end, "left": left}
    weights = torch.randn(2, *end.shape, generator=rng)
    leaves = [x, *(prefix or ())]
    found = torch.autograd.grad((end * weights[0] + left * weights[1]).sum(), leaves)
    return {"end": end, "left": left, **{f"gradient {i}": g for i, g in enumerate(found)}}


def written_out(
    block: Block,
    x: Tensor,
    pending: Tensor | None,
    prefix: tuple[Tensor, Tensor] | None = None,
    asking: int | None = None,
) -> tuple[Tensor, Tensor]:
    """A block image by image, head by head."""
    attn, norm1, norm2 = block.attn, block.norm1, block.norm2
    x = x if pending is None else x + pending
    seen = []
    for tokens in x:
        q, k, v = attn.qkv(norm1(tokens)).chunk(3, dim=-1)
        if prefix is not None:
            k, v = torch.cat([prefix[0], k]), torch.cat([prefix[1], v])
        heads = []
        for one in range(attn.num_heads):
            of = slice(one * attn.head_dim, (one + 1) * attn.head_dim)
            share = (q[:asking, of] @ k[:, of].T / attn.head_dim**0.5).softmax(-1)
            heads.append(share @ v[:, of])
        seen.append(torch.cat(heads, dim=-1))
    x = x[:, :asking] + attn.proj(torch.stack(seen))
    return x, block.mlp.fc2(gelu_by_sigmoid(block.mlp.fc1(norm2(x))))


@pytest.fixture(scope="module")
def interpreted(interpret: Interpret) -> dict[str, NDArray[Any]]:
    """What the kernels make of every case, in float32."""
    return interpret(__file__)


@pytest.mark.parametrize("name", CASES)
def test_kernels_compute_the_block_and_its_gradients(
    name: str, interpreted: dict[str, NDArray[Any]]
) -> None:
    expected = two_blocks(CASES[name], written_out)
    assert {key for key in interpreted if key.startswith(f"{name}: ")} == {
        f"{name}: {what}" for what in expected
    }
    for what, value in expected.items():
        made = torch.from_numpy(interpreted[f"{name}: {what}"])
        assert made.shape == value.shape
        assert (made - value).norm() < 3e-6 * value.norm(), what


@pytest.mark.parametrize(
    ("without", "usual"),
    [
        ("without gradient", "another width"),
        ("without gradient, with a prefix", "with a prefix, asked for two tokens"),
    ],
)
def test_a_pass_without_gradient_ends_where_one_with_gradient_does(
    without: str, usual: str, interpreted: dict[str, NDArray[Any]]
) -> None:
    for what in ("end", "left"):
        one, other = (torch.from_numpy(interpreted[f"{n}: {what}"]) for n in (without, usual))
        assert (one - other).norm() < 3e-6 * other.norm(), what


def test_blocks_that_compute_something_else_are_left_to_others() -> None:
    assert can_fuse(block(192, 3, 0))
    assert can_fuse(Block(192, 3, qkv_bias=False))
    assert not can_fuse(block(192, 2, 0))  # heads of 96
    assert not can_fuse(block(256, 2, 0))  # heads of 128
    assert not can_fuse(block(192, 3, 0, init_values=0.1))
    assert not can_fuse(block(192, 3, 0, qk_norm=True))
    assert not can_fuse(block(192, 3, 0, act_layer=nn.ReLU))
    assert not can_fuse(block(192, 3, 0, act_layer=lambda: nn.GELU(approximate="tanh")))
    assert not can_fuse(block(192, 3, 0, mlp_layer=GluMlp))
    assert not can_fuse(block(192, 3, 0, norm_layer=RmsNorm))
    assert not can_fuse(nn.Identity())
    scaled = block(192, 3, 0)
    scaled.ls2 = LayerScale(192)
    assert not can_fuse(scaled)


if __name__ == "__main__":  # see the fixture `interpret`
    results = {
        f"{name}: {what}": value.detach().numpy()
        for name, case in CASES.items()
        for what, value in two_blocks(case, run_fused).items()
    }
    np.savez(sys.argv[1], **results)
