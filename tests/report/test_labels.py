"""What series are called."""

from __future__ import annotations

from typing import Any

from cprompt.report.series import sections
from tests.report.records import MakeRun, labels


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
