"""How many FLOP a CPrompt step takes: the released way, and at the least.

A FLOP is an addition or a multiplication in a matrix product or convolution. Heads and keys, some
thousandths of it, are left out; so is what fused attention computes again for its gradient.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from timm.models.vision_transformer import Block, VisionTransformer


@dataclass(frozen=True)
class Pass:
    """FLOP of one image's way through all blocks, and of the gradient back to its prompt.

    Of the last block only the class token is read. `forward` and `gradient` do all of that block,
    the `read_*` ones what the class token needs: its own row, and keys and values of all tokens.
    """

    forward: int
    gradient: int
    read_forward: int
    read_gradient: int


@dataclass(frozen=True)
class Work:
    """FLOP of one image's embedding and passes; weights are frozen, so they get no gradient."""

    embedding: int
    plain: Pass
    prompted: Pass

    def released(self, batch: int, tasks: int) -> float:
        """Expected FLOP of the released step: three passes, each with its embedding.

        The second prompted pass has a gradient if any image of the batch drew the current prompt.
        """
        some_drew_it = 1 - ((tasks - 1) / tasks) ** batch
        return batch * (
            3 * self.embedding
            + self.plain.forward
            + 2 * self.prompted.forward
            + (1 + some_drew_it) * self.prompted.gradient
        )

    def least(self, batch: int, tasks: int) -> float:
        """Expected FLOP with nothing done twice or for nobody.

        One embedding; a prompted pass with its gradient; a query; and one more pass, without
        gradient, for images that drew an old prompt.
        """
        drew_old = (tasks - 1) / tasks
        return batch * (
            self.embedding
            + self.plain.read_forward
            + (1 + drew_old) * self.prompted.read_forward
            + self.prompted.read_gradient
        )


def count_work(vit: VisionTransformer, layers: Sequence[int], length: int) -> Work:
    """The passes of a plain ViT, prompted by `length` tokens before each of the blocks `layers`."""
    patch = vit.patch_embed.proj
    embedding = 2 * vit.patch_embed.num_patches * patch.weight.numel()
    return Work(embedding, _count_pass(vit, (), 0), _count_pass(vit, layers, length))


def _count_pass(vit: VisionTransformer, layers: Sequence[int], length: int) -> Pass:
    tokens = list(tokens_by_block(vit, layers, length))
    linear = [_linear(block, n, n) for block, n in zip(vit.blocks, tokens, strict=True)]
    attention = [_attention(block, n, n) for block, n in zip(vit.blocks, tokens, strict=True)]
    last, n = vit.blocks[-1], tokens[-1]
    read_linear = sum(linear[:-1]) + _linear(last, n, 1)
    read_attention = sum(attention[:-1]) + _attention(last, n, 1)
    # The gradient of each of attention's two products is two more; a linear layer's is one, as
    # its weight needs none.
    return Pass(
        forward=sum(linear) + sum(attention),
        gradient=sum(linear) + 2 * sum(attention),
        read_forward=read_linear + read_attention,
        read_gradient=read_linear + 2 * read_attention,
    )


def tokens_by_block(vit: VisionTransformer, layers: Sequence[int], length: int) -> Iterator[int]:
    """Tokens in each block."""
    tokens = vit.patch_embed.num_patches + vit.num_prefix_tokens
    for layer in range(len(vit.blocks)):
        tokens += length * (layer in layers)
        yield tokens


def _linear(block: Block, tokens: int, read: int) -> int:
    """Linear layers of a block of which the first `read` tokens are carried on."""
    qkv = block.attn.qkv.weight.numel()
    rest = (block.attn.proj, block.mlp.fc1, block.mlp.fc2)
    of_read = qkv // 3 + sum(layer.weight.numel() for layer in rest)
    return int(2 * (tokens * (qkv - qkv // 3) + read * of_read))


def _attention(block: Block, tokens: int, read: int) -> int:
    """Attention's two products, of `read` queries with all tokens."""
    return int(2 * 2 * read * tokens * block.attn.proj.in_features)
