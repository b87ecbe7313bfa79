"""The paper's tables: their numbers, the runs behind each row, and how runs fill them."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cprompt.errors import ConfigError
from cprompt.methods.base import create_method
from cprompt.methods.registry import METHODS
from cprompt.research.config import RunConfig, flatten
from cprompt.research.record import Record
from cprompt.research.tables import (
    PAPER_SEEDS,
    Cell,
    TableRow,
    TableSpec,
    fill,
    load_table,
    row_config,
    run_folder,
    select_rows,
    table_names,
)
from cprompt.research.tuning import load_grid
from cprompt.vit.loading import load_backbone

# Typed from the paper's LaTeX, row by row: by benchmark, in the order of the table's columns.
BESIDE = ("normalization", "official")
"""Not in the paper."""
OURS = ("closed_form", "esn_study", "protocol")
"""Without any number of the paper."""

MAIN: dict[str, str] = {
    "cars10": """
        UB (joint)   83.96       -           -
        L2P          60.39±1.99  71.92±1.12  13.00±0.12
        DualPrompt   57.27±0.34  70.36±2.33  16.31±0.97
        ESN          56.91±0.56  72.82±0.79  13.50±1.64
        CODA-Prompt  62.24±0.14  73.28±0.93  15.08±0.89
        CPrompt      66.77±0.37  76.81±0.27  13.95±0.46
    """,
    "cars20": """
        UB (joint)   83.96       -           -
        L2P          45.14±4.33  60.03±3.56  15.22±1.28
        DualPrompt   43.99±1.55  60.22±0.86  18.25±1.45
        ESN          46.53±2.02  62.54±1.81  15.96±0.76
        CODA-Prompt  48.94±1.77  63.78±1.46  17.38±2.16
        CPrompt      55.16±0.19  68.74±0.83  20.02±1.78
    """,
    "imagenet_r10": """
        UB (joint)   80.27       -           -
        L2P          74.60±0.90  80.83±1.39  4.52±0.50
        DualPrompt   74.87±0.85  81.39±1.25  7.18±0.15
        ESN          75.11±0.36  81.63±1.10  5.68±0.77
        CODA-Prompt  75.51±0.81  81.32±1.01  5.91±1.36
        CPrompt      77.14±0.11  82.92±0.70  5.97±0.68
    """,
    "imagenet_r20": """
        UB (joint)   80.27       -           -
        L2P          72.09±1.12  78.39±0.94  4.86±1.37
        DualPrompt   71.69±1.06  79.12±1.27  7.68±0.96
        ESN          70.57±0.62  77.95±0.76  6.84±0.36
        CODA-Prompt  72.25±0.78  78.07±0.40  6.65±0.31
        CPrompt      74.79±0.28  81.46±0.93  7.34±0.65
    """,
    "cifar100": """
        UB (joint)   91.99       -           -
        L2P          86.38±0.31  91.45±0.19  5.88±0.76
        DualPrompt   86.61±0.22  90.82±1.47  5.86±0.62
        ESN          86.42±0.80  91.65±0.67  6.08±0.48
        CODA-Prompt  85.73±0.14  91.03±0.57  7.13±0.44
        CPrompt      87.82±0.21  92.53±0.23  5.06±0.50
    """,
    "domainnet": """
        UB (joint)   89.15       -           -
        L2P          81.17±0.83  87.43±0.95  8.98±1.25
        DualPrompt   81.70±0.78  87.80±0.99  8.04±0.31
        ESN          79.22±2.04  86.69±1.18  10.62±2.12
        CODA-Prompt  80.04±0.79  86.27±0.82  10.16±0.35
        CPrompt      82.97±0.34  88.54±0.41  7.45±0.93
    """,
}
ANALYSIS: dict[str, str] = {
    "ablation": """
        vanilla (prompt, head, one key)  61.96 73.10  49.23 64.10  74.75 81.19  72.44 79.80
        CCL                              62.52 73.42  51.89 66.11  76.37 82.19  73.63 80.46
        PCL w/o MK                       65.18 75.82  52.55 67.96  75.93 81.93  73.83 81.02
        MK                               63.66 74.26  51.65 65.91  75.36 82.01  73.14 80.22
        CCL + PCL w/o MK                 66.37 76.58  53.44 67.16  76.53 82.61  74.51 81.43
        CCL + PCL + MK (CPrompt)         66.77 76.81  55.16 68.74  77.14 82.92  74.79 81.46
    """,
    "ccl_given": """
        w/o CCL  67.78 77.27
        CPrompt  71.14 80.44
    """,
    "dualprompt_ccl": """
        DualPrompt  57.27 70.36
        + CCL       61.79 72.07
    """,
    "pcl_first": """
        w/o PCL  48.83 63.17
        CPrompt  59.75 70.71
    """,
    "dualprompt_pcl": """
        DualPrompt  57.27 70.36
        + PCL       60.09 72.12
    """,
    "keys": """
        TIL (right prompt given)  100   67.50 77.22
        one key per task          19.44 61.96 73.10
        one key per class         39.83 63.66 74.26
    """,
    "aux": """
        w/o L_aux  60.34 73.17
        w/o C_aux  64.17 74.32
        CPrompt    66.77 76.81
    """,
    "smoothing": """
        EDL                 39.73 50.93
        ROH                 40.99 51.59
        adaptive (CPrompt)  66.77 76.81
    """,
    "others": """
        CODA-Prompt  62.24 73.28
        + CCL        65.12 75.37
        + PCL        63.49 74.21
        + both       65.31 75.81
        L2P          60.39 71.92
        + CCL        63.69 72.53
        + PCL        61.82 72.06
        + both       63.71 72.71
    """,
}
PLACES = {
    **{"cars10": "Table 1", "cars20": "Table 1", "imagenet_r10": "Table 2"},
    **{"imagenet_r20": "Table 2", "cifar100": "Table 3", "domainnet": "Table 4"},
    **{"ablation": "Table 5", "ccl_given": "Table 6", "dualprompt_ccl": "Table 7"},
    **{"pcl_first": "Table 8", "dualprompt_pcl": "Table 9", "keys": "Table 10", "aux": "Table 11"},
}
LAST, AVERAGE = "last_accuracy", "average_accuracy"


def typed(text: str, columns: int) -> list[tuple[str, list[str | None]]]:
    """Label and numbers of each line; a dash is no number."""
    rows = []
    for line in text.strip().splitlines():
        words = line.split()
        numbers = [None if word == "-" else word for word in words[-columns:]]
        rows.append((" ".join(words[:-columns]), numbers))
    return rows


def not_run(config: RunConfig) -> Record | None:
    return None


@pytest.mark.parametrize("name", [*MAIN, *ANALYSIS])
def test_the_papers_numbers_are_those_of_the_paper(name: str) -> None:
    spec = load_table(name)
    shown = fill(spec, [1], not_run)
    expected = typed((MAIN | ANALYSIS)[name], len(shown.columns))
    numbers = [(label, [cell.paper for cell in cells]) for label, cells in shown.rows]
    ours_only = [row for row in numbers[len(expected) :] if any(row[1])]
    assert numbers[: len(expected)] == expected
    assert ours_only == []
    assert spec.paper == PLACES.get(name, spec.paper)


def test_there_is_a_test_for_the_numbers_of_every_table() -> None:
    assert table_names() == sorted([*MAIN, *ANALYSIS, *BESIDE, *OURS])


def test_the_tables_beside_the_papers_repeat_its_numbers_for_cprompt() -> None:
    for name in BESIDE:
        spec = load_table(name)
        (row,) = [row for row in spec.rows if row.paper]
        assert (row.method, row.settings, spec.benchmarks) == (
            "cprompt",
            {},
            ("cars10", "cifar100"),
        )
        for benchmark in spec.benchmarks:
            printed = row_of(benchmark, "CPrompt").paper[benchmark]
            known = dict(zip(load_table(benchmark).columns, printed, strict=True))
            mine = zip(spec.columns, row.paper[benchmark], strict=True)
            assert [known.get(metric) for metric, _ in mine] == list(row.paper[benchmark])
    inputs = [
        (row_config(row, "cars10", 1).data.normalization, row_config(row, "cifar100", 1).data)
        for row in load_table("normalization").rows
    ]
    assert [(a, b.normalization) for a, b in inputs] == [
        ("none", "imagenet"),
        ("inception", "inception"),
    ]
    others = [row for row in load_table("official").rows if row.method != "cprompt"]
    assert [row.method for row in others] == ["l2p", "dualprompt", "esn", "coda"]
    assert {row.flavour for row in others} == {"official"}


def test_the_table_of_closed_forms_compares_them_on_the_same_inputs() -> None:
    spec = load_table("closed_form")
    assert spec.paper is None
    assert not any(row.paper for row in spec.rows)
    for benchmark in spec.benchmarks:
        configs = [row_config(row, benchmark, 1) for row in spec.rows]
        assert {config.method for config in configs} == {"nearest_mean", "lda", "ranpac", "strata"}
        assert all(config.data == configs[0].data for config in configs)


def test_what_was_chosen_for_a_benchmark_is_over_the_row_s_own_and_not_for_its_stand_in() -> None:
    row = TableRow(
        "SLCA",
        "slca",
        None,
        "selected",
        {"training.lr": 0.5, "method.head_init": "zero"},
        {},
        {"cars10": {"flavour": "official", "set": {"training.lr": 0.25, "training.epochs": 99}}},
    )
    cars, cifar = (row_config(row, benchmark, 1) for benchmark in ("cars10", "cifar100"))
    assert (cars.training.lr, cars.training.epochs) == (0.25, 99)
    assert (cifar.training.lr, cifar.training.epochs) == (0.5, 20)
    assert cars.settings["head_init"] == cifar.settings["head_init"] == "zero"
    small = row_config(row, "cars10", 1, small=True)
    assert (small.training.lr, small.training.epochs) == (0.5, 3)
    given = row_config(row, "cars10", 1, overrides={"training.lr": 0.125})
    assert given.training.lr == 0.125


def test_the_protocol_s_table_is_that_of_the_grid_and_shares_its_normalisation() -> None:
    spec, grid = load_table("protocol"), load_grid()
    assert [(row.label, row.method) for row in spec.rows] == [
        (row.label, row.method) for row in grid.rows
    ]
    assert set(spec.benchmarks) == {*grid.benchmarks, *grid.like}
    for row in spec.rows:
        assert set(row.chosen) == set(spec.benchmarks)
        assert {row_config(row, b, 1).data.normalization for b in spec.benchmarks} == {"inception"}


@pytest.mark.parametrize("name", MAIN)
def test_a_main_table_shows_all_methods_under_the_three_metrics(name: str) -> None:
    spec = load_table(name)
    shown = {row.method for row in spec.rows}
    assert shown == {row.method for row in load_table("cars10").rows} <= set(METHODS)
    assert {"cprompt", "l2p", "dualprompt", "coda", "esn", "joint"} <= shown  # the paper's
    assert dict(spec.columns) == {LAST: "Last-acc", AVERAGE: "Avg-acc", "forgetting_released": "FF"}
    assert spec.benchmarks == (name,)
    compared = [r for r in spec.rows if r.method in ("l2p", "dualprompt", "esn", "coda")]
    assert {row.method: row.flavour for row in compared} == {
        "l2p": "matched",
        "dualprompt": "matched",
        "esn": "matched",
        "coda": "official",
    }


def test_analysis_tables_are_on_ten_tasks_of_cars_and_the_ablation_on_four_benchmarks() -> None:
    for name in ANALYSIS:
        spec = load_table(name)
        accuracies = {LAST: "Last-acc", AVERAGE: "Avg-acc"}
        if name == "keys":
            accuracies = {"selection_accuracy": "Task-acc", **accuracies}
        assert dict(spec.columns) == accuracies
        on = ("cars10", "cars20", "imagenet_r10", "imagenet_r20")
        assert spec.benchmarks == (on if name == "ablation" else ("cars10",))


def test_an_unknown_table_gets_a_suggestion() -> None:
    with pytest.raises(ConfigError, match="no table 'ablations'; did you mean 'ablation'"):
        load_table("ablations")


def test_rows_are_chosen_by_their_numbers_in_the_table_s_order() -> None:
    spec = load_table("aux")
    assert [row.label for row in select_rows(spec, [3, 1]).rows] == ["w/o L_aux", "CPrompt"]
    assert select_rows(spec, []) is spec


# --- the runs behind a row ----------------------------------------------------------------------


def every_row() -> list[tuple[str, TableRow, str]]:
    specs = [load_table(name) for name in table_names()]
    return [(s.name, row, benchmark) for s in specs for row in s.rows for benchmark in s.benchmarks]


CLASSES = {
    **{"cars10": 196, "cars20": 196, "imagenet_r10": 200, "imagenet_r20": 200},
    **{"cifar100": 100, "domainnet": 200},
}


def test_every_row_is_a_run_on_the_papers_backbone_data_and_tasks() -> None:
    for name, row, benchmark in every_row():
        config = row_config(row, benchmark, 87)
        where = f"{name}: {row.label} on {benchmark}"
        assert (config.benchmark, config.method) == (benchmark, row.method), where
        assert config.backbone.name == "vit_base_patch16_224.augreg_in21k_ft_in1k", where
        assert config.data.dataset != "shapes", where
        stream = config.stream.build(CLASSES[benchmark], config.seeds.order)
        tasks = 20 if benchmark in ("cars20", "imagenet_r20") else 10
        assert stream.n_tasks == (1 if METHODS[row.method].single_task else tasks), where
        for setting, value in row.settings.items():
            assert flatten(config.to_dict())[setting] == value, where


def test_every_row_has_a_small_run_on_drawn_images() -> None:
    backbone = load_backbone("vit_micro_patch8_64.tiny_imagenet")
    for name, row, benchmark in every_row():
        config = row_config(row, benchmark, 87, small=True)
        where = f"{name}: {row.label} on {benchmark}"
        assert (config.benchmark, config.method) == (benchmark, row.method), where
        assert (config.data.dataset, config.data.root) == ("shapes", None), where
        assert config.backbone.name == backbone.name, where
        create_method(config.method, backbone, config.settings)  # it has blocks for the prompts
        assert config.training.epochs <= 20, where
        stream = config.stream.build(config.data.options["classes"], config.seeds.order)
        tasks = 6 if benchmark in ("cars20", "imagenet_r20") else 3
        assert stream.n_tasks == (1 if METHODS[row.method].single_task else tasks), where
        for setting, value in row.settings.items():
            assert flatten(config.to_dict())[setting] == value, where


SWITCHES = {
    "ablation": {
        "vanilla (prompt, head, one key)": (False, False, "task"),
        "CCL": (True, False, "task"),
        "PCL w/o MK": (False, True, "task"),
        "MK": (False, False, "class"),
        "CCL + PCL w/o MK": (True, True, "task"),
        "CCL + PCL + MK (CPrompt)": (True, True, "class"),
    },
    "ccl_given": {"w/o CCL": (False, True, "class"), "CPrompt": (True, True, "class")},
    "pcl_first": {"w/o PCL": (True, False, "class"), "CPrompt": (True, True, "class")},
    "dualprompt_ccl": {"DualPrompt": (False, False, "task"), "+ CCL": (True, False, "task")},
    "dualprompt_pcl": {"DualPrompt": (False, False, "task"), "+ PCL": (False, True, "class")},
    "keys": {
        "TIL (right prompt given)": (False, False, "task"),
        "one key per task": (False, False, "task"),
        "one key per class": (False, False, "class"),
    },
}


@pytest.mark.parametrize("table", SWITCHES)
def test_rows_switch_on_what_their_labels_say(table: str) -> None:
    found = {}
    for row in load_table(table).rows:
        s = row_config(row, "cars10", 1).settings
        found[row.label] = (s["ccl"], s["pcl"], s["keys"])
    assert found == SWITCHES[table]


def test_rows_of_other_methods_and_of_the_auxiliary_head_switch_what_their_labels_say() -> None:
    both = [(False, False), (True, False), (False, True), (True, True)]
    rows = [row_config(row, "cars10", 1) for row in load_table("others").rows]
    assert [config.method for config in rows] == ["coda"] * 4 + ["l2p"] * 4
    assert [(c.settings["ccl"], c.settings["pcl"]) for c in rows] == both * 2
    aux = [row_config(row, "cars10", 1).settings for row in load_table("aux").rows]
    assert [s["aux_loss"] for s in aux] == [False, True, True]
    assert [s["aux_head"] for s in aux[1:]] == [False, True]
    smooth = [row_config(row, "cars10", 1).settings for row in load_table("smoothing").rows]
    assert [s["smoothing"] for s in smooth] == ["edl", "roh", "adaptive"]


def test_each_row_of_the_study_of_esn_changes_one_thing_of_the_tuned_one() -> None:
    """But for the prompt's layout, which is a length and a place."""
    spec = load_table("esn_study")
    tuned, *others = (flatten(row_config(row, "cars10", 1).to_dict()) for row in spec.rows)
    changed = [
        {name: value for name, value in each.items() if value != tuned[name]} for each in others
    ]
    assert changed == [
        {"method.block_init": "fixed"},
        {"method.freeze_prompt": True},
        {"method.energy": "paper"},
        {"training.lr": tuned["training.lr"] / 2},
        {"training.lr": tuned["training.lr"] * 2},
        {"method.length": 100, "method.layers": [0]},
    ]
    protocol = row_of("protocol", "ESN")
    assert flatten(row_config(protocol, "cars10", 1).to_dict()) == tuned
    official = row_config(row_of("official", "ESN"), "cars10", 1).settings
    assert (official["length"], list(official["layers"])) == (100, [0])


