"""Seeds out of several numbers."""

from __future__ import annotations

import hashlib

import numpy as np
import torch

from cprompt.seeds import generator, mix


def test_mix_is_the_beginning_of_a_sha256() -> None:
    first = hashlib.sha256(b"1,-2,3").hexdigest()[:16]
    little_endian = int("".join(reversed([first[i : i + 2] for i in range(0, 16, 2)])), 16)
    assert mix(1, -2, 3) == little_endian // 2


def test_mix_tells_order_count_and_digits_apart() -> None:
    mixed = {mix(1, 2), mix(2, 1), mix(12), mix(1, 2, 0), mix(0, 1, 2), mix(-1, 2), mix(1), mix()}
    assert len(mixed) == 8
    assert all(0 <= seed < 2**63 for seed in mixed)


def test_mix_takes_numpy_integers_as_their_value() -> None:
    assert mix(np.int64(5), np.uint8(9)) == mix(5, 9)


def test_generators_repeat_and_leave_the_global_one_alone() -> None:
    state = torch.get_rng_state()
    first, again, other = (torch.rand(3, generator=generator(*s)) for s in ((1, 2), (1, 2), (2, 1)))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), state)
