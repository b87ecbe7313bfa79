"""A run's settings: where each comes from, what the shipped recipes say, what is refused."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from cprompt.data.registry import DATASETS
from cprompt.errors import ConfigError
from cprompt.methods.registry import METHODS
from cprompt.research import recipes as recipes_module
from cprompt.research.config import (
    PAPER_BACKBONE,
    RunConfig,
    config_from_dict,
    flatten,
    merge,
    nest,
    read_yaml,
    resolve,
)
from cprompt.research.recipes import benchmarks, flavours

PAPER = ("cars10", "cars20", "imagenet_r10", "imagenet_r20", "cifar100", "domainnet")
EVERY_FLAVOUR = [(m, f) for m in sorted(METHODS) for f in [None, *flavours(m)]]


@pytest.fixture
def written(tmp_path: Path) -> Any:
    """Writes a settings file and gives its path."""

    def write(values: Any) -> Path:
        path = tmp_path / "mine.yaml"
        path.write_text(values if isinstance(values, str) else yaml.safe_dump(values))
        return path

    return write


# --- which layer wins ---------------------------------------------------------------------------


LAYERS = (
    "the benchmark's recipe",
    "the method's recipe",
    "its part for the benchmark",
    "the file",
    "a dotted name",
)


@pytest.mark.parametrize("weakest", range(len(LAYERS)))
@pytest.mark.parametrize("strongest", range(len(LAYERS)))
def test_the_stronger_of_two_layers_wins(
    weakest: int, strongest: int, written: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each layer gives training.epochs its own number plus one; only two of them speak."""

    def says(layer: int) -> dict[str, Any]:
        return {"training": {"epochs": layer + 1}} if layer in (weakest, strongest) else {}

    recipes = {
        "benchmarks": {"data": {"dataset": "shapes"}, **says(0)},
        "methods": {**says(1), "benchmarks": {"cars10": says(2), "cars20": {}}},
    }
    monkeypatch.setattr(recipes_module, "read_recipe", lambda kind, name: recipes[kind])
    settings = resolve(
        "cars10", "cprompt", file=written(says(3) or {"seeds": {}}), overrides=flatten(says(4))
    )
    assert settings.training.epochs == max(weakest, strongest) + 1


def test_another_benchmark_s_part_of_a_method_s_recipe_is_left_alone() -> None:
    assert resolve("cifar100").settings["tau"] == 1.2
    assert resolve("shapes").settings["tau"] == 1.15  # no part of its own: CPrompt's default


def test_layers_add_up_setting_by_setting(written: Any) -> None:
    settings = resolve(
        "cifar100",
        file=written({"training": {"lr": 0.5}, "method": {"length": 7}}),
        overrides={"training.momentum": 0.1},
    )
    assert settings.training.lr == 0.5  # file
    assert settings.training.momentum == 0.1  # dotted
    assert settings.training.epochs == 18  # the method's recipe for the benchmark
    assert settings.training.weight_decay == 5e-4  # the method's recipe
    assert settings.data.normalization == "imagenet"  # the benchmark's recipe
    assert settings.training.clip is None  # the dataclass
    assert (settings.settings["length"], settings.settings["margin"]) == (7, 0.0)


def test_an_empty_part_of_a_file_sets_nothing(written: Any) -> None:
    file = written("training:\nmethod:\ndata:\n  # root: here\n")
    assert resolve("cars10", file=file) == resolve("cars10")


def test_a_flavour_is_one_set_of_a_method_s_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = {
        "default_flavour": "b",
        "flavours": {
            "a": {"training": {"epochs": 3}},
            "b": {"training": {"epochs": 4}, "benchmarks": {"cars10": {"training": {"lr": 9.0}}}},
        },
    }
    shipped = recipes_module.read_recipe
    monkeypatch.setattr(
        recipes_module,
        "read_recipe",
        lambda kind, name: recipe if kind == "methods" else shipped(kind, name),
    )
    assert flavours("cprompt") == ["b", "a"]
    default = resolve("cars10")
    assert (default.flavour, default.training.epochs, default.training.lr) == ("b", 4, 9.0)
    assert resolve("cars20").training.lr == 0.01
    other = resolve("cars10", flavour="a")
    assert (other.flavour, other.training.epochs, other.training.lr) == ("a", 3, 0.01)
    with pytest.raises(ConfigError, match=r"^cprompt has no flavour 'c'; it has b, a$"):
        resolve("cars10", flavour="c")


