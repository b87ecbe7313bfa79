"""Connecting to Ray, and the one sentence when that does not work."""

from __future__ import annotations

import socket
import subprocess
import sys
import time

import pytest

from cprompt.cluster.connection import connected
from cprompt.errors import ClusterError
from tests.cluster.conftest import TwoNodes


@pytest.fixture
def not_connected(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a new process, though the cluster of other tests may be there."""
    monkeypatch.setattr("ray.is_initialized", lambda: False)


@pytest.fixture
def closed_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_an_address_where_nothing_answers_is_told_at_once(
    scheme: str, closed_port: int, not_connected: None
) -> None:
    began = time.monotonic()
    address = f"{scheme}127.0.0.1:{closed_port}"
    with pytest.raises(ClusterError, match="no Ray cluster answers") as error, connected(address):
        pass
    assert error.value.file == address
    assert time.monotonic() - began < 10


def test_something_else_on_the_port_is_told_within_seconds(
    not_connected: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cprompt.cluster.connection._SECONDS", 1.0)
    began = time.monotonic()
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(ClusterError, match="something else listens"), connected(address):
            pass
    assert time.monotonic() - began < 10


@pytest.mark.parametrize("address", ["rey", "host", "host:", ":6379", "ray://", "http://h:1"])
def test_what_is_not_an_address_is_told(address: str, not_connected: None) -> None:
    with pytest.raises(ClusterError, match="is not an address"), connected(address):
        pass


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ClusterError) as error, connected("ray"):
        pass
    assert error.value.hint == "pip install 'cprompt[ray]'"


def test_a_connection_that_is_there_is_used_and_left(cluster: TwoNodes) -> None:
    with connected("nowhere") as ray:
        assert ray.cluster_resources()["CPU"] == 2
    assert ray.is_initialized()


def test_nothing_imports_ray_before_it_is_asked_to_connect() -> None:
    program = """
import sys
import cprompt
from cprompt.cli import app
import cprompt.cluster.answering, cprompt.cluster.learning, cprompt.cluster.runs
from typer.testing import CliRunner
for command in ([], ["learn"], ["table"], ["predict"]):
    assert CliRunner().invoke(app, [*command, "--help"]).exit_code == 0
assert cprompt.ContinualClassifier and cprompt.run
found = [name for name in sys.modules if name.partition(".")[0] == "ray"]
assert not found, found
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
