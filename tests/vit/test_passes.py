"""Passes read together: packed where that pays and can be done, and one by one elsewhere."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from cprompt.vit import passes
from cprompt.vit.passes import Pass, read_apart, read_passes, reads_packed
from cprompt.vit.promptable import FrozenViT, PromptableViT, Prompts
from tests.vit.common import close, images, small
from tests.vit.test_packed import three_passes


def frozen(kind: str = "plain") -> FrozenViT:
    return FrozenViT(small(kind), "small", "random")


def test_passes_are_packed_if_all_blocks_are_known_and_frozen() -> None:
    assert reads_packed(frozen())
    assert not reads_packed(frozen("blocks of another kind"))
    assert not reads_packed(PromptableViT(small("plain"), "tuned"))


def test_one_by_one_each_pass_is_a_read_and_the_first_has_a_gradient() -> None:
    vit = frozen("blocks of another kind")
    embedded = vit.embed(images(4, 32))
    some, leaves = three_passes()
    found = read_apart(vit, embedded, some)
    for one, feature in zip(some, found, strict=True):
        of = embedded if one.images is None else embedded[one.images]
        close(feature, vit.read(of, one.prompts))
    assert [feature.requires_grad for feature in found] == [True, False, False]
    assert all(g.any() for g in torch.autograd.grad(found[0].sum(), leaves))
    with torch.no_grad():
        assert not read_apart(vit, embedded, some)[0].requires_grad


@pytest.mark.parametrize("prefixed", [False, True])
def test_what_cannot_be_packed_is_read_one_by_one(
    monkeypatch: pytest.MonkeyPatch, prefixed: bool
) -> None:
    vit = frozen()
    embedded = vit.embed(images(4, 32))
    some, _ = three_passes()
    if prefixed:
        some.append(Pass(Prompts(prefixes={1: (torch.ones(2, 32), torch.ones(2, 32))})))
    said: list[str] = []

    def counted(name: str) -> Any:
        inner = getattr(passes, name)

        def call(*given: Any) -> list[Tensor]:
            said.append(name)
            found: list[Tensor] = inner(*given)
            return found

        return call

    for name in ("read_packed", "read_apart"):
        monkeypatch.setattr(passes, name, counted(name))
    found = read_passes(vit, embedded, some)
    assert said == ["read_apart" if prefixed else "read_packed"]
    for one, other in zip(found, read_apart(vit, embedded, some), strict=True):
        close(one, other)


def test_passes_stay_apart_on_devices_where_packing_was_not_measured() -> None:
    assert not reads_packed(frozen().to("meta"))
