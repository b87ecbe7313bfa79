"""Every benchmark runs from its command line to its table and its file."""

from __future__ import annotations

import dataclasses
import itertools
import subprocess
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from benchmarks import __main__ as all_of_them
from benchmarks import (
    closed_form,
    cluster,
    common,
    epoch,
    evaluate,
    from_files,
    learn,
    many_classes,
    memory,
    neighbours,
    one_rank,
    precision,
    predict,
    predict_process,
    scale,
    together,
    train_step,
)
from benchmarks.images import draw_dataset, draw_jpegs
from benchmarks.work import Pass, Work
from cprompt.files import read_json
from cprompt.research.config import RunConfig, resolve
from cprompt.research.evaluation import Evaluator, TaskCounts
from cprompt.research.record import Record

SIZES = {"image-size": 32, "batch": 2, "tasks": 2, "classes": 3, "length": 2}
TINY = ["--device=cpu", "--backbone=test_vit", *(f"--{k}={v}" for k, v in SIZES.items())]
STREAMS = ["--device=cpu", "--length=2", "--classes=6", "--per-class=2", "--tasks", "2", "3"]


@pytest.fixture(autouse=True)
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the benchmarks of a test write."""
    monkeypatch.setattr(common, "RESULTS", tmp_path)
    return tmp_path / "cpu"


def test_train_step_writes_what_it_shows(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train_step.main(TINY)
    result = read_json(results / "train_step.json")
    assert list(result["contenders"]) == ["released, fp32", "ours, fp32", "ours, bf16"]
    shown = capsys.readouterr().out
    profile = (results / "train_step_profile.txt").read_text()
    assert profile.startswith("ours, fp32")
    assert "ours, bf16" in profile
    assert "aten::addmm" in profile
    first = result["contenders"]["released, fp32"]["seconds"]["median"]
    for name, row in result["contenders"].items():
        seconds = row["seconds"]["median"]
        assert row["times_released"] == pytest.approx(first / seconds)
        assert name in shown
        assert f"{1e3 * seconds:.2f}" in shown
    assert result["hardware"]["torch"] == torch.__version__
    assert result["settings"]["tasks"] == 2


def test_train_step_times_what_is_asked_for_beside_the_released_one(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train_step.main([*TINY, "--only", "ours, bf16"])
    result = read_json(results / "train_step.json")
    assert list(result["contenders"]) == ["released, fp32", "ours, bf16"]
    with pytest.raises(SystemExit):
        train_step.main([*TINY, "--only", "theirs"])
    assert "--only 'theirs': not one of released, fp32; ours, fp32; " in capsys.readouterr().err


def test_a_kernel_that_does_not_run_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    def fails() -> None:
        raise RuntimeError("No available kernel.\nmore")

    def works() -> None: ...

    assert train_step.that_work({"one": works, "two": fails}) == {"one": works}
    assert "two: left out: No available kernel.\n" in capsys.readouterr().out


def test_predict_counts_images_a_second(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    predict.main(TINY)
    found = read_json(results / "predict.json")["contenders"]
    assert list(found) == ["released, fp32", "ours, fp32", "ours, bf16", *predict.PLAIN]
    shown = capsys.readouterr().out
    for name, row in found.items():
        seconds = row["seconds"]["median"]
        assert row["images_per_second"] == pytest.approx(2 / seconds)
        plain = found["timm forward, fp32"]["seconds"]["median"]
        assert row["times_timm_fp32"] == pytest.approx(plain / seconds)
        assert name in shown


def test_the_closed_form_is_compared_with_timm_in_the_same_precision(results: Path) -> None:
    closed_form.main(TINY)
    result = read_json(results / "closed_form.json")
    found = result["contenders"]
    assert list(found) == [
        f"{what}, {precision}"
        for precision in ("fp32", "bf16")
        for what in ("timm forward", "learn", "predict")
    ]
    for name, row in found.items():
        plain = found[f"timm forward, {name[-4:]}"]["seconds"]["median"]
        assert row["times_timm"] == pytest.approx(plain / row["seconds"]["median"])
        assert row["inputs_per_second"] == pytest.approx(2 / row["seconds"]["median"])
    assert result["head_seconds"]["median"] > 0


def test_the_closed_form_has_learnt_its_batch_before_it_is_timed() -> None:
    step = train_step.Step("cpu", "test_vit", "random:0", 32, 4, 1, 2, 2)
    method, images, _ = closed_form.learnt(step)
    assert method.moments.count.tolist() == [2, 2]
    assert method.respond(images).logits.shape == (4, 2)


def test_both_precisions_run_on_the_same_class_order(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tiny: dict[str, Any],
) -> None:
    def smaller(*given: str, overrides: dict[str, Any]) -> RunConfig:
        return resolve(*given, overrides={**tiny, **overrides})

    monkeypatch.setattr(precision, "resolve", smaller)
    precision.main(["--quick", "--device=cpu", "--out", str(tmp_path), "--benchmark=shapes"])
    shown = capsys.readouterr().out
    records = {file.stem: read_json(file) for file in tmp_path.glob("*.json")}
    assert sorted(records) == ["bf16-1993", "fp32-1993"]
    for name, record in records.items():
        assert record["config"]["training"]["precision"] == name[:4]
        assert record["config"]["seeds"]["order"] == 1993
        assert f"{record['summary']['last_accuracy']:.2f}" in shown


def test_an_answer_is_two_passes_and_a_plain_forward_one() -> None:
    work = Work(embedding=1000, plain=Pass(100, 0, 90, 0), prompted=Pass(10, 0, 9, 0))
    flop = [predict.flop_per_image(name, work) for name in ("released, fp32", "ours, bf16")]
    assert flop == [2110, 1099]
    assert predict.flop_per_image("timm forward, bf16", work) == 1100


def test_memory_is_compared_with_the_released_way(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = iter([8_000, 4_000, 2_000, 600, 300, None])
    called: list[Any] = []

    def peak_memory(call: common.Call, device: torch.device) -> int | None:
        call()
        called.append(call)
        return next(measured)

    monkeypatch.setattr(common, "peak_memory", peak_memory)
    memory.main(TINY)
    peaks = read_json(results / "memory.json")["peaks"]
    assert [row["of_released"] for row in peaks["training step"].values()] == [1, 0.5, 0.25]
    assert [row["bytes"] for row in peaks["prediction"].values()] == [600, 300, None]
    assert list(peaks["prediction"]) == ["released, fp32", "ours, fp32", "ours, bf16"]
    assert [c.func.__name__ for c in called] == ["few_steps"] * 3 + ["one_prediction"] * 3


def test_an_epoch_is_taken_from_drawn_files(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    epoch.main([*TINY, "--epochs=2", "--workers=0", "--per-class=1"])
    result = read_json(results / "epoch.json")
    assert list(result["pipelines"]) == ["ours", "torchvision", epoch.THERE]
    least = sum(result["pipelines"][epoch.THERE]["seconds"][1:]) / 2
    for name, pipeline in result["pipelines"].items():
        seconds, waited, later = (
            pipeline[key] for key in ("seconds", "host_waited_seconds", "later")
        )
        assert len(seconds) == len(waited) == 3
        assert later["seconds"] == pytest.approx(sum(seconds[1:]) / 2)
        assert later["images_per_second"] == pytest.approx(3 / later["seconds"])
        assert later["device_waits"] == pytest.approx(max(0, 1 - least / later["seconds"]))
        assert later["host_waits"] == pytest.approx(sum(waited[1:]) / sum(seconds[1:]))
        assert (later["host_waits"] > 0) == (name != epoch.THERE)
    preparation = result["preparation"]
    assert preparation["decoded_bytes"] == 3 * 500 * 375 * 3
    ours = result["pipelines"]["ours"]
    assert ours["first_seconds"] == ours["seconds"][0] + preparation["seconds"]
    assert "torchvision, 0 processes" in capsys.readouterr().out


def test_both_pipelines_see_the_files_of_the_first_classes(tmp_path: Path) -> None:
    draw_jpegs(tmp_path / "train", 3, 2)
    chosen, files, labels = epoch.read_folder(tmp_path, 2, 32)
    assert labels == [0, 0, 1, 1]
    assert [f.parent.name for f in files] == ["disc", "disc", "five-point star", "five-point star"]
    seen = [(tuple(chosen[i][0].shape), chosen[i][1]) for i in range(len(chosen))]
    assert seen == [((3, 32, 32), label) for label in labels]
    assert {Image.open(file).size for file in files} == {(375, 500), (500, 375)}


def test_the_batch_that_is_already_there_is_cut_like_a_real_epoch() -> None:
    batch = torch.zeros(4, 1), torch.arange(4)
    lengths = [len(targets) for _, targets in epoch.AlreadyThere(batch, 10).epoch(0)]
    assert lengths == [4, 4, 2]


def test_passes_are_counted_over_streams_of_drawn_images(results: Path) -> None:
    evaluate.main(STREAMS)
    result = read_json(results / "evaluate.json")
    assert result["settings"]["pictures"] == 12
    two, three = result["streams"]
    assert (two["tasks"], three["tasks"]) == (2, 3)
    assert three["scratch_passes"] == {"query": 4 + 8 + 12, "prompted": 4 + 8 + 12}
    assert three["scratch_per_picture"] == 4 == three["prompted_again_per_picture"]
    for stream in (two, three):
        assert stream["passes"]["query"] == 12
        assert 12 <= stream["passes"]["prompted"] <= 12 * stream["tasks"]
        assert stream["per_picture"] == sum(stream["passes"].values()) / 12
        assert stream["rows_that_differ"] == 0
        assert stream["selection_accuracy"] > 100 / stream["tasks"]


def test_other_answers_than_from_scratch_are_a_failure(
    results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = Evaluator.evaluate
    calls = itertools.count()

    def third_call_differs(self: Evaluator) -> TaskCounts:
        row = answer(self)
        return dataclasses.replace(row, top_k=[99]) if next(calls) == 2 else row

    monkeypatch.setattr(Evaluator, "evaluate", third_call_differs)
    with pytest.raises(SystemExit, match="other answers"):
        evaluate.main(STREAMS[:-1])  # one stream is enough
    (stream,) = read_json(results / "evaluate.json")["streams"]
    assert stream["rows_that_differ"] == 1
    assert "NO" in capsys.readouterr().out


def test_a_gpu_may_answer_one_image_in_a_thousand_differently() -> None:
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    for rows, share, on_cpu, on_cuda in ((0, 0, True, True), (1, 1e-3, False, True)):
        stream = {"rows_that_differ": rows, "share_of_answers_that_differ": share}
        assert evaluate.allowed(stream, cpu) == on_cpu
        assert evaluate.allowed(stream, cuda) == on_cuda
    assert not evaluate.allowed({"share_of_answers_that_differ": 0.002}, cuda)
    one = TaskCounts([3, 3], {"selected": [1, 3]}, None, None)
    other = TaskCounts([3, 3], {"selected": [2, 1]}, None, None)
    assert evaluate._answers_that_differ(one, other) == 3


def test_passes_of_a_finished_run_come_from_its_record(
    results: Path, tmp_path: Path, hand_record: Record, capsys: pytest.CaptureFixture[str]
) -> None:
    """18 test images, of which 10, 15 and 18 are seen after each of three tasks."""
    hand_record.test_passes = {"query": 18, "prompted": 27}
    hand_record.save(tmp_path / "run")
    evaluate.main(["--run", str(tmp_path / "run")])
    (run,) = read_json(results / "evaluate_runs.json")["runs"]
    assert run["per_picture"] == 2.5
    assert run["scratch_per_picture"] == pytest.approx(2 * (10 + 15 + 18) / 18)
    assert run["prompted_again_per_picture"] == 4
    assert run["hardware"] == "abacus"
    assert "2.50" in capsys.readouterr().out


def test_a_run_whose_passes_are_unknown_is_named(tmp_path: Path, hand_record: Record) -> None:
    hand_record.save(tmp_path / "run")
    with pytest.raises(SystemExit, match=r"run: the run is not finished, or its passes"):
        evaluate.main(["--run", str(tmp_path / "run")])


def test_drawn_classes_differ_in_figure_or_cast() -> None:
    dataset = draw_dataset(62, 1, 2)
    assert dataset.classes[0] == "red disc"
    assert dataset.classes[60:] == ("green disc", "green five-point star")
    assert dataset.test.per_class().tolist() == [2] * 62
    channels = np.asarray(dataset.train.images).mean(axis=(1, 2))
    assert (channels[:60, 0] > channels[:60, 1]).mean() > 0.9
    assert (channels[60:, 1] > channels[60:, 0]).all()


def test_all_of_them_run_with_the_shared_options_past_a_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given: dict[str, Sequence[str]] = {}

    def run(name: str, arguments: Sequence[str]) -> None:
        given[name] = arguments
        if name == "predict":
            raise SystemExit("at fault")

    assert list(all_of_them.BENCHMARKS) == [
        "train_step",
        "predict",
        "closed_form",
        "evaluate",
        "epoch",
        "memory",
    ]
    fakes = {name: partial(run, name) for name in all_of_them.BENCHMARKS}
    monkeypatch.setattr(all_of_them, "BENCHMARKS", fakes)
    names = ["predict", "epoch", "memory"]
    out, data = str(tmp_path), str(tmp_path / "data")
    options = ["--device=cpu", "--quick", "--out", out, "--data", data, "--only", *names]
    with pytest.raises(SystemExit, match="predict: at fault"):
        all_of_them.main(options)
    shared = ["--device", "cpu", "--quick", "--out"]
    assert given == {
        "predict": [*shared, str(tmp_path / "predict.json")],
        "epoch": [*shared, str(tmp_path / "epoch.json"), "--data", data],
        "memory": [*shared, str(tmp_path / "memory.json")],
    }
    assert f"Hardware: {common.hardware(torch.device('cpu'))}" in capsys.readouterr().out


def test_many_classes_are_learnt_by_the_default_method(results: Path) -> None:
    points = many_classes.measure("cpu", batches=2)
    assert [(p["batches"], p["classes"]) for p in points] == [(1, 20), (2, 40)]
    assert points[0]["bytes"] < points[1]["bytes"]


@pytest.mark.parametrize(
    "benchmark",
    [train_step, predict, closed_form, memory, epoch, evaluate, many_classes, cluster],
)
def test_an_output_that_cannot_be_written_is_refused_before_anything_is_measured(
    benchmark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(*args: object, **options: object) -> None:
        raise AssertionError("something was measured")

    monkeypatch.setattr("cprompt.vit.loading.load_backbone", measure)
    for module, name in (
        (train_step, "load_backbone"),
        (epoch, "draw_jpegs"),
        (evaluate, "draw_dataset"),
        (many_classes, "measure"),
        (cluster, "draw_jpegs"),
    ):
        monkeypatch.setattr(module, name, measure)
    with pytest.raises(SystemExit, match="is a folder"):
        benchmark.main(["--device=cpu", "--out", str(tmp_path)])
    monkeypatch.setattr(common, "RESULTS", tmp_path / "file")
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit, match="is not a folder"):
        benchmark.main(["--device=cpu"])


def test_a_prediction_is_measured_as_a_process_of_its_own(results: Path) -> None:
    predict_process.main(["--quick"])
    result = read_json(results / "predict_process.json")
    assert list(result["service"]) == ["until ready", "first answer", "second answer"]
    # Starting imports torch; what comes after it is another matter.
    assert result["service"]["until ready"] > result["service"]["first answer"] > 0
    found = result["processes"]
    assert list(found) == [
        "import torch",
        "import torch, timm",
        "cprompt --help",
        "cprompt predict",
    ]
    # The processes are told apart: help does not import torch, and predicting needs more than it.
    assert found["cprompt --help"]["bytes"] < 0.5 * found["import torch"]["bytes"]
    assert found["cprompt predict"]["bytes"] > found["import torch"]["bytes"]


def test_the_demo_is_timed_beside_processes_that_are_busy_only_meanwhile(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy: list[int] = []

    def demo(command: Sequence[str], **options: Any) -> None:
        assert "demo" in command
        busy.append(sum(each.poll() is None for each in started))

    started: list[Any] = []
    start = subprocess.Popen

    def count(*args: Any, **options: Any) -> Any:
        started.append(start(*args, **options))
        return started[-1]

    monkeypatch.setattr(neighbours.subprocess, "run", demo)
    monkeypatch.setattr(neighbours.subprocess, "Popen", count)
    neighbours.main(["--processes", "1", "3"])
    found = read_json(results / "neighbours.json")
    assert list(found["seconds"]) == ["0", "1", "3"]
    assert busy == [0, 1, 3]
    assert all(each.poll() is not None for each in started)


def test_all_of_them_check_every_output_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "memory.json").mkdir()
    monkeypatch.setattr(all_of_them, "BENCHMARKS", dict.fromkeys(all_of_them.BENCHMARKS))
    with pytest.raises(SystemExit, match=r"memory\.json: is a folder"):
        all_of_them.main(["--device=cpu", "--out", str(tmp_path), "--only", "predict", "memory"])


def test_scale_measures_a_model_after_the_next_task() -> None:
    """CPrompt's size, counted by hand: two tasks of ten classes, and the one that was learnt."""
    found = scale.measure("cprompt", ("test_vit", 48), tasks=2, classes=20)
    prompts, heads, keys = 3 * 2 * 50 * 64, 30 * 64 + 30, 30 * 64
    assert found["bytes"] == 4 * (prompts + heads + keys) + 8 * 30
    assert 0 < found["keys_and_heads_seconds"] < found["predict_seconds"]
    assert found["step_seconds_per_image"] > 0


