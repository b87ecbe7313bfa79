"""The public names: all there, from where the types say, and imported when they are used."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import cprompt


def typed_names() -> dict[str, str]:
    """The module of each name that type checkers see."""
    tree = ast.parse(Path(cprompt.__file__).read_text("utf-8"))
    (block,) = [
        node
        for node in tree.body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    return {
        alias.name: str(node.module)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def test_types_and_values_have_the_same_names() -> None:
    assert {*typed_names(), "__version__"} == set(cprompt.__all__)
    assert set(cprompt.__all__) <= set(dir(cprompt))


@pytest.mark.parametrize(("name", "module"), sorted(typed_names().items()))
def test_a_name_is_that_of_its_module(name: str, module: str) -> None:
    assert getattr(cprompt, name) is getattr(import_module(module), name)


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'nothing'"):
        cprompt.nothing  # noqa: B018


def test_importing_the_package_imports_nothing_slow_and_a_name_does() -> None:
    program = """
import sys
import cprompt
assert not {"torch", "timm", "numpy", "cprompt.errors"} & {*sys.modules}
from cprompt import CPromptError
assert "torch" not in sys.modules
assert "CPromptError" in vars(cprompt)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
