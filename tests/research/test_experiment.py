"""Whole runs: what they leave, and that stopping them anywhere changes nothing."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from cprompt import files
from cprompt.data import image_files
from cprompt.data.image_set import Dataset, ImageSet
from cprompt.data.pipeline import cache
from cprompt.errors import CheckpointError, ConfigError, DataError
from cprompt.methods.cprompt import CPrompt
from cprompt.research import experiment
from cprompt.research.checkpoint import load_checkpoint
from cprompt.research.config import resolve
from cprompt.research.experiment import CHECKPOINT, load_method, run
from cprompt.research.record import load_record
from cprompt.training.learner import Learner
from cprompt.training.observers import Observer
from cprompt.training.settings import Acceleration
from cprompt.vit.loading import load_backbone
from tests.conftest import TINY
from tests.stopping import StopAt


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
    assert x.movement == y.movement


def test_a_run_on_a_model_that_cannot_be_prompted(tiny: dict[str, Any], tmp_path: Path) -> None:
    """With its own normalisation, to the last row of counts."""
    more = {"backbone.name": "test_convnext", "data.normalization": "auto", "method.views": 1}
    config = resolve("shapes", "strata", overrides=tiny | more)
    record = run(config, tmp_path)
    assert record.finished
    assert record.backbone["name"] == "test_convnext"
    assert [sum(row.count) for row in record.rows] == [9, 12, 18]


# --- resuming -----------------------------------------------------------------------------------


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
    context.set_forkserver_preload(["cprompt.research.experiment", "cprompt.methods", "scipy"])
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
        CheckpointError,
        match=r"on test_vit \(random:0.*with other weights \(random:1",
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
        with pytest.raises(CheckpointError, match="is corrupt") as caught:
            run(settings(tiny), tmp_path, resume=True)
        assert caught.value.file == str(path)
        assert path.read_bytes() == damaged


def test_a_task_without_test_images_is_refused_before_training(
    tiny: dict[str, Any], tmp_path: Path
) -> None:
    config = settings(tiny)
    dataset = config.data.load(0)
    last = config.stream.build(6, 1993).labels(1)[0]
    lacking = type(dataset)(
        "mine", dataset.train, dataset.test.subset((dataset.test.labels != last).nonzero()[0])
    )
    with pytest.raises(DataError, match=r"mine: task 2 \(classes .*\) has no test image"):
        run(config, tmp_path, dataset=lacking)
    assert not (tmp_path / CHECKPOINT).exists()


@pytest.mark.parametrize("checkpoint_seconds", [60, 0])
def test_divergence_is_an_error_not_a_result(
    tiny: dict[str, Any], tmp_path: Path, checkpoint_seconds: float
) -> None:
    diverging = settings(
        tiny,
        training__lr=1e30,
        training__epochs=6,
        execution__checkpoint_seconds=checkpoint_seconds,
    )
    with pytest.raises(ConfigError, match=r"training of task 1 diverged.*training\.lr"):
        run(diverging, tmp_path)
    record = load_record(tmp_path)
    assert not record.finished
    [warning] = record.warnings
    assert "training of task 1 diverged" in warning


class Notices(Observer):
    def __init__(self) -> None:
        self.messages: list[str] = []

    def noticed(self, message: str) -> None:
        self.messages.append(message)


def test_prompts_that_their_optimiser_leaves_alone_are_noticed(tmp_path: Path) -> None:
    """CODA-Prompt under CPrompt's optimiser, and under its own."""
    own = {"training.optimizer": "adam", "training.lr": 0.001, "training.weight_decay": 0.0}
    found = {}
    for kind, settings in {"matched": {"training.lr": 0.01}, "own": own}.items():
        # A head of one class has nothing to learn.
        tiny = {**TINY, "stream.sizes": [2, 2, 2], "training.epochs": 3, **settings}
        observer = Notices()
        config = resolve("shapes", "coda", "matched", overrides=tiny)
        record = run(config, tmp_path / kind, observer=observer)
        assert len(record.movement) == 3
        assert set(record.movement[0]) == {"components", "keys", "attention", "heads"}
        found[kind] = (record.warnings, observer.messages)
    warnings, messages = found["matched"]
    assert [w.split(" in ")[0] for w in warnings] == [
        f"{group} hardly moved" for group in ("components", "keys", "attention")
    ]
    assert all("in 3 of 3 tasks" in warning for warning in warnings)
    assert [m.split(" in ")[0] for m in messages] == [w.split(" in ")[0] for w in warnings]
    assert found["own"] == ([], [])


