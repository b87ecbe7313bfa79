"""What the documentation says is run as it stands."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from cprompt.methods.registry import METHODS
from cprompt.research.experiment import load_method
from cprompt.vit.embedded import EMBEDDED
from cprompt.vit.loading import load_backbone
from tests.registered import forgotten_afterwards

ROOT = Path(__file__).parents[2]
FILES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
PAGES = [path.relative_to(ROOT).as_posix() for path in FILES]


def blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text("utf-8"), re.DOTALL)


def test_the_worked_example_of_a_method_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    method_file, example = blocks("docs/add_a_method.md")
    (tmp_path / "prototypes.py").write_text(method_file, "utf-8")
    made: dict[str, Any] = {}
    with forgotten_afterwards():
        exec(compile(example, "docs/add_a_method.md", "exec"), made)
        sys.modules.pop("prototypes")
        record = made["record"]
        method = load_method(Path("runs/prototypes"), load_backbone(record.backbone["name"]))
        assert type(method) is METHODS["prototypes"]

    assert record.finished
    assert record.stream.sizes == (3, 1, 2)
    assert record.test_passes == {"query": 0, "prompted": record.images["test"]}
    printed = re.fullmatch(r"Last-acc ([\d.]+) %, FF [\d.]+\n", capsys.readouterr().out)
    assert printed
    assert 50 < float(printed[1]) < 100  # chance is 17 %
    images = torch.randn(5, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        alone = torch.cat([method(image[None]) for image in images])
        torch.testing.assert_close(method(images), alone, rtol=1e-5, atol=1e-5)


def test_the_model_card_says_what_the_record_says() -> None:
    """Every number of the card's result table stands in the JSON beside the weights."""
    card = (ROOT / "docs/backbone.md").read_text("utf-8")
    about = json.loads(
        EMBEDDED["vit_micro_patch8_64.tiny_imagenet"].path.with_suffix(".json").read_text()
    )
    probe = about["cifar100_probe"]
    results = re.findall(r"^\| .* \| ([\d.]+) % \|$", card, re.MULTILINE)
    assert results == [
        str(about["training"]["val_top1"]),
        str(probe["nearest_class_mean_after_norm"]),
        str(probe["linear_probe_after_norm"]),
    ]
    assert f"{about['training']['parameters']:,} parameters" in card


@pytest.mark.parametrize("page", PAGES)
def test_links_inside_the_repository_lead_somewhere(page: str) -> None:
    path = ROOT / page
    for link in re.findall(r"\]\(([^)#]+)", path.read_text("utf-8")):
        if not link.startswith("http"):
            assert (path.parent / link).exists(), f"{page}: {link}"


@pytest.mark.parametrize("page", PAGES)
def test_formulas_are_written_as_github_renders_them(page: str) -> None:
    """Between dollars, and without `\\,` inside a line, of which GitHub leaves a comma."""
    text = re.sub(r"```.*?```|`[^`\n]*`", "", (ROOT / page).read_text("utf-8"), flags=re.DOTALL)
    assert not re.search(r"\\[()\[\]]", text)
    inside = re.sub(r"\$\$.*?\$\$", "", text, flags=re.DOTALL)
    assert not [formula for formula in re.findall(r"\$([^$\n]+)\$", inside) if r"\," in formula]


def test_the_speed_page_shows_the_committed_results() -> None:
    sys.path.insert(0, str(ROOT / "tools"))
    import speed_page

    page = speed_page.PAGE.read_text(encoding="utf-8")
    assert page.count("<!-- end -->") >= 8
    assert speed_page.render(page) == page


def test_every_module_that_the_architecture_page_names_exists() -> None:
    page = (ROOT / "docs/architecture.md").read_text("utf-8")
    rooms = {path.stem for path in (ROOT / "src/cprompt").iterdir() if path.stem[0] != "_"}
    named = {n for n in re.findall(r"`([a-z_.]+)`", page) if n.partition(".")[0] in rooms}
    assert rooms - {"py"} <= named, "a room is missing on the page"
    for name in named:
        assert importlib.util.find_spec(f"cprompt.{name}"), name
    picture = (ROOT / "docs/assets/architecture.svg").read_text("utf-8")
    drawn = {
        n for text in re.findall(r'class="name"[^>]*>([^<]+)', picture) for n in text.split(" · ")
    }
    assert drawn == rooms - {"py"}
