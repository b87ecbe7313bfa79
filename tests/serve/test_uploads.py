"""Labelled files of one request."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient

from tests.serve.common import (
    RED,
    error,
    photo,
)


@pytest.mark.parametrize("labels_", [[], ["a", "b"], ["a", "b", "c", "d"]])
def test_labels_that_do_not_match_the_images_are_refused(
    hardy: TestClient, labels_: list[str]
) -> None:
    files = [("images", ("a.png", photo(RED)))] * 3
    detail = error(
        hardy.post("/v1/learn", files=files, data={"label": labels_}), 422, "labels_do_not_match"
    )
    assert f"3 images came with {len(labels_)} labels" in detail["message"]
