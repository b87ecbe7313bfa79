"""Connecting to Ray: a cluster of this machine alone, or one at an address."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cprompt.errors import ClusterError

LOCAL = "ray"
"""The `--on` that starts Ray on this machine, for this command only."""

CLIENT = "ray://"
_SECONDS = 5.0
"""How long an address may take to answer."""


@contextmanager
def connected(on: str) -> Iterator[Any]:
    """The module `ray`, connected to `on`: "ray", "HOST:PORT" or "ray://HOST:PORT".

    A connection that is there already is used, and left as it is.
    """
    # Before the import: Ray would report to its makers how it is used.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Workers without GPUs would otherwise see none only by accident of Ray's version.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "1")
    try:
        import ray
    except ImportError as error:
        raise ClusterError(
            f"--on {on} needs Ray, which is not installed", hint="pip install 'cprompt[ray]'"
        ) from error
    if ray.is_initialized():
        yield ray
        return
    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    try:
        if on == LOCAL:
            ray.init(address="local", include_dashboard=False, **quiet)
        else:
            _check_answers(on)
            ray.init(address=on, **quiet)
    except ClusterError:
        raise
    except Exception as error:  # Ray and gRPC raise many kinds
        raise ClusterError(
            f"cannot connect to Ray ({_in_short(error)})",
            file=on,
            hint="`ray status` on a machine of the cluster says whether it runs",
        ) from error
    try:
        yield ray
    finally:
        ray.shutdown()


def _check_answers(on: str) -> None:
    """Raise a ClusterError if no gRPC server is at the address; Ray itself waits for minutes."""
    host, colon, port = on.removeprefix(CLIENT).rpartition(":")
    if not (colon and host and port.isdigit() and "/" not in host):
        raise ClusterError(
            f"--on {on!r} is not an address",
            hint="use ray for this machine, HOST:PORT (6379 unless chosen otherwise), or "
            "ray://HOST:PORT (10001)",
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), _SECONDS).close()
        _check_grpc(f"{host}:{port}")
    except (OSError, OverflowError) as error:
        raise ClusterError(
            f"no Ray cluster answers there ({error})",
            file=on,
            hint="`ray start --head` starts one and prints its address",
        ) from error


def _check_grpc(address: str) -> None:
    """Raise a TimeoutError if what listens there does not speak as Ray does."""
    if os.environ.get("RAY_USE_TLS", "0") != "0":
        return  # a plain connection would be refused
    import grpc

    with grpc.insecure_channel(address) as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=_SECONDS)
        except grpc.FutureTimeoutError:
            raise TimeoutError("something else listens on this port") from None


def _in_short(error: BaseException) -> str:
    """The first and the last line: Ray puts the cause at the end, often after a traceback."""
    lines = str(error).strip().splitlines()
    return " … ".join(dict.fromkeys([*lines[:1], *lines[-1:]])) or type(error).__name__
