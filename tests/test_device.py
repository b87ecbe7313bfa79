"""Which device is used."""

from __future__ import annotations

import pytest
import torch

from cprompt.device import move, pick_device
from cprompt.errors import ConfigError


@pytest.mark.parametrize(
    ("cuda", "mps", "found"),
    [(True, True, "cuda"), (False, True, "cpu"), (False, False, "cpu")],
)
def test_auto_is_a_gpu_with_float64_or_the_processor(
    cuda: bool, mps: bool, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
    assert pick_device("auto").type == found


def test_a_device_that_is_not_there_is_named() -> None:
    assert pick_device("cpu").type == "cpu"
    with pytest.raises(ConfigError, match="'warp'") as caught:
        pick_device("warp")
    assert caught.value.hint is not None
    assert "cpu" in caught.value.hint


def test_a_device_that_nobody_has_is_answered_with_those_to_use() -> None:
    """Not with all that PyTorch was ever built for."""
    with pytest.raises(ConfigError) as caught:
        pick_device("tpu")
    assert str(caught.value) == "device 'tpu' cannot be used here; use auto, cpu, cuda or mps"


def test_a_module_is_moved_only_if_it_is_elsewhere() -> None:
    there, moved = torch.device("cpu"), []

    class Counting(torch.nn.Linear):
        def _apply(self, *args: object, **kwargs: object) -> Counting:
            moved.append(args)
            return super()._apply(*args, **kwargs)  # type: ignore[no-untyped-call]

    module = Counting(2, 2)
    move(module, there)
    assert not moved
    module.register_buffer("elsewhere", torch.empty(1, device="meta"))
    with pytest.raises(NotImplementedError):  # a meta tensor has nothing to copy
        move(module, there)
    assert moved
