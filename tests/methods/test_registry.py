"""Methods by name."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from cprompt.errors import ConfigError
from cprompt.methods.base import Method, register
from cprompt.methods.registry import (
    METHODS,
    MethodInfo,
    MethodRegistry,
    method_class,
)


@dataclass(frozen=True)
class NoSettings:
    """Nothing to set."""


def test_every_built_in_method_is_there_under_its_name() -> None:
    for name in METHODS:
        info = METHODS.info(name)
        assert METHODS[name].name == name
        assert METHODS.title(name) == info.title != ""
        assert info.summary
    assert METHODS.title("unheard of") == "unheard of"


def test_an_unknown_name_gets_the_nearest_one_as_a_hint() -> None:
    with pytest.raises(ConfigError, match="'cpromt'") as caught:
        method_class("cpromt")
    assert caught.value.hint is not None
    assert "'cprompt'" in caught.value.hint
    assert "--plugin" in caught.value.hint


def test_a_registered_method_has_title_and_summary(own_methods: MethodRegistry) -> None:
    @register("guess", NoSettings, title="Guessing")
    class Guess(Method):
        """Answers the first class.

        Always.
        """

    assert method_class("guess") is Guess
    info = own_methods.info("guess")
    assert (info.title, info.summary) == ("Guessing", "Answers the first class.")


def test_a_name_is_given_once(own_methods: MethodRegistry) -> None:
    def add() -> None:
        @register("guess", NoSettings)
        class Guess(Method):
            """Answers the first class."""

    add()
    with pytest.raises(ConfigError, match="'guess'"):
        add()


def test_a_module_that_registers_nothing_is_named(own_methods: MethodRegistry) -> None:
    own_methods._infos["empty"] = MethodInfo("empty", "Empty", "", lambda: None)
    with pytest.raises(ConfigError, match="'empty'") as caught:
        method_class("empty")
    assert caught.value.hint is not None
    assert "@register" in caught.value.hint
