"""Passes read together against each pass by itself, and against timm's blocks image by image."""

from __future__ import annotations

import torch
from torch import Tensor

from cprompt.vit.passes import Pass, read_passes
from cprompt.vit.promptable import Embedded, FrozenViT, Prompts
from tests.vit.common import close, images, small


def frozen(kind: str = "plain") -> FrozenViT:
    return FrozenViT(small(kind), "small", "random")


def three_passes() -> tuple[list[Pass], list[Tensor]]:
    """Under a trained prompt, under none, and under one prompt for each of images 3, 0 and 3."""
    rng = torch.Generator().manual_seed(3)

    def new(*shape: int) -> Tensor:
        return torch.randn(*shape, 32, generator=rng)

    leaves = [new(2).requires_grad_(), new(3).requires_grad_()]
    old = Prompts({0: new(3, 3), 1: new(3, 1)})
    trained = Pass(Prompts({0: leaves[0], 2: leaves[1]}))
    return [trained, Pass(), Pass(old, torch.tensor([3, 0, 3]))], leaves


def test_each_pass_is_a_read_and_only_the_first_has_a_gradient() -> None:
    vit = frozen("blocks of another kind")
    embedded = vit.embed(images(4, 32))
    some, leaves = three_passes()
    found = read_passes(vit, embedded, some)
    for one, feature in zip(some, found, strict=True):
        of = embedded if one.images is None else embedded[one.images]
        close(feature, vit.read(of, one.prompts))
    assert [feature.requires_grad for feature in found] == [True, False, False]
    assert all(g.any() for g in torch.autograd.grad(found[0].sum(), leaves))
    with torch.no_grad():
        assert not read_passes(vit, embedded, some)[0].requires_grad


def test_each_image_is_its_own_timm_pass() -> None:
    vit = frozen("registers")
    some, _ = three_passes()
    tokens = vit.embed(images(4, 32)).tokens
    for one, feature in zip(some, read_passes(vit, Embedded(tokens), some), strict=True):
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
    vit = frozen()
    some, _ = three_passes()
    one = read_passes(vit, vit.embed(images(4, 32)), some)
    changed = images(4, 32)
    changed[1] += 1
    other = read_passes(vit, vit.embed(changed), some)
    rows = [0, 2, 3]
    assert torch.equal(one[0][rows], other[0][rows])
    assert torch.equal(one[1][rows], other[1][rows])
    assert torch.equal(one[2], other[2])
    assert not torch.allclose(one[0][1], other[0][1])
