"""Several processes that share one run, as torchrun starts them.

Each process is a rank. All ranks do the same things in the same order, each with its own part of
the images. A process without torchrun is alone, and everything here does nothing for it.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import Tensor

from cprompt.errors import ConfigError, CPromptError

T = TypeVar("T")

LONGEST_WAIT = timedelta(hours=12)
"""How long ranks wait for one another: rank 0 may have to decode a large dataset alone. A rank
that dies is noticed at once, by its closed connection or by torchrun."""

_LAST_WORK_SECONDS = 0.2


class LostRankError(CPromptError):
    """Another process of the run has ended, so this one cannot continue."""


@dataclass(frozen=True)
class Share:
    """The part of a batch that a rank computes, and how much of the batch's loss that is.

    The weighted losses of all ranks add up to the loss of the whole batch: a mean over images
    because the weights are shares of the images, a term without images because they add up to 1.
    A term that couples images reads `gather`, the rows of all ranks' images, and is then the same
    on every rank.
    """

    part: slice
    weight: float
    gather: Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Ranks:
    """This process is number `rank` of `count`.

    >>> [Ranks(rank, 3).part(7) for rank in range(3)]
    [slice(0, 3, None), slice(3, 5, None), slice(5, 7, None)]
    """

    rank: int = 0
    count: int = 1

    @property
    def alone(self) -> bool:
        """Whether there are no others."""
        return self.count == 1

    @property
    def first(self) -> bool:
        """Whether this is the rank that writes files and talks to the user."""
        return self.rank == 0

    def part(self, n: int) -> slice:
        """This rank's part of `n` items: consecutive ones, as many as the others' or one more."""
        each, more = divmod(n, self.count)
        start = self.rank * each + min(self.rank, more)
        return slice(start, start + each + (self.rank < more))

    def share(self, n: int) -> Share:
        """This rank's share of a batch of `n` images.

        If there are fewer images than ranks, every rank computes the whole batch, so that none has
        the mean of nothing.
        """
        if self.alone or n < self.count:
            return Share(slice(0, n), 1 / self.count, lambda rows: rows)
        part = self.part(n)
        return Share(part, (part.stop - part.start) / n, self.gather)

    def sum_(self, *tensors: Tensor) -> None:
        """Replace each tensor by its sum over ranks; all ranks get the same bits."""
        if not self.alone:
            for tensor in tensors:
                _together(lambda d, t: d.all_reduce(t), tensor)

    def gather(self, rows: Tensor) -> Tensor:
        """The rows (n, …) of all ranks, in the order of ranks; n may differ.

        Its gradient is the sum of the gradients that the ranks have for these rows.
        """
        if self.alone:
            return rows
        gathered: Tensor = _Gather.apply(rows, self)
        return gathered

    def copy_first(self, tensors: Iterable[Tensor]) -> None:
        """Replace each tensor by that of the first rank."""
        if not self.alone:
            for tensor in tensors:
                if tensor.numel() > 1 and 0 in tensor.stride():
                    continue  # one number, seen many times: a place held for later
                _together(lambda d, t: d.broadcast(t, 0), tensor.detach())

    def wait(self) -> None:
        """Wait until every rank is here."""
        if not self.alone:
            _together(lambda d, _: d.barrier(), None)

    def after_first(self, work: Callable[[], T]) -> T:
        """Do `work` on the first rank, then on the others, which find what it left on disk."""
        if self.first:
            result = work()
            self.wait()
            return result
        self.wait()
        return work()

    @contextmanager
    def counting(self, *sums: Tensor) -> Iterator[None]:
        """Add to `sums`, in place, what belongs to this rank's images.

        Afterwards they hold what all ranks added, and what was there before, once.
        """
        if not self.first:
            for tensor in sums:
                tensor.zero_()
        yield
        self.sum_(*sums)


ALONE = Ranks()


class _Gather(torch.autograd.Function):
    """`Ranks.gather`, with its gradient."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, ranks: Ranks) -> Tensor:
        lengths = torch.zeros(ranks.count, dtype=torch.int64, device=rows.device)
        lengths[ranks.rank] = len(rows)
        ranks.sum_(lengths)
        counts: list[int] = lengths.tolist()
        start = sum(counts[: ranks.rank])
        ctx.ranks, ctx.own = ranks, slice(start, start + len(rows))
        everyone = rows.new_zeros(sum(counts), *rows.shape[1:])
        everyone[ctx.own] = rows.detach()
        ranks.sum_(everyone)
        return everyone

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        total = grads[0].contiguous().clone()
        ctx.ranks.sum_(total)
        return total[ctx.own], None


