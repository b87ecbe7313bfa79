"""What methods cost: the paper's convention to its printed digits, and honest counts by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import timm

from cprompt.methods.base import create_method
from cprompt.methods.registry import METHODS
from cprompt.report.tables import to_markdown
from cprompt.research import cost
from cprompt.research.config import resolve
from cprompt.research.cost import Cost, measure, paper_costs, passes_per_prediction
from cprompt.research.experiment import run
from cprompt.research.tables import load_table
from cprompt.vit.promptable import FrozenViT

# --- the paper's convention ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "parameters", "flops"),
    [
        ("cprompt", "0.92", "23.62"),
        ("esn", "30.49", "23.97"),
        ("l2p", "0.78", "23.62"),
        ("dualprompt", "0.44", "23.62"),
        ("coda", "89.79", "33.77"),
    ],
)
def test_the_papers_table_comes_out_to_the_printed_digit(
    method: str, parameters: str, flops: str
) -> None:
    counted = paper_costs()[method]
    assert (f"{counted[0] / 1e6:.2f}", f"{counted[1] / 1e9:.2f}") == (parameters, flops)
    assert cost.PAPER[method] == (parameters, flops)


def test_the_papers_counts_are_these_whole_numbers() -> None:
    costs = paper_costs()
    assert costs["cprompt"] == (918_528, 23_620_234_752)
    assert costs["esn"] == (30_490_564, 23_974_245_524)
    assert costs["coda"] == (89_789_380, 33_765_210_820)
    assert costs["l2p"] == (783_360, 23_620_234_752)
    assert costs["dualprompt"] == (437_760, 23_620_234_752)


def test_the_papers_counter_worked_by_hand() -> None:
    """Two tokens of dimension 3: layers 3→9, 3→3, 3→12, 12→3 with bias, two norms, GELU twice."""
    linear = 2 * (3 * 9 + 9 + 3 * 3 + 3 + 3 * 12 + 12 + 12 * 3 + 3)
    assert cost.paper_block(2, 3) == linear + 2 * (2 * 3) + 2 * (2 * 12)
    assert cost.paper_embedding() == 115_756_032
    assert cost.paper_plain_pass() == 16_882_530_048


# --- honest counts ------------------------------------------------------------------------------

D, DEPTH, HIDDEN, PATCHES = 64, 6, 192, 9
"""timm's test ViT at 48 pixels: patches of 16, an MLP three times as wide."""


def plain(tokens: int) -> int:
    """Multiply-adds of a block: query, key, value; scores and their sums; projection; MLP."""
    return 3 * tokens * D * D + 2 * tokens * tokens * D + tokens * D * D + 2 * tokens * D * HIDDEN


def last(tokens: int) -> int:
    """Of the last block where the class token alone is read.

    Keys and values of all tokens; query, scores and their sums, projection and MLP of one.
    """
    return 2 * tokens * D * D + D * D + 2 * tokens * D + D * D + 2 * D * HIDDEN


EMBED = PATCHES * D * 3 * 16 * 16
N = 1 + PATCHES
READ = (DEPTH - 1) * plain(N) + last(N)
"""A pass without prompts whose class token is read."""


def read_prompted(length: int) -> int:
    """The same with `length` tokens more from block 0 on and as many again from block 2 on."""
    return 2 * plain(N + length) + 3 * plain(N + 2 * length) + last(N + 2 * length)


def encode_prompted(length: int) -> int:
    """A pass prompted like that of which all tokens are read."""
    return 2 * plain(N + length) + 4 * plain(N + 2 * length)


def vit_parameters() -> int:
    embed = 3 * 16 * 16 * D + D + D + N * D  # patches, class token, positions
    linear = D * 3 * D + 3 * D + D * D + D + D * HIDDEN + HIDDEN + HIDDEN * D + D
    return embed + DEPTH * (linear + 2 * 2 * D) + 2 * D


def test_the_formulas_speak_of_the_backbone_used_here(backbone: FrozenViT) -> None:
    vit: Any = backbone.vit
    assert (backbone.dim, backbone.depth, vit.patch_embed.num_patches) == (D, DEPTH, PATCHES)
    assert vit.blocks[0].mlp.fc1.out_features == HIDDEN
    assert sum(p.numel() for p in vit.parameters()) == vit_parameters()


def cost_of(backbone: FrozenViT, method: str, sizes: tuple[int, ...], **settings: Any) -> Cost:
    return measure(create_method(method, backbone, settings), sizes)


def test_a_plain_pass_costs_what_the_formula_says_attention_included(backbone: FrozenViT) -> None:
    """SLCA answers by one pass through its copy of the model and one head over all classes."""
    found = cost_of(backbone, "slca", (3, 2))
    assert found.macs == EMBED + READ + 5 * D
    assert found.trained == vit_parameters() + 2 * (D + 1)
    heads = 2 * 5 * (D + 1)  # the tasks' and the aligned one
    assert found.stored == vit_parameters() + heads + 5 * (D + D * D)


def test_a_prompted_pass_counts_the_prompt_s_tokens(backbone: FrozenViT) -> None:
    found = cost_of(backbone, "finetune", (3, 2), length=4)
    assert found == Cost(
        stored=2 * 4 * D + 5 * (D + 1),
        trained=2 * 4 * D + 5 * (D + 1),
        macs=EMBED + read_prompted(4) + 5 * D,
    )