def test_no_row_of_any_table_is_coda_prompt_under_cprompts_optimiser() -> None:
    """Its prompts hardly move under it."""
    for name, row, benchmark in every_row():
        if row.method == "coda":
            config = row_config(row, benchmark, 1)
            assert (config.flavour, config.training.optimizer) == ("official", "adam"), name


def test_rows_answer_with_the_prompts_their_table_is_about() -> None:
    modes = {name: [row.mode for row in load_table(name).rows] for name in table_names()}
    assert modes.pop("ccl_given") == ["given"] * 2
    assert modes.pop("pcl_first") == ["first"] * 2
    assert modes.pop("keys") == ["given", "selected", "selected"]
    assert {mode for others in modes.values() for mode in others} == {"selected"}


@pytest.mark.parametrize("small", [False, True])
def test_rows_with_different_settings_are_different_runs(small: bool) -> None:
    """Two rows share a run only if method, flavour and settings are the same."""
    asked: dict[Path, set[Any]] = {}
    for name, row, benchmark in every_row():
        if small and name in ("normalization", "esn_study"):
            continue  # drawn images are always fed with mean = std = 0.5
        if name == "protocol":
            continue  # it writes out what other tables leave to recipes, and shares their runs
        folder = run_folder(row_config(row, benchmark, 1, small=small), Path("runs"))
        asked.setdefault(folder, set()).add(
            (row.method, row.flavour, benchmark, repr(sorted(row.settings.items())))
        )
    assert all(len(rows) == 1 for rows in asked.values())


