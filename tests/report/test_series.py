"""Which runs are taken together."""

from __future__ import annotations

from typing import Any

from cprompt.methods.registry import METHODS
from cprompt.report.runs import RecordedRun
from cprompt.report.series import Section, repeated_seeds, sections
from cprompt.research.stream import TaskStream
from tests.report.records import MakeRun, labels, learnt_at_once


def test_runs_that_differ_in_seeds_only_are_one_series_in_order_of_seeds(make_run: MakeRun) -> None:
    runs = [make_run(seed=seed) for seed in (87, 9, 1013)]
    [section] = sections(runs)
    [series] = section.series
    assert series.label == "CPrompt"
    assert [run.seeds_text for run in series.runs] == ["9", "87", "1013"]
    assert section.title == "shapes: 5 classes of shapes in 3 tasks (2, 1, 2 classes)"
    assert section.name == "shapes-3-tasks"


def test_methods_have_their_titles_and_the_order_of_the_registry(make_run: MakeRun) -> None:
    runs = [make_run(method) for method in reversed(list(METHODS))]
    stranger = make_run(seed=1)
    stranger.record.config["method"] = {"name": "a method of somebody else's"}
    assert labels([stranger, *runs]) == [
        *(METHODS.title(method) for method in METHODS),
        "a method of somebody else's",
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
    for part, name in (("method", "tau"), ("training", "precision"), ("evaluation", "top_k")):
        del old.record.config[part][name]
    del old.record.config["cache"]
    assert labels([make_run(), old]) == ["CPrompt"]


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
    joint = learnt_at_once(make_run("joint"))
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
    def digest(run: RecordedRun) -> str:
        [section] = sections([run])
        return section.series[0].digest

    assert digest(make_run()) == digest(make_run(seed=5))
    assert digest(make_run()) != digest(make_run(method__ccl=False))


def test_a_seed_that_two_finished_runs_have_is_named(make_run: MakeRun) -> None:
    again = make_run(seed=1, folder="again")
    again.record.seconds = {}
    runs = [make_run(), make_run(seed=1), again, make_run(seed=2), make_run(seed=2, tasks=1)]
    [section] = sections(runs)
    assert repeated_seeds(section.series[0]) == ["1"]


def test_runs_over_a_part_of_a_stream_are_apart_from_whole_ones(make_run: MakeRun) -> None:
    whole = make_run()
    part = make_run(seed=1, tasks=2, stream__first_tasks=2)
    assert part.record.finished
    one, two = sections([whole, part])
    assert (one.n_tasks, two.n_tasks) == (3, 2)
    assert (one.name, two.name) == ("shapes-3-tasks", "shapes-3-tasks-first-2")
    assert two.title == f"{one.title}, the first 2 only"
    assert [run for series in two.series for run in series.finished] == [part]
    assert part.state == "finished, the first 2 of 3 tasks"
