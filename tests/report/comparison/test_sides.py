"""What a side may hold, and what differs between two."""

from __future__ import annotations

import pytest

from cprompt.errors import ConfigError
from cprompt.report.comparison import compare
from tests.report.comparison.records import metric
from tests.report.records import MakeRun


def test_what_differs_is_named_and_what_does_not_is_not(make_run: MakeRun) -> None:
    other = make_run(method__ccl=False, training__lr=0.3, seed=4)
    other.record.environment |= {"torch": "3", "gpu": "GPU 9000"}
    other.record.backbone = {"name": "test_vit", "weights": "w.pth", "fingerprint": "f" * 40}
    found = compare([make_run()], [other])
    lr = make_run().record.config["training"]["lr"]
    assert found.settings == [
        ("backbone", "test_vit (random:0, 0123456789ab)", "test_vit (w.pth, ffffffffffff)"),
        ("method.ccl", True, False),
        ("training.lr", lr, 0.3),
    ]
    assert found.environment == [("torch", "2", "3"), ("gpu", "–", "GPU 9000")]
    assert found.runs == (
        "cprompt on shapes, seed 0, test_vit (random:0, 0123456789ab)",
        "cprompt on shapes, seed 4, test_vit (w.pth, ffffffffffff)",
    )


def test_the_method_comes_first_and_a_setting_that_it_lacks_is_a_dash(make_run: MakeRun) -> None:
    found = compare([make_run()], [make_run("finetune")])
    assert found.settings[0] == ("method.name", "cprompt", "finetune")
    assert ("method.ccl", True, "–") in found.settings


def test_a_side_of_mixed_settings_is_refused_with_their_names(make_run: MakeRun) -> None:
    mixed = [make_run(), make_run(seed=1, method__ccl=False)]
    with pytest.raises(ConfigError, match=r"B mixes .* method\.ccl is false and true;") as raised:
        compare([make_run()], mixed)
    assert "seeds" in (raised.value.hint or "")
    with pytest.raises(ConfigError, match=r"A mixes .* method\.name is cprompt and l2p"):
        compare([make_run(), make_run("l2p", 1)], [make_run()])


def test_a_seed_twice_on_one_side_is_refused_with_both_runs(make_run: MakeRun) -> None:
    twice = [make_run(folder="one"), make_run(folder="two")]
    with pytest.raises(ConfigError, match=r"A has two runs with seed 0: one/record\.json and two"):
        compare(twice, [make_run("l2p")])


def test_unfinished_runs_are_left_out_and_named(make_run: MakeRun) -> None:
    a = [make_run(), make_run(seed=1, tasks=2)]
    found = compare(a, [make_run("l2p"), make_run("l2p", 1)])
    assert metric(found, "last_accuracy").a.runs == 1
    assert found.notes[0] == "Left out of A: cprompt-1 (unfinished, 2 of 3 tasks)."
    with pytest.raises(ConfigError, match=r"A has no finished run \(cprompt-1: unfinished, 2 of 3"):
        compare(a[1:], [make_run()])
