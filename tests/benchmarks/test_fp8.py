"""8-bit products equal those of the rounded values; with a gradient nothing is rounded further."""

from __future__ import annotations

from unittest.mock import patch

import torch
from torch import nn

from benchmarks.fp8 import NARROW, NarrowLinear, NarrowWeights
from cprompt.vit.loading import load_backbone
from cprompt.vit.promptable import Embedded


def test_a_product_is_that_of_the_values_rounded_to_eight_bits() -> None:
    torch.manual_seed(0)
    linear = nn.Linear(32, 16).to(torch.bfloat16).requires_grad_(False)
    weight, bias = linear.weight.float(), linear.bias.float()
    x = (3 * torch.randn(2, 5, 32)).to(torch.bfloat16)
    x[0, 0, 0] = 1000  # beyond the range of the format
    NarrowLinear.replace(linear)
    with torch.no_grad():
        found = linear(x)

    scale = weight.abs().max() / 448
    narrow = (weight / scale).to(NARROW).float() * scale
    rows = x.float().clamp(-448, 448).to(NARROW).float()
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), rows @ narrow.T + bias, rtol=2**-7, atol=1e-3)
    assert not torch.equal(linear(x), found)  # with gradients enabled: bfloat16
    torch.testing.assert_close(linear(x), nn.functional.linear(x, linear.weight, linear.bias))


def test_only_passes_without_a_gradient_change() -> None:
    images = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    plain, narrow = (load_backbone("test_vit", "random:0", image_size=32) for _ in range(2))
    with torch.no_grad():
        usual = plain(images, precision="bf16")
        with patch("cprompt.vit.promptable.RoundedWeights", NarrowWeights):
            quick = narrow(images, precision="bf16")
    error = (quick - usual).norm() / usual.norm()
    assert 0.01 < error < 0.2, error
    tokens = plain.embed(images, "bf16").tokens.requires_grad_()
    torch.testing.assert_close(
        narrow.read(Embedded(tokens, "bf16")), plain.read(Embedded(tokens, "bf16"))
    )
