"""Products of a step's passes without a gradient, in bfloat16 and in 8-bit floats: time per step.

    python -m benchmarks.fp8_products
    python -m benchmarks.fp8_products --quick --device cpu

A step has two such passes: the query, and the one under old prompts. What is timed are their linear
layers alone, on noise, one after the other. "fp8" finds its inputs in 8 bits, as if the kernel
before each product had written them so; "fp8, casting" casts them first. benchmarks/fp8.py says how
far eight bits move features.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks import common, train_step
from benchmarks.common import Call
from benchmarks.fp8 import NARROW, NarrowLinear
from benchmarks.train_step import Step
from benchmarks.work import tokens_by_block
from cprompt.device import pick_device
from cprompt.vit.promptable import FrozenViT
from cprompt.vit.rounded import RoundedWeights


class Product(NamedTuple):
    """One linear layer of one pass: its input in both precisions, and the layer in both."""

    rows: Tensor
    narrow_rows: Tensor
    layer: nn.Linear
    narrow: NarrowLinear


def products(step: Step, backbone: FrozenViT) -> Iterator[Product]:
    """Those of both passes, in order; the last block's too, of which a step computes less."""
    wide, narrow = (RoundedWeights(backbone.vit).blocks for _ in range(2))
    inputs: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
    for module in narrow.modules():
        if isinstance(module, nn.Linear):
            NarrowLinear.replace(module)
    for layers in ((), step.layers(backbone)):
        counts = tokens_by_block(backbone.vit, layers, step.length)
        for tokens, block, low in zip(counts, wide, narrow, strict=True):
            for name in ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2"):
                layer, other = block.get_submodule(name), low.get_submodule(name)
                shape = (step.batch * tokens, layer.in_features)
                if shape not in inputs:
                    rows = torch.randn(shape, device=step.device).to(torch.bfloat16)
                    inputs[shape] = rows, rows.to(NARROW)
                yield Product(*inputs[shape], layer, other)


@torch.no_grad()
def in_bf16(found: Sequence[Product]) -> None:
    """All products in bfloat16."""
    for one in found:
        F.linear(one.rows, one.layer.weight, one.layer.bias)


@torch.no_grad()
def in_fp8(found: Sequence[Product]) -> None:
    """All products of inputs in 8 bits."""
    for one in found:
        one.narrow.product(one.narrow_rows)


@torch.no_grad()
def casting(found: Sequence[Product]) -> None:
    """All products in 8 bits of inputs in bfloat16."""
    for one in found:
        one.narrow(one.rows)


def replayed(call: Call, device: torch.device) -> Call:
    """The call as a CUDA graph, so that the host is not what is timed; on a CPU as it is."""
    if device.type != "cuda":
        return call
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):  # libraries begin in a first call, which cannot be captured
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print, write."""
    given = train_step.parser(__doc__).parse_args(argv)
    device = pick_device(given.device)
    seen = common.hardware(device)
    out = common.output("fp8_products", seen, given.out)
    step = train_step.chosen_step(given, device)
    found = list(products(step, step.load()))
    ways = {"bf16": in_bf16, "fp8": in_fp8, "fp8, casting": casting}
    calls = {name: replayed(partial(way, found), device) for name, way in ways.items()}
    rounds = common.rounds(device, given.quick)
    timings = common.interleave(calls, device, rounds)
    usual = timings["bf16"].median
    rows = [
        {
            "products": name,
            "ms per step": f"{1e3 * timing.median:.2f}",
            "spread": common.spread(timing),
            "saved, ms": f"{1e3 * (usual - timing.median):.2f}",
        }
        for name, timing in timings.items()
    ]
    common.show(f"Products without a gradient: {step.backbone}, batch {step.batch}", rows, seen)
    result = {
        "settings": asdict(step),
        "rounds": asdict(rounds),
        "products": {name: asdict(timing) for name, timing in timings.items()},
    }
    print(f"Written: {common.save('fp8_products', seen, result, out)}")


if __name__ == "__main__":
    main()