def test_no_two_rows_of_the_protocol_are_the_same_run() -> None:
    spec = load_table("protocol")
    folders = [
        run_folder(row_config(row, benchmark, 1), Path())
        for row in spec.rows
        for benchmark in spec.benchmarks
    ]
    assert len(set(folders)) == len(folders)


def row_of(table: str, label: str) -> TableRow:
    (row,) = [row for row in load_table(table).rows if row.label == label]
    return row


@pytest.mark.parametrize("small", [False, True])
def test_tables_that_need_the_same_run_point_to_the_same_folder(small: bool) -> None:
    def folder(table: str, label: str) -> Path:
        return run_folder(row_config(row_of(table, label), "cars10", 87, small=small), Path("r"))

    cprompt = [
        folder("cars10", "CPrompt"),
        folder("ablation", "CCL + PCL + MK (CPrompt)"),
        folder("aux", "CPrompt"),
        folder("ccl_given", "CPrompt"),
        folder("pcl_first", "CPrompt"),
        folder("smoothing", "adaptive (CPrompt)"),
    ]
    vanilla = [
        folder("ablation", "vanilla (prompt, head, one key)"),
        folder("keys", "TIL (right prompt given)"),
        folder("keys", "one key per task"),
    ]
    multi_key = [folder("ablation", "MK"), folder("keys", "one key per class")]
    dualprompt = [
        folder("cars10", "DualPrompt"),
        folder("dualprompt_ccl", "DualPrompt"),
        folder("dualprompt_pcl", "DualPrompt"),
    ]
    coda = [folder("cars10", "CODA-Prompt"), folder("others", "CODA-Prompt")]
    l2p = [folder("cars10", "L2P"), folder("others", "L2P")]
    groups = [cprompt, vanilla, multi_key, dualprompt, coda, l2p]
    assert [len(set(group)) for group in groups] == [1] * len(groups)
    assert len({group[0] for group in groups}) == len(groups)
    assert cprompt[0].parent == Path("r/cars10")


