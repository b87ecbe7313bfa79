"""docs/model_format.md lists the fields that the files have, all of them and no others."""

from __future__ import annotations

import json
import re
from pathlib import Path

from cprompt.research.record import Record
from tests.serve.live import make_model

PAGE = (Path(__file__).parents[2] / "docs" / "model_format.md").read_text("utf-8")


def fields(heading: str) -> list[str]:
    """What the first column of the table below a heading names."""
    table = PAGE.split(f"{heading}\n")[1].split("\n#")[0]
    rows = re.findall(r"^\| (`[^|]*) \|", table, re.MULTILINE)
    return [name for row in rows for name in re.findall(r"`(\w+)`", row)]


def test_every_field_of_a_model_is_listed(tmp_path: Path) -> None:
    make_model(tmp_path / "model")
    about = json.loads((tmp_path / "model" / "model.json").read_text("utf-8"))
    assert sorted(fields("### model.json")) == sorted(about)
    (line,) = re.findall(r"^\| `history` \|.*$", PAGE, re.MULTILINE)
    assert set(about["history"][0]) <= set(re.findall(r"`(\w+)`", line))
    (line,) = re.findall(r"^\| `backbone` \| `name`.*$", PAGE, re.MULTILINE)
    assert set(about["backbone"]) <= set(re.findall(r"`(\w+)`", line))


def test_every_field_of_a_record_is_listed(hand_record: Record) -> None:
    about = json.loads(json.dumps(hand_record.to_dict()))
    assert sorted(fields("## A run's record")) == sorted(about)
    (line,) = re.findall(r"^\| `rows` \|.*$", PAGE, re.MULTILINE)
    assert set(about["rows"][0]) <= set(re.findall(r"`(\w+)", line))
