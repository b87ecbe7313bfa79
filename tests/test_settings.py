"""Settings: plain values to checked dataclasses and back, and what is said of wrong ones."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from cprompt.errors import ConfigError
from cprompt.settings import check, from_mapping, setting, suggest, to_mapping


@dataclass(frozen=True)
class Inner:
    depth: int = setting(1, "how deep")
    sizes: tuple[int, ...] = setting((1, 2), "of each")

    def __post_init__(self) -> None:
        check(self.depth >= 0, f"depth {self.depth} must not be negative")


@dataclass(frozen=True)
class Outer:
    count: int = setting(3, "how many")
    rate: float = setting(0.5, "how fast")
    label: str = setting("x", "its name")
    active: bool = setting(True, "whether")
    kind: Literal["soft", "hard"] = setting("soft", "which")
    limit: float | None = setting(None, "at most")
    order: int | Literal["natural"] | tuple[int, ...] = setting(0, "in which order")
    options: dict[str, Any] = field(default_factory=dict)
    inner: Inner = field(default_factory=Inner)
    made: int = field(default=0, init=False)


def refused(values: dict[Any, Any], config: type = Outer) -> str:
    with pytest.raises(ConfigError) as caught:
        from_mapping(config, values, where="here")
    return str(caught.value)


# --- what is taken ------------------------------------------------------------------------------


def test_what_is_not_named_keeps_its_default() -> None:
    assert from_mapping(Outer, {}, "here") == Outer()
    assert from_mapping(Outer, {"count": 7}, "here") == Outer(count=7)


def test_nested_values_become_nested_dataclasses() -> None:
    built = from_mapping(Outer, {"inner": {"depth": 4, "sizes": [5]}}, "here")
    assert built == Outer(inner=Inner(depth=4, sizes=(5,)))
    assert from_mapping(Outer, {"inner": Inner(2)}, "here") == Outer(inner=Inner(2))


def test_a_single_value_is_a_list_of_one() -> None:
    assert from_mapping(Inner, {"sizes": 3}, "here").sizes == (3,)


def test_lists_become_tuples() -> None:
    sizes = from_mapping(Inner, {"sizes": [3, 1, 2]}, "here").sizes
    assert (sizes, type(sizes)) == ((3, 1, 2), tuple)
    assert from_mapping(Inner, {"sizes": []}, "here").sizes == ()


def test_a_whole_number_is_taken_for_a_number_and_turned_into_one() -> None:
    rate = from_mapping(Outer, {"rate": 2}, "here").rate
    assert (rate, type(rate)) == (2.0, float)
    limit = from_mapping(Outer, {"limit": 3}, "here").limit
    assert (limit, type(limit)) == (3.0, float)


@pytest.mark.parametrize("order", [12, "natural", (2, 0, 1)])
def test_every_member_of_a_union_is_taken(order: Any) -> None:
    assert from_mapping(Outer, {"order": order}, "here").order == order
    assert from_mapping(Outer, {"limit": None}, "here").limit is None


def test_options_are_copied_not_shared() -> None:
    given = {"a": 1}
    built = from_mapping(Outer, {"options": given}, "here")
    given["a"] = 2
    assert built.options == {"a": 1}


# --- what is refused, and how -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"count": 1.0}, "here.count: 1.0 is not a whole number"),
        ({"count": "3"}, "here.count: '3' is not a whole number"),
        ({"count": None}, "here.count: None is not a whole number"),
        ({"rate": "fast"}, "here.rate: 'fast' is not a number"),
        ({"rate": 10**400}, f"here.rate: {10**400} is not a number"),
        ({"label": 5}, "here.label: 5 is not text"),
        ({"active": 1}, "here.active: 1 is not true or false"),
        ({"active": "yes"}, "here.active: 'yes' is not true or false"),
        ({"kind": "warm"}, "here.kind: 'warm' is not one of 'soft', 'hard'"),
        ({"kind": ["soft"]}, "here.kind: ['soft'] is not one of 'soft', 'hard'"),
        ({"limit": "none"}, "here.limit: 'none' is not a number or empty"),
        ({"options": 3}, "here.options: 3 is not names and values"),
        ({"inner": 3}, "here.inner: 3 is not names and values"),
        ({"inner": None}, "here.inner: None is not names and values"),
        ({"inner": {"depth": "x"}}, "here.inner.depth: 'x' is not a whole number"),
        ({"inner": {"sizes": 3.5}}, "here.inner.sizes: 3.5 is not a list (each a whole number)"),
        ({"inner": {"sizes": [1, "b"]}}, "here.inner.sizes: 'b' is not a whole number"),
        ({"inner": {"sizes": "12"}}, "here.inner.sizes: '12' is not a list (each a whole number)"),
        (
            {"order": "naturel"},
            "here.order: 'naturel' is not a whole number or one of 'natural' "
            "or a list (each a whole number)",
        ),
    ],
)
def test_a_wrong_value_is_named_with_its_place_and_what_was_expected(
    values: dict[str, Any], message: str
) -> None:
    assert refused(values) == message


@pytest.mark.parametrize("name", ["count", "rate", "limit", "order"])
def test_true_and_false_are_no_numbers(name: str) -> None:
    assert refused({name: True}).startswith(f"here.{name}: True is not a")


def test_true_is_no_whole_number_inside_a_list() -> None:
    assert refused({"sizes": [True]}, Inner) == "here.sizes: True is not a whole number"


def test_a_check_of_the_dataclass_is_told_with_its_place_once() -> None:
    message = "here.inner: depth -1 must not be negative"
    assert refused({"inner": {"depth": -1}}) == message
    assert refused({"depth": -1}, Inner) == "here: depth -1 must not be negative"


def test_an_unknown_name_is_answered_with_the_nearest_one() -> None:
    assert refused({"cuont": 1}) == "here: no setting 'cuont'; did you mean 'count'?"
    assert refused({"inner": {"dept": 1}}) == "here.inner: no setting 'dept'; did you mean 'depth'?"


def test_a_name_like_no_other_is_answered_with_all_there_are() -> None:
    assert refused({"zzz": 1}, Inner) == "here: no setting 'zzz'; there are depth, sizes"


def test_a_name_that_is_no_text_is_refused_like_any_other() -> None:
    assert refused({1: 2}, Inner) == "here: no setting 1; there are depth, sizes"
    assert refused({True: 2}, Inner) == "here: no setting True; there are depth, sizes"


def test_what_the_dataclass_makes_itself_cannot_be_set() -> None:
    assert refused({"made": 1}).startswith("here: no setting 'made'")


def test_check_passes_what_holds_and_raises_what_does_not() -> None:
    check(True, "not said")
    with pytest.raises(ConfigError, match=r"^said$"):
        check(False, "said")


def test_suggest_names_the_nearest_or_all() -> None:
    assert suggest("cars", ["cars10", "cifar100"]) == "did you mean 'cars10'?"
    assert suggest("q", ["cars10", "cifar100"]) == "there are cars10, cifar100"


# --- and back -----------------------------------------------------------------------------------


def test_plain_values_are_what_json_gives_back_and_build_the_same_settings() -> None:
    config = Outer(
        order=(2, 0, 1), options={"names": ("a", "b"), "deep": {"t": (1,)}}, inner=Inner(2, (9, 8))
    )
    plain = to_mapping(config)
    assert plain["order"] == [2, 0, 1]
    assert plain["inner"] == {"depth": 2, "sizes": [9, 8]}
    assert plain["options"] == {"names": ["a", "b"], "deep": {"t": [1]}}
    assert json.loads(json.dumps(plain)) == plain
    del plain["made"]
    again = from_mapping(Outer, plain, "here")
    assert (again.order, again.inner) == (config.order, config.inner)


def test_plain_values_are_a_copy() -> None:
    config = Outer(options={"a": [1]})
    to_mapping(config)["options"]["a"].append(2)
    assert config.options == {"a": [1]}


def test_a_setting_carries_its_line_of_help() -> None:
    help_of = {f.name: f.metadata.get("help") for f in Inner.__dataclass_fields__.values()}
    assert help_of == {"depth": "how deep", "sizes": "of each"}
