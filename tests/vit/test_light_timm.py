"""timm comes without torch's compiler, which still works once somebody needs it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def run(code: str, **variables: str) -> list[str]:
    """The words that a fresh interpreter prints."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return done.stdout.split()


def test_predictions_need_no_compiler() -> None:
    code = """
import sys
import torch
from cprompt import load_backbone
vit = load_backbone("test_vit", weights="random:0", image_size=48)
with torch.no_grad():
    vit(torch.zeros(1, 3, 48, 48))
print([name for name in sys.modules if name.startswith(("torch._dynamo", "wandb"))])
"""
    assert run(code) == ["[]"]


def test_the_compiler_works_afterwards_as_do_functions_marked_for_it() -> None:
    code = """
import sys
import torch
from cprompt.vit.light_timm import timm
assert "torch._dynamo" not in sys.modules
double = torch.compile(lambda x: x + x, backend="eager", fullgraph=True)
print(double(torch.ones(1)).item())
print(torch._dynamo.__file__ is not None)
from torchvision.ops.roi_align import is_compile_supported
print(is_compile_supported("cpu"))
from timm.models.naflexvit import NaFlexVit
vit = NaFlexVit(img_size=32, patch_size=16, embed_dim=32, depth=1, num_heads=2)
print(tuple(vit(torch.zeros(1, 3, 32, 32)).shape))
"""
    assert run(code) == ["2.0", "True", "True", "(1,", "1000)"]


def test_a_compiler_that_is_there_stays() -> None:
    code = """
import sys
import torch._dynamo
there = sys.modules["torch._dynamo"]
from cprompt.vit.light_timm import timm
print(sys.modules["torch._dynamo"] is there)
"""
    assert run(code) == ["True"]


def test_whoever_asks_a_stand_in_for_more_gets_the_compiler() -> None:
    code = """
import sys
import torch
from cprompt.vit import light_timm
with light_timm._with_stand_ins():
    import torch._dynamo
    print(callable(torch._dynamo.reset))  # which the stand-in does not have
print(sys.modules["torch._dynamo"].__file__ is not None)
"""
    assert run(code) == ["True", "True"]


def test_other_modules_of_the_compiler_can_be_imported_meanwhile() -> None:
    code = """
import torch
from cprompt.vit import light_timm
with light_timm._with_stand_ins():
    import torch._dynamo.config
double = torch.compile(lambda x: x + x, backend="eager", fullgraph=True)
print(double(torch.ones(1)).item())
"""
    assert run(code) == ["2.0"]


def test_timm_finds_the_tracker_that_is_installed_once_it_is_used(tmp_path: Path) -> None:
    (tmp_path / "wandb.py").write_text("print('imported')\n\ndef log(values):\n    print(values)\n")
    code = """
from cprompt.vit.light_timm import timm
from timm.utils import summary
print("found")
summary.wandb.log(7)
"""
    assert run(code, PYTHONPATH=str(tmp_path)) == ["found", "imported", "7"]
