"""What the system says of the processor."""

from __future__ import annotations

from pathlib import Path

import pytest

from cprompt import processor
from cprompt.processor import Processor

INTEL = (
    "vendor_id\t: GenuineIntel\nmodel name\t: A Xeon @ 2 GHz\nflags\t\t: fpu avx512f avx512_bf16\n"
)
OLD = (
    "vendor_id\t: GenuineIntel\nmodel name\t: A Xeon @ 2 GHz\nflags\t\t: fpu avx512f avx512_vnni\n"
)
NEW = (
    "vendor_id\t: GenuineIntel\nmodel name\t: A Xeon @ 2 GHz\n"
    "flags\t\t: fpu avx512f avx512_bf16 amx_bf16 amx_tile\n"
)
AMD = "vendor_id\t: AuthenticAMD\nmodel name\t: An EPYC\nflags\t\t: fpu avx2\n"
ARM = "processor\t: 0\nFeatures\t: fp asimd bf16 i8mm\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (INTEL, Processor("A Xeon @ 2 GHz", bf16=True, avx512=True, intel=True)),
        (OLD, Processor("A Xeon @ 2 GHz", bf16=False, avx512=True, intel=True)),
        (NEW, Processor("A Xeon @ 2 GHz", bf16=True, avx512=True, intel=True, amx=True)),
        (AMD, Processor("An EPYC", bf16=False, avx512=False, intel=False)),
        (ARM, Processor("arm64", bf16=True, avx512=False, intel=False)),
    ],
)
def test_name_make_and_instructions_are_read(
    text: str, expected: Processor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text(text)
    monkeypatch.setattr(processor, "_INFO", info)
    monkeypatch.setattr(processor.platform, "processor", lambda: "arm64")
    assert processor.processor() == expected


def test_a_system_that_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor, "_INFO", tmp_path / "absent")
    monkeypatch.setattr(processor.platform, "processor", lambda: "")
    monkeypatch.setattr(processor.platform, "machine", lambda: "riscv64")
    assert processor.processor() == Processor("riscv64", False, False, False)
