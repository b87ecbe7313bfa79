"""A run's settings: recipes in YAML give defaults, the command line overrides them.

Later sources override earlier ones: the dataclasses below, the benchmark's recipe, the method's
recipe (of the chosen flavour), that recipe's part for the benchmark, the user's YAML file, dotted
names on the command line.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import yaml

from cprompt.data.image_set import Dataset
from cprompt.data.pipeline.cache import CacheConfig
from cprompt.data.pipeline.views import NORMALIZATIONS, RECIPES
from cprompt.data.registry import load_dataset
from cprompt.errors import ConfigError
from cprompt.methods.registry import method_class
from cprompt.research.evaluation import EvaluationConfig
from cprompt.research.recipes import benchmark_recipe, method_recipe
from cprompt.research.stream import TaskStream, class_order, task_sizes
from cprompt.settings import check, from_mapping, setting, suggest, to_mapping
from cprompt.training.settings import Acceleration, Seeds, TrainingConfig
from cprompt.vit.loading import PAPER_BACKBONE


@dataclass(frozen=True)
class DataConfig:
    """Which images, and how they are fed."""

    dataset: str = setting("folder", "a dataset's name, see `cprompt list datasets`")
    root: str | None = setting(None, "folder of its images")
    transform: str = setting("photo", "augmentation recipe")
    normalization: str = setting(
        "none", "none (inputs in [0,1]), imagenet, inception, or auto: the backbone's own"
    )
    validation: float | None = setting(
        None, "hold out this fraction of train and evaluate on it instead of test"
    )
    options: dict[str, Any] = field(
        default_factory=dict, metadata={"help": "options of the dataset's loader"}
    )

    def __post_init__(self) -> None:
        check(
            self.normalization in ("auto", *NORMALIZATIONS),
            f"normalization {self.normalization!r} is not auto or one of "
            f"{', '.join(NORMALIZATIONS)}",
        )
        check(
            self.transform in RECIPES,
            f"transform {self.transform!r} is not one of {', '.join(RECIPES)}",
        )

    def load(self, seed: int) -> Dataset:
        """Load the dataset; with `validation`, test images are never read."""
        dataset = load_dataset(
            self.dataset, None if self.root is None else Path(self.root), **self.options
        )
        if self.validation is not None:
            dataset = dataset.with_validation(self.validation, seed)
        return dataset


@dataclass(frozen=True)
class StreamConfig:
    """How classes are split into tasks, by one of increment, tasks and sizes; where to stop."""

    increment: int | None = setting(None, "classes per task; the last task gets the remainder")
    first: int | None = setting(None, "with increment: classes of the first task")
    tasks: int | None = setting(None, "number of tasks")
    sizes: tuple[int, ...] | None = setting(None, "number of classes of each task")
    first_tasks: int | None = setting(
        None, "stop after so many tasks of the stream; empty: learn all of them"
    )

    def __post_init__(self) -> None:
        few = self.first_tasks
        check(few is None or few >= 1, f"first_tasks {few} must be at least 1")

    def build(self, n_classes: int, order: int | str | Sequence[int]) -> TaskStream:
        """The stream over a dataset of `n_classes`."""
        sizes = task_sizes(
            n_classes,
            increment=self.increment,
            first=self.first,
            tasks=self.tasks,
            sizes=self.sizes,
        )
        if self.first_tasks is not None and self.first_tasks > len(sizes):
            raise ConfigError(
                f"stream.first_tasks is {self.first_tasks}, but the stream has {len(sizes)} tasks",
                hint="leave it out to learn all of them",
            )
        return TaskStream(class_order(n_classes, order), sizes)


@dataclass(frozen=True)
class BackboneConfig:
    """Which frozen model."""

    name: str = setting(
        PAPER_BACKBONE, "an embedded backbone, a timm model with its weight tag, or auto"
    )
    weights: str | None = setting(None, "a local .safetensors or .pth file, or random:SEED")
    image_size: int | None = setting(None, "side of the input in pixels; empty: the model's own")


@dataclass(frozen=True)
class ExecutionConfig:
    """How the machine is used; results change by rounding only."""

    device: str = setting("auto", "auto, cpu, cuda or mps")
    accelerate: Acceleration = setting(
        "auto",
        "on CUDA: graphs, compile (fewer, larger kernels too), none; auto: compile where it pays",
    )
    workers: int | None = setting(
        None, "threads that prepare images; empty: one per core with an accelerator, else none"
    )
    eval_batch_size: int | None = setting(
        None, "test images per batch; empty: 256 with an accelerator, else 32"
    )
    memory_gib: float = setting(4.0, "memory for features of test images; further ones go to disk")
    checkpoint_seconds: float = setting(60.0, "least time between checkpoints within a task")

    def __post_init__(self) -> None:
        workers, batch = self.workers, self.eval_batch_size
        check(workers is None or workers >= 0, f"workers {workers} must not be negative")
        check(batch is None or batch >= 1, f"eval_batch_size {batch} must be positive")
        check(self.memory_gib >= 0, f"memory_gib {self.memory_gib} must not be negative")

    def workers_on(self, device: torch.device) -> int:
        """How many threads prepare images for `device`."""
        if self.workers is not None:
            return self.workers
        return 0 if device.type == "cpu" else os.cpu_count() or 1

    def eval_batch_on(self, device: torch.device) -> int:
        """How many test images go to `device` at once."""
        return self.eval_batch_size or (32 if device.type == "cpu" else 256)


@dataclass(frozen=True)
class RunConfig:
    """Everything that a run depends on.

    >>> config = resolve("shapes", overrides={"seeds.order": 7})
    >>> config.method, config.seeds.order, config.stream.increment
    ('cprompt', 7, 5)
    """

    benchmark: str
    method: str
    flavour: str | None
    settings: dict[str, Any]
    data: DataConfig = field(default_factory=DataConfig)
    stream: StreamConfig = field(default_factory=StreamConfig)
    backbone: BackboneConfig = field(default_factory=BackboneConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    seeds: Seeds = field(default_factory=Seeds)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    execution: ExecutionConfig = field(default_factory=ExecutionConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)

    def to_dict(self) -> dict[str, Any]:
        """Plain nested values; `method` holds the name and every setting of the method."""
        parts: dict[str, Any] = {
            f.name: to_mapping(getattr(self, f.name))
            for f in dataclasses.fields(self)
            if f.name in PARTS
        }
        return {
            "benchmark": self.benchmark,
            "flavour": self.flavour,
            "method": {"name": self.method, **self.settings},
            **parts,
        }

    def public(self) -> dict[str, Any]:
        """`to_dict` without paths of this machine, for records."""
        plain = self.to_dict()
        plain["data"]["root"] = plain["cache"]["folder"] = None
        for name, value in self.data.options.items():  # some are files that list images
            if isinstance(value, str):
                plain["data"]["options"][name] = Path(value).name
        if self.backbone.weights and not self.backbone.weights.startswith("random:"):
            plain["backbone"]["weights"] = Path(self.backbone.weights).name
        return plain

    def default_folder(self) -> Path:
        """The run's folder by default: a readable name, different for different settings.

        Only settings that differ from their defaults are part of the digest in the name, so that
        runs are still found after a later version adds a setting.
        """
        public = self.public()
        weights = {"backbone": {"weights": public["backbone"]["weights"]}}
        counts = merge(deciding_settings(public), weights)
        seeds = counts.pop("seeds")
        usual = flatten(config_from_dict({"method": {"name": self.method}}).to_dict())
        unusual = {k: v for k, v in flatten(counts).items() if k not in usual or usual[k] != v}
        order = seeds["order"]
        if isinstance(order, list):
            order = f"list{_digest(order)}"
        method = self.method if self.flavour is None else f"{self.method}-{self.flavour}"
        name = f"{method}-order{order}-init{seeds['init']}-data{seeds['data']}-{_digest(unusual)}"
        return Path("runs") / self.benchmark / name


def _digest(plain: Any) -> str:
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:8]


def deciding_settings(plain: Mapping[str, Any]) -> dict[str, Any]:
    """The part of plain settings that decides a run's numbers.

    It leaves out the machine and the location of files. It also leaves out the backbone's weights,
    which are compared by their fingerprint, not by the name of their file.
    """
    return merge(
        {k: v for k, v in plain.items() if k not in ("execution", "cache")},
        {"data": {"root": None}, "backbone": {"weights": None}},
    )


PARTS: dict[str, type] = {
    "data": DataConfig,
    "stream": StreamConfig,
    "backbone": BackboneConfig,
    "training": TrainingConfig,
    "seeds": Seeds,
    "evaluation": EvaluationConfig,
    "execution": ExecutionConfig,
    "cache": CacheConfig,
}


def config_from_dict(plain: Mapping[str, Any]) -> RunConfig:
    """Check plain nested values and fill in defaults, the method's own settings included."""
    given = copy.deepcopy(dict(plain))
    benchmark, flavour = given.pop("benchmark", "custom"), given.pop("flavour", None)
    settings = dict(_mapping(given.pop("method", None), "method"))
    name = settings.pop("name", "cprompt")
    cls = method_class(name)
    checked: Any = from_mapping(cls.Config, settings, where=f"method {name}")
    for part in given:
        if part not in PARTS:
            raise ConfigError(f"no settings {part!r}", hint=suggest(part, ["method", *PARTS]))
    parts: dict[str, Any] = {
        part: from_mapping(PARTS[part], _mapping(given.get(part), part), where=part)
        for part in PARTS
    }
    return RunConfig(benchmark, name, flavour, to_mapping(checked), **parts)