def test_the_first_tasks_of_a_stream_are_those_of_the_whole_and_marked_as_a_part(
    tiny: dict[str, Any], tmp_path: Path
) -> None:
    whole = run(settings(tiny), tmp_path / "whole")
    part = run(settings(tiny, stream__first_tasks=2), tmp_path / "part")
    assert (whole.partial, part.partial) == (False, True)
    assert whole.finished
    assert part.finished
    assert part.stream == whole.stream
    assert [row.to_dict() for row in part.rows] == [row.to_dict() for row in whole.rows[:2]]
    assert part.losses == whole.losses[:2]
    assert len(part.rows[-1].count) == 3 + 1
    assert load_method(tmp_path / "part", load_backbone("test_vit", "random:0", 48)).task_sizes == [
        3,
        1,
    ]
    again = load_record(tmp_path / "part")
    assert (again.partial, again.n_planned, again.finished) == (True, 2, True)
    part_config, whole_config = settings(tiny, stream__first_tasks=2), settings(tiny)
    assert part_config.default_folder() != whole_config.default_folder()
    with pytest.raises(CheckpointError, match=r"stream\.first_tasks: 2 there, None now"):
        run(whole_config, tmp_path / "part", resume=True)


def test_a_part_that_is_longer_than_its_stream_is_refused(
    tiny: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="first_tasks is 4, but the stream has 3 tasks"):
        run(settings(tiny, stream__first_tasks=4), tmp_path)
    with pytest.raises(ConfigError, match="first_tasks 0 must be at least 1"):
        settings(tiny, stream__first_tasks=0)


@pytest.mark.parametrize("method", ["joint", "joint_tuning"])
@pytest.mark.parametrize("stream", [{"stream.tasks": 2}, {"stream.increment": 3}])
def test_tasks_for_a_method_that_learns_all_at_once_are_refused_before_an_image_is_read(
    tiny: dict[str, Any], tmp_path: Path, method: str, stream: dict[str, int]
) -> None:
    del tiny["stream.sizes"]
    config = resolve("shapes", method, overrides=tiny | stream)
    drawn = config.data.load(1)
    nowhere, labels = [tmp_path / "none.png"] * len(drawn.train), drawn.train.labels
    images = ImageSet(nowhere, labels, drawn.classes)
    with pytest.raises(ConfigError, match=f"^{method} sees all classes in one task; set --stream"):
        run(config, tmp_path / "run", dataset=Dataset("mine", images, images))
    assert not (tmp_path / "run").exists()


def test_tasks_that_are_not_learnt_need_no_images(tiny: dict[str, Any], tmp_path: Path) -> None:
    config = settings(tiny, stream__first_tasks=2)
    dataset = config.data.load(1)
    stream = config.stream.build(6, 1993)
    seen = stream.seen_indices(dataset.test.labels, 1)
    few = Dataset(dataset.name, dataset.train, dataset.test.subset(seen))
    assert run(config, tmp_path, dataset=few).finished


# --- what a run leaves --------------------------------------------------------------------------


def test_the_backbone_is_bit_identical_after_training(tiny: dict[str, Any], tmp_path: Path) -> None:
    backbone = load_backbone("test_vit", "random:0", 48)
    before = {n: t.clone() for n, t in backbone.vit.state_dict().items()}
    run(settings(tiny), tmp_path, backbone=backbone)
    for name, tensor in backbone.vit.state_dict().items():
        assert torch.equal(tensor, before[name]), name