def test_cprompt_pays_for_the_query_too_and_stores_no_auxiliary_head(backbone: FrozenViT) -> None:
    found = cost_of(backbone, "cprompt", (3, 1, 2), length=4)
    keys_and_heads = 6 * D + 6 * D
    assert found.macs == EMBED + READ + read_prompted(4) + keys_and_heads
    assert found.stored == 3 * 2 * 4 * D + 6 * D + 6 * (D + 1)
    # Of the last task: prompt, keys, head and auxiliary head.
    assert found.trained == 2 * 4 * D + 2 * D + 2 * 2 * (D + 1)


def test_prefixes_lengthen_attention_but_not_the_sequence(backbone: FrozenViT) -> None:
    settings = {"prompting": "prefix", "g_length": 3, "e_length": 5}
    found = cost_of(backbone, "dualprompt", (2, 2), g_layers=[0], e_layers=[2, 3], **settings)
    extra = 2 * N * D * (3 + 5 + 5)  # keys and values that all tokens attend to
    keys_and_heads = 2 * D + 4 * D
    assert found.macs == EMBED + 2 * READ + extra + keys_and_heads
    prompts = 2 * 3 * D + 2 * (2 * 2 * 5 * D)
    assert found.stored == prompts + 2 * D + 4 * (D + 1)


def test_a_prefix_of_the_last_block_is_seen_by_the_class_token_alone(backbone: FrozenViT) -> None:
    settings = {"prompting": "prefix", "g_length": 3, "e_length": 5}
    found = cost_of(backbone, "dualprompt", (2, 2), g_layers=[0], e_layers=[DEPTH - 1], **settings)
    extra = 2 * D * (N * 3 + 5)
    assert found.macs == EMBED + 2 * READ + extra + 2 * D + 4 * D


def test_prompts_that_are_read_themselves_need_the_whole_last_block(backbone: FrozenViT) -> None:
    """L2P with readout prompts; cosines to the pool's keys are no matrix product."""
    found = cost_of(backbone, "l2p", (3, 2), length=4, readout="prompts")
    assert found.macs == EMBED + READ + encode_prompted(4) + 5 * D
    assert (
        cost_of(backbone, "l2p", (3, 2), length=4).macs == EMBED + READ + read_prompted(4) + 5 * D
    )


def test_esn_reads_all_tokens_of_the_one_pass(backbone: FrozenViT) -> None:
    """In each of the two tasks' blocks one token asks the N + 8 of the pass, and itself."""
    heads, tokens = backbone.vit.blocks[0].attn.num_heads, N + 8
    projections = 4 * D * D + 2 * D * (D // 2)  # query, key merged with it, value, output; MLP
    scores = heads * D * (tokens + 1) + heads * D + D  # and what shift and bias add to them
    pooling = heads * D * tokens
    found = cost_of(backbone, "esn", (3, 2), length=4)
    assert found.macs == (EMBED + encode_prompted(4) + 2 * (projections + scores + pooling) + 5 * D)


# --- the table ----------------------------------------------------------------------------------


def test_the_table_has_the_replayed_and_the_honest_counts_of_every_method(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On the test ViT, so that nothing large is built; the paper's columns come by formula."""
    asked = []

    def small(name: str, **options: Any) -> Any:
        asked.append(name)
        return create_model("test_vit", num_classes=0, img_size=48)

    create_model = timm.create_model
    monkeypatch.setattr(cost.timm, "create_model", small)
    table = cost.table()
    assert asked == ["vit_base_patch16_224"]
    rows = dict(table.rows)
    compared = {row.method for row in load_table("cars10").rows} - {"joint"}
    assert list(rows) == [METHODS.title(n) for n in METHODS if n in compared]
    for method in compared:
        label = METHODS.title(method)
        cells = rows[label]
        assert (cells[0].paper, cells[1].paper) == cost.PAPER.get(method, (None, None))
        for cell in cells[:2]:
            assert (f"{cell.mean:.2f}" if cell.mean is not None else None) == cell.paper
        assert all(cell.mean and cell.paper is None and cell.std is None for cell in cells[2:])
    (stored, trained, macs) = (cell.mean for cell in rows["CPrompt"][2:])
    assert stored == pytest.approx((10 * 100 * D + 196 * D + 196 * (D + 1)) / 1e6)
    assert trained == pytest.approx((100 * D + 16 * D + 2 * 16 * (D + 1)) / 1e6)
    assert macs == pytest.approx((EMBED + READ + read_prompted(50) + 2 * 196 * D) / 1e9)
    head = to_markdown(table).splitlines()[2]
    assert "| FLOPs, paper's convention (G) (paper) | stored (M) | trained per task (M) |" in head


@pytest.mark.parametrize("name", METHODS)
def test_passes_of_a_prediction_are_those_that_an_evaluation_counts(
    name: str, tiny: dict[str, Any], tmp_path: Path
) -> None:
    """All classes in one task, so that every image is asked once and nothing is stored."""
    tiny |= {"stream.sizes": [6], "training.epochs": 0}
    config = resolve("shapes", name, overrides=tiny)
    record = run(config, tmp_path)
    counted = sum(record.test_passes.values()) / record.images["test"]
    assert counted == passes_per_prediction(name, config.settings)


def test_every_view_of_an_image_is_a_pass() -> None:
    assert passes_per_prediction("strata", {"prediction_views": 4}) == 4
