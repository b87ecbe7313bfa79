"""Tests mirror the package: `src/cprompt/a/b.py` has `tests/a/test_b.py`."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
PACKAGE = TESTS.parent / "src" / "cprompt"

COVERED_ELSEWHERE = {
    "data/datasets/shapes/__init__.py": "re-exports; tests/data/datasets/shapes",
    "data/doctor/__init__.py": "re-exports; tests/data/doctor",
    "report/comparison/__init__.py": "re-exports; tests/report/comparison",
    "report/figures/__init__.py": "re-exports; tests/report/figures",
    "report/page/__init__.py": "re-exports; tests/report/page",
    "cli/__init__.py": "tests/cli/test_cli.py",
}
"""Modules without a mirror, and where their tests are."""


def has_code(module: Path) -> bool:
    """Whether there is more in a module than its docstring."""
    return any(not isinstance(node, ast.Expr) for node in ast.parse(module.read_text("utf-8")).body)


def mirror(module: Path) -> Path:
    """The test file of a module; a package's is named after its folder, the whole one's init."""
    inside = module.relative_to(PACKAGE)
    if inside.name != "__init__.py":
        return TESTS / inside.parent / f"test_{inside.stem}.py"
    if inside.parent == Path():
        return TESTS / "test_init.py"
    return TESTS / inside.parent.parent / f"test_{inside.parent.name}.py"


MODULES = {
    str(module.relative_to(PACKAGE).as_posix()): module
    for module in sorted(PACKAGE.rglob("*.py"))
    if has_code(module)
}


@pytest.mark.parametrize("name", [name for name in MODULES if name not in COVERED_ELSEWHERE])
def test_every_module_has_a_test_file_in_the_same_place(name: str) -> None:
    path = mirror(MODULES[name])
    assert path.is_file(), f"{name} has no {path.relative_to(TESTS)}"
    assert "\ndef test_" in path.read_text("utf-8")


@pytest.mark.parametrize("name", COVERED_ELSEWHERE)
def test_every_exception_is_needed(name: str) -> None:
    assert name in MODULES
    assert not mirror(MODULES[name]).exists()
