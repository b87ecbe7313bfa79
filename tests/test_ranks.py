"""The parts of ranks, and what a process that is alone does; together: tests/training."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
import torch

from cprompt import ranks as ranks_module
from cprompt.errors import ConfigError
from cprompt.ranks import ALONE, LostRankError, Ranks, choose_gpu, join, launched, leave, tells

VARIABLES = ("TORCHELASTIC_RUN_ID", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


@pytest.fixture
def second_of_two(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """As torchrun would start the second of two processes."""
    for name, value in zip(VARIABLES, ("run", "1", "2", "1", "2"), strict=True):
        monkeypatch.setenv(name, value)
    before = signal.getsignal(signal.SIGTERM)
    yield monkeypatch
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("count", [1, 2, 3, 8])
@pytest.mark.parametrize("n", [0, 1, 2, 7, 16])
def test_parts_cover_all_items_once_in_order(n: int, count: int) -> None:
    parts = [range(n)[Ranks(rank, count).part(n)] for rank in range(count)]
    assert [i for part in parts for i in part] == list(range(n))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize("n", [1, 2, 3, 7])
def test_shares_of_means_and_of_constants_add_up(n: int) -> None:
    values = torch.randn(n, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
    shares = [Ranks(rank, 3).share(n) for rank in range(3)]
    assert sum(s.weight for s in shares) == pytest.approx(1)
    mean = sum(s.weight * float(values[s.part].mean()) for s in shares)
    assert mean == pytest.approx(float(values.mean()))


def test_a_process_without_torchrun_is_alone_and_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    monkeypatch.setenv("WORLD_SIZE", "4")  # set by a cluster, not by torchrun
    assert launched() == ALONE == join(torch.device("cpu"))
    assert not torch.distributed.is_initialized()
    assert tells()
    leave()
    rows = torch.ones(2, 3, requires_grad=True)
    assert ALONE.gather(rows) is rows
    sums = torch.ones(2)
    with ALONE.counting(sums):
        sums += 1
    ALONE.sum_(sums)
    ALONE.copy_first([sums])
    ALONE.wait()
    assert sums.tolist() == [2, 2]
    assert ALONE.after_first(lambda: 5) == 5


def test_torchrun_says_who_a_process_is(second_of_two: pytest.MonkeyPatch) -> None:
    assert launched() == Ranks(1, 2)
    assert not launched().first


def test_one_gpu_by_name_cannot_be_shared(second_of_two: pytest.MonkeyPatch) -> None:
    choose_gpu("cpu")
    with pytest.raises(ConfigError, match="cuda:1 cannot be shared by 2 processes"):
        choose_gpu("cuda:1")


def test_each_process_of_a_machine_needs_a_gpu(second_of_two: pytest.MonkeyPatch) -> None:
    chosen: list[int] = []
    second_of_two.setattr(torch.cuda, "is_available", lambda: True)
    second_of_two.setattr(torch.cuda, "set_device", chosen.append)
    second_of_two.setattr(torch.cuda, "device_count", lambda: 2)
    choose_gpu("auto")
    assert chosen == [1]
    second_of_two.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ConfigError, match=r"2 processes here, .* only 1 GPUs"):
        choose_gpu("cuda")


def test_one_process_reports_an_error(second_of_two: pytest.MonkeyPatch) -> None:
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True)
    second_of_two.setenv("MASTER_ADDR", "127.0.0.1")
    second_of_two.setenv("MASTER_PORT", str(store.port))
    assert [tells(), tells(), tells()] == [True, False, False]
    second_of_two.setenv("TORCHELASTIC_RESTART_COUNT", "1")  # torchrun started all of them again
    assert tells()


def test_a_lost_connection_is_one_sentence_and_other_errors_stay() -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("Connection closed by peer [127.0.0.1]:1234")

    with pytest.raises(LostRankError, match="another process of this run has ended"):
        ranks_module._together(broken, None)

    def wrong(*_: object) -> None:
        raise RuntimeError("tensors must be dense")

    with pytest.raises(RuntimeError, match="must be dense"):
        ranks_module._together(wrong, None)
