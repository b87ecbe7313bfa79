"""Two series side by side: tests over shared seeds against scipy and against hands."""

from __future__ import annotations

import csv
import io
import itertools
import json
from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from cprompt.errors import ConfigError
from cprompt.report.comparison import (
    Compared,
    Comparison,
    compare,
    grids,
    paired_test,
    sign_flip_p,
    to_csv,
    to_json,
    to_markdown,
)
from cprompt.report.runs import Run

MakeRun = Callable[..., Run]


def with_last(run: Run, right: int) -> Run:
    """The run with so many of the 18 test images right at the end."""
    counts = run.record.rows[-1].count
    selected = []
    for count in counts:
        selected.append(min(count, right))
        right -= selected[-1]
    run.record.rows[-1].correct["selected"][:] = selected
    return run


def metric(found: Comparison, name: str) -> Compared:
    [line] = [line for line in found.metrics if line.name == name]
    return line


# --- the tests ------------------------------------------------------------------------------------


def test_the_t_test_and_its_interval_are_scipys() -> None:
    a, b = [50.0, 61.0, 58.5, 47.0], [52.0, 66.0, 58.0, 51.5]
    found = paired_test(a, b)
    theirs = stats.ttest_rel(b, a)
    assert found.pairs == 4
    assert found.difference == pytest.approx(2.75)
    assert found.p_t == pytest.approx(theirs.pvalue)
    assert found.p_t == pytest.approx(stats.ttest_1samp(np.subtract(b, a), 0).pvalue)
    half = stats.t.ppf(0.975, 3) * np.std(np.subtract(b, a), ddof=1) / 2
    assert (found.low, found.high) == pytest.approx((2.75 - half, 2.75 + half))
    assert found.p_exact == pytest.approx(0.25)  # 5 + 4.5 + 2 with ±0.5: four of sixteen


@pytest.mark.parametrize(
    ("differences", "p"),
    [
        ([1, 2, 3], 2 / 8),  # only all alike go as far as 6
        ([1, 2, -1], 6 / 8),  # sums 4 2 0 -2 2 0 -2 -4, of which six are at least 2 from 0
        ([-1, -2, -3, -4], 2 / 16),
        ([0, 0], 1.0),
        ([5], 1.0),
        ([0.1, 0.2, 0.3, -0.3, -0.2, -0.1], 1.0),
    ],
)
def test_the_exact_test_counts_the_signs(differences: list[float], p: float) -> None:
    assert sign_flip_p(differences) == p


def test_the_exact_test_is_that_of_all_sign_choices() -> None:
    differences = np.random.default_rng(0).normal(0.5, 1, 9)
    found = abs(differences.mean())
    flips = itertools.product((-1, 1), repeat=9)
    as_far = [abs(np.mean(np.multiply(s, differences))) >= found - 1e-12 for s in flips]
    assert sign_flip_p(differences.tolist()) == pytest.approx(np.mean(as_far))
    theirs = stats.permutation_test(
        (differences,), np.mean, permutation_type="samples", n_resamples=np.inf
    )
    assert sign_flip_p(differences.tolist()) == pytest.approx(theirs.pvalue)


def test_one_pair_is_a_difference_and_no_test() -> None:
    found = paired_test([50.0], [48.0])
    assert (found.pairs, found.difference) == (1, -2)
    assert (found.low, found.high, found.p_t, found.p_exact) == (None,) * 4


def test_equal_differences_leave_the_t_test_undefined() -> None:
    found = paired_test([1.0, 2.0, 3.0], [1.1, 2.1, 3.1])
    assert (found.low, found.high, found.p_t) == (None, None, None)
    assert found.p_exact == 0.25
    assert paired_test([1.0, 2.0], [1.0, 2.0]).p_exact == 1.0


def test_too_many_pairs_for_all_signs_leave_the_t_test() -> None:
    values = np.random.default_rng(0).normal(size=(2, 21))
    found = paired_test(values[0].tolist(), values[1].tolist())
    assert found.p_exact is None
    assert found.p_t == pytest.approx(stats.ttest_rel(values[1], values[0]).pvalue)


