"""Pages: self-contained, with a policy for their own code only."""

from __future__ import annotations

import base64
import hashlib
import re

import pytest
from starlette.testclient import TestClient


@pytest.mark.parametrize("path", ["/", "/docs"])
def test_pages_are_self_contained_and_allow_only_their_own_code(
    client: TestClient, path: str
) -> None:
    page = client.get(path)
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    policy = page.headers["content-security-policy"]
    for inline in re.findall(r"<(?:style|script)>(.*?)</(?:style|script)>", page.text, re.DOTALL):
        digest = base64.b64encode(hashlib.sha256(inline.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy
    assert "unsafe" not in policy
    outside = re.findall(r"(?:src|href)\s*=\s*[\"'](?!/|data:)([^\"']*)", page.text)
    assert outside == []
    assert not re.search(r"@import|url\(|\son\w+=|\sstyle=", page.text)