def test_a_seed_is_that_of_class_order_initialisation_and_data() -> None:
    for row in load_table("cars10").rows:
        for seed in PAPER_SEEDS:
            seeds = row_config(row, "cars10", seed).seeds
            assert (seeds.order, seeds.init, seeds.data) == (seed, seed, seed)
    cprompt = row_of("cars10", "CPrompt")
    folders = {run_folder(row_config(cprompt, "cars10", s), Path("r")) for s in PAPER_SEEDS}
    assert len(folders) == 3
    assert PAPER_SEEDS == (1993, 87, 1013)


def test_methods_that_select_a_prompt_are_measured_with_the_right_and_the_first_one_too() -> None:
    for row in load_table("cars10").rows:
        modes = row_config(row, "cars10", 1).evaluation.modes
        selects = METHODS[row.method].selects_task
        assert modes == (("selected", "given", "first") if selects else ("selected",))
    assert METHODS["cprompt"].selects_task


def test_settings_given_beside_win_over_those_of_the_row_and_of_small() -> None:
    row = row_of("aux", "w/o C_aux")
    given = {"method.aux_head": True, "training.epochs": 7, "method.length": 3}
    for small in (False, True):
        config = row_config(row, "cars10", 1, small=small, overrides=given)
        assert (config.settings["aux_head"], config.settings["length"]) == (True, 3)
        assert config.training.epochs == 7


