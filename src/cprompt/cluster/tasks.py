"""Tasks on Ray: how one runs on a worker, and how the driver waits for many."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import cprompt
from cprompt import plugins
from cprompt.errors import ClusterError, CPromptError

_ABSENT = re.compile(r"No module named|Can't get attribute|module 'cprompt[\w.]*' has no attribute")
"""What Python says where another version of cprompt, or none, is asked for one of our tasks."""

RETRIES = 5
"""How often a task is started again after its worker died. Errors of the task are not retried."""


@dataclass(frozen=True)
class Work:
    """What every task must know of the process that started it."""

    threads: int = 1
    """Of torch; results on a CPU are bit-equal only with the same number."""
    gpus: float = 0.0
    """Of each task; a part of one is shared with other tasks."""
    plugins: tuple[str, ...] = ()
    """Modules of methods and datasets, imported on the worker; they must be there."""
    version: str = field(default=cprompt.__version__)

    def remote(self, ray: Any, function: Callable[..., Any], **options: Any) -> Any:
        """The function as a Ray task; it gets this work as its first argument."""
        return ray.remote(
            num_cpus=self.threads, num_gpus=self.gpus, max_retries=RETRIES, **options
        )(function)

    def begin(self) -> None:
        """On the worker, before anything else."""
        import torch

        if cprompt.__version__ != self.version:
            raise ClusterError(
                f"the worker at {_here()} has cprompt {cprompt.__version__}, but the command was "
                f"given to {self.version}",
                hint="install the same version on all machines",
            )
        for module in self.plugins:
            plugins.import_module(module)
        torch.set_num_threads(self.threads)


class named_worker:  # noqa: N801 (a context manager, used as a verb)
    """Errors that leave this block say which worker they happened on."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, CPromptError) and not isinstance(error, ClusterError):
            raise ClusterError(
                f"the worker at {_here()} stopped: {error}",
                hint="files must be at the same path on every worker",
            ) from error


def collect(
    ray: Any,
    tasks: Mapping[Any, Callable[[], Any]],
    then: Callable[[Any, Any], None],
    *,
    limit: int | None = None,
    meanwhile: Callable[[], None] = lambda: None,
) -> None:
    """Start tasks, at most `limit` at a time; call `then` with each key and value as they are done.

    A task is started by calling it, which returns Ray's reference. `meanwhile` is called about once
    a second. If something fails, or the user stops it, all tasks are cancelled. Those that wait for
    them fail by themselves: cancelling them too, Ray sometimes loses count and ends the process.
    """
    to_start = deque(tasks.items())
    waiting: dict[Any, Any] = {}
    try:
        while to_start or waiting:
            while to_start and (limit is None or len(waiting) < limit):
                key, start = to_start.popleft()
                waiting[start()] = key
            done, _ = ray.wait(list(waiting), num_returns=1, timeout=1.0)
            for reference in done:
                then(waiting.pop(reference), value(ray, reference))
            meanwhile()
    except BaseException:
        for reference in _unfinished(ray, list(waiting)):
            ray.cancel(reference, force=True)
        raise


def _unfinished(ray: Any, references: list[Any]) -> list[Any]:
    if not references:
        return []
    _, left = ray.wait(references, num_returns=len(references), timeout=0)
    return list(left)


def slots(ray: Any, work: Work) -> int:
    """How many tasks the cluster runs at a time, as it is now."""
    there = ray.cluster_resources()
    room = there.get("CPU", 0) / work.threads
    if work.gpus:
        room = min(room, there.get("GPU", 0) / work.gpus)
    return max(1, int(room))


def value(ray: Any, reference: Any) -> Any:
    """What a task returned; its error as the user should see it."""
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        cause = error.cause
        if isinstance(cause, CPromptError):
            raise type(cause)(cause.message, hint=cause.hint, file=cause.file) from None
        if isinstance(cause, ImportError) or _ABSENT.search(str(error)):
            raise ClusterError(
                f"a worker cannot import what it needs ({str(cause).splitlines()[-1]})",
                hint="install the same cprompt, and the same plugins, on all machines",
            ) from error
        raise
    except ray.exceptions.RayError as error:
        raise ClusterError(
            f"a worker died {RETRIES + 1} times over the same task "
            f"({type(error).__name__}: {str(error).strip().splitlines()[0]})",
            hint="it may have too little memory; what is done is kept, and the same command goes "
            "on from there",
        ) from error


def _here() -> str:
    import ray

    return str(ray.util.get_node_ip_address())
