"""The faster precision is measured once for a machine and a backbone, then remembered."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from cprompt.files import read_json
from cprompt.processor import Processor
from cprompt.vit import fastest_precision as module
from cprompt.vit.fastest_precision import fastest_precision, multiplies_bf16, seconds_per_pass
from cprompt.vit.promptable import FrozenViT

CPU = torch.device("cpu")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "cprompt" / "precision.json"


@pytest.fixture
def chip(monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor with bfloat16 instructions."""
    monkeypatch.setattr(module, "processor", lambda: Processor("chip", True, True, True))


def measured(monkeypatch: pytest.MonkeyPatch, fp32: float, bf16: float) -> list[str]:
    """Let measuring find these seconds; the list grows with every time it is done."""
    done: list[str] = []

    def measure(backbone: FrozenViT, device: torch.device) -> dict[str, float]:
        done.append(backbone.name)
        return {"fp32": fp32, "bf16": bf16}

    monkeypatch.setattr(module, "seconds_per_pass", measure)
    return done


@pytest.mark.parametrize(
    ("fp32", "bf16", "taken"), [(3.0, 1.0, "bf16"), (1.19, 1.0, "fp32"), (1.0, 2.0, "fp32")]
)
def test_bf16_is_taken_if_it_is_clearly_faster(
    cache: Path,
    chip: None,
    backbone: FrozenViT,
    monkeypatch: pytest.MonkeyPatch,
    fp32: float,
    bf16: float,
    taken: str,
) -> None:
    measured(monkeypatch, fp32, bf16)
    assert fastest_precision(backbone, CPU) == taken


def test_it_is_measured_once_for_each_number_of_threads(
    cache: Path, chip: None, backbone: FrozenViT, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = measured(monkeypatch, 3.0, 1.0)
    assert [fastest_precision(backbone, CPU) for _ in range(2)] == ["bf16", "bf16"]
    assert len(done) == 1
    monkeypatch.setattr(torch, "get_num_threads", lambda: 64)
    fastest_precision(backbone, CPU)
    assert len(done) == 2
    known = read_json(cache)
    assert [*known.values()] == 2 * [{"fp32": 3.0, "bf16": 1.0}]
    assert all(backbone.name in key and "chip" in key for key in known)


@pytest.mark.parametrize(
    "text", ["", "[1]", '{"KEY": 3}', '{"KEY": {"fp32": "a", "bf16": 1.0}}', '{"KEY": {}}']
)
def test_a_damaged_file_is_measured_over(
    cache: Path, chip: None, backbone: FrozenViT, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    done = measured(monkeypatch, 3.0, 1.0)
    cache.parent.mkdir()
    cache.write_text(text.replace("KEY", module._case(backbone, CPU)))
    assert fastest_precision(backbone, CPU) == "bf16"
    assert len(done) == 1
    assert len(read_json(cache)) == 1


def test_a_folder_that_cannot_be_written_is_no_obstacle(
    cache: Path, chip: None, backbone: FrozenViT, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured(monkeypatch, 3.0, 1.0)
    cache.parent.write_text("a file where the folder should be")
    assert fastest_precision(backbone, CPU) == "bf16"


def test_without_instructions_nothing_is_measured(
    cache: Path, backbone: FrozenViT, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = measured(monkeypatch, 3.0, 1.0)
    monkeypatch.setattr(module, "processor", lambda: Processor("old chip", False, True, True))
    assert fastest_precision(backbone, CPU) == "fp32"
    assert not done
    assert not cache.exists()
    assert not multiplies_bf16(torch.device("meta"))


def test_both_precisions_are_timed_in_turn_after_a_first_pass(
    backbone: FrozenViT, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def seconds(backbone: FrozenViT, images: torch.Tensor, precision: str) -> float:
        asked.append(precision)
        return 100.0 if len(asked) <= 2 else {"fp32": 4.0, "bf16": 2.0}[precision] + len(asked)

    monkeypatch.setattr(module, "_seconds", seconds)
    found = seconds_per_pass(backbone, CPU)
    assert asked == 4 * ["fp32", "bf16"]
    assert found == {"fp32": 4.0 + 5, "bf16": 2.0 + 6}


def test_real_passes_take_time(backbone: FrozenViT) -> None:
    assert all(seconds > 0 for seconds in seconds_per_pass(backbone, CPU).values())
