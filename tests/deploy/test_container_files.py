"""The files in deploy/ agree with each other and with the service."""

from __future__ import annotations

import fnmatch
import json
import re
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from cprompt.cli import app
from cprompt.serve.app import create_app
from cprompt.serve.config import Limits, ServeConfig

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text("utf-8")
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))
CADDYFILE = (DEPLOY / "Caddyfile").read_text("utf-8")
REPLICAS = {n: s for n, s in COMPOSE["services"].items() if n != "proxy"}

KNOWN_KEYS = {
    *("image", "build", "command", "environment", "volumes", "read_only", "tmpfs", "user"),
    *("cap_drop", "security_opt", "restart", "stop_grace_period", "healthcheck", "ports"),
    "depends_on",
}
"""Of the Compose specification, what these services use; a misspelt key would be ignored."""


def instructions() -> list[tuple[str, str]]:
    """(word, rest) of each instruction, continued lines joined."""
    text = re.sub(r"^#.*\n", "", DOCKERFILE, flags=re.MULTILINE).replace("\\\n", " ")
    lines = [line.split(None, 1) for line in text.splitlines() if line.strip()]
    return [(word, rest) for word, rest in lines]


def of(word: str) -> list[str]:
    return [rest for each, rest in instructions() if each == word]


def check_command(words: list[str]) -> None:
    command = typer.main.get_command(app)
    assert isinstance(command, typer.core.TyperGroup)
    with command.make_context("cprompt", words[:1]) as context:
        name, found, rest = command.resolve_command(context, words)
        assert found is not None
        found.make_context(name, rest, parent=context)


def probe(text: str) -> str:
    found = re.search(r"http://127\.0\.0\.1:8000(/\w+)'", text)
    assert found is not None, text
    return found[1]


@pytest.mark.parametrize("image", [*of("FROM"), COMPOSE["services"]["proxy"]["image"]])
def test_every_base_is_pinned_to_a_release(image: str) -> None:
    assert re.match(r"[a-z/]+:\d+\.\d+\.\d+(-\w+)*( AS build)?$", image), image


def test_the_image_runs_the_service_as_nobody_in_particular() -> None:
    user = of("USER")[-1]
    assert int(user) > 0
    assert f"--uid {user}" in DOCKERFILE
    words = [w for w, _ in instructions()]
    assert words.index("USER") > max(i for i, w in enumerate(words) if w in ("RUN", "COPY"))
    assert json.loads(of("ENTRYPOINT")[0]) == ["cprompt"]
    check_command(json.loads(of("CMD")[0]))
    assert of("EXPOSE") == ["8000"]  # the port that `cprompt serve` takes by default


def test_what_the_build_copies_is_there_and_not_ignored() -> None:
    (*ignored,) = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    kept = [line[1:] for line in ignored if line.startswith("!")]
    wanted = [w for rest in of("COPY") if "--from" not in rest for w in rest.split()[:-1]]
    assert "*" in ignored
    assert sorted(wanted) == sorted(kept)
    for name in wanted:
        assert (ROOT / name).exists()
        assert any(fnmatch.fnmatch(name, pattern) for pattern in kept)


def test_there_are_two_replicas_that_cannot_write() -> None:
    first, second = REPLICAS.values()
    assert first == second
    check_command(first["command"])
    (volume,) = first["volumes"]
    assert volume["read_only"] is True
    assert volume["target"] == first["command"][1]
    assert first["read_only"] is True
    assert first["user"] == of("USER")[-1]
    assert (DEPLOY / first["build"]["context"] / first["build"]["dockerfile"]).is_file()
    assert float(first["stop_grace_period"].removesuffix("s")) > Limits().request_seconds


def test_no_key_is_misspelt() -> None:
    for service in COMPOSE["services"].values():
        assert set(service) <= KNOWN_KEYS
    for key in COMPOSE:
        assert key == "services" or key.startswith("x-")


def test_probes_are_paths_of_the_service(tmp_path: Path) -> None:
    class Nothing:
        classes_ = history_ = ()

    service = create_app(
        tmp_path,
        settings=ServeConfig(host="0.0.0.0", read_only=True),
        load=lambda folder: Nothing(),  # type: ignore[arg-type,return-value]
    )
    paths = {getattr(route, "path", "") for route in service.routes}
    alive, ready = probe(of("HEALTHCHECK")[0]), probe(str(REPLICAS["first"]["healthcheck"]["test"]))
    asked = re.search(r"health_uri (\S+)", CADDYFILE)
    assert asked is not None
    assert (alive, ready, asked[1]) == ("/healthz", "/readyz", "/readyz")
    assert {alive, ready} <= paths


def test_the_proxy_knows_both_replicas_and_waits_for_them() -> None:
    upstream = re.search(r"reverse_proxy (.*) \{", CADDYFILE)
    assert upstream is not None
    assert upstream[1].split() == [f"{name}:8000" for name in REPLICAS]
    proxy = COMPOSE["services"]["proxy"]
    waits = {name: {"condition": "service_healthy"} for name in REPLICAS}
    assert proxy["depends_on"] == waits
    assert proxy["ports"][0].split(":")[-1] == re.search(r"^:(\d+) ", CADDYFILE, re.M)[1]  # type: ignore[index]
    size = re.search(r"max_size (\d+)MB", CADDYFILE)
    assert size is not None
    assert int(size[1]) * 10**6 > Limits().max_upload
