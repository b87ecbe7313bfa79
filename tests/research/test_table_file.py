"""Tables in files: those of the package pass, and each fault is named."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import yaml

from cprompt.errors import ConfigError
from cprompt.research import recipes
from cprompt.research.record import Record
from cprompt.research.table_file import metric_names, read_table_file
from cprompt.research.tables import load_table, table_names

OWN: dict[str, Any] = {
    "title": "Mine",
    "benchmarks": ["cars10"],
    "columns": {"last_accuracy": "Last-acc"},
    "rows": [{"label": "A", "method": "joint", "mode": "given", "paper": {"cars10": [1.5]}}],
}


def read(tmp_path: Path, values: Any) -> dict[str, Any]:
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(values))
    return read_table_file(tmp_path / "own.yaml")


@pytest.mark.parametrize("name", table_names())
def test_the_paper_s_tables_have_the_form(name: str) -> None:
    with resources.as_file(resources.files(recipes) / "tables" / f"{name}.yaml") as path:
        assert read_table_file(path)["rows"]


def test_the_file_of_a_paper_s_table_is_that_table(tmp_path: Path) -> None:
    text = (resources.files(recipes) / "tables" / "ccl_given.yaml").read_text("utf-8")
    (tmp_path / "ccl_given.yml").write_text(text)
    assert load_table(str(tmp_path / "ccl_given.yml")) == load_table("ccl_given")


def test_columns_may_be_every_metric_of_a_record(hand_record: Record) -> None:
    names = {name.removesuffix("_given").removesuffix("_first") for name in hand_record.summary()}
    assert names - {"top_k_accuracy"} <= set(metric_names())


def test_paper_may_be_left_out(tmp_path: Path) -> None:
    assert read(tmp_path, OWN) == OWN
    assert load_table(str(tmp_path / "own.yaml")).paper is None


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"rows": []}, "rows"),
        ({"rows": ["A"]}, "rows, number 1"),
        ({"rows": [{"method": "joint"}]}, "label"),
        ({"rows": [{"label": "A", "flavor": "x"}]}, "'flavour'"),
        ({"rows": [{"label": "A", "mode": "oracle"}]}, "'oracle'"),
        ({"rows": [{"label": "A", "paper": {"cars20": [1]}}]}, "'cars20'"),
        ({"columns": ["last_accuracy"]}, "columns"),
        ({"benchmarks": "cars10"}, "benchmarks"),
        ({"paper": 3}, "paper"),
    ],
)
def test_a_fault_is_named_with_the_file(tmp_path: Path, change: dict[str, Any], fault: str) -> None:
    with pytest.raises(ConfigError) as error:
        read(tmp_path, {**OWN, **change})
    assert error.value.file == str(tmp_path / "own.yaml")
    assert fault in f"{error.value.message} {error.value.hint}"
