"""The stages of a block on rows against timm's block and autograd."""

from __future__ import annotations

from typing import Any

import pytest
import timm
import torch
import torch.nn.functional as F
from torch import Tensor

from cprompt.vit.packed_block import Stages, can_pack
from tests.vit.common import small


def rows(seed: int, count: int = 6, dim: int = 32) -> Tensor:
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(count, dim, generator=rng, dtype=torch.float64)


@pytest.fixture(params=["plain", "layer scale", "no bias"])
def block(request: pytest.FixtureRequest) -> Any:
    return small(request.param).double().blocks[0].requires_grad_(False)


def test_before_attention_rows_are_normed_and_projected(block: Any) -> None:
    x, pending = rows(1).requires_grad_(), rows(2)
    stream, mean, scale, qkv = Stages().into_attention(block, x, pending)
    expected = block.attn.qkv(block.norm1(x + pending))
    torch.testing.assert_close(qkv, expected)
    assert torch.equal(stream, x + pending)
    assert torch.equal(Stages().into_attention(block, stream, None)[3], qkv)
    g_qkv, g_after = rows(3, dim=96), rows(4)
    found = Stages().back_into_attention(block, (stream.detach(), mean, scale), g_qkv, g_after)
    total = (expected * g_qkv).sum() + ((x + pending) * g_after).sum()
    torch.testing.assert_close(found, torch.autograd.grad(total, x)[0])


def test_after_attention_rows_run_to_the_block_s_end(block: Any) -> None:
    x, seen = rows(1).requires_grad_(), rows(2).requires_grad_()
    stream, mean, scale, hidden, pending = Stages().after_attention(block, x, seen)
    after = x + block.ls1(block.attn.proj(seen))
    expected = after + block.ls2(block.mlp(block.norm2(after)))
    torch.testing.assert_close(stream + pending, expected)
    g = rows(3)
    saved = (stream.detach(), mean.detach(), scale.detach())
    found = Stages().back_after_attention(block, saved, hidden.detach(), g)
    torch.testing.assert_close(found, torch.autograd.grad((expected * g).sum(), (x, seen)))


def test_the_last_block_asks_for_few_rows(block: Any) -> None:
    x = rows(1).requires_grad_()
    wide = 32
    _, mean, scale, kv = Stages().keys_and_values(block, x, None)
    few_mean, few_scale, q = Stages().queries(block, x[:2])
    weight, bias = block.attn.qkv.weight, block.attn.qkv.bias
    normed = block.norm1(x)
    no = (None, None) if bias is None else (bias[wide:], bias[:wide])
    expected_kv = F.linear(normed, weight[wide:], no[0])
    expected_q = F.linear(normed[:2], weight[:wide], no[1])
    torch.testing.assert_close((kv, q), (expected_kv, expected_q))
    g_kv, g_q, g_after = rows(2, dim=64), rows(3, 2), rows(4, 2)
    of_kv = Stages().back_keys_and_values(block, (x.detach(), mean, scale), g_kv)
    of_q = Stages().back_queries(block, (x[:2].detach(), few_mean, few_scale), g_q, g_after)
    (first,) = torch.autograd.grad((expected_kv * g_kv).sum(), x, retain_graph=True)
    torch.testing.assert_close(of_kv, first)
    total = (expected_q * g_q).sum() + (x[:2] * g_after).sum()
    torch.testing.assert_close(of_q, torch.autograd.grad(total, x)[0][:2])


def test_every_stage_is_changed() -> None:
    changed = Stages().each(lambda stage: stage.__name__)
    assert all(name == stage for name, stage in vars(changed).items())


def test_blocks_with_other_parts_are_not_packed() -> None:
    assert can_pack(small("norms of queries and keys").blocks[0])
    assert not can_pack(small("blocks of another kind").blocks[0])
    for other in ({"mlp_layer": timm.layers.GluMlp}, {"act_layer": torch.nn.ReLU}):
        assert not can_pack(small("plain", **other).blocks[0])
