"""Figures as files and as SVG that refers to nothing outside itself."""

from __future__ import annotations

import copy
import re
from xml.etree import ElementTree

from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from cprompt.report.figures import accuracy_curves, accuracy_heatmap, prompt_picks
from cprompt.report.figures.files import settle, to_files, to_svg
from cprompt.report.figures.style import INK
from cprompt.research.record import Record
from tests.report.figures.records import better


def test_files_are_of_their_kind_with_letters_inside_and_the_same_every_time(
    hand_record: Record,
) -> None:
    files = to_files(settle(accuracy_curves({"ours": [hand_record]})))
    assert set(files) == {"svg", "pdf", "png"}
    assert files["png"].startswith(b"\x89PNG")
    assert b"Software" not in files["png"]
    assert files["pdf"].startswith(b"%PDF")
    assert b"/FontFile2" in files["pdf"]
    assert b"CreationDate" not in files["pdf"]
    assert b"<text" not in files["svg"]  # letters are outlines
    assert INK.encode() in files["svg"]
    again = to_files(settle(accuracy_curves({"ours": [copy.deepcopy(hand_record)]})))
    assert files == again


def test_ids_of_several_drawings_do_not_meet(hand_record: Record) -> None:
    figure = accuracy_curves({'id="x': [hand_record]})
    one, two = (to_svg(figure, name) for name in ("one", "two"))
    ids = [set(re.findall(r'\bid="([^"]*)"', re.sub(">[^<]*<", "><", svg))) for svg in (one, two)]
    assert ids[0]
    assert not ids[0] & ids[1]
    for svg, known in zip((one, two), ids, strict=True):
        used = set(re.findall(r'url\(#([^)]*)\)|href="#([^"]*)"', svg))
        assert {a or b for a, b in used} <= known
        assert 'id="x' in "".join(ElementTree.fromstring(svg).itertext())


def figures(record: Record) -> list[Figure]:
    return [
        accuracy_curves({"<b>&\"'": [record, better(record)], "plain": [record]}),
        accuracy_heatmap(record),
        prompt_picks(record),
    ]


def test_svg_is_one_element_in_the_text_colour_that_refers_to_nothing_outside_itself(
    hand_record: Record,
) -> None:
    assert to_hex(INK) == INK  # what matplotlib writes is what is replaced
    for figure in figures(hand_record):
        svg = to_svg(figure)
        assert ElementTree.fromstring(svg).tag == "{http://www.w3.org/2000/svg}svg"
        assert INK not in svg
        assert "currentColor" in svg
        without_names = re.sub(r'xmlns(:\w+)?="[^"]*"', "", svg)
        assert "http" not in without_names
        for address in re.findall(r'(?:href|src)="([^"]*)"', svg):
            assert address.startswith(("#", "data:image/png;base64,")), address[:80]
        for address in re.findall(r"url\(([^)]*)\)", svg):
            assert address.startswith("#"), address
        assert "<script" not in svg
        assert "@import" not in svg


def test_labels_are_text_in_the_svg_and_escaped(hand_record: Record) -> None:
    svg = to_svg(figures(hand_record)[0])
    texts = ["".join(e.itertext()).strip() for e in ElementTree.fromstring(svg).iter()]
    assert "<b>&\"'" in texts
    assert "tasks learnt" in texts
    assert "<b>" not in svg


def test_the_same_record_gives_the_same_bytes(hand_record: Record) -> None:
    again = copy.deepcopy(hand_record)
    for one, other in zip(figures(hand_record), figures(again), strict=True):
        assert to_svg(one) == to_svg(other)
