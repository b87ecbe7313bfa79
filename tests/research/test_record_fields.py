"""What is checked of a record's file: types, lengths, and that counts can be counts."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from cprompt.errors import DataError
from cprompt.research.record import Record
from cprompt.research.record_fields import check_fields
from cprompt.training.movement import Movement

Edit = Callable[[dict[str, Any]], Any]


@pytest.fixture
def values(hand_record: Record) -> dict[str, Any]:
    hand_record.movement = [{"prompts": Movement(2.0, 1.5, 1.0)}, {}]
    plain: dict[str, Any] = json.loads(json.dumps(hand_record.to_dict()))
    return plain


def put(*path: str | int, value: Any) -> Edit:
    def edit(values: Any) -> None:
        for key in path[:-1]:
            values = values[key]
        values[path[-1]] = value

    return edit


WRONG: list[tuple[Edit, str]] = [
    (put("config", "method", value={"tau": 1}), r"`config\.method\.name` is missing"),
    (put("config", "method", value=None), r"`config\.method` is None; expected names and values"),
    (put("config", "benchmark", value=3), r"`config\.benchmark` is 3; expected text"),
    (put("config", "seeds", "order", value="random"), r"`config\.seeds\.order` is 'random'"),
    (put("config", "seeds", "init", value=1.5), r"`config\.seeds\.init` is 1\.5"),
    (put("config", "stream", "first_tasks", value=0), "first_tasks` is 0; expected at least 1"),
    (put("config", "stream", "first_tasks", value=4), "first_tasks` is 4; expected at most 3"),
    (put("config", "training", value=[1]), r"`config\.training` is \[1\]"),
    (put("stream", "sizes", value=[2, 2]), "`stream` is inconsistent: .* sum to 4"),
    (put("stream", "order", value="43210"), r"`stream\.order` is '43210'; expected a list"),
    (lambda v: v["classes"].pop(), "`classes` has 4 entries; expected 5"),
    (put("classes", 2, value=2), r"`classes\[2\]` is 2; expected text"),
    (put("backbone", "fingerprint", value=None), r"`backbone\.fingerprint` is None"),
    (put("pictures", "test", value=-1), r"`pictures\.test` is -1; expected a whole number"),
    (put("memory", value={"process": 1.5}), r"`memory\.process` is 1\.5"),
    (put("parameters", "learnt", value=True), r"`parameters\.learnt` is True"),
    (put("parameters", "learnt", value=10**30), r"`parameters\.learnt` is 1000"),
    (put("seconds", "training", value="long"), r"`seconds\.training` is 'long'"),
    (put("seconds", "training", value=float("nan")), r"`seconds\.training` is nan"),
    (put("seconds", "training", value=-1.0), r"`seconds\.training` is -1\.0; expected 0 or more"),
    (put("losses", value=[{"ce": 1.0}]), r"`losses\[0\]` is .*; expected a list"),
    (put("losses", 0, 0, "ce", value="low"), r"`losses\[0\]\[0\]\.ce` is 'low'"),
    (put("losses", value=[[]] * 4), "`losses` has 4 entries for 3 tasks"),
    (put("movement", value=[{}] * 4), "`movement` has 4 entries for 3 tasks"),
    (put("movement", 0, "prompts", value={"began": 1}), r"prompts\.moved` is missing"),
    (put("movement", 0, "prompts", "more", value=1), r"prompts\.more` is unknown"),
    (put("failure", value=1), "`failure` is 1; expected text"),
    (lambda v: v["rows"].append(v["rows"][2]), "`rows` has 4 entries for 3 tasks"),
    (put("rows", 0, value=[1]), r"`rows\[0\]` is \[1\]; expected names and values"),
    (put("rows", 0, "count", value=[4]), r"`rows\[0\]\.count` has 1 entries; expected 2"),
    (put("rows", 1, "count", 0, value=5), r"`rows\[1\]\.count` differs"),
    (put("rows", 0, "correct", "selected", 1, value=7), r"selected\[1\]` is 7; expected at most 6"),
    (put("rows", 0, "correct", "selected", 1, value=-3), r"selected\[1\]` is -3"),
    (put("rows", 0, "correct", "selected", 1, value=3.5), r"selected\[1\]` is 3\.5"),
    (put("rows", 0, "correct", "selected", 1, value=3.0), r"selected\[1\]` is 3\.0"),
    (put("rows", 0, "correct", "selected", value=[3]), "selected` has 1 entries; expected 2"),
    (lambda v: v["rows"][1]["correct"].pop("given"), r"rows\[1\]\.correct` has the modes"),
    (lambda v: [r["correct"].pop("selected") for r in v["rows"]], "expected 'selected'"),
    (put("rows", 2, "top_k", 3, value=2), r"`rows\[2\]\.top_k\[3\]` is 2; expected at most 1"),
    (put("rows", 1, "picks", value=[[7, 3]]), r"`rows\[1\]\.picks` has 1 entries; expected 2"),
    (put("rows", 1, "picks", 0, value=[10]), r"picks\[0\]` has 1 entries; expected 2"),
    (put("rows", 1, "picks", 1, value=[1, 5]), r"picks\[1\]` counts 6 images, .* has 5"),
]


@pytest.mark.parametrize(("edit", "message"), WRONG, ids=[message for _, message in WRONG])
def test_the_field_that_no_run_wrote_is_named(
    values: dict[str, Any], edit: Edit, message: str
) -> None:
    check_fields(values)
    edit(values)
    with pytest.raises(DataError, match=message):
        check_fields(values)


@pytest.mark.parametrize("order", ["natural", [3, 1, 4, 0, 2], -3])
def test_class_orders_of_any_kind_are_fine(values: dict[str, Any], order: Any) -> None:
    values["config"]["seeds"]["order"] = order
    check_fields(values)


def test_fields_that_older_versions_did_not_write_may_be_absent(values: dict[str, Any]) -> None:
    for name in ("memory", "movement", "failure", "warnings", "partial", "losses", "seconds"):
        del values[name]
    values["config"], values["backbone"] = {"method": {"name": "forgotten"}}, {}
    for row in values["rows"]:
        row["picks"] = None
    check_fields(values)
