"""Every method by name: built in, from installed packages, or registered by a plugin.

A method's module is imported when the method is first used, so listing names is fast. To add a
method to the package, write its file and add a line to `_BUILT_IN`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from cprompt import plugins
from cprompt.errors import ConfigError
from cprompt.settings import suggest

if TYPE_CHECKING:
    from cprompt.methods.base import Method

M = TypeVar("M", bound="type[Method]")


@dataclass(frozen=True)
class MethodInfo:
    """What is known about a method before it is imported."""

    name: str
    title: str
    """The name in tables and figures."""
    summary: str
    load: Callable[[], object]
    """Imports the module that registers the class."""


def _built_in(name: str, title: str, summary: str) -> MethodInfo:
    module = f"cprompt.methods.{name}"
    return MethodInfo(name, title, summary, partial(importlib.import_module, module))


_BUILT_IN = (
    _built_in("cprompt", "CPrompt", "A prompt, a head and keys per task, trained consistently"),
    _built_in("esn", "ESN", "An attention block and a head per task, chosen by energy"),
    _built_in("l2p", "L2P", "A pool of prompts that all tasks share"),
    _built_in("dualprompt", "DualPrompt", "One prompt for all tasks, and one per task"),
    _built_in("coda", "CODA-Prompt", "Prompts mixed from components by attention"),
    _built_in("slca", "SLCA", "The whole backbone tuned slowly; heads aligned on Gaussians"),
    _built_in("hide", "HiDe-Prompt", "A prefix per task, found by a head on plain features"),
    _built_in("strata", "Strata", "Class means and one covariance over all layers, in closed form"),
    _built_in("ranpac", "RanPAC", "Ridge regression on random projections of the class token"),
    _built_in("lda", "Streaming LDA", "Class means and one covariance of the last class token"),
    _built_in("nearest_mean", "Nearest mean", "The nearest of the classes' mean class tokens"),
    _built_in("finetune", "Fine-tuning", "One prompt and one head, nothing protected: lower bound"),
    _built_in("joint", "Joint", "All classes learnt at once: the paper's upper bound"),
    _built_in(
        "joint_tuning", "Joint fine-tuning", "All classes at once, backbone included: the ceiling"
    ),
)
"""In the order in which tables and figures show them."""


class MethodRegistry(Mapping[str, "type[Method]"]):
    """Method classes by name; `METHODS["cprompt"]` imports CPrompt if necessary."""

    def __init__(self) -> None:
        self._infos = {info.name: info for info in _BUILT_IN}
        self._classes: dict[str, type[Method]] = {}
        for name, entry in plugins.offered(plugins.METHODS_GROUP).items():
            summary = f"from {plugins.provider(entry)}"
            info = MethodInfo(name, name, summary, partial(plugins.load, entry))
            self._infos.setdefault(name, info)

    def __getitem__(self, name: str) -> type[Method]:
        if name not in self._classes:
            self._infos[name].load()
        if name not in self._classes:
            raise ConfigError(
                f"loading {name!r} did not register a method of that name",
                hint=f"decorate its class with @register({name!r}, ItsConfig)",
            )
        return self._classes[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._infos)

    def __len__(self) -> int:
        return len(self._infos)

    def __contains__(self, name: object) -> bool:
        return name in self._infos

    def info(self, name: str) -> MethodInfo:
        """What is known about a method without importing it."""
        return self._infos[name]

    def title(self, name: str) -> str:
        """A method's name in tables and figures; `name` itself if no such method is known."""
        return self._infos[name].title if name in self._infos else name

    def add(self, cls: type[Method], title: str | None) -> None:
        """Add a class whose `name` is set."""
        if cls.name in self._classes:
            raise ConfigError(f"two methods are called {cls.name!r}")
        self._classes[cls.name] = cls
        known = self._infos.get(cls.name)
        if known is None or title is not None:
            summary = known.summary if known else _first_line(cls)
            self._infos[cls.name] = MethodInfo(cls.name, title or cls.name, summary, lambda: None)


METHODS = MethodRegistry()


def method_class(name: str) -> type[Method]:
    """The class of the method called `name`."""
    if name not in METHODS:
        raise ConfigError(
            f"no method is called {name!r}",
            hint=f"{suggest(name, sorted(METHODS))} "
            "(a method in a file of your own needs --plugin MODULE)",
        )
    return METHODS[name]


def _first_line(cls: type) -> str:
    return (cls.__doc__ or "").strip().partition("\n")[0]
