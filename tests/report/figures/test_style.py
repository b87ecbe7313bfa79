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
    labels = {f"CPrompt {i}": "cprompt" for i in range(32)}
    found = styles_of(labels | {"L2P": "l2p"})
    variants = [found[label] for label in labels]
    assert {style.color for style in variants} == {OF_METHOD["cprompt"].color}
    assert len({(style.marker, style.linestyle, style.hollow) for style in variants}) == 32
    assert [style.hollow for style in variants[:2]] == [False, True]


def test_labels_of_one_method_alone_have_colours_of_their_own() -> None:
    found = styles_of({"CPrompt": "cprompt", "CPrompt, off": "cprompt"})
    assert found == {"CPrompt": style_at(0), "CPrompt, off": style_at(1)}
    assert styles_of({"CPrompt": "cprompt"}) == {"CPrompt": OF_METHOD["cprompt"]}


def test_the_longest_title_that_begins_a_label_is_its_method() -> None:
    found = styles_of_labels(["Joint, prompts", "Joint fine-tuning", "elsewhere"])
    assert found["Joint, prompts"] == OF_METHOD["joint"]
    assert found["Joint fine-tuning"] == OF_METHOD["joint_tuning"]
    assert found["elsewhere"][:2] not in {style[:2] for style in OF_METHOD.values()}
