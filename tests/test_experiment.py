"""Whole runs: what they leave, and that stopping them anywhere changes nothing."""

from __future__ import annotations

import math
import multiprocessing
import os
import random
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from cprompt import files
from cprompt.backbone import load_backbone
from cprompt.checkpoint import load_checkpoint, save_checkpoint
from cprompt.config import resolve
from cprompt.errors import CheckpointError, ConfigError, DataError
from cprompt.experiment import CHECKPOINT, run
from cprompt.learner import Observer, TrainingConfig, learning_rate, pick_device
from cprompt.record import load_record


def settings(tiny: dict[str, Any], **more: Any) -> Any:
    dotted = {name.replace("__", "."): value for name, value in more.items()}
    return resolve("shapes", "cprompt", overrides=tiny | {"method.length": 2} | dotted)


def learnt(folder: Path) -> dict[str, Tensor]:
    return load_checkpoint(folder / CHECKPOINT)[0]


def assert_same_run(one: Path, other: Path) -> None:
    a, b = learnt(one), learnt(other)
    assert a.keys() == b.keys()
    for name in a:
        assert torch.equal(a[name], b[name]), name
    x, y = load_record(one), load_record(other)
    assert [r.to_dict() for r in x.rows] == [r.to_dict() for r in y.rows]
    assert x.losses == y.losses


# --- resuming -----------------------------------------------------------------------------------


