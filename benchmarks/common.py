"""What the benchmarks share: the hardware, fair timing, peak memory, the table and the file."""

from __future__ import annotations

import argparse
import gc
import os
import platform
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import cprompt
from cprompt.errors import ConfigError
from cprompt.files import check_writable, write_json
from cprompt.processor import processor

RESULTS = Path("results") / "benchmarks"

Call = Callable[[], object]

# --- the machine --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hardware:
    """What a result was measured on and with; `machine` names the folder of its results."""

    machine: str
    device: str
    processor: str
    cores: int
    threads: int
    cpu_bf16: bool
    python: str
    torch: str
    cuda: str | None
    timm: str
    cprompt: str

    def __str__(self) -> str:
        cuda = f" (CUDA {self.cuda})" if self.cuda else ""
        return (
            f"{self.device}; {self.processor}, {self.cores} cores, {self.threads} threads; "
            f"torch {self.torch}{cuda}, timm {self.timm}, cprompt {self.cprompt}"
        )


def hardware(device: torch.device) -> Hardware:
    """Describe this machine; `cpu_bf16` says whether the processor itself multiplies bfloat16."""
    chip = processor()
    on_cuda = device.type == "cuda"
    name = torch.cuda.get_device_name(device) if on_cuda else device.type
    return Hardware(
        machine=slug(name),
        device=name,
        processor=chip.name,
        cores=cores(),
        threads=torch.get_num_threads(),
        cpu_bf16=chip.bf16,
        python=platform.python_version(),
        torch=torch.__version__,
        cuda=torch.version.cuda if on_cuda else None,
        timm=version("timm"),
        cprompt=cprompt.__version__,
    )


def slug(name: str) -> str:
    """A device's name as a folder name: "NVIDIA H200" becomes h200."""
    words = re.findall(r"[a-z0-9]+", name.lower())
    return "-".join(word for word in words if word not in ("nvidia", "geforce", "amd", "instinct"))


def cores() -> int:
    """Cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


# --- time ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Timing:
    """Seconds of one call: median, lowest and highest of the repeats."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Rounds:
    """How long to measure: untimed calls, then `repeats` samples of `calls` calls each."""

    warmup: int
    repeats: int
    calls: int


def rounds(device: torch.device, quick: bool) -> Rounds:
    """Few calls on a CPU, where each takes long; many on a GPU, where the host's jitter shows."""
    if device.type == "cpu":
        return Rounds(1, 3, 1)
    return Rounds(5, 5, 5) if quick else Rounds(20, 7, 10)


def interleave(
    contenders: Mapping[str, Call], device: torch.device, rounds: Rounds
) -> dict[str, Timing]:
    """Time several contenders in turns, A B A B, so that a drifting clock speed favours none."""
    for call in contenders.values():
        for _ in range(rounds.warmup):
            call()
    samples: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds.repeats):
        for name, call in contenders.items():
            samples[name].append(_seconds(call, rounds.calls, device))
    return {name: Timing(median(s), min(s), max(s)) for name, s in samples.items()}


def time_it(call: Call, device: torch.device, rounds: Rounds) -> Timing:
    """Time one contender alone."""
    return interleave({"": call}, device, rounds)[""]


def _seconds(call: Call, calls: int, device: torch.device) -> float:
    """Mean of `calls` calls; on a GPU from events on the device, gaps between kernels included."""
    if device.type == "cuda":
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        synchronize(device)
        begin.record()
        for _ in range(calls):
            call()
        end.record()
        synchronize(device)
        return float(begin.elapsed_time(end)) / 1000 / calls
    synchronize(device)
    start = time.perf_counter()
    for _ in range(calls):
        call()
    synchronize(device)
    return (time.perf_counter() - start) / calls


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished all its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def spread(timing: Timing) -> str:
    """Half of highest - lowest, as a share of the median."""
    return f"±{50 * (timing.high - timing.low) / timing.median:.0f} %"


def matmul_rate(device: torch.device, size: int = 8192) -> float:
    """FLOP/s of a large bfloat16 matrix product: what this card reaches in practice."""
    a, b = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    out = torch.empty_like(a)
    timing = time_it(lambda: torch.mm(a, b, out=out), device, Rounds(20, 9, 20))
    return float(2 * size**3 / timing.median)


# --- memory -------------------------------------------------------------------------------------


def peak_memory(call: Call, device: torch.device) -> int | None:
    """Peak bytes during `call`, minus those before it; None if unknown.

    `call` builds what it needs, so model weights count. On CUDA these are the bytes allocated by
    PyTorch; on a CPU, how far a separate process grew, which only Linux reports. `call` must be
    picklable.
    """
    if device.type == "cuda":
        return _peak_allocated(call, device)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        return process.submit(_peak, call, device).result()


def _peak_allocated(call: Call, device: torch.device) -> int:
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    call()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


def _peak(call: Call, device: torch.device) -> int | None:
    before = _resident("VmRSS")
    call()
    after = _resident("VmHWM")
    return None if before is None or after is None or device.type != "cpu" else after - before


def _resident(field: str) -> int | None:
    """A field of this process's status, in bytes."""
    status = Path("/proc/self/status")
    found = (
        re.search(rf"^{field}:\s*(\d+) kB", status.read_text(), re.M) if status.exists() else None
    )
    return int(found[1]) * 1024 if found else None


# --- what comes out -----------------------------------------------------------------------------


def parser(description: str | None) -> argparse.ArgumentParser:
    """The options every benchmark has."""
    options = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--device", default="auto", help="auto, cuda or cpu (default: auto)")
    options.add_argument("--quick", action="store_true", help="small sizes, to see that it works")
    options.add_argument("--out", type=Path, help=f"JSON file (default: in {RESULTS}/MACHINE)")
    return options


def show(
    title: str, rows: Sequence[Mapping[str, str]], seen: Hardware, notes: Iterable[str] = ()
) -> None:
    """Print one table; a row maps headings to cells."""
    table = Table(box=None, pad_edge=False, padding=(0, 1))
    for i, heading in enumerate(rows[0]):
        table.add_column(heading, justify="right" if i else "left")
    for row in rows:
        table.add_row(*row.values())
    console = Console()
    if not console.is_terminal:
        console = Console(width=120)
    console.print(f"\n{title}", style="italic", highlight=False, markup=False)
    console.print(table)
    for line in (*notes, str(seen)):
        console.print(line, highlight=False, markup=False)


def output(name: str, seen: Hardware, out: Path | None) -> Path:
    """The file for a benchmark's numbers, `out` or the usual one; exits if it cannot be written.

    Ask before measuring, so that minutes of work are not lost.
    """
    path = out or RESULTS / seen.machine / f"{name}.json"
    try:
        check_writable(path)
    except ConfigError as error:
        raise SystemExit(f"error: {error}") from error
    return path


def save(name: str, seen: Hardware, result: Mapping[str, Any], out: Path | None) -> Path:
    """Write a benchmark's numbers (seconds, bytes, FLOP) and the hardware to its `output`."""
    path = output(name, seen, out)
    write_json(path, {"benchmark": name, "hardware": asdict(seen), **result})
    return path
