"""8-bit products equal those of the rounded values; with a gradient nothing is rounded further."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from torch import nn

from benchmarks import fp8_products
from benchmarks.fp8 import NARROW, NarrowLinear, NarrowWeights
from benchmarks.train_step import Step
from cprompt.files import read_json
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


def test_both_passes_without_a_gradient_have_all_their_products() -> None:
    step = Step("cpu", "test_vit", image_size=32, batch=2, tasks=2, classes=3, length=5)
    found = list(fp8_products.products(step, step.load()))
    blocks, patches = 6, 4
    assert len(found) == 2 * blocks * 4
    prompted = [1 + patches + 5 * (1 + (block >= 2)) for block in range(blocks)]
    tokens = [1 + patches] * blocks + prompted
    assert [len(one.rows) for one in found[::4]] == [2 * n for n in tokens]
    D = 64
    shapes = [(3 * D, D), (D, D), (3 * D, D), (D, 3 * D)]
    assert [tuple(one.layer.weight.shape) for one in found[:4]] == shapes
    one = found[1]
    expected = one.narrow_rows.float() @ (one.narrow.narrow.float() * one.narrow.scale).T
    torch.testing.assert_close(
        one.narrow.product(one.narrow_rows).float(),
        expected + one.layer.bias.float(),
        rtol=2**-7,
        atol=1e-2,
    )


def test_what_is_shown_of_the_products_is_what_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "products.json"
    tiny = ["--backbone=test_vit", "--image-size=32", "--batch=2", "--length=2"]
    fp8_products.main(["--device=cpu", *tiny, f"--out={out}"])
    timings = read_json(out)["products"]
    assert list(timings) == ["bf16", "fp8", "fp8, casting"]
    shown = capsys.readouterr().out
    for each in timings.values():
        assert f"{1e3 * each['median']:.2f}" in shown
        assert f"{1e3 * (timings['bf16']['median'] - each['median']):.2f}" in shown
