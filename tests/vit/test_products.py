"""Products of frozen weights by oneDNN against float64, and when they are taken."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from cprompt.processor import Processor
from cprompt.vit import products
from cprompt.vit.loading import load_backbone
from cprompt.vit.products import mkl_is_slow, product, with_fast_products
from cprompt.vit.promptable import FrozenViT
from tests.vit.common import KINDS, close, gradients, images, prompts_of_both_kinds, small

pytestmark = pytest.mark.skipif(
    products._ONEDNN is None, reason="this build of PyTorch has no oneDNN product"
)


@pytest.fixture
def by_onednn(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """oneDNN takes products of any size, whatever the processor; the shapes of what it got."""
    taken: list[tuple[int, ...]] = []
    multiply = products._multiply

    def counted(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        taken.append(tuple(x.shape))
        return multiply(x, weight, bias)

    monkeypatch.setattr(products, "mkl_is_slow", lambda: True)
    monkeypatch.setattr(products, "FEWEST", 0)
    monkeypatch.setattr(products, "_multiply", counted)
    return taken


def numbers(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize(
    ("chip", "slow"),
    [
        (Processor("AMD EPYC", bf16=True, avx512=True, intel=False), True),
        (Processor("AMD EPYC", bf16=False, avx512=False, intel=False), False),
        (Processor("Some Xeon", bf16=True, avx512=True, intel=True), False),
        (Processor("Neoverse", bf16=True, avx512=False, intel=False), False),
    ],
)
@pytest.mark.parametrize("has_mkl", [True, False])
def test_mkl_is_slow_where_avx512_is_not_intel_s(
    chip: Processor, slow: bool, has_mkl: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "processor", lambda: chip)
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: has_mkl)
    assert mkl_is_slow.__wrapped__() is (slow and has_mkl)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    "shape", [lambda x: x, lambda x: x[0], lambda x: x[0, 0], lambda x: x[:, :1], lambda x: x[:0]]
)
def test_product_and_gradient_are_those_of_float64(
    bias: bool, shape: Callable[[Tensor], Tensor], by_onednn: list[tuple[int, ...]]
) -> None:
    x, weight = shape(numbers(3, 5, 8)).clone().requires_grad_(), numbers(9, 8)[2:]
    b = numbers(7) if bias else None
    y = product(x, weight, b)
    g = numbers(*y.shape)
    (back,) = torch.autograd.grad(y, x, g)
    exact = x.detach().double() @ weight.double().T + (0 if b is None else b.double())
    torch.testing.assert_close(y.detach().double(), exact, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(back.double(), g.double() @ weight.double(), rtol=1e-5, atol=1e-5)
    assert by_onednn == [tuple(x.shape), tuple(y.shape)]


def test_other_products_are_left_to_torch(
    by_onednn: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    x, weight = numbers(4, 8), numbers(7, 8)
    trained = weight.clone().requires_grad_()
    (of_weight,) = torch.autograd.grad(product(x, trained).sum(), trained)
    torch.testing.assert_close(of_weight, x.sum(0).expand(7, -1))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert product(x, weight).dtype == torch.bfloat16
    assert product(x.double(), weight.double()).dtype == torch.float64
    monkeypatch.setattr(products, "FEWEST", 8 * 7 + 1)
    product(x, weight)
    assert by_onednn == []
    monkeypatch.setattr(products, "FEWEST", 8 * 7)
    product(x, weight)
    with torch.no_grad():
        product(x, trained)
    assert len(by_onednn) == 2


def test_a_bias_that_onednn_would_misread_is_left_to_torch(
    by_onednn: list[tuple[int, ...]],
) -> None:
    x, weight = numbers(4, 8), numbers(7, 8)
    for bias in (numbers(14)[::2], numbers(1).expand(7), numbers(1)):
        close(product(x, weight, bias), x @ weight.T + bias)
    assert by_onednn == []
    with pytest.raises(RuntimeError):
        product(x, weight, numbers(6))  # torch's own message
    trained = numbers(7).requires_grad_()
    (of_bias,) = torch.autograd.grad(product(x, weight, trained).sum(), trained)
    close(of_bias, torch.full((7,), 4.0))
    assert by_onednn == []


@pytest.mark.filterwarnings("ignore:`torch.jit:FutureWarning", "ignore::torch.jit.TracerWarning")
def test_derivatives_that_onednn_lacks_are_left_to_torch(
    by_onednn: list[tuple[int, ...]],
) -> None:
    x, weight, direction = numbers(4, 8), numbers(7, 8), numbers(4, 8) * 2

    def squares(x: Tensor) -> Tensor:
        return product(x, weight).square().sum()

    exact = 2 * x @ weight.T @ weight
    _, along = torch.func.jvp(lambda x: product(x, weight), (x,), (direction,))
    close(along, direction @ weight.T)
    close(torch.func.grad(squares)(x), exact)
    close(torch.func.vmap(lambda row: product(row, weight))(x), x @ weight.T)
    with forward_ad.dual_level():
        dual = product(forward_ad.make_dual(x, direction), weight)
        close(forward_ad.unpack_dual(dual).tangent, direction @ weight.T)
    traced = torch.jit.trace(lambda x: product(x, weight), x, check_trace=False)
    assert by_onednn == []
    close(traced(x), x @ weight.T)
    leaf = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(squares(leaf), leaf, create_graph=True)
    close(slope, exact)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        slope.sum().backward()


def test_copies_have_the_same_weights(by_onednn: list[tuple[int, ...]]) -> None:
    plain = nn.Sequential(nn.Linear(8, 7), nn.GELU(), nn.Linear(7, 3)).requires_grad_(False)
    fast = with_fast_products(plain)
    mine, theirs = dict(fast.named_parameters()), dict(plain.named_parameters())
    assert mine.keys() == theirs.keys()
    assert all(mine[name] is theirs[name] for name in mine)
    assert [type(part) for part in plain] == [nn.Linear, nn.GELU, nn.Linear]
    x = numbers(4, 8)
    close(fast(x), plain(x))
    assert by_onednn == [(4, 8), (4, 7)]


def test_a_traced_graph_has_torch_s_own_operators(by_onednn: list[tuple[int, ...]]) -> None:
    frozen = FrozenViT(small("plain"), "plain", "random")
    example = images(2, 32)
    graph = torch.export.export(frozen, (example,), strict=True)
    assert "mkldnn" not in graph.graph_module.code
    assert by_onednn == []
    close(graph.module()(example), frozen(example))
    assert by_onednn  # what is not traced still takes the copy


def test_nothing_is_copied_where_mkl_is_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "mkl_is_slow", lambda: False)
    plain = nn.Linear(8, 7)
    assert with_fast_products(plain) is plain


@pytest.mark.parametrize("kind", KINDS)
def test_passes_and_their_gradients_stay_the_same(
    kind: str, by_onednn: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    vit = small(kind)
    frozen = FrozenViT(copy.deepcopy(vit), kind, "random")
    prompts, leaves = prompts_of_both_kinds(vit, 3)
    read = frozen.read(frozen.embed(images(3, 32)), prompts)
    slopes = gradients(read, leaves)
    assert len(by_onednn) > 4 * frozen.depth
    assert frozen.state_dict().keys() == FrozenViT(vit, kind, "random").state_dict().keys()
    monkeypatch.setattr(products, "mkl_is_slow", lambda: False)
    plain = FrozenViT(copy.deepcopy(vit), kind, "random")
    torch_s = plain.read(plain.embed(images(3, 32)), prompts)
    close(read, torch_s)
    for one, other in zip(slopes, gradients(torch_s, leaves), strict=True):
        close(one, other)


def test_any_model_takes_it(
    by_onednn: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load_backbone("test_convnext", weights="random:0", image_size=64)
    layers = range(model.depth)
    fast = model.taps(model.embed(images(2, 64)), layers)
    assert by_onednn
    monkeypatch.setattr(products, "mkl_is_slow", lambda: False)
    model.to("cpu")  # forgets the copy
    before = len(by_onednn)
    close(fast, model.taps(model.embed(images(2, 64)), layers))
    assert len(by_onednn) == before
