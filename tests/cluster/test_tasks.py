"""Tasks on Ray: which are started when, what is cancelled, and what a failure says."""

from __future__ import annotations

from typing import Any

import pytest

from cprompt.cluster.tasks import Work, collect, slots, value
from cprompt.errors import ClusterError, ConfigError, DataError
from tests.cluster.conftest import TwoNodes


class RayTaskError(Exception):
    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


class RayError(Exception):
    pass


class FakeRay:
    """As much of Ray as `collect` uses: tasks end in the order they were started."""

    class exceptions:  # noqa: N801
        RayTaskError = RayTaskError
        RayError = RayError

    def __init__(self, results: dict[str, Any]) -> None:
        self.results, self.cancelled, self.most = results, [], 0
        self.finished: set[str] = set()

    def wait(self, refs: list[str], num_returns: int, timeout: float) -> Any:
        if timeout == 0:
            return [r for r in refs if r in self.finished], [
                r for r in refs if r not in self.finished
            ]
        self.most = max(self.most, len(refs))
        return refs[:1], refs[1:]

    def get(self, ref: str) -> Any:
        if isinstance(self.results[ref], Exception):
            raise self.results[ref]
        return self.results[ref]

    def cancel(self, ref: str, force: bool) -> None:
        assert force
        self.cancelled.append(ref)

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 12.0, "GPU": 2.0}


def tasks(ray: FakeRay) -> dict[str, Any]:
    return {name.upper(): lambda name=name: name for name in ray.results}


def test_every_value_arrives_once_and_no_more_are_started_than_allowed() -> None:
    ray = FakeRay({"a": 1, "b": 2, "c": 3})
    found: list[tuple[str, int]] = []
    collect(ray, tasks(ray), lambda key, got: found.append((key, got)), limit=2)
    assert found == [("A", 1), ("B", 2), ("C", 3)]
    assert ray.most == 2
    assert ray.cancelled == []


@pytest.mark.parametrize("stop", [KeyboardInterrupt, ValueError])
def test_when_it_is_stopped_unfinished_tasks_are_cancelled(stop: type[BaseException]) -> None:
    ray = FakeRay({"a": 1, "b": 2, "c": 3, "d": 4})
    ray.finished = {"c"}

    def then(key: str, got: int) -> None:
        raise stop

    with pytest.raises(stop):
        collect(ray, tasks(ray), then)
    assert ray.cancelled == ["b", "d"]


@pytest.mark.parametrize(
    ("work", "room"), [(Work(), 12), (Work(threads=5), 2), (Work(gpus=0.25), 8), (Work(64), 1)]
)
def test_there_is_room_for_as_many_as_cores_and_gpus_allow(work: Work, room: int) -> None:
    assert slots(FakeRay({}), work) == room


def test_failures_are_told_as_what_they_are() -> None:
    ours = DataError("is empty", file="a.jpg", hint="copy it")
    bug = RayTaskError(ZeroDivisionError("0"))
    lost = ModuleNotFoundError("No module named 'cprompt'")
    died = RayError("the worker died\nlong story")
    other = AttributeError("Can't get attribute '_count' on <module 'cprompt.cluster.learning'>")
    ray = FakeRay({"a": RayTaskError(ours), "b": bug, "c": RayTaskError(lost), "d": died})
    ray.results["e"] = RayTaskError(other)
    with pytest.raises(DataError, match=r"a\.jpg: is empty; copy it"):
        value(ray, "a")
    with pytest.raises(RayTaskError):
        value(ray, "b")
    with pytest.raises(ClusterError, match=r"cannot import .*'cprompt'.*; install"):
        value(ray, "c")
    with pytest.raises(ClusterError, match=r"cannot import .*'_count'.*the same cprompt"):
        value(ray, "e")
    with pytest.raises(ClusterError, match=r"died 6 times over the same task .*the worker died\)"):
        value(ray, "d")


def begin(work: Work) -> int:
    import torch

    work.begin()
    return torch.get_num_threads()


def test_a_worker_has_the_threads_asked_for_and_refuses_another_version(
    cluster: TwoNodes,
) -> None:
    import ray

    work = Work()
    assert value(ray, work.remote(ray, begin).remote(work)) == 1
    with pytest.raises(ClusterError, match=r"the worker at .* but the command was given to 0\.0"):
        value(ray, work.remote(ray, begin).remote(Work(version="0.0")))
    with pytest.raises(ConfigError, match="'no_such_plugin'"):
        value(ray, work.remote(ray, begin).remote(Work(plugins=("no_such_plugin",))))
