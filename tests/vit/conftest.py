"""What tests of the backbone share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.vit.common import Compiler


@pytest.fixture
def compiler() -> Iterator[Compiler]:
    """One that has not seen anything yet, and is forgotten afterwards."""
    torch._dynamo.reset()
    yield Compiler()
    torch._dynamo.reset()
