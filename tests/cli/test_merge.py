"""`cprompt merge`: two folders become a third, and stay as they are."""

from __future__ import annotations

from pathlib import Path

from tests.cli.common import Main, ok
from tests.cli.test_forget import names


def test_two_models_become_one(main: Main, model: Path, tmp_path: Path) -> None:
    out = tmp_path / "both"
    before = (model / "model.json").read_bytes()
    said = ok("merge", model, model, "--out", out)
    assert said.startswith(f"{out}: {len(names(model))} classes from {model} and {model}, ")
    assert names(out) == names(model)
    assert (model / "model.json").read_bytes() == before
    assert "holds a model already" in main.error("merge", model, model, "--out", out)