def test_the_record_says_what_was_run(tiny: dict[str, Any], tmp_path: Path) -> None:
    record = run(settings(tiny, data__root="/home/me/photos"), tmp_path)
    again = load_record(tmp_path)
    assert again.to_dict() == record.to_dict()
    assert "/home/me" not in (tmp_path / "record.json").read_text()
    assert again.finished
    assert again.config["method"]["tau"] == 1.15
    assert again.config["seeds"] == {"order": 1993, "init": 1, "data": 1}
    assert again.backbone["weights"] == "random:0"
    assert again.images == {"train": 30, "test": 18}
    assert len(again.losses) == 3
    assert [len(epochs) for epochs in again.losses] == [2, 2, 2]
    assert set(again.losses[0][0]) == {"ce", "aux", "mk"}
    assert set(again.losses[2][1]) == {"ce", "aux", "mk", "ccl"}
    assert {"torch", "timm", "cpu", "python"} <= set(again.environment)
    assert set(again.seconds) == {"preparation", "training", "waiting", "evaluation"}
    assert all(seconds >= 0 for seconds in again.seconds.values())
    assert again.seconds["waiting"] < again.seconds["training"]


def test_how_long_a_run_is_decides_its_acceleration(
    tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """15, 5 and 10 images in batches of 4 are 4, 2 and 3 steps, twice; no epoch of test ones."""
    asked = []

    def resolved(how: Acceleration, steps: int) -> Acceleration:
        asked.append((how, steps))
        return how

    monkeypatch.setattr(experiment, "resolve_acceleration", resolved)
    run(settings(tiny, execution__accelerate="graphs"), tmp_path)
    assert asked == [("graphs", 2 * (4 + 2 + 3))]


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


def test_validation_looks_at_training_images_only(tiny: dict[str, Any], tmp_path: Path) -> None:
    record = run(settings(tiny, data__validation=0.2), tmp_path)
    assert record.images == {"train": 24, "test": 6}


# --- test passes --------------------------------------------------------------------------------


@pytest.fixture
def prompted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Images in each prompted pass that is answered; training goes another way."""
    counts: list[int] = []
    feature = CPrompt.feature

    def counted(method: CPrompt, embedded: Tensor, *args: Any) -> Tensor:
        counts.append(len(embedded))
        return feature(method, embedded, *args)

    monkeypatch.setattr(CPrompt, "feature", counted)
    return counts


def test_a_run_asks_each_test_image_once_and_records_every_pass(
    tiny: dict[str, Any], tmp_path: Path, prompted: list[int]
) -> None:
    record = run(settings(tiny), tmp_path)
    assert record.test_passes == {"query": 18, "prompted": sum(prompted)}
    assert load_record(tmp_path).test_passes == record.test_passes
    # At least one for each image; with 9, 12 and 18 images seen, at most all of these.
    assert 18 <= sum(prompted) <= 9 + 12 + 18


@pytest.mark.parametrize(("stop", "before"), [(5, 0), (9, 9), (13, 12)])
def test_passes_of_before_and_after_a_stop_add_up(
    tiny: dict[str, Any], tmp_path: Path, prompted: list[int], stop: int, before: int
) -> None:
    """Stopped in task 1, 2 and 3. What an evaluation kept is gone: all images are asked anew."""
    config = settings(tiny, execution__checkpoint_seconds=0)
    with pytest.raises(KeyboardInterrupt):
        run(config, tmp_path, observer=StopAt(stop))
    assert load_record(tmp_path).test_passes.get("query", 0) == before
    record = run(config, tmp_path, resume=True)
    assert record.test_passes == {"query": before + 18, "prompted": sum(prompted)}
    assert run(config, tmp_path, resume=True).test_passes == record.test_passes


# --- images in files --------------------------------------------------------------------------


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each file was decoded."""
    counts: Counter[str] = Counter()
    decode = image_files.decode_image

    def counted(file: Any, name: str, side: int | None = None) -> Any:
        counts[name] += 1
        return decode(file, name, side)

    for module in (image_files, cache):
        monkeypatch.setattr(module, "decode_image", counted)
    return counts


def in_files(dataset: Dataset, folder: Path) -> Dataset:
    """The same images as files that lose nothing."""

    def written(part: str, images: ImageSet) -> ImageSet:
        (folder / part).mkdir(parents=True)
        paths = [folder / part / f"{i}.png" for i in range(len(images))]
        for i, path in enumerate(paths):
            images.load(i).save(path)
        return ImageSet(paths, images.labels, images.classes)

    return Dataset(dataset.name, written("train", dataset.train), written("test", dataset.test))


def test_a_run_decodes_each_file_once_and_the_next_run_none(
    tiny: dict[str, Any], tmp_path: Path, decoded: Counter[str]
) -> None:
    config = settings(tiny, cache__folder=str(tmp_path / "cache"))
    drawn = config.data.load(1)
    dataset = in_files(drawn, tmp_path / "photos")
    run(config, tmp_path / "first", dataset=dataset)
    assert sorted(decoded) == sorted(str(path) for path in (tmp_path / "photos").rglob("*.png"))
    assert len(decoded) == 48
    assert set(decoded.values()) == {1}
    decoded.clear()
    run(config, tmp_path / "second", dataset=dataset)
    assert not decoded
    run(config, tmp_path / "drawn", dataset=drawn)
    for other in ("second", "drawn"):
        assert_same_run(tmp_path / "first", tmp_path / other)


def test_images_are_decoded_while_the_backbone_is_compiled(
    tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = settings(tiny, cache__folder=str(tmp_path / "cache"))
    dataset = in_files(config.data.load(1), tmp_path / "photos")
    decoded = threading.Event()
    seen: list[tuple[int, int]] = []

    class Sees(Observer):
        def decoded(self, done: int, total: int) -> None:
            seen.append((done, total))
            if done == total == 30:
                decoded.set()

    def compiles(learner: Learner) -> None:
        assert decoded.wait(30)

    monkeypatch.setattr(Learner, "prepare", compiles)
    assert run(config, tmp_path / "run", observer=Sees(), dataset=dataset).finished
    assert seen[:30] == [(i, 30) for i in range(1, 31)]
    assert {total for _, total in seen[30:]} <= {18}  # only if they were waited for


def test_decoding_stops_if_compiling_is_interrupted(
    tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = settings(tiny, cache__folder=str(tmp_path / "cache"))
    dataset = in_files(config.data.load(1), tmp_path / "photos")
    began = threading.Event()
    seen: list[int] = []

    class Slow(Observer):
        def decoded(self, done: int, total: int) -> None:
            seen.append(done)
            began.set()
            time.sleep(0.3)

    def fails(learner: Learner) -> None:
        assert began.wait(30)
        raise KeyboardInterrupt

    monkeypatch.setattr(Learner, "prepare", fails)
    with pytest.raises(KeyboardInterrupt):
        run(config, tmp_path / "run", observer=Slow(), dataset=dataset)
    assert seen == [1]
    assert not list((tmp_path / "cache").rglob("*.rgb"))


def test_where_decoded_images_are_kept_changes_no_number(
    tiny: dict[str, Any], tmp_path: Path, decoded: Counter[str]
) -> None:
    dataset = in_files(settings(tiny).data.load(1), tmp_path / "photos")
    most = {}
    for where in ("disk", "memory", "off"):
        folders = {"cache__folder": str(tmp_path / "cache"), "cache__where": where}
        run(settings(tiny, **folders), tmp_path / where, dataset=dataset)
        most[where] = decoded.most_common(1)[0][1]
        assert_same_run(tmp_path / "disk", tmp_path / where)
        decoded.clear()
    assert most["disk"] == most["memory"] == 1
    assert most["off"] > 1
    assert len(list((tmp_path / "cache").rglob("*.rgb"))) == 2  # of train and of test


def test_the_folder_of_decoded_images_is_nobody_else_s_business(
    tiny: dict[str, Any], tmp_path: Path
) -> None:
    secret = tmp_path / "my-secret-folder"
    config = settings(tiny, cache__folder=str(secret))
    dataset = in_files(config.data.load(1), tmp_path / "my-secret-photos")
    record = run(config, tmp_path / "run", dataset=dataset)
    assert list(secret.rglob("*.rgb"))
    assert record.config["cache"]["folder"] is None
    for file in (tmp_path / "run").iterdir():
        assert b"my-secret" not in file.read_bytes(), file.name


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
