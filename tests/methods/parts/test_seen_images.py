"""Which of the images seen were learnt."""

from __future__ import annotations

import torch
from torch import Tensor

from cprompt.methods.parts.kept_images import KeptImages
from cprompt.methods.parts.seen_images import SeenImages, were_learnt


def seen(keys: list[int], positions: list[int]) -> SeenImages:
    by_view = torch.arange(2.0 * len(keys)).reshape(2, len(keys), 1)
    return SeenImages.of(torch.tensor(keys), torch.tensor(positions), by_view)


def kept(most: int, keys: list[int], positions: list[int]) -> KeptImages:
    images = KeptImages(1)
    features = torch.zeros(len(keys), 1)
    images.add(torch.tensor(keys), torch.tensor(positions), features, features, most)
    return images


def counts(*numbers: int) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def test_if_all_images_of_a_class_are_kept_their_keys_tell() -> None:
    learnt = kept(5, [4, 8, 6], [0, 0, 1])
    found = were_learnt(seen([8, 9, 3, 6], [0, 0, 0, 1]), learnt, counts(2, 1))
    assert found.tolist() == [True, False, False, True]


def test_if_all_images_of_a_class_are_kept_they_do_not_speak_for_others() -> None:
    learnt = kept(5, [4, 8], [0, 0])
    assert were_learnt(seen([4, 8, 9], [0, 0, 0]), learnt, counts(2)).tolist() == [
        True,
        True,
        False,
    ]


def test_the_kept_ones_of_a_class_speak_for_no_other_class() -> None:
    learnt = kept(2, [4, 8, 20, 30], [0, 0, 0, 0])  # 4 and 8 stay
    found = were_learnt(seen([4, 8, 20, 30], [0, 0, 0, 1]), learnt, counts(4, 3))
    assert found.tolist() == [True, True, True, False]


def test_beyond_the_kept_ones_the_kept_ones_speak_for_the_others() -> None:
    learnt = kept(2, [4, 8, 20, 30], [0, 0, 0, 0])  # 4 and 8 stay
    whole = seen([30, 20, 8, 4, 6], [0] * 5)
    assert were_learnt(whole, learnt, counts(4)).tolist() == [True, True, True, True, False]
    without_8 = seen([30, 20, 4], [0] * 3)
    assert were_learnt(without_8, learnt, counts(4)).tolist() == [False, False, True]


def test_if_nothing_is_kept_nothing_counts_as_learnt() -> None:
    assert were_learnt(seen([1, 2], [0, 1]), KeptImages(1), counts(3, 3)).tolist() == [False] * 2


def test_a_photo_learnt_under_another_label_was_learnt_all_the_same() -> None:
    learnt = kept(5, [4, 8, 6], [0, 0, 1])
    assert were_learnt(seen([4], [1]), learnt, counts(2, 1)).tolist() == [True]


def test_a_kept_photo_that_moved_to_another_label_still_speaks_for_those_it_was_learnt_with() -> (
    None
):
    learnt = kept(2, [4, 8, 20, 30], [0, 0, 0, 0])  # 4 and 8 stay
    moved = seen([4, 8, 20, 30], [1, 0, 0, 0])
    assert were_learnt(moved, learnt, counts(4, 3)).tolist() == [True] * 4


def test_parts_are_joined_in_order_with_the_first_view_and_the_mean() -> None:
    both = SeenImages.joined([seen([1, 2], [0, 0]), seen([3], [1])])
    assert both.key.tolist() == [1, 2, 3]
    assert both.position.tolist() == [0, 0, 1]
    assert both.feature.tolist() == [[0.0], [1.0], [0.0]]
    assert both.mean.tolist() == [[1.0], [2.0], [0.5]]
    assert both.mean.dtype == torch.float16
    assert len(both) == 3