# --- filling ------------------------------------------------------------------------------------


def spec_of(
    *rows: TableRow,
    benchmarks: Sequence[str] = ("cars10",),
    metrics: Sequence[str] = (LAST, AVERAGE),
) -> TableSpec:
    headings = {LAST: "Last-acc", AVERAGE: "Avg-acc", "selection_accuracy": "Task-acc"}
    columns = {metric: headings.get(metric, "FF") for metric in metrics}
    return TableSpec("t", "A title", "Table 0", tuple(benchmarks), columns, rows)


def cprompt_row(mode: str = "selected", **paper: list[Any]) -> TableRow:
    return TableRow("CPrompt", "cprompt", None, mode, {}, paper)


def test_cells_are_mean_and_sample_std_over_the_seeds(hand_record: Record) -> None:
    """Last-acc 9/18, then 10/18 and 8/18 after one answer more or fewer: std 100/18."""
    records = {}
    for seed, more in ((1, 0), (2, 1), (3, -1)):
        records[seed] = copy.deepcopy(hand_record)
        records[seed].rows[-1].correct["selected"][0] += more
    table = fill(
        spec_of(cprompt_row(cars10=[66.77, "76.8±0.2"])),
        [1, 2, 3],
        lambda config: records[config.seeds.init],
    )
    ((label, (last, average)),) = table.rows
    assert (label, last.runs, last.paper, average.paper) == ("CPrompt", 3, "66.77", "76.8±0.2")
    assert last.mean == pytest.approx(50.0)
    assert last.std == pytest.approx(100 / 18)
    # 80, 11/15 and the last one, a third of whose spread is left.
    assert average.mean == pytest.approx((80 + 1100 / 15 + 50) / 3)
    assert average.std == pytest.approx(100 / 18 / 3)