def test_a_flavour_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^cprompt has no flavour 'mine'; it has only one set"):
        resolve("cars10", "cprompt", "mine")


# --- three ways to cut a stream -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "dotted", "sizes"),
    [
        ({}, {}, (5, 5, 5, 5, 5, 5)),
        ({"tasks": 3}, {}, (10, 10, 10)),
        ({"sizes": [10, 20]}, {}, (10, 20)),
        ({"increment": 20}, {}, (20, 10)),
        ({"tasks": 3}, {"sizes": [29, 1]}, (29, 1)),
        ({"sizes": [10, 20]}, {"tasks": 2}, (15, 15)),
        ({"sizes": [10, 20]}, {"increment": 15}, (15, 15)),
        ({}, {"first": 10}, (10, 5, 5, 5, 5)),
        ({"first": 10}, {"increment": 10}, (10, 10, 10)),
        ({"first": 10, "increment": 20}, {}, (10, 20)),
        ({"first": 10}, {"tasks": 2}, (15, 15)),
    ],
)
def test_of_three_ways_to_cut_a_stream_the_last_one_counts(
    file: dict[str, Any], dotted: dict[str, Any], sizes: tuple[int, ...], written: Any
) -> None:
    settings = resolve(
        "shapes",
        file=written({"stream": file}),
        overrides={f"stream.{k}": v for k, v in dotted.items()},
    )
    assert settings.stream.build(30, 0).sizes == sizes


def test_a_method_s_recipe_replaces_the_benchmark_s_way_to_cut_the_stream() -> None:
    assert resolve("cars10", "joint").stream.build(196, 0).sizes == (196,)


def test_two_ways_at_once_are_refused() -> None:
    settings = resolve("shapes", overrides={"stream.tasks": 2, "stream.increment": 3})
    with pytest.raises(ConfigError, match="exactly one of increment, tasks and sizes"):
        settings.stream.build(30, 0)


# --- dotted names -------------------------------------------------------------------------------


def test_nest_and_flatten_are_inverses() -> None:
    dotted = {"a.b": 1, "a.c.d": [1, 2], "a.c.e": None, "f.g": "x", "f.empty": {}}
    nested = {"a": {"b": 1, "c": {"d": [1, 2], "e": None}}, "f": {"g": "x", "empty": {}}}
    assert nest(dotted) == nested
    assert flatten(nested) == dotted


@pytest.mark.parametrize("benchmark", benchmarks())
def test_nest_undoes_flatten_on_real_settings(benchmark: str) -> None:
    parts = {k: v for k, v in resolve(benchmark).to_dict().items() if isinstance(v, Mapping)}
    assert nest(flatten(parts)) == parts


def test_nest_leaves_what_it_was_given_alone() -> None:
    options = {"classes": 6}
    nested = nest({"data.options": options, "data.options.size": 48})
    assert nested == {"data": {"options": {"classes": 6, "size": 48}}}
    assert options == {"classes": 6}


def test_merge_leaves_what_it_was_given_alone() -> None:
    base: dict[str, Any] = {"a": {"b": 1}, "stream": {"increment": 1, "first": 2}}
    over = {"a": {"c": 2}, "stream": {"tasks": 3}}
    assert merge(base, over) == {"a": {"b": 1, "c": 2}, "stream": {"tasks": 3}}
    assert base == {"a": {"b": 1}, "stream": {"increment": 1, "first": 2}}
    assert over == {"a": {"c": 2}, "stream": {"tasks": 3}}


# --- the shipped recipes ------------------------------------------------------------------------


@pytest.mark.parametrize("benchmark", benchmarks())
@pytest.mark.parametrize(("method", "flavour"), EVERY_FLAVOUR)
def test_every_benchmark_resolves_with_every_method_and_flavour(
    benchmark: str, method: str, flavour: str | None
) -> None:
    settings = resolve(benchmark, method, flavour)
    assert (settings.benchmark, settings.method) == (benchmark, method)
    assert settings.flavour == (flavour or (flavours(method) or [None])[0])
    assert settings.data.dataset in DATASETS
    assert settings.backbone.name
    assert config_from_dict(json.loads(json.dumps(settings.to_dict()))) == settings


