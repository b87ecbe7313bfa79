"""`cprompt serve`: a model behind HTTP, with a page."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import typer

from cprompt.cli.arguments import (
    DEVICE,
    MODEL,
    MOVED_WEIGHTS,
    PLUGINS,
    PRECISION,
    SETTINGS,
    parse_settings,
)
from cprompt.cli.output import say
from cprompt.errors import ConfigError

_OPEN_FILES = 16384


def serve(
    context: typer.Context,
    model: Path = MODEL,
    host: str = typer.Option("127.0.0.1", help="Address to listen on; 0.0.0.0 for all."),
    port: int = typer.Option(8000, min=0, max=65535, help="Port to listen on; 0 takes a free one."),
    token: str | None = typer.Option(
        None,
        envvar="CPROMPT_TOKEN",
        help="Ask clients for this token; required for learning if other machines can reach the "
        "service.",
    ),
    ask_token: str | None = typer.Option(
        None,
        envvar="CPROMPT_ASK_TOKEN",
        help="Instead of --token: a token that may look and predict, but not teach.",
    ),
    teach_token: str | None = typer.Option(
        None,
        envvar="CPROMPT_TEACH_TOKEN",
        help="Instead of --token: a token that may do everything.",
    ),
    device: str = DEVICE,
    precision: str = PRECISION,
    weights: str | None = MOVED_WEIGHTS,
    read_only: bool = typer.Option(False, "--read-only", help="Predict, but never learn or undo."),
    allow_host: list[str] = typer.Option(
        [],
        help="Another name that browsers may reach the service by, such as a proxy's; may be "
        "given several times.",
    ),
    state: Path | None = typer.Option(
        None, help="Folder for jobs, uploads and the log of changes; default: MODEL.service."
    ),
    settings: list[str] = SETTINGS,
    plugins: list[str] = PLUGINS,
) -> None:
    """Serve a model: predictions, learning in the background, and a page to do both by hand.

    Limits are settings, such as --limits.max_pixels 10000000; docs/serving.md
    lists them.
    """
    limits = {}
    for name, value in parse_settings([*settings, *context.args]).items():
        part, _, limit = name.partition(".")
        if part != "limits":
            raise ConfigError(
                f"serve has no setting {name!r}",
                hint="it takes limits, such as --limits.max_pixels",
            )
        limits[limit] = value

    try:
        import uvicorn

        from cprompt.serve.app import create_app
        from cprompt.serve.http_server import server_config
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"the service needs {error.name}", hint="run `pip install 'cprompt[serve]'`"
        ) from error

    from cprompt.serve.config import ServeConfig
    from cprompt.serve.served_model import loading
    from cprompt.settings import from_mapping

    config = from_mapping(
        ServeConfig,
        {
            "host": host,
            "read_only": read_only,
            "allow_hosts": allow_host,
            "state": "" if state is None else str(state),
            "limits": limits,
        },
        "serve",
    )
    _refuse_empty_tokens()
    service = create_app(
        model,
        token=token,
        ask_token=ask_token,
        teach_token=teach_token,
        settings=config,
        load=loading(device, precision, weights),
    )
    with _listen(host, port) as listening:
        shown = f"[{host}]" if ":" in host else host
        url = f"http://{shown}:{listening.getsockname()[1]}"
        say(
            f"serving {model} at {url}",
            f"API: {url}/docs; token: {'needed' if token or ask_token or teach_token else 'none'}; "
            f"learning: {'off' if read_only else 'on'}; stop with Ctrl-C",
        )
        server = uvicorn.Server(server_config(service, config.limits))
        _allow_many_files()
        server.run(sockets=[listening])


def _refuse_empty_tokens() -> None:
    """An empty variable is a token that somebody forgot to set, not the wish for none."""
    for name in ("CPROMPT_TOKEN", "CPROMPT_ASK_TOKEN", "CPROMPT_TEACH_TOKEN"):
        if os.environ.get(name) == "":
            raise ConfigError(
                f"the token in {name} is empty", hint="set it, or unset the variable for no token"
            )


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {host} port {port} ({error.strerror or error})",
            hint="if another service runs there, choose another --port, or 0 for a free one",
        ) from error


def _allow_many_files() -> None:
    """Raise the limit on open files: each connection and each large upload needs one."""
    try:
        import resource
    except ModuleNotFoundError:  # not on Windows, which has no such limit
        return
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if most == resource.RLIM_INFINITY else min(_OPEN_FILES, most)
    if now != resource.RLIM_INFINITY and now < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
