"""GELU by a sigmoid: how far from the exact one it is, in values, gradients and a whole pass."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from cprompt.vit.gelu import RoundedGELU, gelu_by_sigmoid, is_exact_gelu
from cprompt.vit.promptable import Embedded, FrozenViT
from tests.vit.common import gradients, images, small

FAR = torch.linspace(-60, 60, 240_001, dtype=torch.float32)


def exact(x: Tensor) -> Tensor:
    """GELU as it is defined, in float64."""
    wide = x.double()
    return wide * 0.5 * (1 + torch.erf(wide / math.sqrt(2)))


def test_values_are_exact_to_three_in_a_hundred_thousand() -> None:
    error = (gelu_by_sigmoid(FAR).double() - exact(FAR)).abs()
    assert error.max() < 3e-5
    assert gelu_by_sigmoid(torch.tensor([-60.0, 0.0, 60.0])).tolist() == [0, 0, 60]


def test_gradients_are_exact_to_two_in_ten_thousand() -> None:
    x = FAR.clone().requires_grad_()
    torch.autograd.backward(gelu_by_sigmoid(x).sum())
    wide = FAR.double().requires_grad_()
    torch.autograd.backward(exact(wide).sum())
    assert x.grad is not None
    assert wide.grad is not None
    assert (x.grad.double() - wide.grad).abs().max() < 2e-4


def test_in_bfloat16_the_result_is_the_exact_one_rounded_or_its_neighbour() -> None:
    x = torch.linspace(-4, 8, 4001).bfloat16()
    got, want = gelu_by_sigmoid(x), exact(x).bfloat16()
    assert got.dtype == torch.bfloat16
    apart = (got.view(torch.int16).int() - want.view(torch.int16).int()).abs()
    visible = want.abs() > 0.01  # nearer to zero 3e-5 are several steps of bfloat16
    assert apart[visible].max() <= 1
    assert (apart[visible] > 0).float().mean() < 0.02


class BySigmoid(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return gelu_by_sigmoid(x)


def test_a_pass_in_bfloat16_stays_as_near_to_float32_as_with_the_exact_one() -> None:
    frozen = FrozenViT(small("plain"), "plain", "random")
    many = images(512, 32)  # of few, which way the rounding goes is chance
    tokens = frozen.embed(many).tokens.detach().requires_grad_()

    def seen() -> tuple[Tensor, Tensor]:
        feature = frozen.read(Embedded(tokens, "bf16"))
        return feature, gradients(feature, [tokens])[0]

    feature = frozen.read(Embedded(tokens, "fp32"))
    want = feature, gradients(feature, [tokens])[0]
    usual = seen()
    for block in frozen._low().blocks:
        assert type(block.mlp.act) is RoundedGELU
        block.mlp.act = BySigmoid()
    for got, plain, right in zip(seen(), usual, want, strict=True):
        assert not torch.equal(got, plain)
        assert (got - right).norm() < 1.05 * (plain - right).norm()


def test_only_gelu_by_the_error_function_is_replaced() -> None:
    assert is_exact_gelu(nn.GELU())
    assert not is_exact_gelu(nn.GELU("tanh"))
    assert not is_exact_gelu(nn.ReLU())
    x = torch.linspace(-3, 3, 13)
    assert torch.equal(RoundedGELU()(x), nn.GELU()(x))
