"""What the system says of the processor."""

from __future__ import annotations

from pathlib import Path

import pytest

from cprompt import processor

INTEL = "processor\t: 0\nmodel name\t: Some Xeon @ 2 GHz\nflags\t\t: fpu avx512f avx512_bf16\n"
OLD = "processor\t: 0\nmodel name\t: Some Xeon @ 2 GHz\nflags\t\t: fpu avx512f avx512_vnni\n"
ARM = "processor\t: 0\nFeatures\t: fp asimd bf16 i8mm\n"


@pytest.mark.parametrize(
    ("text", "name", "bf16"),
    [(INTEL, "Some Xeon @ 2 GHz", True), (OLD, "Some Xeon @ 2 GHz", False), (ARM, "arm64", True)],
)
def test_name_and_instructions_are_read(
    text: str, name: str, bf16: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text(text)
    monkeypatch.setattr(processor, "_INFO", info)
    monkeypatch.setattr(processor.platform, "processor", lambda: "arm64")
    assert processor.processor() == (name, bf16)


def test_a_system_that_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor, "_INFO", tmp_path / "absent")
    monkeypatch.setattr(processor.platform, "processor", lambda: "")
    monkeypatch.setattr(processor.platform, "machine", lambda: "riscv64")
    assert processor.processor() == ("riscv64", False)