def test_one_run_has_no_std_and_none_has_no_number(hand_record: Record) -> None:
    spec = spec_of(cprompt_row(), benchmarks=("cars10", "cars20"))

    def find(config: RunConfig) -> Record | None:
        wanted = config.benchmark == "cars10" and config.seeds.init == 2
        return hand_record if wanted else None

    ((_, cells),) = fill(spec, [1, 2], find).rows
    assert cells[0] == Cell(pytest.approx(50.0), None, 1, None)  # type: ignore[arg-type]
    assert cells[2:] == (Cell(None, None, 0, None),) * 2


def test_a_run_under_way_is_not_counted(hand_record: Record) -> None:
    unfinished = replace(hand_record, rows=hand_record.rows[:2])
    table = fill(spec_of(cprompt_row()), [1], lambda config: unfinished)
    assert [cell.mean for cell in table.rows[0][1]] == [None, None]
    assert "backbone not run" in table.notes[0]


@pytest.mark.parametrize(
    ("mode", "last", "average"),
    [
        ("selected", 9 / 18, (8 / 10 + 11 / 15 + 9 / 18) / 3),
        ("given", 13 / 18, (10 / 10 + 14 / 15 + 13 / 18) / 3),
        ("first", 2 / 8, (2 / 5 + 2 / 8) / 2),  # tasks 2 and 3 only
    ],
)
def test_a_row_reads_the_answers_with_its_own_prompts(
    hand_record: Record, mode: str, last: float, average: float
) -> None:
    ((_, cells),) = fill(spec_of(cprompt_row(mode)), [1], lambda config: hand_record).rows
    assert [cell.mean for cell in cells] == pytest.approx([100 * last, 100 * average])


