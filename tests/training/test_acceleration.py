"""Which stepper is used, and which backbones are compiled."""

from __future__ import annotations

import warnings
from typing import get_args

import pytest
import torch

from cprompt.methods.base import create_method
from cprompt.training import acceleration
from cprompt.training.acceleration import compile_backbones, make_stepper, resolve_acceleration
from cprompt.training.optimizer import make_optimizer
from cprompt.training.settings import Acceleration
from cprompt.training.step import Stepper
from cprompt.vit.promptable import FrozenViT, PromptableViT
from tests.training.common import CPU, CUDA, OPTIONS


@pytest.mark.parametrize("how", get_args(Acceleration))
def test_on_a_cpu_steps_are_taken_one_by_one(how: Acceleration, backbone: FrozenViT) -> None:
    method = create_method("finetune", backbone, {"length": 2})
    method.begin_task(2, torch.Generator().manual_seed(0))
    optimizer = make_optimizer(method.parameter_groups(), "sgd", CPU, **OPTIONS)
    stepper = make_stepper(method, optimizer, 1.5, how)
    assert type(stepper) is Stepper
    assert (stepper.method, stepper.optimizer, stepper.clip) == (method, optimizer, 1.5)
    assert (stepper.multiple, stepper.reseeds) == (1, True)


BEFORE_TRY_AND_AFTER = ("decompile", "compile", "decompile")


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, PromptableViT]]:
    """Who was compiled and who was told to run as written, in order; compiling fails."""
    told: list[tuple[str, PromptableViT]] = []

    def fail(vit: PromptableViT) -> None:
        told.append(("compile", vit))
        raise OSError("no C compiler\nwas found")

    monkeypatch.setattr(PromptableViT, "compile", fail)
    monkeypatch.setattr(PromptableViT, "decompile", lambda vit: told.append(("decompile", vit)))
    return told


@pytest.mark.usefixtures("nothing_said")
def test_where_compiling_fails_all_backbones_run_as_written_and_the_reason_is_said_once(
    compiled: list[tuple[str, PromptableViT]], backbone: FrozenViT
) -> None:
    method = create_method("slca", backbone)  # has a backbone of its own
    with pytest.warns(UserWarning, match="compiled") as said:
        compile_backbones(method, "compile", CUDA)
    assert [str(w.message) for w in said] == [
        "the backbone is not compiled, so training is slower: no C compiler"
    ]
    once = [(what, vit) for vit in (backbone, method.tuned) for what in BEFORE_TRY_AND_AFTER]
    assert compiled == once
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compile_backbones(method, "compile", CUDA)
    assert compiled == [*once, *once]


@pytest.mark.parametrize(
    ("how", "device"), [("compile", CPU), ("graphs", CUDA), ("auto", CUDA), ("none", CUDA)]
)
def test_a_backbone_compiled_for_another_run_goes_back_where_it_must_not_be(
    compiled: list[tuple[str, PromptableViT]],
    backbone: FrozenViT,
    how: Acceleration,
    device: torch.device,
) -> None:
    compile_backbones(create_method("cprompt", backbone, {"length": 2}), how, device)
    assert compiled == [("decompile", backbone)]


def test_auto_compiles_where_a_run_is_long_enough_to_pay_for_it() -> None:
    long = acceleration.WORTH_COMPILING
    assert resolve_acceleration("auto", long) == "compile"
    assert resolve_acceleration("auto", long - 1) == "auto"
    for how in ("compile", "graphs", "none"):
        assert resolve_acceleration(how, 1) == resolve_acceleration(how, 10 * long) == how