def test_scale_counts_and_solves_for_all_classes() -> None:
    few, many = (scale.measure("strata", ("test_vit", 48), n, 10 * n) for n in (2, 4))
    width = scale.WIDTH
    more = 20 * (8 + 8 * width + 4 * width + 4 + 4 * 64 + 4)  # count, sum, head, last layer's head
    kept = many["bytes"] - few["bytes"] - more
    assert kept > 0
    assert kept % (8 + 8 + 2 * 2 * width) == 0  # key, position and two features of each image
    assert few["end_seconds"] > 0


def test_one_rank_takes_its_turns_in_a_group_and_alone(
    results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    inner, joined = common.time_it, []

    def time_it(*given: Any) -> common.Timing:
        joined.append(torch.distributed.is_initialized())
        return inner(*given)

    monkeypatch.setattr(common, "time_it", time_it)
    one_rank.main(TINY)
    assert joined == 3 * [False, True]
    assert not torch.distributed.is_initialized()
    found = read_json(results / "one_rank.json")
    times = found["contenders"]
    speed = times["alone"]["median"] / times["one rank"]["median"]
    assert found["of_the_speed_alone"] == pytest.approx(speed)
    assert f"{100 * speed:.1f} % of the speed alone" in capsys.readouterr().out


def test_steps_of_runs_that_take_turns_are_timed_per_step(
    results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    taken: list[int] = []

    def ours(step: Any, precision: str, accelerate: str) -> common.Call:
        number = len(taken)
        taken.append(0)
        return lambda: taken.__setitem__(number, taken[number] + 1)

    monkeypatch.setattr(train_step, "ours", ours)
    monkeypatch.setattr(
        common,
        "interleave",
        lambda calls, *_: {n: call() or common.Timing(6.0, 4.0, 8.0) for n, call in calls.items()},
    )
    together.main(TINY)
    assert taken == 15 * [2]  # of 1 + 2 + 4 + 8 runs: once to begin, once timed
    steps = read_json(results / "together.json")["steps"]
    assert [each["seconds"]["median"] for each in steps.values()] == [6, 3, 1.5, 0.75]
    assert [each["times_alone"] for each in steps.values()] == [1, 2, 4, 8]
    assert "8.00×" in capsys.readouterr().out


def test_learning_and_asking_from_files_are_compared_with_the_slower_part(
    results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(from_files, "CLASSES", 2)
    from_files.main(["--quick", "--device=cpu", "--backbone", learn.SMALL])
    found = read_json(results / "from_files.json")
    seconds = {name: each["median"] for name, each in found["seconds"].items()}
    photos, views = found["settings"]["photos"], found["settings"]["views"]
    assert (photos, views % photos) == (8, 0)
    assert found["of_the_limit"] == {
        "predict": pytest.approx(max(seconds["decode"], seconds["forward"]) / seconds["predict"]),
        "learn": pytest.approx(
            max(seconds["decode"], seconds["forward"] * views / photos) / seconds["learn"]
        ),
    }
    assert list(found["peak_bytes"]) == ["8", "16"]
    shown = capsys.readouterr().out
    assert all(f"{share:.2f}" in shown for share in found["of_the_limit"].values())