def test_the_shipped_benchmarks() -> None:
    assert set(benchmarks()) >= {*PAPER, "folder", "shapes"}


@pytest.mark.parametrize(
    ("benchmark", "epochs", "tau", "margin"),
    [
        ("cars10", 120, 1.15, 0.1),
        ("cars20", 120, 1.15, 0.1),
        ("imagenet_r10", 10, 1.15, 0.1),
        ("imagenet_r20", 10, 1.15, 0.1),
        ("cifar100", 18, 1.2, 0.0),
        ("domainnet", 15, 1.02, 0.05),
    ],
)
def test_cprompt_s_settings_are_the_paper_s(
    benchmark: str, epochs: int, tau: float, margin: float
) -> None:
    settings = resolve(benchmark)
    method, training = settings.settings, settings.training
    assert (training.epochs, method["tau"], method["margin"]) == (epochs, tau, margin)
    assert (training.optimizer, training.schedule, training.batch_size) == ("sgd", "cosine", 16)
    assert (training.lr, training.momentum, training.weight_decay) == (0.01, 0.9, 5e-4)
    assert (training.clip, training.precision) == (None, "fp32")
    assert (method["alpha"], method["length"], method["layers"]) == (1.0, 50, None)
    assert (method["keys"], method["prompt_init"], method["smoothing"]) == (
        "class",
        "copy",
        "adaptive",
    )
    assert all(method[switch] for switch in ("ccl", "pcl", "aux_loss", "aux_head"))
    assert settings.backbone.name == PAPER_BACKBONE == "vit_base_patch16_224.augreg_in21k_ft_in1k"
    assert (settings.seeds.order, settings.seeds.init) == (1993, 1)


@pytest.mark.parametrize("method", ["finetune", "joint"])
@pytest.mark.parametrize("benchmark", PAPER)
def test_the_bounds_are_trained_as_cprompt_is(benchmark: str, method: str) -> None:
    assert resolve(benchmark, method).training == resolve(benchmark).training


@pytest.mark.parametrize(
    ("benchmark", "dataset", "transform", "normalization", "sizes"),
    [
        ("cars10", "stanford_cars", "photo", "none", (20,) * 9 + (16,)),
        ("cars20", "stanford_cars", "photo", "none", (10,) * 19 + (6,)),
        ("imagenet_r10", "imagenet_r", "photo", "none", (20,) * 10),
        ("imagenet_r20", "imagenet_r", "photo", "none", (10,) * 20),
        ("cifar100", "cifar100", "cifar", "imagenet", (10,) * 10),
        ("domainnet", "domainnet", "photo", "none", (20,) * 10),
    ],
)
def test_each_benchmark_feeds_and_cuts_its_images_as_the_released_code_does(
    benchmark: str, dataset: str, transform: str, normalization: str, sizes: tuple[int, ...]
) -> None:
    settings = resolve(benchmark)
    data = settings.data
    assert (data.dataset, data.transform, data.normalization) == (
        dataset,
        transform,
        normalization,
    )
    expected = DATASETS[dataset].expected
    assert expected is not None
    stream = settings.stream.build(expected.classes, settings.seeds.order)
    assert stream.sizes == sizes


def test_the_class_orders_are_the_released_code_s() -> None:
    for benchmark, classes, first in [
        ("cars10", 196, (59, 134, 162, 9, 42, 72, 118, 99)),
        ("imagenet_r10", 200, (168, 136, 51, 9, 183, 101, 171, 99)),
        ("cifar100", 100, (68, 56, 78, 8, 23, 84, 90, 65)),
    ]:
        settings = resolve(benchmark)
        assert settings.stream.build(classes, settings.seeds.order).order[:8] == first


