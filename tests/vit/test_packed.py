"""Packed passes against the passes one by one, and against timm's blocks image by image."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
import torch
from torch import Tensor

from cprompt.training.acceleration import compile_all_cases
from cprompt.vit.packed import read_packed
from cprompt.vit.packed_block import Stages
from cprompt.vit.passes import Pass, read_apart
from cprompt.vit.promptable import Embedded, FrozenViT, Precision, Prompts
from tests.vit.common import Compiler, close, gradients, images, small

PACKABLE = [
    "plain",
    "registers",
    "layer scale",
    "norms of queries and keys",
    "norm after attention",
    "no bias",
]


def frozen(kind: str) -> FrozenViT:
    return FrozenViT(small(kind), "small", "random")


def three_passes(
    layers: tuple[int, ...] = (0, 2), own: bool = False, dtype: torch.dtype = torch.float32
) -> tuple[list[Pass], list[Tensor]]:
    """Under a trained prompt, under none, and under one prompt for each of images 3, 0 and 3."""
    rng = torch.Generator().manual_seed(3)

    def new(*shape: int) -> Tensor:
        return torch.randn(*shape, 32, generator=rng, dtype=dtype)

    batch = (4,) if own else ()
    leaves = [new(*batch, 2 + i).requires_grad_() for i in range(len(layers))]
    trained = Prompts(dict(zip(layers, leaves, strict=True)))
    old = Prompts({0: new(3, 3), 1: new(3, 1)})
    return [Pass(trained), Pass(), Pass(old, torch.tensor([3, 0, 3]))], leaves


def packed(vit: FrozenViT, embedded: Embedded, passes: list[Pass]) -> list[Tensor]:
    return read_packed(vit, embedded, [(one.prompts.tokens, one.images) for one in passes])


@pytest.mark.parametrize("kind", PACKABLE)
@pytest.mark.parametrize("layers", [(0, 2), (1,), (2, 0), (0, 1, 2)])
@pytest.mark.parametrize("own", [False, True])
def test_packed_passes_are_the_passes(kind: str, layers: tuple[int, ...], own: bool) -> None:
    vit = frozen(kind)
    embedded = vit.embed(images(4, 32))
    passes, leaves = three_passes(layers, own)
    mine, theirs = packed(vit, embedded, passes), read_apart(vit, embedded, passes)
    for one, other in zip(mine, theirs, strict=True):
        close(one, other)
    assert [one.requires_grad for one in mine] == [True, False, False]
    found, expected = gradients(mine[0], leaves), gradients(theirs[0], leaves)
    for leaf, one, other in zip(leaves, found, expected, strict=True):
        assert one.shape == leaf.shape
        assert (one - other).norm() < 2e-6 * other.norm()


def test_in_double_precision_they_agree_to_the_last_digits() -> None:
    vit = frozen("layer scale").double()
    embedded = Embedded(torch.randn(4, 17, 32, dtype=torch.float64))
    passes, leaves = three_passes(dtype=torch.float64)
    mine, theirs = packed(vit, embedded, passes), read_apart(vit, embedded, passes)
    torch.testing.assert_close(mine, theirs, rtol=3e-7, atol=0)  # both end in float32
    both = gradients(mine[0], leaves), gradients(theirs[0], leaves)
    for one, other in zip(*both, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", ["plain", "layer scale", "norms of queries and keys"])
def test_in_bf16_they_differ_by_less_than_bf16_itself_does(kind: str) -> None:
    vit = frozen(kind)
    passes, leaves = three_passes()

    def both(read: Any, precision: Precision) -> list[Tensor]:
        found = read(vit, vit.embed(images(4, 32), precision), passes)
        return [*found, *gradients(found[0], leaves)]

    exact = both(read_apart, "fp32")
    for one, other, true in zip(both(packed, "bf16"), both(read_apart, "bf16"), exact, strict=True):
        rounding = (other - true).norm()
        assert (one - other).norm() < 0.5 * rounding
        assert (one - true).norm() < 1.2 * rounding


def test_each_image_is_its_own_timm_pass() -> None:
    vit = frozen("registers")
    passes, _ = three_passes()
    tokens = vit.embed(images(4, 32)).tokens
    found = packed(vit, Embedded(tokens), passes)
    for one, feature in zip(passes, found, strict=True):
        numbers = range(4) if one.images is None else one.images.tolist()
        for row, number in enumerate(numbers):
            x, end = tokens[number], vit.n_prefix
            for layer, block in enumerate(vit.vit.blocks):
                if layer in one.prompts.tokens:
                    prompt = one.prompts.tokens[layer]
                    prompt = prompt[row] if prompt.dim() == 3 else prompt
                    x = torch.cat([x[:end], prompt, x[end:]])
                    end += len(prompt)
                x = block(x[None])[0]
            torch.testing.assert_close(feature[row], x[0], rtol=1e-4, atol=1e-5)


def test_an_image_does_not_see_the_others() -> None:
    vit = frozen("plain")
    passes, _ = three_passes()
    one = packed(vit, vit.embed(images(4, 32)), passes)
    changed = images(4, 32)
    changed[1] += 1
    other = packed(vit, vit.embed(changed), passes)
    rows = [0, 2, 3]
    assert torch.equal(one[0][rows], other[0][rows])
    assert torch.equal(one[1][rows], other[1][rows])
    assert torch.equal(one[2], other[2])
    assert not torch.allclose(one[0][1], other[0][1])


def test_only_trained_prompts_get_a_gradient_and_only_once() -> None:
    vit = frozen("plain")
    embedded = vit.embed(images(4, 32))
    passes, leaves = three_passes()
    leaves[0].requires_grad_(False)
    h, *_ = packed(vit, embedded, passes)
    (expected,) = gradients(read_apart(vit, embedded, passes)[0], leaves[1:])
    torch.testing.assert_close(gradients(h, leaves[1:])[0], expected)
    with pytest.raises(RuntimeError, match="once only"):
        gradients(h, leaves[1:])
    with torch.no_grad():
        assert not packed(vit, embedded, passes)[0].requires_grad


def test_nothing_is_kept_for_passes_without_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradient's products have the rows of the first pass only."""
    from cprompt.vit import packed_block

    vit = frozen("plain")
    passes, leaves = three_passes()
    h, *_ = packed(vit, vit.embed(images(4, 32)), passes)
    rows: list[int] = []
    inner = packed_block._norm_back

    def counted(norm: Any, of: Any, g: Tensor) -> Tensor:
        rows.append(len(g))
        return inner(norm, of, g)

    monkeypatch.setattr(packed_block, "_norm_back", counted)
    gradients(h, leaves)
    before, last = 4 * (17 + 2), 4 * (17 + 2 + 3)
    assert rows == [4, last, 4, *[before] * 4]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_compiled_stages_give_the_same_and_are_compiled_once(
    compiler: Compiler, precision: Precision
) -> None:
    """Whatever the images and the lengths of prompts."""
    vit = small("plain")
    written, compiled = (FrozenViT(vit, "small", "random") for _ in range(2))
    compiled.compile(backend=compiler)
    compile_all_cases(compiled, torch.zeros(2, 3, 32, 32), precision, packed=True)
    made = len(compiler.graphs)
    for batch, layers in ((4, (0, 2)), (5, (0, 1)), (7, (1,))):
        embedded = written.embed(images(batch, 32), precision)
        passes, leaves = three_passes(layers)
        mine, theirs = (packed(one, embedded, passes) for one in (compiled, written))
        for one, other in zip(mine, theirs, strict=True):
            close(one, other)
        both = gradients(mine[0], leaves), gradients(theirs[0], leaves)
        for one, other in zip(*both, strict=True):
            close(one, other)
    assert len(compiler.graphs) == made
    assert made == len(fields(Stages)) + 2  # and a pass without gradient, for evaluation
