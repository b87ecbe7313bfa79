"""A Ray cluster of two machines that are both this one; started once, and silent."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

MARK = "CPROMPT_TEST_CLUSTER"
"""In the environment of every process of this cluster, and of no other."""


class TwoNodes:
    """A cluster whose head does no work; its workers stand on two nodes of one core each."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        small = {"object_store_memory": 80 * 2**20, "include_dashboard": False}
        self._cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **small})
        self.address: str = self._cluster.address
        self._nodes = [self._add(), self._add()]

    def _add(self) -> Any:
        return self._cluster.add_node(num_cpus=1, object_store_memory=80 * 2**20)

    def kill_node(self, task: str) -> None:
        """Take a node that is at work on `task` away, and put an empty one there."""
        status = Path("/proc", str(self._busy(task)), "status").read_text()
        (parent,) = [line.split()[1] for line in status.splitlines() if line.startswith("PPid")]
        (node,) = [node for node in self._nodes if self._raylet(node) == int(parent)]
        self._nodes.remove(node)
        self._cluster.remove_node(node, allow_graceful=False)
        self._nodes.append(self._add())

    def kill_worker(self, task: str) -> None:
        """Kill a process that is at work on `task` now."""
        os.kill(self._busy(task), signal.SIGKILL)

    def _busy(self, task: str) -> int:
        """The id of a process that is at work on `task`."""
        for _ in range(200):
            for process in Path("/proc").glob("[0-9]*"):
                if self._does(process, task):
                    return int(process.name)
            time.sleep(0.02)
        raise AssertionError(f"no worker is at {task}")

    @staticmethod
    def _raylet(node: Any) -> int:
        ((raylet,),) = [p for kind, p in node.all_processes.items() if kind == "raylet"]
        return int(raylet.process.pid)

    @staticmethod
    def _does(process: Path, task: str) -> bool:
        try:
            title = (process / "cmdline").read_bytes()
            mine = f"{MARK}={os.environ[MARK]}".encode() in (process / "environ").read_bytes()
        except OSError:
            return False
        return mine and title.startswith(f"ray::{task}".encode())

    def shutdown(self) -> None:
        self._cluster.shutdown()


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoNodes]:
    """Two nodes; the connection stays open, so that workers are kept between tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv(MARK, f"{os.getpid()}")
        # A killed node is noticed in seconds; a slow one must not be taken for dead.
        patch.setenv("RAY_health_check_period_ms", "1000")
        from cprompt.cluster.connection import connected

        nodes = TwoNodes()
        try:
            with connected(nodes.address):
                yield nodes
        finally:
            nodes.shutdown()


@pytest.fixture
def once() -> Callable[[Callable[[], object]], Callable[[], None]]:
    """Makes a function that acts at its first call only."""

    def first_only(act: Callable[[], object]) -> Callable[[], None]:
        left = [act]

        def call() -> None:
            if left:
                left.pop()()

        return call

    return first_only
