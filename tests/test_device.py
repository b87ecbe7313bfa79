"""Which device is used."""

from __future__ import annotations

import pytest
import torch

from cprompt.device import pick_device
from cprompt.errors import ConfigError


@pytest.mark.parametrize(
    ("cuda", "mps", "found"),
    [(True, True, "cuda"), (False, True, "mps"), (False, False, "cpu")],
)
def test_auto_is_the_first_that_is_there(
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