# --- torchrun -----------------------------------------------------------------------------------


def launched() -> Ranks:
    """What torchrun says of this process, whether it has joined the others or not."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return ALONE
    return Ranks(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))


def choose_gpu(device: str) -> None:
    """Give each rank of a machine its own GPU; call it before the first use of CUDA.

    A ConfigError if `device`, the setting, cannot be shared by several ranks.
    """
    if launched().alone or device == "cpu":
        return
    here = int(os.environ["LOCAL_WORLD_SIZE"])
    if device not in ("auto", "cuda"):
        raise ConfigError(
            f"execution.device {device} cannot be shared by {launched().count} processes",
            hint="use auto, cuda (one GPU per process) or cpu",
        )
    if torch.cuda.is_available():
        if here > torch.cuda.device_count():
            raise ConfigError(
                f"torchrun started {here} processes here, but there are only "
                f"{torch.cuda.device_count()} GPUs",
                hint=f"use --nproc-per-node {torch.cuda.device_count()}, or --execution.device cpu",
            )
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))


def join(device: torch.device) -> Ranks:
    """Join the processes that torchrun started with this one; alone without torchrun.

    They exchange tensors on CUDA through NCCL, others through Gloo.
    """
    ranks = launched()
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return ranks
    import torch.distributed as dist

    if not dist.is_initialized():
        # What some methods count stays on the CPU, so Gloo is needed beside NCCL.
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, timeout=LONGEST_WAIT)
        with suppress(ValueError):  # only a program's main thread can
            signal.signal(signal.SIGTERM, _end)
        ranks.wait()
    return ranks


def leave() -> None:
    """Part from the others at the end of a program; nothing if torchrun did not start it."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return
    import torch.distributed as dist

    if dist.is_initialized():
        with suppress(RuntimeError):
            dist.destroy_process_group()
        # Gloo's threads can outlive the group. A rank that ended right after its last exchange was
        # seen to abort, probably because one was still at work while Python ended: give them time.
        time.sleep(_LAST_WORK_SECONDS)


def tells() -> bool:
    """Whether this process is the one to report an error: the first that asks, of all ranks.

    The store in which they note it is torchrun's own and outlives every rank.
    """
    if launched().alone:
        return True
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # torchrun may be ending this process already
    from torch._C._distributed_c10d import TCPStore

    try:
        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        store = TCPStore(host, port, is_master=False, timeout=timedelta(seconds=5))
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        return bool(store.add(f"cprompt/told/{attempt}", 1) == 1)
    except (RuntimeError, ValueError):  # torchrun itself is gone
        return True


def _together(call: Callable[[Any, Any], object], tensor: Tensor | None) -> None:
    """One collective operation; a LostRankError if another rank does not take part any more."""
    import torch.distributed as dist

    try:
        if tensor is None or tensor.is_contiguous():
            call(dist, tensor)
        else:
            dense = tensor.contiguous()
            call(dist, dense)
            tensor.copy_(dense)
    except RuntimeError as error:
        if not re.search("(?i)connect|socket|peer|time.?out|timed out|nccl", str(error)):
            raise
        raise _lost() from error


def _end(*_: object) -> None:
    """Stop because torchrun asks for it: another rank has ended, or torchrun was stopped."""
    raise _lost()


def _lost() -> LostRankError:
    return LostRankError(
        "another process of this run has ended, so all of them stop",
        hint="if there is no other message, it was killed, for example for lack of memory; the "
        "same command with --resume continues from the last checkpoint",
    )