class StopAt(Observer):
    """Raises after so many steps."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def stepped(self, epoch: int, losses: Mapping[str, Tensor]) -> None:
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_run_resumed_in_the_middle_of_a_task_ends_with_the_same_bits(
    tiny: dict[str, Any], tmp_path: Path, optimizer: str
) -> None:
    config = settings(tiny, execution__checkpoint_seconds=0, training__optimizer=optimizer)
    run(config, tmp_path / "whole")
    # 4 steps an epoch in task 1: stops inside an epoch, between two, and inside later tasks.
    for stop in (2, 4, 9, 11, 13):
        with pytest.raises(KeyboardInterrupt):
            run(config, tmp_path / f"s{stop}", observer=StopAt(stop))
        run(config, tmp_path / f"s{stop}", resume=True)
        assert_same_run(tmp_path / "whole", tmp_path / f"s{stop}")


def _child(tiny: dict[str, Any], folder: str, started: Any, kill_at_write: int) -> None:
    """Runs in a process of its own; may kill itself while it writes a checkpoint."""
    torch.set_num_threads(1)
    if kill_at_write:
        writes = 0

        def fsync(fd: int) -> None:
            nonlocal writes
            writes += 1
            if writes == kill_at_write:
                os.ftruncate(fd, os.fstat(fd).st_size // 2)
                os.kill(os.getpid(), signal.SIGKILL)

        files.os = type("os", (), {"fsync": staticmethod(fsync)})  # type: ignore[assignment]
    started.set()
    run(settings(tiny, execution__checkpoint_seconds=0), Path(folder), resume=True)


def test_killed_at_ten_random_moments_it_ends_with_the_same_bits(
    tiny: dict[str, Any], tmp_path: Path
) -> None:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["cprompt.experiment", "cprompt.methods", "scipy"])
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        begin = time.monotonic()
        run(settings(tiny, execution__checkpoint_seconds=0), tmp_path / "whole")
        whole = time.monotonic() - begin
    finally:
        torch.set_num_threads(threads)

    draw = random.Random(0)
    folder, kills = tmp_path / "killed0", 0
    while True:
        write = draw.randint(1, 6) if kills in (2, 5, 8) else 0
        started = context.Event()
        child = context.Process(target=_child, args=(tiny, str(folder), started, write))
        child.start()
        assert started.wait(60)
        if kills < 10 and not write:
            child.join(draw.uniform(0, 0.6 * whole))
            child.kill()
        child.join()
        if child.exitcode == -signal.SIGKILL:
            kills += 1
            continue
        assert child.exitcode == 0
        assert_same_run(tmp_path / "whole", folder)
        if kills >= 10:
            break
        folder = tmp_path / f"killed{kills}"  # it was quicker than the knife: begin another


# --- what is refused ----------------------------------------------------------------------------


def test_a_folder_that_holds_a_run_is_not_overwritten(tiny: dict[str, Any], tmp_path: Path) -> None:
    run(settings(tiny), tmp_path)
    before = (tmp_path / CHECKPOINT).read_bytes()
    with pytest.raises(CheckpointError, match="already holds a run; pass --resume"):
        run(settings(tiny), tmp_path)
    assert run(settings(tiny), tmp_path, resume=True).finished
    assert (tmp_path / CHECKPOINT).read_bytes() == before


def test_resuming_with_other_settings_names_them(tiny: dict[str, Any], tmp_path: Path) -> None:
    run(settings(tiny), tmp_path)
    other = settings(tiny, method__tau=1.5, seeds__init=7)
    with pytest.raises(CheckpointError, match=r"method\.tau: 1\.15 there, 1\.5 now; seeds\.init"):
        run(other, tmp_path, resume=True)
    elsewhere = settings(tiny, execution__eval_batch_size=3)
    assert run(elsewhere, tmp_path, resume=True).finished


def test_a_checkpoint_of_another_backbone_is_refused(tiny: dict[str, Any], tmp_path: Path) -> None:
    run(settings(tiny), tmp_path)
    with pytest.raises(
        CheckpointError, match=r"learnt on test_vit \(random:0.*is test_vit \(random:1"
    ):
        run(settings(tiny, backbone__weights="random:1"), tmp_path, resume=True)


def test_a_corrupt_checkpoint_is_named_and_left_alone(tiny: dict[str, Any], tmp_path: Path) -> None:
    run(settings(tiny), tmp_path)
    path = tmp_path / CHECKPOINT
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[-5] ^= 1
    for damaged in (whole[:-7], whole[:100], b"", bytes(flipped)):
        path.write_bytes(damaged)
        with pytest.raises(CheckpointError, match=rf"{CHECKPOINT} is corrupt"):
            run(settings(tiny), tmp_path, resume=True)
        assert path.read_bytes() == damaged


def test_a_file_of_another_kind_or_version_is_no_checkpoint(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    path = tmp_path / "x.safetensors"
    save_file({"a": torch.zeros(1)}, path)
    with pytest.raises(CheckpointError, match="not a checkpoint of cprompt"):
        load_checkpoint(path)
    save_file({"a": torch.zeros(1)}, path, {"format": "cprompt-checkpoint", "version": "99"})
    with pytest.raises(CheckpointError, match="format version 99; this cprompt reads version 1"):
        load_checkpoint(path)
    with pytest.raises(CheckpointError, match="no checkpoint at"):
        load_checkpoint(tmp_path / "none")


def test_checkpoints_hold_any_tensor_to_the_bit(tmp_path: Path) -> None:
    tensors = {
        "f": torch.randn(3, 4),
        "scalar": torch.tensor(2.5, dtype=torch.float64),
        "i": torch.arange(3),
        "empty": torch.empty(0, 7),
        "view": torch.randn(6, 6).T[::2],
    }
    save_checkpoint(tmp_path / "c", tensors, {"names": ["é", "名"]})
    loaded, about = load_checkpoint(tmp_path / "c")
    assert about == {"names": ["é", "名"]}
    for name, tensor in tensors.items():
        assert torch.equal(loaded[name], tensor)
        assert loaded[name].dtype == tensor.dtype


def test_a_task_without_test_pictures_is_refused_before_training(
    tiny: dict[str, Any], tmp_path: Path
) -> None:
    config = settings(tiny)
    dataset = config.data.load(0)
    last = config.stream.build(6, 1993).labels(1)[0]
    lacking = type(dataset)(
        "mine", dataset.train, dataset.test.subset((dataset.test.labels != last).nonzero()[0])
    )
    with pytest.raises(DataError, match=r"mine: task 2 \(classes .*\) has no test picture"):
        run(config, tmp_path, dataset=lacking)
    assert not (tmp_path / CHECKPOINT).exists()


def test_divergence_is_an_error_not_a_result(tiny: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"training of task 1 diverged.*training\.lr"):
        run(settings(tiny, training__lr=1e30, training__epochs=6), tmp_path)


# --- what a run leaves --------------------------------------------------------------------------


def test_the_backbone_is_bit_identical_after_training(tiny: dict[str, Any], tmp_path: Path) -> None:
    backbone = load_backbone("test_vit", "random:0", 48)
    before = {n: t.clone() for n, t in backbone.vit.state_dict().items()}
    run(settings(tiny), tmp_path, backbone=backbone)
    for name, tensor in backbone.vit.state_dict().items():
        assert torch.equal(tensor, before[name]), name


def test_the_record_says_what_was_run(tiny: dict[str, Any], tmp_path: Path) -> None:
    record = run(settings(tiny, data__root="/home/me/pictures"), tmp_path)
    again = load_record(tmp_path)
    assert again.to_dict() == record.to_dict()
    assert "/home/me" not in (tmp_path / "record.json").read_text()
    assert again.finished
    assert again.config["method"]["tau"] == 1.15
    assert again.config["seeds"] == {"order": 1993, "init": 1, "data": 1}
    assert again.backbone["weights"] == "random:0"
    assert again.pictures == {"train": 30, "test": 18}
    assert len(again.losses) == 3
    assert [len(epochs) for epochs in again.losses] == [2, 2, 2]
    assert set(again.losses[0][0]) == {"ce", "aux", "mk"}
    assert set(again.losses[2][1]) == {"ce", "aux", "mk", "ccl"}
    assert {"torch", "timm", "cpu", "python"} <= set(again.environment)
    assert set(again.seconds) == {"training", "evaluation"}


def test_a_run_depends_on_each_of_its_seeds(tiny: dict[str, Any], tmp_path: Path) -> None:
    states = {}
    for name in ("none", "init", "data", "order"):
        changed = {} if name == "none" else {f"seeds__{name}": 8}
        run(settings(tiny, **changed), tmp_path / name)
        states[name] = learnt(tmp_path / name)["method/heads.weight.frozen"]
    for name in ("init", "data", "order"):
        assert not torch.equal(states[name], states["none"]), name


def test_the_callers_random_state_is_left_alone(tiny: dict[str, Any], tmp_path: Path) -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    run(settings(tiny), tmp_path)
    assert torch.equal(torch.get_rng_state(), before)


def test_validation_looks_at_training_pictures_only(tiny: dict[str, Any], tmp_path: Path) -> None:
    record = run(settings(tiny, data__validation=0.2), tmp_path)
    assert record.pictures == {"train": 24, "test": 6}


# --- the schedule and the device ----------------------------------------------------------------


def test_learning_rates_by_hand() -> None:
    cosine = TrainingConfig(epochs=4, lr=0.1)
    assert [learning_rate(cosine, e) for e in range(4)] == pytest.approx(
        [0.1, 0.1 * (1 + 0.5**0.5) / 2, 0.05, 0.1 * (1 - 0.5**0.5) / 2]
    )
    coda = TrainingConfig(epochs=3, lr=1.0, schedule="coda")
    assert [learning_rate(coda, e) for e in range(3)] == pytest.approx(
        [1, math.cos(0.2475 * math.pi), math.cos(0.495 * math.pi)]
    )
    step = TrainingConfig(epochs=5, lr=0.2, schedule="step", milestones=(2, 4))
    assert [learning_rate(step, e) for e in range(5)] == pytest.approx(
        [0.2, 0.2, 0.02, 0.02, 0.002]
    )
    with pytest.raises(ConfigError, match="schedule step, and no other, needs them"):
        TrainingConfig(milestones=(2,))
    constant = TrainingConfig(epochs=3, lr=0.3, schedule="constant")
    assert learning_rate(constant, 2) == 0.3


def test_a_device_that_is_not_there_is_named() -> None:
    assert pick_device("cpu").type == "cpu"
    with pytest.raises(ConfigError, match="device 'warp' cannot be used here"):
        pick_device("warp")


def test_clipping_limits_the_step(tiny: dict[str, Any], tmp_path: Path) -> None:
    """With a tiny clip and no momentum or decay, nothing moves further than lr times the clip."""
    common = {"training__momentum": 0.0, "training__weight_decay": 0.0, "stream__sizes": [6]}
    run(
        settings(tiny, **common, training__clip=1e-3, training__lr=1.0, training__epochs=1),
        tmp_path / "a",
    )
    run(settings(tiny, **common, training__lr=1e-12, training__epochs=1), tmp_path / "b")
    a, b = learnt(tmp_path / "a"), learnt(tmp_path / "b")
    moved = torch.stack([(a[n].double() - b[n].double()).norm() for n in a]).norm()
    steps = 30 / 4 + 1
    assert 1e-4 < moved < steps * 1e-3