# --- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("training: {epochs: [", r"mine\.yaml: is not readable YAML: while parsing"),
        ("- a\n- b\n", r"mine\.yaml: must hold names and values, not list$"),
        ("just words", r"mine\.yaml: must hold names and values, not str$"),
        ("", r"mine\.yaml: must hold names and values, not NoneType$"),
        ("training: 5", r"^training: 5 is not names and values$"),
        ("training: [5]", r"^training: \[5\] is not names and values$"),
        ("method: finetune", r"^method: 'finetune' is not names and values$"),
        ("training: {epochs: ten}", r"^training\.epochs: 'ten' is not a whole number$"),
        ("training: {epochs: -1}", r"^training: epochs -1 must not be negative$"),
        ("training: {epoch: 3}", r"^training: no setting 'epoch'; did you mean 'epochs'\?$"),
        ("training: {on: 3}", r"^training: no setting True; there are epochs, "),
        ("trainin: {epochs: 3}", r"^no settings 'trainin'; did you mean 'training'\?$"),
        ("7: {epochs: 3}", r"^no settings 7; there are method, data, "),
        ("method: {taau: 3}", r"^method cprompt: no setting 'taau'; did you mean 'tau'\?$"),
        ("data: {transform: odd}", r"^data: transform 'odd' is not one of photo, cifar, "),
        ("data: {normalization: odd}", r"^data: normalization 'odd' is not auto or one of none, "),
        ("execution: {workers: -1}", r"^execution: workers -1 must not be negative$"),
        ("execution: {eval_batch_size: 0}", r"^execution: eval_batch_size 0 must be positive$"),
        ("evaluation: {modes: [given]}", r"^evaluation: modes must include 'selected'$"),
        ("evaluation: {top_k: 1}", r"^evaluation: top_k 1 must be at least 2"),
        ("benchmark: cars10", r"^the settings are for benchmark 'cars10', but .* for 'shapes'"),
        ("method: {name: joint}", r"^the settings are for method 'joint', but .* 'cprompt'"),
        ("flavour: official", r"^the settings are for flavour 'official', but .* None"),
    ],
)
def test_a_bad_file_is_answered_with_what_is_wrong(text: str, message: str, written: Any) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve("shapes", file=written(text))


def test_a_file_that_is_missing_or_no_text_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yaml: does not exist$"):
        read_yaml(tmp_path / "none.yaml")
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"bytes\.yaml: is not readable YAML"):
        read_yaml(tmp_path / "bytes.yaml")
    with pytest.raises(ConfigError, match="is not readable YAML"):
        read_yaml(tmp_path)


def test_an_unknown_benchmark_is_answered_with_the_nearest_or_with_all() -> None:
    with pytest.raises(ConfigError, match=r"^no benchmark 'cars1'; did you mean 'cars10'\?$"):
        resolve("cars1")
    with pytest.raises(ConfigError) as caught:
        resolve("zzz")
    assert str(caught.value) == f"no benchmark 'zzz'; there are {', '.join(benchmarks())}"


def test_an_unknown_method_is_answered_with_all() -> None:
    with pytest.raises(ConfigError) as caught:
        resolve("shapes", "cprompd")
    assert "'cprompd'" in caught.value.message
    assert "'cprompt'" in str(caught.value.hint)
    assert "--plugin" in str(caught.value.hint)
    with pytest.raises(ConfigError) as caught:
        resolve("shapes", "zzz")
    assert all(name in str(caught.value.hint) for name in METHODS)


def test_a_dotted_name_needs_a_part() -> None:
    with pytest.raises(ConfigError, match=r"^setting 'lr' does not name a part; write PART\.NAME"):
        resolve("shapes", overrides={"lr": 1})


def test_nothing_can_be_set_inside_a_single_value() -> None:
    with pytest.raises(ConfigError, match=r"training\.lr\.x cannot be set inside lr: 1 is not"):
        resolve("shapes", overrides={"training.lr": 1, "training.lr.x": 2})


# --- where a run goes, and what it says of the machine ------------------------------------------


CHANGED = {
    "data.transform": "plain",
    "data.normalization": "imagenet",
    "data.validation": 0.2,
    "data.options.seed": 3,
    "stream.tasks": 2,
    "stream.first": 3,
    "backbone.name": "test_vit",
    "backbone.weights": "random:3",
    "backbone.image_size": 96,
    "training.epochs": 3,
    "training.lr": 0.3,
    "training.precision": "bf16",
    "seeds.order": 5,
    "seeds.init": 5,
    "seeds.data": 5,
    "evaluation.modes": ["selected", "given"],
    "evaluation.top_k": 3,
    "method.tau": 1.5,
    "method.layers": [1],
}


