"""What this machine's processor is called and can do."""

from __future__ import annotations

import platform
import re
from pathlib import Path
from typing import NamedTuple

_INFO = Path("/proc/cpuinfo")


class Processor(NamedTuple):
    """A processor, and what of its instructions and make decides how products are computed."""

    name: str
    bf16: bool
    """Whether it multiplies bfloat16 itself."""
    avx512: bool
    intel: bool
    amx: bool = False
    """Whether it has units for whole matrices of bfloat16."""


def processor() -> Processor:
    """This machine's, as far as the system knows it."""
    try:
        text = _INFO.read_text(encoding="utf-8")
    except OSError:
        text = ""
    fields = dict(
        re.findall(r"^(vendor_id|model name|flags|Features)\s*:\s*(.*)$", text, re.MULTILINE)
    )
    flags = (fields.get("flags") or fields.get("Features") or "").split()
    return Processor(
        name=fields.get("model name") or platform.processor() or platform.machine(),
        bf16=not {"avx512_bf16", "amx_bf16", "bf16"}.isdisjoint(flags),
        avx512="avx512f" in flags,
        intel=fields.get("vendor_id") == "GenuineIntel",
        amx="amx_bf16" in flags,
    )
