"""What stands out: its numbers come from the records, and here what it says of them is checked."""

from __future__ import annotations

import pytest

from tests.scripts import load_tool

page = load_tool("stands_out")
CARS, CIFAR = page.TITLES


def last(benchmark: str) -> dict[str, float]:
    """Last-acc of every row that was run."""
    run = page.rows_run(benchmark)
    return {label: page.last(benchmark, label) for label in run if run[label]}


@pytest.mark.parametrize("benchmark", page.TITLES)
def test_cprompt_has_the_highest_accuracy_of_the_methods_that_the_paper_compares(
    benchmark: str,
) -> None:
    found = last(benchmark)
    cprompt = found[page.cprompt_row(benchmark)]
    assert all(found[label] < cprompt for label in page.COMPARED if label in found)


@pytest.mark.parametrize("benchmark", page.TITLES)
def test_strata_hide_and_slca_are_above_cprompt(benchmark: str) -> None:
    found = last(benchmark)
    cprompt = found[page.cprompt_row(benchmark)]
    assert all(found[label] > cprompt for label in ("HiDe-Prompt", "SLCA"))
    assert found["Strata"] > cprompt + (20 if benchmark == CARS else 4)  # "far above"


def test_only_strata_is_near_strata_on_cars_and_two_are_above_it_on_cifar() -> None:
    cars, cifar = last(CARS), last(CIFAR)
    others = {
        label
        for label in cars
        if not label.startswith(("Strata", "Joint")) and cars[label] > cars["Strata"] - 5
    }
    assert others == set()
    above = {
        label
        for label in cifar
        if not label.startswith(("Strata", "Joint")) and cifar[label] > cifar["Strata"]
    }
    assert above == {"RanPAC", "SLCA"}


def test_esn_is_behind_on_cars_and_in_the_paper_a_little() -> None:
    found = last(CARS)
    assert found["ESN"] < min(found["L2P"], found["DualPrompt"]) - 5
    papers = [page.in_paper(method) for method in ("esn", "l2p", "dualprompt")]
    assert papers == [56.91, 60.39, 57.27]


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {label: ["a run"] for label in ("CPrompt", page.PUBLISHED, *page.COMPARED)}
    monkeypatch.setattr(page, "rows_run", lambda _: rows)
    assert page.with_what_is_missing() == ""
    rows["ESN"] = rows["CPrompt"] = []
    assert page.with_what_is_missing() == (
        " (on Cars as published, as its chosen settings were not run there yet; on CIFAR-100 as "
        "published, as its chosen settings were not run there yet; not run yet: ESN on Cars, ESN "
        "on CIFAR-100)"
    )