def resolve(
    benchmark: str,
    method: str = "cprompt",
    flavour: str | None = None,
    *,
    file: Path | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> RunConfig:
    """The settings of `benchmark` with `method`: recipes, then `file`, then dotted `overrides`.

    >>> config = resolve("cars10", "cprompt", overrides={"training.precision": "bf16"})
    >>> config.stream.increment, config.training.epochs, config.training.precision
    (20, 120, 'bf16')
    """
    flavour, for_method = method_recipe(method, flavour)
    asked = merge(read_yaml(file) if file else {}, nest(overrides or {}))
    _check_names(asked, {"benchmark": benchmark, "method": method, "flavour": flavour})
    layers = [
        {k: v for k, v in benchmark_recipe(benchmark).items() if k != "summary"},
        {k: v for k, v in for_method.items() if k != "benchmarks"},
        for_method.get("benchmarks", {}).get(benchmark, {}),
        asked,
        {"benchmark": benchmark, "flavour": flavour, "method": {"name": method}},
    ]
    return config_from_dict(functools.reduce(merge, layers, {}))


def _check_names(asked: Mapping[str, Any], names: Mapping[str, str | None]) -> None:
    """Raise a ConfigError if the settings name another benchmark, method or flavour."""
    theirs = {**asked, "method": _mapping(asked.get("method"), "method").get("name")}
    for kind, name in names.items():
        other = theirs.get(kind)
        if other not in (None, name):
            raise ConfigError(
                f"the settings are for {kind} {other!r}, but the run is for {name!r}",
                hint=f"run {kind} {other!r}, or remove its name from the settings",
            )


def _mapping(value: Any, where: str) -> Mapping[str, Any]:
    """`value`, or {} if it is None; a ConfigError if it is not a mapping."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where}: {value!r} is not names and values")
    return value


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`base` overridden by `over`, level by level; an empty part of `over` changes nothing."""
    merged = dict(base)
    for key, value in over.items():
        if value is None and isinstance(merged.get(key), Mapping):
            continue
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = merge(merged[key], value) if both else value
    if {"increment", "tasks", "sizes"} & set(over):  # they exclude each other: the last one counts
        for other in {"increment", "first", "tasks", "sizes"} - set(over):
            merged.pop(other, None)
    return merged


def nest(dotted: Mapping[str, Any]) -> dict[str, Any]:
    """Turn {"training.lr": 0.1} into {"training": {"lr": 0.1}}."""
    nested: dict[str, Any] = {}
    for name, value in dotted.items():
        *path, last = name.split(".")
        if not path:
            raise ConfigError(
                f"setting {name!r} does not name a part",
                hint=f"write PART.NAME, with PART one of {', '.join(['method', *PARTS])}",
            )
        at = nested
        for key in path:
            at[key] = dict(_mapping(at.get(key), f"{name} cannot be set inside {key}"))
            at = at[key]
        at[last] = value
    return nested


def flatten(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Turn {"training": {"lr": 0.1}} into {"training.lr": 0.1}; the inverse of `nest`."""
    flat: dict[str, Any] = {}
    for name, value in nested.items():
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML mapping from a user's file."""
    try:
        loaded = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError("does not exist", file=path) from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"is not readable YAML: {error}", file=path) from error
    if not isinstance(loaded, dict):
        raise ConfigError(f"must hold names and values, not {type(loaded).__name__}", file=path)
    return loaded
