"""Styles tell series apart, with and without colours."""

from __future__ import annotations

from cprompt.methods.registry import METHODS
from cprompt.report.figures.style import OF_METHOD, style_at, styles_of, styles_of_labels


def test_no_two_of_32_series_look_alike() -> None:
    styles = [style_at(i) for i in range(32)]
    assert len(set(styles)) == 32
    for i, one in enumerate(styles):
        for other in styles[:i]:
            without_colour = (one.marker, one.linestyle) != (other.marker, other.linestyle)
            assert without_colour or one.color != other.color


def test_every_method_of_the_package_has_a_look_of_its_own() -> None:
    assert set(OF_METHOD) == set(METHODS)
    assert len({(style.color, style.marker) for style in OF_METHOD.values()}) == len(OF_METHOD)


def test_a_method_looks_the_same_whatever_stands_beside_it() -> None:
    here = styles_of({"CPrompt": "cprompt", "L2P": "l2p"})
    there = styles_of({"ours": "mine", "L2P, long": "l2p", "CPrompt, off": "cprompt"})
    assert here["CPrompt"] == there["CPrompt, off"] == OF_METHOD["cprompt"]
    assert here["L2P"] == there["L2P, long"]
    assert there["ours"][:2] not in {style[:2] for style in OF_METHOD.values()}


def test_labels_of_one_method_share_its_colour_beside_others() -> None:
    labels = dict.fromkeys(("CPrompt", "CPrompt, off", "CPrompt, long"), "cprompt")
    found = styles_of(labels | {"L2P": "l2p"})
    first, *others = (found[label] for label in labels)
    assert first == OF_METHOD["cprompt"]
    assert {style.color for style in others} == {first.color}
    assert len({(s.marker, s.linestyle) for s in (first, *others)}) == 3
    assert all(style.hollow and style.face == "none" for style in others)


def test_many_labels_of_a_method_are_told_apart_by_colour() -> None:
    labels = {f"CPrompt {i}": "cprompt" for i in range(6)}
    found = styles_of(labels | {"L2P": "l2p"})
    assert found["CPrompt 0"] == OF_METHOD["cprompt"]
    assert found["L2P"] == OF_METHOD["l2p"]
    assert len({style.color for style in found.values()}) == 7
    alone = list(styles_of(labels).values())
    assert alone == [style_at(i) for i in range(6)]


def test_the_longest_title_that_begins_a_label_is_its_method() -> None:
    found = styles_of_labels(["Joint, prompts", "Joint fine-tuning", "elsewhere"])
    assert found["Joint, prompts"] == OF_METHOD["joint"]
    assert found["Joint fine-tuning"] == OF_METHOD["joint_tuning"]
    assert found["elsewhere"][:2] not in {style[:2] for style in OF_METHOD.values()}