def test_prompts_picked_right_are_counted_and_are_all_of_them_where_given(
    hand_record: Record,
) -> None:
    spec = spec_of(cprompt_row(), cprompt_row("given"), metrics=["selection_accuracy"])
    table = fill(spec, [1], lambda config: hand_record)
    assert [cells[0].mean for _, cells in table.rows] == pytest.approx([100 * 11 / 18, 100.0])
    empty = fill(spec, [1], not_run)
    assert [cells[0].mean for _, cells in empty.rows] == [None, None]


def test_forgetting_is_that_of_the_released_code_and_undefined_for_one_task(
    hand_record: Record,
) -> None:
    """Tasks 1 and 2 had 80 and 80 % at best and end with 50 and 60 %."""
    spec = spec_of(cprompt_row(), metrics=["forgetting_released"])
    ((_, (cell,)),) = fill(spec, [1], lambda config: hand_record).rows
    assert cell.mean == pytest.approx((30 + 20) / 2)
    one = copy.deepcopy(hand_record)
    one.stream = replace(one.stream, sizes=(5,))
    one.rows = one.rows[-1:]
    ((_, (cell,)),) = fill(spec, [1], lambda config: one).rows
    assert cell == Cell(None, None, 0, None)


def test_headings_name_the_benchmark_where_there_are_several() -> None:
    one = fill(spec_of(cprompt_row()), [1], not_run)
    two = fill(spec_of(cprompt_row(), benchmarks=("cars10", "cars20")), [1], not_run)
    assert one.columns == ("Last-acc", "Avg-acc")
    assert two.columns == ("cars10 Last-acc", "cars10 Avg-acc", "cars20 Last-acc", "cars20 Avg-acc")


def test_notes_say_what_the_numbers_stand_for(hand_record: Record) -> None:
    rows = [cprompt_row(), TableRow("L2P", "l2p", "official", "selected", {}, {})]
    rows.append(TableRow("SLCA", "slca", None, "selected", {}, {}))
    table = fill(spec_of(*rows), [5, 6], lambda config: hand_record)
    assert table.title == "A title"
    assert table.notes == (
        "Ours: mean ± sample std over seeds 5, 6 (class order, initialisation and data); "
        "backbone test_vit (random:0); flavours: l2p official, slca official.",
        "Paper: as printed in the CPrompt paper, Table 0 (ViT-B/16, augreg_in21k_ft_in1k).",
    )
    small = fill(spec_of(*rows), [5], not_run, small=True)
    assert small.notes[0].startswith("Ours: seed 5 (class order, initialisation and data); ")
    assert small.notes[2] == "Only 0 of 3 runs are finished; the numbers are over those."
    assert small.notes[3].startswith("--small: ")


