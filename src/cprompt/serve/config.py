"""Settings of a service: where it listens, who may teach it, and its limits."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field, fields
from pathlib import Path

from cprompt.settings import check, setting

MIN_TOKEN = 16
"""Shortest token, in characters: 16 random ones cannot be guessed."""


@dataclass(frozen=True)
class Limits:
    """How much a request may cost; anything larger is refused before the work is done."""

    max_body: int = setting(32_000_000, "bytes of a prediction request")
    max_upload: int = setting(256_000_000, "bytes of a request to learn or evaluate")
    max_images: int = setting(32, "images in a prediction request")
    max_pixels: int = setting(50_000_000, "pixels of an image")
    max_decoded: int = setting(
        100_000_000,
        "pixels of decoded images that wait for their answer, all requests together; "
        "as many more may be in decoding",
    )
    max_labelled: int = setting(500, "labelled files in a request; a zip may hold more")
    max_files: int = setting(5000, "entries in a zip")
    max_unpacked: int = setting(1_000_000_000, "unpacked bytes of a zip's files, all together")
    max_ratio: int = setting(100, "unpacked size of a file in a zip, divided by its packed size")
    max_label: int = setting(100, "characters in a class name")
    request_seconds: float = setting(
        30.0, "seconds for a prediction, from the first byte to the answer"
    )
    header_seconds: float = setting(10.0, "seconds for receiving a request's headers")
    upload_seconds: float = setting(300.0, "seconds for receiving and checking an upload")
    max_connections: int = setting(256, "open connections per client address; further ones get 503")
    max_waiting: int = setting(256, "prediction requests under way; further ones get 503")
    max_pass: int = setting(32, "images answered in one pass of the model")
    passes: int = setting(2, "passes of the model at the same time")
    pass_seconds: float = setting(0.005, "longest wait, in seconds, for more images to join a pass")
    max_jobs: int = setting(4, "jobs waiting or under way; further ones get 503")
    decoders: int = setting(2, "threads that decode images")

    def __post_init__(self) -> None:
        for limit in fields(self):
            value = getattr(self, limit.name)
            low = 0 if limit.name == "pass_seconds" else 1e-3 if limit.type == "float" else 1
            check(value >= low, f"{limit.name} {value} must be at least {low}")


@dataclass(frozen=True)
class ServeConfig:
    """Where a service listens, who may teach it, and its limits."""

    host: str = setting("127.0.0.1", "address to listen on")
    read_only: bool = setting(False, "whether to refuse learning and undo")
    allow_hosts: tuple[str, ...] = setting(
        (), "further host names by which browsers may reach the service"
    )
    state: str = setting(
        "", "folder for jobs, uploads and the log of changes; empty: beside the model"
    )
    limits: Limits = field(default_factory=Limits)

    @property
    def on_loopback(self) -> bool:
        """Whether only this machine can reach the service."""
        return is_loopback(self.host)

    def state_folder(self, model: Path) -> Path:
        """Where jobs, uploads and the log of changes of the model in `model` are kept."""
        whole = model.resolve()
        return (
            Path(self.state).absolute() if self.state else whole.with_name(f"{whole.name}.service")
        )

    def check_token(self, token: str | None) -> None:
        """Raise a ConfigError for a weak token, or if strangers on the network could teach."""
        if token is not None:
            check(
                len(token) >= MIN_TOKEN and token.isascii() and token.isprintable(),
                f"the token must have at least {MIN_TOKEN} printable ASCII characters, but it "
                f"{'is empty' if not token else f'has {len(token)}'}; "
                'make one with `python -c "import secrets; print(secrets.token_urlsafe())"`',
            )
            check(" " not in token, "the token must not contain spaces")
        check(
            token is not None or self.read_only or self.on_loopback,
            f"{self.host} can be reached from other machines, so learning needs a token: set "
            "CPROMPT_TOKEN (or --token), or serve predictions only with --read-only",
        )


def is_loopback(host: str) -> bool:
    """Whether `host`, a name or an address without brackets, is this machine only."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