# --- the sides ------------------------------------------------------------------------------------


def test_runs_are_paired_by_their_seeds_in_any_order(make_run: MakeRun) -> None:
    a = [with_last(make_run(seed=s), n) for s, n in ((1, 9), (2, 12), (3, 6))]
    b = [with_last(make_run("l2p", s), n) for s, n in ((3, 9), (1, 10), (2, 15))]
    last = metric(compare(a, b), "last_accuracy")
    ours = [100 * n / 18 for n in (9, 12, 6)]
    theirs = [100 * n / 18 for n in (10, 15, 9)]
    assert last.a.mean == pytest.approx(50)
    assert last.b.mean == pytest.approx(100 * 34 / 54)
    assert last.a.std == pytest.approx(np.std(ours, ddof=1))
    assert last.test == paired_test(ours, theirs)
    assert last.test is not None
    assert last.test.difference == pytest.approx(100 * 7 / 54)
    assert last.test.p_exact == 0.25


def test_seeds_that_one_side_lacks_are_in_its_mean_and_in_no_pair(make_run: MakeRun) -> None:
    a = [with_last(make_run(seed=s), n) for s, n in ((1, 9), (2, 12), (3, 6))]
    b = [with_last(make_run("l2p", s), 9) for s in (2, 3, 4)]
    found = compare(a, b)
    last = metric(found, "last_accuracy")
    assert last.test is not None
    assert (last.a.runs, last.b.runs, last.test.pairs) == (3, 3, 2)
    assert last.a.mean == pytest.approx(50)
    assert last.test.difference == pytest.approx(0)
    assert found.notes[0].startswith(
        "Differences and tests are over what both have, seeds 2, 3; the means of each side"
    )


def test_without_a_shared_seed_there_are_means_and_no_test(make_run: MakeRun) -> None:
    found = compare([with_last(make_run(), 9)], [with_last(make_run("l2p", 1), 12)])
    last = metric(found, "last_accuracy")
    assert last.test is not None
    assert (last.test.pairs, last.test.p_t, last.test.p_exact) == (0, None, None)
    assert last.test.difference == pytest.approx(100 * 3 / 18)
    assert found.notes == ["A and B share no seeds; means are shown without a test."]


def test_records_without_seeds_are_not_taken_for_pairs(make_run: MakeRun) -> None:
    sides = [make_run(), make_run("l2p")]
    for run in sides:
        del run.record.config["seeds"]
    assert "A and B share no seeds" in compare(sides[:1], sides[1:]).notes[0]


@pytest.mark.parametrize(("pairs", "least"), [(2, "0.5"), (3, "0.25"), (5, "0.0625"), (6, None)])
def test_too_few_pairs_to_conclude_is_said(
    make_run: MakeRun, pairs: int, least: str | None
) -> None:
    found = compare(
        [make_run(seed=s) for s in range(pairs)], [make_run("l2p", s) for s in range(pairs)]
    )
    said = [note for note in found.notes if "too few to conclude" in note]
    if least is None:
        assert said == []
    else:
        assert said[0].startswith(
            f"{pairs} pairs are too few to conclude: the exact test cannot go below {least}. "
        )


def test_one_shared_seed_is_said_to_prove_nothing(make_run: MakeRun) -> None:
    found = compare([make_run()], [make_run("l2p")])
    assert found.notes == ["One seed in common: a difference, but nothing to test it with."]


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
    with pytest.raises(
        ConfigError,
        match=r"B mixes runs of different settings: method\.ccl is false "
        "and true; give runs that differ in their seeds only",
    ):
        compare([make_run()], mixed)
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


def test_a_metric_of_one_side_only_has_no_difference(make_run: MakeRun) -> None:
    found = compare([make_run()], [make_run("l2p", picks=False)])
    picked = metric(found, "selection_accuracy")
    assert picked.a.mean == pytest.approx(100 * 11 / 18)
    assert (picked.b.mean, picked.test) == (None, None)


