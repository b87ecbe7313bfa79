"""Which images are kept: the smallest keys of each class, in any order of arrival."""

from __future__ import annotations

import pytest
import torch

from cprompt.methods.parts.kept_images import KeptImages
from cprompt.ranks import Ranks

D = 3


def images(count: int = 40) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(0)
    keys = torch.randperm(1000, generator=rng)[:count]
    return keys, torch.arange(count) % 4, keys[:, None] + torch.tensor([0.0, 0.25, 0.5])


def kept(order: torch.Tensor, parts: int, most: int) -> KeptImages:
    keys, position, feature = images()
    found = KeptImages(D)
    for part in order.chunk(parts):
        found.add(keys[part], position[part], feature[part], feature[part] + 1, most)
    return found


@pytest.mark.parametrize(("parts", "seed"), [(1, 1), (7, 2), (40, 3)])
def test_the_smallest_keys_of_each_class_stay(parts: int, seed: int) -> None:
    order = torch.randperm(40, generator=torch.Generator().manual_seed(seed))
    found = kept(order, parts, most=3)
    keys, position, feature = images()
    expected = [sorted(keys[position == c].tolist())[:3] for c in range(4)]
    assert [found.key[found.position == c].tolist() for c in range(4)] == expected
    for key, row, mean in zip(found.key, found.feature, found.mean, strict=True):
        at = int((keys == key).nonzero())
        assert torch.equal(row, feature[at].half())
        assert torch.equal(mean, (feature[at] + 1).half())


def test_the_smallest_keys_of_all_classes_come_first() -> None:
    found, (keys, _, _) = kept(torch.arange(40), 1, most=3), images()
    expected = sorted(
        key for c in range(4) for key in sorted(keys[torch.arange(40) % 4 == c].tolist())[:3]
    )
    assert found.key[found.smallest(5)].tolist() == expected[:5]
    assert found.key[found.smallest(99)].tolist() == expected


def test_what_was_kept_before_is_kept_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where two processes count: each adds its own images to those that both have."""
    keys, position, feature = images()
    rows = torch.arange(40).chunk(3)
    ranks = Ranks(0, 2)
    theirs = kept(rows[2], 1, most=3)  # what the other process has counted of its part
    both = {name: getattr(theirs, name) for name in ("key", "position", "feature", "mean")}

    def gather(self: Ranks, mine: torch.Tensor) -> torch.Tensor:
        (other,) = [v for n, v in both.items() if getattr(found, n) is mine]
        return torch.cat([mine, other])

    monkeypatch.setattr(Ranks, "gather", gather)
    found = kept(rows[0], 1, most=3)
    with found.counting(ranks, most=3):
        part = rows[1]
        found.add(keys[part], position[part], feature[part], feature[part] + 1, 3)
    whole = kept(torch.arange(40), 1, most=3)
    for name in both:
        assert torch.equal(getattr(found, name), getattr(whole, name)), name


def test_a_smaller_limit_later_gives_what_it_would_have_given_at_once() -> None:
    order = torch.arange(40)
    large = kept(order[:20], 1, most=9)
    keys, position, feature = images()
    rest = order[20:]
    large.add(keys[rest], position[rest], feature[rest], feature[rest] + 1, 2)
    assert torch.equal(large.key, kept(order, 1, most=2).key)


def test_a_dropped_class_leaves_nothing_and_later_ones_move_up() -> None:
    found = kept(torch.arange(40), 1, most=2)
    others = found.key[found.position != 1].tolist()
    found.drop(1)
    assert found.key.tolist() == others
    assert found.position.tolist() == [0, 0, 1, 1, 2, 2]
    assert len(found.feature) == len(found.mean) == 6


def test_saving_keeps_all_rows() -> None:
    found, fresh = kept(torch.arange(40), 1, most=2), KeptImages(D)
    fresh.load_state_dict(found.state_dict())
    for name, tensor in found.state_dict().items():
        assert torch.equal(tensor, fresh.state_dict()[name])


def test_a_state_whose_rows_do_not_match_is_refused() -> None:
    state = kept(torch.arange(40), 1, most=2).state_dict()
    with pytest.raises(RuntimeError, match="not as many keys as positions"):
        KeptImages(D).load_state_dict({**state, "key": state["key"][:-1]})
