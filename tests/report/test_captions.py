"""What captions say of runs."""

from __future__ import annotations

import copy

from cprompt.report.captions import backbones_of, hardware_of, seeds_of
from cprompt.report.runs import RecordedRun
from tests.report.records import MakeRun


def test_what_captions_say_of_runs(make_run: MakeRun) -> None:
    runs = [make_run(), make_run(seed=3)]
    assert seeds_of(runs) == "seeds 0, 3"
    assert seeds_of(runs[:1]) == "seed 0"
    assert backbones_of(runs) == "test_vit (random:0, 0123456789ab)"
    assert hardware_of(runs[0].record) == "abacus, 2 cores"
    with_gpu, old = copy.deepcopy(runs[0].record), copy.deepcopy(runs[0].record)
    with_gpu.environment["gpu"] = "GPU 9000"
    old.environment, old.backbone = {}, {}
    assert hardware_of(with_gpu) == "GPU 9000"
    assert hardware_of(old) == "–"
    assert backbones_of([RecordedRun(runs[0].path, old)]) == "unknown (unknown)"