def test_tasks_at_the_end_with_their_test_images(make_run: MakeRun) -> None:
    a = [make_run(seed=s) for s in (1, 2)]
    b = [with_last(make_run("l2p", s), 18) for s in (1, 2)]
    for row in a[1].record.rows:
        row.count[0] = 5
    found = compare(a, b)
    assert [line.name for line in found.tasks] == ["task 1", "task 2", "task 3"]
    assert [line.images for line in found.tasks] == [("10–11", "10"), ("5", "5"), ("3", "3")]
    first = found.tasks[0]
    assert first.a.mean == pytest.approx((50 + 100 * 5 / 11) / 2)
    assert first.b.mean == 100
    assert first.test == paired_test([50, 100 * 5 / 11], [100, 100])


def test_different_tasks_are_said_to_answer_different_questions(make_run: MakeRun) -> None:
    other = make_run("l2p")
    other.record.classes = ("1", "2", "3", "4", "5")
    assert any(
        "did not learn the same classes" in note for note in compare([make_run()], [other]).notes
    )


# --- as text --------------------------------------------------------------------------------------


@pytest.fixture
def found(make_run: MakeRun) -> Comparison:
    a = [with_last(make_run(seed=s), n) for s, n in ((1, 9), (2, 12), (3, 6))]
    b = [with_last(make_run("finetune", s, picks=False), n) for s, n in ((1, 6), (2, 6), (3, 3))]
    return compare(a, b)


def test_the_tables_say_difference_interval_and_tests(found: Comparison) -> None:
    settings, metrics, tasks = grids(found)
    assert settings.head == ("setting", "A", "B")
    assert settings.lines()[1] == ["method.name", "cprompt", "finetune"]
    head, last, *_ = metrics.lines()
    assert head == ["", "A", "B", "B - A", "95 % interval", "p (t)", "p (exact)", "pairs"]
    # differences of 3, 6 and 3 images of 18: mean -22.22, std 9.62, t(0.975, 2) = 4.303
    assert last == [
        "Last-acc",
        "50.00±16.67",
        "27.78±9.62",
        "-22.22",
        "-46.13 to +1.68",
        "0.0572",
        "0.25",
        "3",
    ]
    assert tasks.lines()[1][:3] == ["task 1", "10", "10"]


def test_markdown_has_both_sides_every_table_and_the_notes(found: Comparison) -> None:
    text = to_markdown(found)
    assert text.startswith("A: cprompt on shapes, seeds 1, 2, 3, test_vit")
    assert "| Last-acc | 50.00±16.67 | 27.78±9.62 | -22.22 | -46.13 to +1.68 | 0.0572 |" in text
    assert "3 pairs are too few to conclude" in text
    assert "**Accuracy at the end by task in %**" in text


def test_csv_parsed_back_gives_every_number_in_full(found: Comparison) -> None:
    rows = list(csv.DictReader(io.StringIO(to_csv(found))))
    by_name = {row["name"]: row for row in rows}
    last = by_name["last_accuracy"]
    assert float(last["difference"]) == pytest.approx(-100 * 12 / 54, abs=1e-12)
    assert (last["a runs"], last["pairs"], last["p exact"]) == ("3", "3", "0.25")
    assert (by_name["method.name"]["a"], by_name["method.name"]["b"]) == ("cprompt", "finetune")
    assert by_name["selection_accuracy"]["difference"] == ""
    assert {row["kind"] for row in rows} == {"setting", "metric", "task"}
    assert by_name["task 2"]["an images"] == "5"


def test_json_has_everything_by_name(found: Comparison) -> None:
    plain = json.loads(to_json(found))
    assert set(plain) == {"runs", "settings", "environment", "metrics", "tasks", "notes"}
    [last] = [line for line in plain["metrics"] if line["name"] == "last_accuracy"]
    assert last["a"] == {"mean": 50.0, "std": pytest.approx(100 / 6), "runs": 3}
    assert last["test"]["p_exact"] == 0.25
    assert plain["tasks"][2]["pictures"] == ["3", "3"]
    assert plain["settings"][0] == {"name": "method.name", "a": "cprompt", "b": "finetune"}
