"""Backbones to choose from: what is said of each, and what short names stand for."""

from __future__ import annotations

import pytest
import timm
import torch

from cprompt.vit import catalogue
from cprompt.vit.catalogue import SHORT_NAMES, Choice, choices, images_per_second, spelt_out
from cprompt.vit.embedded import EMBEDDED
from cprompt.vit.loading import load_backbone
from tests.fresh import printed

OPEN = {"apache-2.0", "mit"}


@pytest.fixture(scope="module")
def found() -> dict[str, Choice]:
    return {choice.name: choice for choice in choices()}


def test_short_names_are_growing_models_of_open_licence_that_all_methods_take(
    found: dict[str, Choice],
) -> None:
    sizes = [found[name].parameters for name in ("small", "base", "large")]
    assert sizes == sorted(sizes)
    for name in SHORT_NAMES:
        assert found[name].licence in OPEN
        assert found[name].promptable
        assert found[name].tag in timm.list_pretrained()


def test_parameters_and_input_are_those_of_the_model(found: dict[str, Choice]) -> None:
    for name in (*EMBEDDED, "mobilenetv4_conv_small.e2400_r224_in1k"):
        weights = None if name in EMBEDDED else "random:0"
        backbone = load_backbone(name, weights)
        assert found[name].parameters == sum(p.numel() for p in backbone.parameters())
        assert found[name].image_size == backbone.image_size[0]
    assert all(found[name].here for name in EMBEDDED)


def test_a_short_name_loads_its_model_at_its_size() -> None:
    assert spelt_out("large", None)[1] == SHORT_NAMES["large"].image_size
    assert spelt_out("large", 98) == (SHORT_NAMES["large"].tag, 98)
    backbone = load_backbone("small", "random:0", 56)
    assert (backbone.name, backbone.image_size) == (SHORT_NAMES["small"].tag, (56, 56))
    assert load_backbone("small", "random:0").image_size == (224, 224)


def test_speed_is_images_over_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that moves by half a second each time it is asked: after one pass 0.5, 1.0, …"""
    now = iter(range(100))
    monkeypatch.setattr(catalogue.time, "perf_counter", lambda: next(now) / 2)
    choice = Choice("test_vit", "test_vit", 0, 32, "", False, True)
    # Started at 0, asked after each pass: two passes until 1.0, and 1.5 when all is over.
    assert images_per_second(choice, torch.device("cpu"), 1.0) == pytest.approx(8 * 2 / 1.5)


def test_names_are_known_without_importing_anything_slow() -> None:
    program = "import sys, cprompt.vit.catalogue; assert not {'torch', 'timm'} & {*sys.modules}"
    printed(program)