def test_runs_with_different_numbers_go_to_different_folders() -> None:
    folders = {name: resolve("shapes", overrides={name: v}) for name, v in CHANGED.items()}
    folders["nothing"] = resolve("shapes")
    folders["method"] = resolve("shapes", "finetune")
    folders["benchmark"] = resolve("folder")
    folders["another seed"] = resolve("shapes", overrides={"seeds.order": "natural"})
    folders["a list"] = resolve("shapes", overrides={"seeds.order": [1, 0]})
    folders["another list"] = resolve("shapes", overrides={"seeds.order": [0, 1]})
    folders["a file"] = resolve("shapes", overrides={"backbone.weights": "/home/a/w.pth"})
    assert len({s.default_folder() for s in folders.values()}) == len(folders)


def test_how_the_machine_is_used_and_where_files_lie_do_not_change_the_folder() -> None:
    folder = resolve("shapes").default_folder()
    for name, value in {
        "execution.device": "cuda",
        "execution.workers": 3,
        "execution.eval_batch_size": 7,
        "execution.checkpoint_seconds": 1.0,
        "data.root": "/somewhere/else",
    }.items():
        assert resolve("shapes", overrides={name: value}).default_folder() == folder, name
    here, there = (
        resolve("shapes", overrides={"backbone.weights": f"/{place}/w.pth"}) for place in "ab"
    )
    assert here.default_folder() == there.default_folder()


def test_a_folder_s_name_can_be_read() -> None:
    folder = resolve("cars10", overrides={"seeds.init": 4}).default_folder()
    assert folder.parent == Path("runs/cars10")
    assert folder.name.startswith("cprompt-order1993-init4-data1-")


def test_public_settings_hold_no_path() -> None:
    settings = resolve(
        "imagenet_r10",
        overrides={
            "data.root": "/home/me/photos",
            "data.options": {
                "split_train": "/home/me/lists/train.txt",
                "split": "coda",
                "seed": 3,
            },
            "backbone.weights": "/home/me/weights/vit.pth",
        },
    )
    public = settings.public()
    assert "home" not in json.dumps(public)
    assert "/" not in json.dumps(public)
    assert public["backbone"]["weights"] == "vit.pth"
    assert public["data"]["options"] == {"split_train": "train.txt", "split": "coda", "seed": 3}
    private = settings.to_dict()
    assert private["data"]["root"] == "/home/me/photos"
    assert private["data"]["options"]["split_train"] == "/home/me/lists/train.txt"
    assert private["backbone"]["weights"] == "/home/me/weights/vit.pth"
    random = resolve("shapes", overrides={"backbone.weights": "random:7"})
    assert random.public()["backbone"]["weights"] == "random:7"


def test_plain_settings_build_the_same_settings_again(tiny: dict[str, Any]) -> None:
    settings = resolve(
        "shapes",
        overrides=tiny | {"seeds.order": [5, 4, 3, 2, 1, 0], "method.layers": [1, 3]},
    )
    plain = settings.to_dict()
    assert plain["method"]["name"] == "cprompt"
    assert plain["method"]["layers"] == [1, 3]
    assert yaml.safe_load(yaml.safe_dump(plain)) == plain
    again = config_from_dict(plain)
    assert isinstance(again, RunConfig)
    assert again == settings
    assert again.seeds.order == (5, 4, 3, 2, 1, 0)


def test_a_setting_that_a_later_version_adds_does_not_move_a_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = resolve("cars10", "finetune").default_folder()

    @dataclasses.dataclass(frozen=True)
    class Later(METHODS["finetune"].Config):  # type: ignore[name-defined, misc]
        new: int = 3

    monkeypatch.setattr(METHODS["finetune"], "Config", Later)
    assert resolve("cars10", "finetune").default_folder() == before
    changed = resolve("cars10", "finetune", overrides={"method.new": 4})
    assert changed.default_folder() != before
