"""timm comes without what it only mentions, which still works once somebody needs it."""

from __future__ import annotations

from pathlib import Path

from tests.fresh import printed


def test_predictions_need_nothing_that_timm_only_mentions() -> None:
    code = """
import sys
import torch
from cprompt import load_backbone
vit = load_backbone("test_vit", weights="random:0", image_size=48)
with torch.no_grad():
    vit(torch.zeros(1, 3, 48, 48))
mentioned = ("torch._dynamo", "wandb", "torchvision.models", "huggingface_hub")
print([name for name in sys.modules if name.startswith(mentioned)])
"""
    assert printed(code).split() == ["[]"]


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
    assert printed(code).split() == ["2.0", "True", "True", "(1,", "1000)"]


def test_a_compiler_that_is_there_stays() -> None:
    code = """
import sys
import torch._dynamo
there = sys.modules["torch._dynamo"]
from cprompt.vit.light_timm import timm
print(sys.modules["torch._dynamo"] is there)
"""
    assert printed(code).split() == ["True"]


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
    assert printed(code).split() == ["True", "True"]


def test_other_modules_of_the_compiler_can_be_imported_meanwhile() -> None:
    code = """
import torch
from cprompt.vit import light_timm
with light_timm._with_stand_ins():
    import torch._dynamo.config
double = torch.compile(lambda x: x + x, backend="eager", fullgraph=True)
print(double(torch.ones(1)).item())
"""
    assert printed(code).split() == ["2.0"]


def test_timm_finds_the_tracker_that_is_installed_once_it_is_used(tmp_path: Path) -> None:
    (tmp_path / "wandb.py").write_text("print('imported')\n\ndef log(values):\n    print(values)\n")
    code = """
from cprompt.vit.light_timm import timm
from timm.utils import summary
print("found")
summary.wandb.log(7)
"""
    assert printed(code, PYTHONPATH=str(tmp_path)).split() == ["found", "imported", "7"]


def test_timm_extracts_features_by_torchvision_s_functions() -> None:
    code = """
import sys
import torch
from cprompt.vit.light_timm import timm
print("torchvision.models" in sys.modules)
vit = timm.create_model("test_vit", img_size=48)
part = timm.layers.create_feature_extractor(vit, ["norm"])
print(tuple(part(torch.zeros(1, 3, 48, 48))["norm"].shape))
import torchvision
print(torchvision.models.resnet18.__module__)
"""
    assert printed(code).split() == ["False", "(1,", "10,", "64)", "torchvision.models.resnet"]


HUB = """
def hf_hub_download(repo, name, **options):
    from huggingface_hub.utils import EntryNotFoundError
    print(options["library_name"])
    raise EntryNotFoundError(name)

class HfApi: ...

def model_info(repo_id):
    from huggingface_hub.utils import RepositoryNotFoundError
    raise RepositoryNotFoundError(repo_id)
"""


def test_timm_calls_the_hub_and_catches_its_errors(tmp_path: Path) -> None:
    package = tmp_path / "huggingface_hub"
    package.mkdir()
    (package / "__init__.py").write_text("print('imported')\n" + HUB)
    (package / "utils.py").write_text(
        "class EntryNotFoundError(Exception): ...\nclass RepositoryNotFoundError(Exception): ...\n"
    )
    code = """
from cprompt.vit.light_timm import timm
from timm.models import _hub
print("found", _hub.has_hf_hub())
try:
    _hub.hf_hub_download("repo", "name")
except _hub.EntryNotFoundError as error:
    print("caught", error)
print(_hub.RepositoryNotFoundError.__module__)
"""
    expected = ["found", "True", "imported", "timm", "caught", "name", "huggingface_hub.utils"]
    assert printed(code, PYTHONPATH=str(tmp_path)).split() == expected
