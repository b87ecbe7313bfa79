"""Joint training, the upper bound."""

from __future__ import annotations

import pytest
import torch

from cprompt.errors import ConfigError
from cprompt.methods.base import create_method
from cprompt.methods.joint import Joint
from cprompt.vit.promptable import FrozenViT


def test_joint_training_refuses_a_second_task(backbone: FrozenViT, rng: torch.Generator) -> None:
    method = create_method("joint", backbone, {"length": 2})
    assert isinstance(method, Joint)
    method.begin_task(6, rng)
    method.close_task()
    with pytest.raises(
        ConfigError, match=r"joint sees all classes in one task; set --stream\.tasks"
    ):
        method.begin_task(1, rng)
    assert method.task_sizes == [6]


def test_joint_training_of_one_task_is_fine_tuning_of_one_task(backbone: FrozenViT) -> None:
    logits = []
    for name in ("joint", "finetune"):
        method = create_method(name, backbone, {"length": 2})
        method.begin_task(4, torch.Generator().manual_seed(3))
        images = torch.randn(3, 3, 48, 48, generator=torch.Generator().manual_seed(0))
        logits.append(method(images))
    assert torch.equal(*logits)
