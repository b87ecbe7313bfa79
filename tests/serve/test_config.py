"""Settings of a service."""

from __future__ import annotations

import pytest

from cprompt.errors import ConfigError
from cprompt.serve.config import Limits, is_loopback


@pytest.mark.parametrize(
    ("host", "is_local"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("localhost", True),
        ("LOCALHOST", True),
        ("::1", True),
        ("0.0.0.0", False),
        ("10.0.0.1", False),
        ("localhost.example.org", False),
        ("", False),
    ],
)
def test_what_counts_as_loopback(host: str, is_local: bool) -> None:
    assert is_loopback(host) is is_local


@pytest.mark.parametrize("limit", ["max_pixels", "request_seconds", "max_jobs"])
def test_limits_must_be_positive(limit: str) -> None:
    with pytest.raises(ConfigError, match=f"{limit} 0 must be at least"):
        Limits(**{limit: 0})
