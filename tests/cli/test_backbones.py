"""`cprompt backbones`: what is there to choose from."""

from __future__ import annotations

import pytest

from cprompt.vit import catalogue
from cprompt.vit.catalogue import SHORT_NAMES, Choice
from cprompt.vit.embedded import EMBEDDED
from tests.cli.common import ok, squeezed


def test_every_backbone_has_its_size_input_licence_and_weights() -> None:
    printed = squeezed(ok("backbones"))
    for name, asset in EMBEDDED.items():
        size = asset.architecture["img_size"]
        assert f"\n{name} 2.7 M {size} px apache-2.0 yes all" in printed
    for name, short in SHORT_NAMES.items():
        assert f"\n{name} is {short.tag}\n" in printed
    assert "images/s" not in printed


def test_names_can_be_copied_from_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = ok("backbones").splitlines()
    for choice in catalogue.choices():
        assert any(line.startswith(f"{choice.name} ") for line in lines), choice.name


def test_speed_is_measured_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Choice("tiny", "test_vit", 1_230_000, 32, "mit", False, False)
    monkeypatch.setattr(catalogue, "choices", lambda: iter([one]))
    monkeypatch.setattr(catalogue, "images_per_second", lambda choice, device: 1234.4)
    printed = squeezed(ok("backbones", "--measure", "--device", "cpu"))
    assert "tiny 1.2 M 32 px mit no strata 1234" in printed
    assert "measured on cpu" in printed
