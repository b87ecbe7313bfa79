"""One block against attention written out head by head."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from cprompt.processor import Processor
from cprompt.vit import blocks
from cprompt.vit.blocks import attend, fused_is_slow, is_plain, per_image, run_block, settled
from cprompt.vit.promptable import FrozenViT, Prompts
from tests.vit.common import close, images, small


def naive_attention(attn: Any, x: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """One image (N, D), head by head, with softmax written out."""
    dim = x.shape[1]
    width = dim // attn.num_heads
    q, k, v = (attn.qkv.weight @ x.T + attn.qkv.bias[:, None]).T.split(dim, dim=1)
    k, v = torch.cat([key, k]), torch.cat([value, v])
    heads = []
    for h in range(attn.num_heads):
        part = slice(h * width, (h + 1) * width)
        scores = q[:, part] @ k[:, part].T / width**0.5
        weights = scores.exp() / scores.exp().sum(1, keepdim=True)
        heads.append(weights @ v[:, part])
    projected: Tensor = torch.cat(heads, 1) @ attn.proj.weight.T + attn.proj.bias
    return projected


def naive_block(block: Any, x: Tensor, key: Tensor, value: Tensor) -> Tensor:
    x = x + naive_attention(block.attn, block.norm1(x), key, value)
    after: Tensor = x + block.mlp(block.norm2(x))
    return after


def test_a_prefix_enters_the_keys_and_values_of_its_block_only(backbone: FrozenViT) -> None:
    key, value = torch.randn(3, 64), torch.randn(3, 64)
    x = images(1)
    seq = backbone.embed(x).tokens[0]
    for layer, block in enumerate(backbone.vit.blocks):
        none = torch.empty(0, 64)
        prefix = (key, value) if layer == 1 else (none, none)
        seq = naive_block(block, seq, *prefix)
    tokens = backbone.encode(backbone.embed(x), Prompts(prefixes={1: (key, value)}))
    assert tokens.shape == (1, 10, 64)
    torch.testing.assert_close(tokens[0], seq, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["plain", "registers", "layer scale", "no bias"])
def test_a_block_is_timm_s_and_leaves_its_last_addition_pending(kind: str) -> None:
    block: Any = small(kind).blocks[0]
    x, before = (torch.randn(2, 5, 32, generator=torch.Generator().manual_seed(s)) for s in (1, 2))
    with torch.no_grad():
        stream, pending = run_block(block, x, before)
        torch.testing.assert_close(settled(stream, pending), block(x + before))
        assert not torch.allclose(stream, block(x + before))


@pytest.mark.parametrize("kind", ["plain", "norms of queries and keys", "no bias"])
@pytest.mark.parametrize("asking", [1, 3])
def test_fewer_queries_give_the_first_tokens_of_all(kind: str, asking: int) -> None:
    block: Any = small(kind).blocks[0]
    rng = torch.Generator().manual_seed(1)
    x = torch.randn(2, 6, 32, generator=rng)
    prefix = (torch.randn(4, 32, generator=rng), torch.randn(2, 4, 32, generator=rng))
    whole = settled(*run_block(block, x, None, prefix))
    few = settled(*run_block(block, x, None, prefix, asking))
    assert few.shape == (2, asking, 32)
    close(few, whole[:, :asking])


def test_a_shared_prompt_is_given_to_every_image() -> None:
    prompt = torch.arange(6.0).view(2, 3)
    assert torch.equal(per_image(prompt, 4), torch.stack([prompt] * 4))
    own = torch.randn(4, 2, 3)
    assert torch.equal(per_image(own, 4), own)


def test_only_timm_s_plain_blocks_are_computed_here() -> None:
    assert is_plain(small("plain").blocks[0])
    assert not is_plain(small("blocks of another kind").blocks[0])


@pytest.mark.parametrize(("queries", "keys"), [(65, 65), (1, 65), (40, 197)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("slow", [False, True])
def test_attention_is_that_written_out_in_double_precision(
    queries: int, keys: int, dtype: torch.dtype, slow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to the rounding of scores, with a gradient and without; images do not meet."""
    monkeypatch.setattr(blocks, "fused_is_slow", lambda: slow)
    rng = torch.Generator().manual_seed(3)
    q, k, v = (torch.randn(4, 3, n, 32, generator=rng).to(dtype) for n in (queries, keys, keys))
    exact, largest = torch.zeros(4, 3, queries, 32, dtype=torch.float64), 0.0
    for image, head in itertools.product(range(4), range(3)):
        a, b, c = (each[image, head].double() for each in (q, k, v))
        scores = a @ b.T / 32**0.5
        exact[image, head] = scores.exp() / scores.exp().sum(1, keepdim=True) @ c
        largest = max(largest, scores.abs().max().item())
    with torch.no_grad():
        found = attend(q, k, v)
        alone = torch.cat([attend(q[i : i + 1], k[i : i + 1], v[i : i + 1]) for i in range(4)])
    assert found.dtype == dtype
    rounding = torch.finfo(dtype).eps / 2
    assert (found - exact).norm() / exact.norm() < (1 + largest) * rounding
    torch.testing.assert_close(found, alone)
    fused = F.scaled_dot_product_attention(q, k, v)
    assert torch.equal(attend(q, k, v), fused)
    assert torch.equal(found, fused) == (not slow or dtype == torch.float32)


@pytest.mark.parametrize("amx", [False, True])
def test_the_fused_kernel_is_fast_with_amx(amx: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    chip = Processor("a Xeon", bf16=True, avx512=True, intel=True, amx=amx)
    monkeypatch.setattr(blocks, "processor", lambda: chip)
    assert fused_is_slow.__wrapped__() is not amx


def test_a_bf16_pass_on_a_cpu_is_as_near_as_with_the_fused_kernel(
    backbone: FrozenViT, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "fused_is_slow", lambda: True)
    x = images(8)
    with torch.no_grad():
        exact, mine = backbone.encode(backbone.embed(x)), backbone.encode(backbone.embed(x, "bf16"))
        monkeypatch.setattr(blocks, "attend", F.scaled_dot_product_attention)
        fused = backbone.encode(backbone.embed(x, "bf16"))
    assert not torch.equal(mine, fused)
    assert (mine - exact).norm() < 1.1 * (fused - exact).norm()