def test_a_note_on_one_benchmark_is_shown_with_its_columns_only() -> None:
    notes_on = {"cars20": "Of twenty tasks.", "cars10": "Of ten tasks."}
    both = replace(spec_of(cprompt_row(), benchmarks=("cars10", "cars20")), notes_on=notes_on)
    ten = replace(both, benchmarks=("cars10",))
    assert fill(both, [1], not_run).notes[2:4] == ("Of ten tasks.", "Of twenty tasks.")
    assert "Of ten tasks." in fill(ten, [1], not_run).notes
    assert "Of twenty tasks." not in fill(ten, [1], not_run).notes


def test_runs_whose_classes_have_other_label_ids_are_named(hand_record: Record) -> None:
    """A class order is drawn over label ids: the same seed is not the same order."""
    rows = [TableRow(label, "cprompt", None, "selected", {}, {}) for label in ("A", "B", "C")]
    other = replace(hand_record, classes=hand_record.classes[::-1])
    labelled = iter([hand_record, hand_record, other, hand_record, hand_record, other])
    mixed = fill(spec_of(*rows), [5, 6], lambda config: next(labelled))
    [note] = [note for note in mixed.notes if "class order there" in note]
    assert note == (
        "On cars10 these rows number the classes otherwise than the rest, so the same seed is "
        "another class order there: B; C."
    )
    same = fill(spec_of(*rows), [5, 6], lambda config: hand_record)
    assert not any("class order there" in note for note in same.notes)


@pytest.mark.parametrize("name", ["stanford_cars", "stanford_cars-sorted-labels"])
@pytest.mark.parametrize("places", ["01", "10", "001", "011"])
def test_the_official_labels_are_not_the_odd_ones_however_few_runs_have_them(
    hand_record: Record, name: str, places: str
) -> None:
    """Of two runs neither is among most. Older records of sorted labels do not say so."""
    official = replace(hand_record, dataset="stanford_cars", classes=("b", "a", "c", "d", "e"))
    by_name = replace(hand_record, dataset=name, classes=("a", "b", "c", "d", "e"))
    records = iter([official if place == "0" else by_name for place in places])
    rows = [TableRow(f"R{p}", "cprompt", None, "selected", {}, {}) for p in places]
    notes = fill(spec_of(*rows), [5], lambda config: next(records)).notes
    [note] = [note for note in notes if "class order there" in note]
    assert note.endswith(" there: R1.")


def test_a_note_says_which_settings_are_not_the_benchmarks_own() -> None:
    """Those of the machine do not count, and the backbone is named anyway."""
    settings = {"training.epochs": 30, "method.ccl": False}
    beside = {"execution.workers": 2, "data.root": "photos", "backbone.name": "vit_small"}
    table = fill(spec_of(cprompt_row()), [5], not_run, overrides=settings | beside)
    assert table.notes[1] == (
        "Ours with method.ccl False, training.epochs 30 in place of the benchmark's own."
    )
    usual = fill(spec_of(cprompt_row()), [5], not_run, overrides=beside)
    assert not any("in place of" in note for note in usual.notes)


def test_what_is_looked_for_is_the_run_of_row_benchmark_seed_and_settings() -> None:
    asked: list[RunConfig] = []

    def find(config: RunConfig) -> Record | None:
        asked.append(config)
        return None

    row = row_of("aux", "w/o L_aux")
    spec = spec_of(row, benchmarks=("cars10", "cars20"))
    fill(spec, [3, 4], find, small=True, overrides={"training.lr": 0.5})
    expected = [
        row_config(row, benchmark, seed, small=True, overrides={"training.lr": 0.5})
        for benchmark in ("cars10", "cars20")
        for seed in (3, 4)
    ]
    assert asked == expected
    assert [c.training.lr for c in asked] == [0.5] * 4
