"""One run shared by two processes gives what one process gives."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from cprompt.methods.registry import METHODS
from cprompt.research.checkpoint import CHECKPOINT, load_checkpoint
from cprompt.research.experiment import run
from cprompt.research.record import load_record
from cprompt.vit.promptable import FrozenViT
from tests.methods.test_every_method import NEVER_TRAINED
from tests.training.shared_steps import CASES, config_of, steps

ROOT = Path(__file__).parents[2]
NEAR = {"rtol": 1e-5, "atol": 1e-5}


def environment(**more: object) -> dict[str, str]:
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    own = {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    return {**os.environ, **own, **{name: str(value) for name, value in more.items()}}


def free_port() -> int:
    with socket.socket() as some:
        some.bind(("127.0.0.1", 0))
        return int(some.getsockname()[1])


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two processes computed together: their steps, and a run of every method."""
    folder, port = tmp_path_factory.mktemp("shared"), free_port()
    processes = []
    for rank in range(2):
        told = {"TORCHELASTIC_RUN_ID": "test", "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}
        told |= {"RANK": rank, "LOCAL_RANK": rank, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        command = [sys.executable, "-m", "tests.training.shared_steps", str(folder)]
        process = subprocess.Popen(
            command,
            env=environment(**told),
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        processes.append(process)
    said = [process.communicate(timeout=240)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], "\n".join(said)
    return folder


@pytest.mark.filterwarnings("ignore:l2p with batchwise")
@pytest.mark.parametrize("case", CASES)
def test_losses_gradients_and_updates_are_those_of_one_process(
    case: str, shared: Path, backbone: FrozenViT
) -> None:
    alone = steps(case, backbone)
    both = [torch.load(shared / f"steps{rank}.pt")[case] for rank in range(2)]
    assert any(alone.values()) is (case not in NEVER_TRAINED)
    for at, expected in alone.items():
        for found in both:
            assert found[at].keys() == expected.keys(), at
            for name, value in expected.items():
                torch.testing.assert_close(
                    found[at][name], value, **NEAR, msg=lambda m, n=name, a=at: f"{a} {n}: {m}"
                )
        for name, value in both[0][at].items():  # the ranks never drift apart
            assert torch.equal(value, both[1][at][name]), name


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of the same run by one process."""
    folder = tmp_path_factory.mktemp("alone")

    def folder_of(name: str) -> Path:
        if not (folder / name).exists():
            run(config_of(name), folder / name)
        return folder / name

    return folder_of


@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_run_is_that_of_one_process(
    name: str, shared: Path, alone: Callable[[str], Path]
) -> None:
    expected, found = (load_record(folder) for folder in (alone(name), shared / name))
    assert found.rows == expected.rows
    assert found.test_passes == expected.test_passes
    assert len(found.losses) == len(expected.losses)
    for there, here in zip(found.losses, expected.losses, strict=True):
        assert [e.keys() for e in there] == [e.keys() for e in here]
        for a, b in zip(there, here, strict=True):
            assert a == pytest.approx(b, rel=1e-5, abs=1e-5)
    there, here = (load_checkpoint(f / CHECKPOINT)[0] for f in (shared / name, alone(name)))
    assert there.keys() == here.keys()
    for key, value in here.items():
        torch.testing.assert_close(there[key], value, rtol=1e-3, atol=1e-4, msg=key)
    assert found.environment["processes"] == 2
    assert "processes" not in expected.environment
    assert found.config == expected.config


def test_a_stopped_run_resumes_to_the_same_bits(shared: Path) -> None:
    whole, resumed = (load_checkpoint(shared / d / CHECKPOINT)[0] for d in ("cprompt", "resumed"))
    assert whole.keys() == resumed.keys()
    for name in whole:
        assert torch.equal(whole[name], resumed[name]), name


DYING = """
import os, signal
from cprompt.training.step import Stepper

take, taken = Stepper.step, []

def step_or_die(self, *args):
    taken.append(1)
    if len(taken) == 6 and os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    return take(self, *args)

Stepper.step = step_or_die
from cprompt.cli import main
main()
"""


def torchrun(*words: str | Path) -> subprocess.CompletedProcess[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command = [*launcher, "--nproc-per-node", "2", *map(str, words)]
    return subprocess.run(
        command, env=environment(), cwd=ROOT, capture_output=True, text=True, timeout=120
    )


def as_options(settings: dict[str, Any]) -> list[str]:
    return [f"--{name}={value}" for name, value in settings.items()]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no SIGKILL")
def test_a_killed_process_ends_all_with_one_message_and_the_run_resumes(
    tmp_path: Path, tiny: dict[str, Any], alone: Callable[[str], Path]
) -> None:
    script, out = tmp_path / "dying.py", tmp_path / "run"
    script.write_text(DYING)
    settings = tiny | {"method.length": 2, "training.epochs": 1}
    settings["execution.checkpoint_seconds"] = 0
    ended = torchrun(script, "run", "shapes", "--out", out, *as_options(settings))
    assert ended.returncode != 0
    ours, _, _ = ended.stderr.partition("ChildFailedError")  # from there on torchrun reports
    assert ours.count("error: another process of this run has ended") == 1
    assert ours.count("--resume") == 1
    assert ours.count("Traceback") == 1  # torchrun's own
    assert (out / CHECKPOINT).exists()
    assert not load_record(out).finished
    resumed = run(config_of("cprompt"), out, resume=True)  # with another number of processes
    assert resumed.rows == load_record(alone("cprompt")).rows
