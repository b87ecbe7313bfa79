"""The ways to make crops, compared with PIL."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import common, resample
from cprompt.files import read_json


@pytest.fixture(scope="module")
def crops() -> resample.Crops:
    return resample.Crops(3, torch.device("cpu"), size=48)


def test_every_way_makes_a_batch_of_network_input(crops: resample.Crops) -> None:
    ways = crops.contenders()
    assert list(ways) == ["interpolate", "grid_sample", "grid_sample 2x2"]
    for make in ways.values():
        batch = make()
        assert batch.shape == (3, 3, 48, 48)
        assert batch.dtype == torch.float32


def test_ways_that_filter_are_nearer_to_pil(crops: resample.Crops) -> None:
    away = {name: crops.difference(make()) for name, make in crops.contenders().items()}
    assert away["interpolate"]["max"] <= 1.01
    means = [away[name]["mean"] for name in ("interpolate", "grid_sample 2x2", "grid_sample")]
    assert means == sorted(means)
    assert means[-1] < 10  # the same crops, mirrored alike


def test_the_difference_is_counted_in_levels(crops: resample.Crops) -> None:
    exact = crops._normalized(torch.from_numpy(crops._by_pil(3)))
    assert crops.difference(exact)["max"] == pytest.approx(0, abs=1e-3)
    std = np.array(crops.preparation.std)[:, None, None]
    brighter = exact + torch.from_numpy(2 / 255 / std).float()
    assert crops.difference(brighter)["mean"] == pytest.approx(2, abs=1e-3)


def test_the_result_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(common, "RESULTS", tmp_path)
    resample.main(["--quick", "--device=cpu"])
    result = read_json(tmp_path / "cpu" / "resample.json")
    assert set(result["ways"]) == {
        f"{way}, batch 4" for way in ("interpolate", "grid_sample", "grid_sample 2x2")
    }
    assert "interpolate" in capsys.readouterr().out
