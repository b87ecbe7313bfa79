"""What captions and tables say of runs: seeds, backbone and hardware."""

from __future__ import annotations

from collections.abc import Sequence

from cprompt.report.runs import RecordedRun
from cprompt.research.record import Record

UNKNOWN = "–"
"""Stands for what an old record does not say."""


def seeds_of(runs: Sequence[RecordedRun]) -> str:
    """`seed 0`, or `seeds 0, 1, 2`; order/init/data where they differ."""
    texts = [run.seeds_text for run in runs]
    return f"seed{'s' if len(texts) > 1 else ''} {', '.join(texts)}"


def backbones_of(runs: Sequence[RecordedRun]) -> str:
    """Every backbone of the runs, as `backbone_text` names it."""
    return ", ".join(sorted({backbone_text(run.record) for run in runs}))


def backbone_text(record: Record) -> str:
    """`name (weights, fingerprint)`, with the first twelve characters of the fingerprint."""
    about = record.backbone
    known = [about.get("weights"), about.get("fingerprint", "")[:12]]
    return f"{about.get('name', 'unknown')} ({', '.join(k for k in known if k) or 'unknown'})"


def hardware_of(record: Record) -> str:
    """The GPU, or the processor and its cores; a dash where an old record has neither."""
    about = record.environment
    if about.get("gpu"):
        return str(about["gpu"])
    cores = f", {about['cpu_count']} cores" if about.get("cpu_count") else ""
    return f"{about['cpu']}{cores}" if about.get("cpu") else UNKNOWN
