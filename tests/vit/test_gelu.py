"""GELU by a sigmoid: how far from the exact one it is, in values, gradients and a whole pass."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cprompt.vit.gelu import RoundedGELU, gelu_by_sigmoid, is_exact_gelu, linear_gelu
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


class OnGPU(Tensor):
    """Says that it is on a GPU."""

    is_cuda = True


def layer(bias: bool = True) -> nn.Linear:
    made, rng = nn.Linear(24, 40, bias), torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=rng))
    return made.requires_grad_(False)


def tokens() -> Tensor:
    return torch.randn(2, 7, 24, generator=torch.Generator().manual_seed(5))


def applied(linear: nn.Linear, x: Tensor) -> Tensor:
    """W x + b and GELU of that, in float64."""
    product = x.double() @ linear.weight.double().T
    return exact(product if linear.bias is None else product + linear.bias.double())


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Tensor, ...]]:
    """What was handed to the product that takes GELU."""
    made: list[tuple[Tensor, ...]] = []
    actual = torch._addmm_activation

    def product(*inputs: Tensor, use_gelu: bool) -> Tensor:
        assert use_gelu
        made.append(tuple(one.as_subclass(Tensor) for one in inputs))
        return actual(*made[-1], use_gelu=use_gelu)

    monkeypatch.setattr(torch, "_addmm_activation", product)
    return made


@pytest.mark.parametrize("bias", [True, False])
def test_of_a_linear_layer_too(bias: bool, products: list[Any]) -> None:
    linear, x = layer(bias), tokens()
    made = linear_gelu(x, linear)
    assert made.shape == (2, 7, 40)
    assert made.dtype == torch.float32
    assert (made.double() - applied(linear, x)).abs().max() < 3e-5
    assert not products


def test_on_a_gpu_in_bfloat16_it_is_part_of_the_product(
    products: list[tuple[Tensor, ...]],
) -> None:
    linear, x = layer().bfloat16(), tokens().bfloat16()
    made = linear_gelu(x.as_subclass(OnGPU), linear)
    ((bias, rows, weight),) = products
    assert torch.equal(bias, linear.bias)
    assert torch.equal(weight, linear.weight.T)
    assert weight.shape == (24, 40)
    assert torch.equal(rows, torch.cat([*x]))
    assert made.shape == (2, 7, 40)
    assert made.dtype == torch.bfloat16
    want = applied(linear, x)
    assert (made.double() - want).abs().max() < 2**-8 * want.abs().max()

    linear_gelu(x[:, :3].as_subclass(OnGPU), linear)  # not in one piece
    assert torch.equal(products[1][1], torch.cat([*x[:, :3]]))


def test_on_a_gpu_it_is_no_part_of_another_precision_nor_without_a_bias(
    products: list[Any],
) -> None:
    x = tokens()
    assert (linear_gelu(x.as_subclass(OnGPU), layer()) - applied(layer(), x)).abs().max() < 3e-5
    bare = layer(bias=False).bfloat16()
    made = linear_gelu(x.bfloat16().as_subclass(OnGPU), bare)
    want = applied(bare, x.bfloat16())
    assert (made - want).abs().max() < 2**-7 * want.abs().max()
    assert not products
