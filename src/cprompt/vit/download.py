"""timm's pre-trained weights: which names there are, and fetching them once.

huggingface_hub is imported where it is used: most commands find their weights on this machine.
"""

from __future__ import annotations

import hashlib
import os
import re
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import torch

from cprompt.errors import BackboneError
from cprompt.vit import embedded
from cprompt.vit.light_timm import timm

ANSWER_WITHIN = 5.0
"""Seconds that a server has to answer before its weights count as out of reach."""

_FILES = ("model.safetensors", "pytorch_model.bin")


def with_tag(architecture: str, tag: str) -> str:
    """The full name. A name without a tag is accepted only if timm has a single set of weights.

    timm's default tag has changed over time, so a name without a tag would not say which weights
    a result was made with.
    """
    tags = known_tags(architecture)
    if tag in tags:
        return f"{architecture}.{tag}"
    known = ", ".join(f"{architecture}.{t}" for t in tags) or "none"
    if tag:
        raise BackboneError(
            f"timm has no weights {tag!r} for {architecture}", hint=f"it has: {known}"
        )
    if len(tags) == 1:
        return f"{architecture}.{tags[0]}"
    raise BackboneError(
        f"{architecture} has {len(tags)} sets of weights",
        hint=f"name one so that results say which ({known}), or pass --weights FILE",
    )


def known_tags(architecture: str) -> list[str]:
    """The tags of timm's weights for an architecture."""
    return [name.partition(".")[2] for name in timm.list_pretrained(f"{architecture}.*")]


def is_cached(tagged: str) -> bool:
    """Whether timm would find these weights on this machine."""
    from huggingface_hub import try_to_load_from_cache

    about = timm.get_pretrained_cfg(tagged)
    if about.hf_hub_id:
        files = (about.hf_hub_filename,) if about.hf_hub_filename else _FILES
        return any(isinstance(try_to_load_from_cache(about.hf_hub_id, f), str) for f in files)
    return bool(about.url) and (_torch_cache() / Path(about.url).name).is_file()


def check_reachable(tagged: str) -> None:
    """Raise at once if weights are neither on this machine nor behind a server that answers.

    Without this the downloader tries for about a minute, and says so again and again.
    """
    if is_cached(tagged):
        return
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        raise out_of_reach(tagged, "HF_HUB_OFFLINE is set")
    try:
        request = urllib.request.Request(_address(tagged), method="HEAD")
        urllib.request.urlopen(request, timeout=ANSWER_WITHIN).close()
    except urllib.error.HTTPError:
        return  # it answered; what it means, the downloader knows better
    except (OSError, ValueError) as error:
        raise out_of_reach(tagged, getattr(error, "reason", None) or error) from error


def fetch(tagged: str) -> None:
    """Bring weights from the Hugging Face hub, with a bar of progress, and check them.

    Weights that are here already are not read again; those from elsewhere are timm's business.
    """
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError

    about = timm.get_pretrained_cfg(tagged)
    if not about.hf_hub_id or is_cached(tagged):
        return
    files = (about.hf_hub_filename,) if about.hf_hub_filename else _FILES
    for number, name in enumerate(files, 1):
        try:
            check_download(Path(hf_hub_download(about.hf_hub_id, name)), tagged)
            return
        except EntryNotFoundError:
            if number == len(files):
                raise


def check_download(file: Path, tagged: str) -> None:
    """Raise, and delete the file, if it is not what the hub says it is.

    The hub's cache names a large file after its SHA-256.
    """
    stored = file.resolve()
    if not re.fullmatch("[0-9a-f]{64}", stored.name):
        return
    with stored.open("rb") as content:
        digest = hashlib.sha256()
        while part := content.read(2**20):
            digest.update(part)
    if digest.hexdigest() != stored.name:
        file.unlink()
        stored.unlink(missing_ok=True)
        raise BackboneError(
            f"the download of {tagged} is damaged: its SHA-256 is {digest.hexdigest()[:12]}…, "
            f"expected {stored.name[:12]}…",
            hint="it was deleted; try again",
        )


def out_of_reach(tagged: str, why: Any) -> BackboneError:
    """The error that says which file to bring, and where to."""
    return BackboneError(
        f"the weights of {tagged} are not on this machine and could not be fetched ({why})",
        hint=f"bring {_address(tagged)} from another machine as {tagged}"
        f"{Path(_address(tagged)).suffix} and pass --weights FILE, or use the embedded backbone "
        f"(--backbone {next(iter(embedded.EMBEDDED), 'none')})",
    )


def _address(tagged: str) -> str:
    """Where the file of the weights is."""
    about = timm.get_pretrained_cfg(tagged)
    if not about.hf_hub_id:
        return str(about.url)
    from huggingface_hub import hf_hub_url

    return hf_hub_url(about.hf_hub_id, about.hf_hub_filename or _FILES[0])


def _torch_cache() -> Path:
    return Path(os.fspath(torch.hub.get_dir())) / "checkpoints"
