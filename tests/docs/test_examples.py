"""Every example in a docstring runs, and every public class and function has one."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from types import ModuleType

import pytest

import cprompt
from tests.registered import forgotten_afterwards

FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE | doctest.IGNORE_EXCEPTION_DETAIL
PUBLIC = [
    name
    for name in cprompt.__all__
    if inspect.isclass(getattr(cprompt, name)) or inspect.isfunction(getattr(cprompt, name))
]


def modules() -> Iterator[str]:
    """Modules of the package whose source has an example; only those are imported."""
    for module in pkgutil.walk_packages(cprompt.__path__, "cprompt."):
        spec = module.module_finder.find_spec(module.name, None)  # type: ignore[call-arg]
        loader = spec.loader if spec else None
        source = loader.get_source(module.name) if hasattr(loader, "get_source") else None
        if ">>> " in (source or ""):
            yield module.name


def examples(module: ModuleType) -> list[doctest.DocTest]:
    found = doctest.DocTestFinder(exclude_empty=True).find(module)
    return [test for test in found if test.examples]


@pytest.mark.parametrize("name", sorted(modules()))
def test_the_examples_of_a_module_run(name: str) -> None:
    found = examples(importlib.import_module(name))
    assert found, f"{name} has `>>>` in it, but in no docstring"
    for test in found:
        said: list[str] = []
        with forgotten_afterwards():
            result = doctest.DocTestRunner(optionflags=FLAGS).run(test, out=said.append)
        assert result.failed == 0, "".join(said)


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_has_an_example(name: str) -> None:
    """In its own docstring; `test_the_examples_of_a_module_run` runs it."""
    documented = getattr(cprompt, name)
    assert documented.__module__.startswith("cprompt."), name
    assert ">>> " in (documented.__doc__ or ""), f"cprompt.{name} has no example"
