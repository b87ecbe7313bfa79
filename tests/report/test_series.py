"""Which runs are taken together, and what they are called."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from cprompt.report.runs import Run
from cprompt.report.series import (
    Section,
    backbones_of,
    hardware_of,
    repeated_seeds,
    sections,
    seeds_of,
    settings_of,
)
from cprompt.research.stream import TaskStream

MakeRun = Callable[..., Run]


def labels(runs: list[Run]) -> list[str]:
    [section] = sections(runs)
    return [series.label for series in section.series]


def at_once(run: Run) -> Run:
    """The same run with all classes in one task."""
    record = run.record
    record.stream = TaskStream(record.stream.order, (5,))
    row = record.rows[-1]
    record.rows = [type(row)(row.count, {"selected": row.correct["selected"]}, row.top_k, None)]
    return run


def test_runs_that_differ_in_seeds_only_are_one_series_in_order_of_seeds(make_run: MakeRun) -> None:
    runs = [make_run(seed=seed) for seed in (87, 9, 1013)]
    [section] = sections(runs)
    [series] = section.series
    assert series.label == "CPrompt"
    assert [run.seeds_text for run in series.runs] == ["9", "87", "1013"]
    assert section.title == "shapes: 5 classes of shapes in 3 tasks (2, 1, 2 classes)"
    assert section.name == "shapes-3-tasks"


def test_methods_have_their_names_and_an_order_of_their_own(make_run: MakeRun) -> None:
    methods = ["finetune", "hide", "slca", "joint", "esn", "coda", "dualprompt", "l2p", "cprompt"]
    assert labels([make_run(method) for method in methods]) == [
        "CPrompt",
        "ESN",
        "L2P",
        "DualPrompt",
        "CODA-Prompt",
        "SLCA",
        "HiDe-Prompt",
        "Fine-tuning",
        "Joint",
    ]


def test_a_label_says_only_what_tells_series_apart(make_run: MakeRun) -> None:
    runs = [
        make_run(),
        make_run(method__ccl=False),
        make_run(method__ccl=False, method__pcl=False, seed=1),
        make_run("finetune", training__epochs=3),
    ]
    found = labels(runs)
    assert found == [
        "CPrompt",
        "CPrompt, ccl off",
        "CPrompt, ccl off, pcl off",
        "Fine-tuning",
    ]


def test_a_value_that_no_recipe_has_is_shown_on_every_series(make_run: MakeRun) -> None:
    runs = [make_run(training__lr=lr) for lr in (0.3, 0.07)]
    assert labels(runs) == ["CPrompt, lr 0.07", "CPrompt, lr 0.3"]


def test_images_drawn_otherwise_are_told_by_the_option_that_differs(make_run: MakeRun) -> None:
    options = [{"classes": 5, "seed": seed} for seed in (1, 2)]
    runs = [make_run(data__options=drawn) for drawn in options]
    assert labels(runs) == ["CPrompt, data seed 1", "CPrompt, data seed 2"]


def test_flavours_are_told_apart_by_their_names(make_run: MakeRun) -> None:
    runs = [make_run("l2p", flavour=flavour) for flavour in ("official", "matched")]
    assert labels(runs) == ["L2P, matched", "L2P, official"]
    assert labels(runs[:1]) == ["L2P"]


def test_other_weights_are_another_series(make_run: MakeRun) -> None:
    runs = [make_run(), make_run(seed=1)]
    runs[1].record.backbone["fingerprint"] = "fedcba9876543210"
    assert labels(runs) == ["CPrompt, weights 01234567", "CPrompt, weights fedcba98"]


def test_another_backbone_is_told_by_its_name(make_run: MakeRun) -> None:
    runs = [make_run(), make_run(backbone__name="test_vit2")]
    runs[1].record.backbone["fingerprint"] = "fedcba9876543210"
    assert labels(runs) == ["CPrompt", "CPrompt, backbone test_vit2"]


def test_many_differences_are_counted_and_labels_stay_apart(make_run: MakeRun) -> None:
    common: dict[str, Any] = dict.fromkeys(("method__ccl", "method__pcl"), False)
    common |= {"training__lr": 0.3, "training__momentum": 0.1}
    runs = [make_run(), *(make_run(**common, training__weight_decay=w) for w in (0.1, 0.2))]
    found = labels(runs)
    assert found == [
        "CPrompt",
        "CPrompt, ccl off, pcl off, lr 0.3, 2 more",
        "CPrompt, ccl off, pcl off, lr 0.3, 2 more #2",
    ]


def test_neither_the_machine_nor_the_name_of_the_weights_file_makes_another_series(
    make_run: MakeRun,
) -> None:
    runs = [make_run(), make_run(seed=1, execution__device="cuda", cache__where="memory")]
    runs[1].record.config["backbone"]["weights"] = "elsewhere.safetensors"
    assert labels(runs) == ["CPrompt"]


def test_how_the_same_tasks_were_asked_for_makes_no_other_series(make_run: MakeRun) -> None:
    runs = [make_run(), make_run(seed=1, stream__sizes=[2, 1, 2])]
    assert labels(runs) == ["CPrompt"]


def test_an_old_record_without_a_later_setting_is_in_the_series_of_its_default(
    make_run: MakeRun,
) -> None:
    old = make_run(seed=1)
    for part, name in (("method", "align"), ("training", "precision"), ("evaluation", "top_k")):
        del old.record.config[part][name]
    del old.record.config["cache"]
    assert labels([make_run(), old]) == ["CPrompt"]


def test_a_method_and_settings_that_this_version_does_not_know(make_run: MakeRun) -> None:
    strange = make_run()
    strange.record.config["method"] = {"name": "ours", "depth": 3}
    deeper = make_run(seed=1)
    deeper.record.config["method"] = {"name": "ours", "depth": 4}
    bare = make_run(seed=2)
    bare.record.config = {}
    found = {
        series.label for section in sections([strange, deeper, bare]) for series in section.series
    }
    assert found == {"ours, depth 3", "ours, depth 4", "unknown"}


def test_benchmarks_class_names_and_task_sizes_make_sections(make_run: MakeRun) -> None:
    resized, renamed = make_run(), make_run()
    resized.record.stream = TaskStream((3, 1, 4, 0, 2), (2, 2, 1))
    resized.record.rows = []
    renamed.record.classes = ("1", "2", "3", "4", "5")
    found = sections([make_run(), resized, renamed, make_run(benchmark="demo")])
    assert sorted(section.name for section in found) == [
        "demo-3-tasks",
        "shapes-3-tasks",
        "shapes-3-tasks-2",
        "shapes-3-tasks-3",
    ]


def test_joint_training_stands_beside_the_tasks_of_its_benchmark(make_run: MakeRun) -> None:
    joint = at_once(make_run("joint"))
    [section] = sections([joint, make_run("finetune")])
    assert section.n_tasks == 3
    assert [series.label for series in section.series] == ["Fine-tuning", "Joint"]
    [alone] = sections([joint])
    assert alone.n_tasks == 1
    assert alone.title == "shapes: 5 classes of shapes in one task"


def described(found: list[Section]) -> list[Any]:
    return [
        (s.name, s.title, [(x.label, x.digest, [r.name for r in x.runs]) for x in s.series])
        for s in found
    ]


def test_the_order_of_the_runs_changes_nothing(make_run: MakeRun) -> None:
    runs = [make_run(m, s) for m in ("l2p", "cprompt") for s in (2, 1)]
    runs += [make_run(benchmark="demo"), make_run(method__ccl=False)]
    assert described(sections(runs)) == described(sections(runs[::-1]))


def test_what_is_shown_of_a_series_are_its_finished_runs_or_the_farthest(make_run: MakeRun) -> None:
    runs = [make_run(), make_run(seed=1, tasks=1), make_run(seed=2, tasks=2)]
    [section] = sections(runs)
    [series] = section.series
    assert series.finished == series.shown == runs[:1]
    assert series.shown_label == "CPrompt"
    [section] = sections(runs[1:])
    [series] = section.series
    assert series.finished == []
    assert series.shown == runs[2:]
    assert series.shown_label == "CPrompt (unfinished, 2 of 3 tasks)"


def test_equal_settings_have_an_equal_digest(make_run: MakeRun) -> None:
    def digest(run: Run) -> str:
        [section] = sections([run])
        return section.series[0].digest

    assert digest(make_run()) == digest(make_run(seed=5))
    assert digest(make_run()) != digest(make_run(method__ccl=False))


def test_settings_hold_no_seeds_and_the_sizes_as_they_are(make_run: MakeRun) -> None:
    settings = settings_of(make_run().record)
    assert not any(name.startswith(("seeds", "execution", "cache")) for name in settings)
    assert settings["stream.sizes"] == [2, 1, 2]
    assert settings["method.ccl"] is True
    assert settings["backbone.fingerprint"] == "0123456789abcdef"


def test_a_seed_that_two_finished_runs_have_is_named(make_run: MakeRun) -> None:
    again = make_run(seed=1, folder="again")
    again.record.seconds = {}
    runs = [make_run(), make_run(seed=1), again, make_run(seed=2), make_run(seed=2, tasks=1)]
    [section] = sections(runs)
    assert repeated_seeds(section.series[0]) == ["1"]


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
    assert backbones_of([Run(runs[0].path, old)]) == "unknown (unknown)"
