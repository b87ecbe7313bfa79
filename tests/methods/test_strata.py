"""Strata: what it reads, what it counts, and that tasks and order do not matter."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from cprompt import load_backbone
from cprompt.errors import ConfigError, ModelError
from cprompt.methods.base import create_method, rebuild
from cprompt.methods.strata import Strata
from cprompt.vit.promptable import FrozenViT, Prompts
from tests.methods.common import random_images, step_losses


def naive_taps(backbone: FrozenViT, images: Tensor) -> Tensor:
    """timm's own blocks, one after another: (B, depth, 2, D)."""
    vit = backbone.vit
    x = vit._pos_embed(vit.patch_embed(images))
    found = []
    for number, block in enumerate(vit.blocks):
        x = block(x)
        if number == backbone.depth - 1:
            normed = vit.norm(x)
        else:
            mean, variance = x.mean(-1, keepdim=True), x.var(-1, keepdim=True, unbiased=False)
            normed = (x - mean) / (variance + 1e-5).sqrt()
        found.append(torch.stack([normed[:, 0], normed[:, 1:].mean(1)], 1))
    return torch.stack(found, 1)


def learnt(backbone: FrozenViT, tasks: list[list[int]], **settings: Any) -> Strata:
    """After tasks of these classes, each with three images of its own; classes by arrival."""
    method = create_method("strata", backbone, {"shrinkage": 0.1, "head": "single", **settings})
    assert isinstance(method, Strata)
    for task in tasks:
        method.begin_task(len(task), torch.Generator().manual_seed(0))
        images = torch.cat([of_class(c) for c in task])
        targets = method.known + torch.arange(len(task)).repeat_interleave(3)
        method.end_task([(method.embed(images[:4]), targets[:4])])
        if len(images) > 4:
            method.end_task([(method.embed(images[4:]), targets[4:])])
        method.close_task()
    return method


def of_class(number: int) -> Tensor:
    rng = torch.Generator().manual_seed(number)
    middle = torch.randn(1, 3, 48, 48, generator=rng)
    return middle + 0.5 * torch.randn(3, 3, 48, 48, generator=rng)


def test_taps_are_those_of_timms_blocks(backbone: FrozenViT) -> None:
    images = random_images(3)
    with torch.no_grad():
        expected = naive_taps(backbone, images)
        found = backbone.taps(backbone.embed(images), range(backbone.depth))
        some = backbone.taps(backbone.embed(images), [4, 1])
    torch.testing.assert_close(found, expected.flatten(1), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(some, expected[:, [4, 1]].flatten(1), rtol=1e-4, atol=1e-5)


def test_prompt_tokens_are_not_read(backbone: FrozenViT) -> None:
    """Means are over the image's own patches; with a prompt before the last block only that."""
    embedded = backbone.embed(random_images(2))
    prompts = Prompts(tokens={5: torch.randn(3, backbone.dim)})
    with torch.no_grad():
        taps = backbone.taps(embedded, [4, 5], prompts=prompts).view(2, 2, 2, -1)
        tokens = backbone.norm(backbone.encode(embedded, prompts))
        plain = backbone.taps(embedded, [4])
    torch.testing.assert_close(taps[:, 0].flatten(1), plain)
    torch.testing.assert_close(taps[:, 1, 1], tokens[:, 4:].mean(1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("tokens", "kinds"), [("both", 2), ("class", 1), ("patch", 1)])
def test_a_feature_has_the_tokens_asked_for(backbone: FrozenViT, tokens: str, kinds: int) -> None:
    method = create_method("strata", backbone, {"layers": [3, 1], "tokens": tokens})
    images = random_images(2)
    with torch.no_grad():
        feature = method.feature(method.embed(images), None, None)
        taps = naive_taps(backbone, images)[:, [1, 3]]
    chosen = {"both": taps, "class": taps[:, :, :1], "patch": taps[:, :, 1:]}[tokens]
    assert feature.shape == (2, 2 * kinds * backbone.dim)
    torch.testing.assert_close(feature, chosen.flatten(1), rtol=1e-4, atol=1e-5)


def test_ten_batches_are_as_good_as_one(backbone: FrozenViT) -> None:
    """Any cut into tasks and any order of classes: the same statistics, the same answers."""
    images = torch.cat([of_class(c)[:1] for c in range(4)])
    once = learnt(backbone, [[0, 1, 2, 3]])
    with torch.no_grad():
        expected = once(images)
        for tasks in ([[0], [1], [2], [3]], [[2, 3], [1], [0]]):
            method = learnt(backbone, tasks)
            arrival = [c for task in tasks for c in task]
            found = method(images)[:, [arrival.index(c) for c in range(4)]]
            torch.testing.assert_close(
                method.moments.second, once.moments.second, rtol=1e-9, atol=1e-9
            )
            scale = float(expected.abs().max())
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5 * scale)
            assert found.argmax(1).tolist() == [0, 1, 2, 3]


def test_without_adaptation_nothing_is_trained(backbone: FrozenViT) -> None:
    method = create_method("strata", backbone)
    method.begin_task(2, torch.Generator().manual_seed(0))
    assert not list(method.parameters())
    assert step_losses(method, random_images(2), torch.tensor([0, 1])) == {}


def test_a_prompt_is_trained_on_the_first_task_and_then_frozen(backbone: FrozenViT) -> None:
    method = create_method("strata", backbone, {"adaptation": "prompt", "prompt_length": 2})
    assert isinstance(method, Strata)
    method.begin_task(2, torch.Generator().manual_seed(0))
    images, targets = random_images(4), torch.tensor([0, 1, 1, 0])
    with torch.no_grad():
        method.first.weight += 0.1 * torch.randn(method.first.weight.shape)  # type: ignore[union-attr]
    losses = step_losses(method, images, targets)
    assert method.first.prefixes is not None
    pairs = {i: (p[0], p[1]) for i, p in enumerate(method.first.prefixes)}
    with torch.no_grad():
        tokens = backbone.norm(backbone.encode(backbone.embed(images), Prompts(prefixes=pairs)))
        last = torch.cat([tokens[:, 0], tokens[:, 1:].mean(1)], 1)
        assert method.first.weight is not None
        logits = F.linear(last, method.first.weight, method.first.bias)
        log_p = logits.log_softmax(1)
        smooth = 0.9 * F.one_hot(targets, 2) + 0.05
        expected = -(smooth * log_p).sum(1).mean()
    torch.testing.assert_close(losses["ce"], expected, rtol=1e-5, atol=1e-5)
    torch.autograd.backward(losses["ce"])
    assert method.first.prefixes.grad is not None
    assert method.first.prefixes.grad.flatten(1).any(1).all()  # every block's
    method.close_task()
    method.begin_task(1, torch.Generator().manual_seed(1))
    assert not [p for p in method.parameters() if p.requires_grad]
    assert step_losses(method, images, targets) == {}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"layers": [0, 0]}, "different block numbers"),
        ({"layers": [99]}, "has no layer 99"),
        ({"shrinkage": 0.0}, "shrinkage 0.0 must be positive"),
        ({"views": 0}, "views 0 must be at least 1"),
    ],
)
def test_bad_settings_are_named(
    backbone: FrozenViT, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        create_method("strata", backbone, settings)


# --- the head that follows the data ---------------------------------------------------------------

VIEWS, PER_CLASS = 2, 5


def photos(number: int) -> tuple[Tensor, Tensor]:
    """Five images of a class under two views (2, 5, 3, 48, 48), and their keys."""
    rng = torch.Generator().manual_seed(number)
    middle = torch.randn(1, 1, 3, 48, 48, generator=rng)
    images = middle + 0.7 * torch.randn(1, PER_CLASS, 3, 48, 48, generator=rng)
    seen = images + 0.1 * torch.randn(VIEWS, PER_CLASS, 3, 48, 48, generator=rng)
    return seen, torch.randperm(1000, generator=rng)[:PER_CLASS]


def counted(
    backbone: FrozenViT, tasks: list[list[tuple[int, list[int]]]], **settings: Any
) -> Strata:
    """After tasks of (class, which of its images); a class keeps its position when it returns."""
    given = {"views": VIEWS, "width": 150, "shrinkage": 0.1, **settings}
    method = create_method("strata", backbone, given)
    assert isinstance(method, Strata)
    arrived: list[int] = []
    for task in tasks:
        new = [c for c, _ in task if c not in arrived]
        arrived += new
        method.begin_task(len(new), torch.Generator())
        batches = []
        for c, rows in task:
            seen, keys = photos(c)
            embedded = method.embed(seen[:, rows].flatten(0, 1))
            embedded = dataclasses.replace(embedded, views=VIEWS, keys=keys[rows])
            batches.append((embedded, torch.full((VIEWS * len(rows),), arrived.index(c))))
        method.end_task(batches)
        method.close_task()
    return method


ALL = list(range(PER_CLASS))


def answers(method: Strata, order: list[int]) -> Tensor:
    images = torch.cat([photos(c)[0][0][:2] for c in range(4)])
    with torch.no_grad():
        response = method.respond(images)
    assert response.familiar is not None
    return torch.cat([response.logits[:, order], response.familiar[:, None]], 1)


def by_view(method: Strata, number: int) -> Tensor:
    """Narrow features (VIEWS, images, P) of a class, one image at a time."""
    seen, _ = photos(number)
    with torch.no_grad():
        rows = [
            method.project(method.feature(method.embed(x[None])))[0] for x in seen.flatten(0, 1)
        ]
    return torch.stack(rows).unflatten(0, (VIEWS, PER_CLASS)).double()


def test_the_head_is_worked_out_from_what_loops_over_images_and_views_count(
    backbone: FrozenViT,
) -> None:
    rows = [ALL, [2], [0, 3]]
    method = counted(backbone, [[(c, each) for c, each in enumerate(rows)]])
    found = method._statistics()
    features = [by_view(method, c)[:, each] for c, each in enumerate(rows)]
    means = torch.stack([x.mean((0, 1)) for x in features])
    apart = torch.cat([(x - mean).flatten(0, 1) for x, mean in zip(features, means, strict=True)])
    assert found.images.tolist() == [5, 1, 2]
    assert (found.views, found.total) == (VIEWS, 16.0)
    torch.testing.assert_close(found.means, means, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found.within, apart.T @ apart / 16, rtol=1e-3, atol=1e-4)

    # Left out are images of classes that have another one: the smallest keys first.
    sample = method._sample(found)
    several = [(int(photos(c)[1][i]), c, i) for c in (0, 2) for i in rows[c]]
    assert sample.position.tolist() == [c for _, c, _ in sorted(several)]
    views = torch.stack([by_view(method, c)[:, i] for _, c, i in sorted(several)], dim=1)
    mean = views.mean(0) - means[sample.position]
    # float16 is 20 times closer than one view is to the mean of both
    close = 0.05 * float((views[0] - views.mean(0)).abs().mean())
    assert float((sample.feature - views[0]).abs().mean()) < close
    assert float((sample.apart - mean).abs().mean()) < close

    method.forget(0)  # without its images: they stay in the covariance
    assert method._statistics().total == 16
    assert method._statistics().images.tolist() == [1, 2]


def test_images_that_cannot_be_left_out_take_no_others_place(
    backbone: FrozenViT, monkeypatch: pytest.MonkeyPatch
) -> None:
    smallest = {c: int(photos(c)[1].min()) for c in range(3)}
    alone = min(smallest, key=lambda c: smallest[c])  # its image comes first, and is its only one
    first = int(photos(alone)[1].argmin())
    tasks = [[(c, [first] if c == alone else ALL) for c in range(3)]]
    method = counted(backbone, tasks)
    monkeypatch.setattr("cprompt.methods.strata.LEFT_OUT", 4)
    sample = method._sample(method._statistics())
    assert len(sample) == 4
    assert alone not in sample.position.tolist()


@pytest.mark.parametrize(
    ("keep", "classes", "each"),
    [(600, 1, 40), (600, 15, 40), (600, 16, 38), (600, 100, 6), (600, 700, 2), (7, 3, 3)],
)
def test_images_kept_are_shared_by_the_classes_from_two_to_forty(
    backbone: FrozenViT, keep: int, classes: int, each: int
) -> None:
    method = create_method("strata", backbone, {"width": 70, "keep": keep})
    method.begin_task(classes, torch.Generator())
    assert method._kept_per_class() == each  # type: ignore[attr-defined]


@pytest.mark.parametrize("keep", [600, 6])
def test_labels_are_judged_by_a_head_without_the_image(
    backbone: FrozenViT, keep: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same while learning and afterwards, whether all images are kept or two per class."""
    monkeypatch.setattr("cprompt.methods.strata.FEWEST_TO_WEIGH", 4)  # as many as are kept of two
    method = create_method("strata", backbone, {"views": VIEWS, "width": 150, "keep": keep})
    assert isinstance(method, Strata)
    method.begin_task(3, torch.Generator())
    batches, keys = [], []
    for c, rows in enumerate(([0], ALL, ALL)):
        seen, own = photos(c)
        embedded = method.embed(seen[:, rows].flatten(0, 1))
        embedded = dataclasses.replace(embedded, views=VIEWS, keys=own[rows])
        batches.append((embedded, torch.full((VIEWS * len(rows),), c)))
        keys += own[rows].tolist()
    method.remember()
    method.end_task(batches)
    judged = method.judge()
    assert judged is not None
    scale = float(judged.abs().max())
    again = method.judge(batches)
    torch.testing.assert_close(again, judged, rtol=1e-3, atol=1e-3 * scale)
    # The only image of its class is answered as it is: nothing would be left.
    plain = by_view(method, 0)[0, 0].float() @ method.narrow_weight.T + method.bias
    torch.testing.assert_close(judged[0], plain, rtol=1e-2, atol=1e-2 * scale)
    # Those that weighed the heads: as they were answered then.
    chosen = method.kept.smallest(99)
    chosen = chosen[method.kept.position[chosen] > 0]
    assert len(chosen) == (10 if keep == 600 else 4)
    at = [keys.index(key) for key in method.kept.key[chosen].tolist()]
    left_out = method.left_out()
    assert left_out is not None
    torch.testing.assert_close(judged[at], left_out.logits, rtol=1e-3, atol=1e-3 * scale)


def test_a_returning_class_is_the_same_as_all_its_images_at_once(backbone: FrozenViT) -> None:
    once = counted(backbone, [[(c, ALL) for c in range(4)]])
    cut = counted(
        backbone, [[(2, [3, 0]), (0, ALL)], [(2, [1])], [(1, ALL), (3, ALL), (2, [4, 2])]]
    )
    order = [1, 2, 0, 3]  # they arrived as 2, 0, 1, 3
    torch.testing.assert_close(cut.moments.second, once.moments.second, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(cut.moments.total[order], once.moments.total, rtol=1e-9, atol=1e-9)
    assert sorted(cut.kept.key.tolist()) == sorted(once.kept.key.tolist())
    torch.testing.assert_close(
        answers(cut, order), answers(once, [0, 1, 2, 3]), rtol=1e-4, atol=1e-4
    )


def test_merged_statistics_are_those_of_all_images(backbone: FrozenViT) -> None:
    once = counted(backbone, [[(c, ALL) for c in range(4)]])
    mine = counted(backbone, [[(0, ALL), (1, [0, 1])]])
    mine.merge(counted(backbone, [[(1, [2, 3, 4]), (2, ALL), (3, ALL)]]), [1, 2, 3], 2)
    assert mine.n_classes == 4
    torch.testing.assert_close(mine.moments.second, once.moments.second, rtol=1e-9, atol=1e-9)
    assert torch.equal(mine.kept.key, once.kept.key)
    everything = [0, 1, 2, 3]
    torch.testing.assert_close(
        answers(mine, everything), answers(once, everything), rtol=1e-4, atol=1e-4
    )


def test_a_class_forgotten_with_its_images_was_never_there(backbone: FrozenViT) -> None:
    method = counted(backbone, [[(0, ALL), (1, ALL)], [(2, ALL), (3, ALL)]])
    seen, keys = photos(1)
    embedded = dataclasses.replace(method.embed(seen.flatten(0, 1)), views=VIEWS, keys=keys)
    method.forget(1, [(embedded, torch.full((VIEWS * PER_CLASS,), 1))])
    without = counted(backbone, [[(0, ALL)], [(2, ALL), (3, ALL)]])
    assert method.task_sizes == [1, 2]
    torch.testing.assert_close(method.moments.second, without.moments.second, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(
        answers(method, [0, 1, 2]), answers(without, [0, 1, 2]), rtol=1e-4, atol=1e-4
    )


def test_features_that_are_off_by_rounding_leave_no_negative_variance(
    backbone: FrozenViT,
) -> None:
    """As on another processor; here by more than float32 rounds."""
    method = counted(backbone, [[(0, ALL), (1, ALL)], [(2, ALL), (3, ALL)]])
    seen, _ = photos(1)
    with torch.no_grad():
        exact = method.project(method.feature(method.embed(seen.flatten(0, 1))))
    rng = torch.Generator().manual_seed(0)
    # Off by 1e-6 in every number, and one common error, as of a sum in another order.
    off = exact * (1 + 1e-6 * torch.randn(exact.shape, generator=rng)) + 1e-6
    without = counted(backbone, [[(0, ALL)], [(2, ALL), (3, ALL)]]).moments.within()
    method.moments.drop(1, off)
    found = method.moments.within()
    plain = counted(backbone, [[(0, ALL), (1, ALL)], [(2, ALL), (3, ALL)]]).moments
    plain.second -= off.T @ off
    plain.count, plain.total = plain.count[[0, 2, 3]], plain.total[[0, 2, 3]]
    worse = (plain.within() - without).abs().max()
    assert float((found - without).abs().max()) < 0.3 * float(worse)
    scale = float(without.diagonal().mean())
    assert float(torch.linalg.eigvalsh(found).min()) > -1e-4 * scale  # 0.001 is added at least


def test_other_images_cannot_be_forgotten(backbone: FrozenViT) -> None:
    method = counted(backbone, [[(0, ALL), (1, ALL)]])
    seen, keys = photos(2)
    embedded = dataclasses.replace(method.embed(seen.flatten(0, 1)), views=VIEWS, keys=keys)
    before = method.moments.second.clone()
    with pytest.raises(ModelError, match="not the 5 photos that the class was learnt from"):
        method.forget(1, [(embedded, torch.zeros(VIEWS * PER_CLASS, dtype=torch.long))])
    assert torch.equal(method.moments.second, before)
    assert method.n_classes == 2


def test_without_its_images_a_class_leaves_how_they_differ(backbone: FrozenViT) -> None:
    """The means of others stay; the covariance within classes is still that of all images."""
    method = counted(backbone, [[(c, ALL) for c in range(3)]])
    within, means = method.moments.within(), method.moments.means()
    method.forget(0)
    torch.testing.assert_close(method.moments.within(), within, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(method.moments.means(), means[1:])
    assert method.kept.position.unique().tolist() == [0, 1]


def test_left_out_answers_stay_after_loading(backbone: FrozenViT) -> None:
    method = counted(backbone, [[(c, ALL) for c in range(4)]])
    fresh = create_method("strata", backbone, dataclasses.asdict(method.config))
    rebuild(fresh, method.task_sizes, method.state_dict(), open_=False)
    mine, theirs = method.left_out(), fresh.left_out()
    assert mine is not None
    assert theirs is not None
    assert torch.equal(mine.position, theirs.position)
    torch.testing.assert_close(mine.logits, theirs.logits)
    torch.testing.assert_close(mine.familiar, theirs.familiar)
    images = random_images(2)
    with torch.no_grad():
        assert torch.equal(method.respond(images).logits, fresh.respond(images).logits)


def test_a_noisy_image_looks_less_familiar(backbone: FrozenViT) -> None:
    method = counted(backbone, [[(c, ALL) for c in range(4)]])
    known = torch.cat([photos(c)[0][0] for c in range(4)])
    with torch.no_grad():
        inside = method.respond(known).familiar
        outside = method.respond(5 * random_images(20)).familiar
    assert inside is not None
    assert outside is not None
    assert float(inside.mean()) > float(outside.mean()) + 0.2


def test_prediction_views_are_averaged(backbone: FrozenViT) -> None:
    method = counted(backbone, [[(0, ALL), (1, ALL)]], prediction_views=2)
    images = random_images(3)
    with torch.no_grad():
        found = method.respond(images)
        both = [method.feature(method.embed(x)) for x in (images, images.flip(-1))]
    torch.testing.assert_close(found.feature, (both[0] + both[1]) / 2)
    torch.testing.assert_close(found.logits, F.linear(found.feature, method.weight, method.bias))


def test_the_closer_views_are_the_middle_of_the_image_and_its_mirror_image(
    backbone: FrozenViT,
) -> None:
    method = counted(backbone, [[(0, ALL), (1, ALL)]], prediction_views=4)
    images = random_images(3)
    middle = images[:, :, 4:-4, 4:-4]  # a tenth less on every side of 48 pixels
    closer = F.interpolate(middle, (48, 48), mode="bilinear", align_corners=False)
    with torch.no_grad():
        found = method.respond(images).feature
        views = (images, images.flip(-1), closer, closer.flip(-1))
        expected = sum(method.feature(method.embed(x)) for x in views) / 4
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("settings", "start"),
    [
        ({}, 10 * 64),  # class and patch tokens of blocks 0 to 4 come before
        ({"layers": [1, 3]}, 2 * 64),
        ({"tokens": "class"}, 5 * 64),
        ({"tokens": "patch"}, 5 * 64),
    ],
)
def test_the_last_layers_class_token_stays_whole(
    backbone: FrozenViT, settings: dict[str, Any], start: int
) -> None:
    method = create_method("strata", backbone, {"width": 10, **settings})
    assert isinstance(method, Strata)
    assert method.last == slice(start, start + 64)
    feature = torch.randn(2, method.project.features)
    narrow = method.project(feature)
    assert narrow.shape == (2, 65)  # one number at least for all the rest
    assert torch.equal(narrow[:, method.narrow_last], feature[:, method.last])


def test_fewer_images_per_class_are_kept_as_classes_arrive(backbone: FrozenViT) -> None:
    method = counted(backbone, [[(0, ALL)]], keep=6)
    assert method.kept.position.bincount().tolist() == [5]
    method = counted(backbone, [[(0, ALL)], [(1, ALL)]], keep=6)
    assert method.kept.position.bincount().tolist() == [3, 3]
    expected = [sorted(photos(c)[1].tolist())[:3] for c in (0, 1)]
    assert [method.kept.key[method.kept.position == c].tolist() for c in (0, 1)] == expected


@pytest.mark.parametrize("kind", ["one class", "one image", "identical", "constant", "none kept"])
def test_degenerate_images_give_finite_answers(backbone: FrozenViT, kind: str) -> None:
    settings: dict[str, Any] = {"views": 1, "keep": 0 if kind == "none kept" else 600}
    method = create_method("strata", backbone, settings)
    images = torch.cat([photos(c)[0][0] for c in range(3)])
    targets = torch.arange(3).repeat_interleave(PER_CLASS)
    if kind == "one class":
        targets = torch.zeros_like(targets)
    elif kind == "one image":
        images, targets = images[:1], targets[:1]
    elif kind == "identical":
        images = images[:1].expand(len(images), -1, -1, -1)
    elif kind == "constant":
        images = torch.zeros_like(images)
    method.begin_task(int(targets.max()) + 1, torch.Generator())
    keys = torch.arange(len(images))
    method.end_task([(dataclasses.replace(method.embed(images), keys=keys), targets)])
    method.close_task()
    with torch.no_grad():
        found = method.respond(random_images(2))
    assert found.familiar is not None
    assert torch.isfinite(found.logits).all()
    assert torch.isfinite(found.familiar).all()


@pytest.mark.parametrize("settings", [{}, {"tokens": "patch"}, {"width": 100}, {"layers": (1, 5)}])
def test_what_patches_add_to_a_logit_is_exact(
    backbone: FrozenViT, settings: dict[str, Any]
) -> None:
    """Shares against a loop over timm's own tokens; with the rest they are the logit."""
    method = learnt(backbone, [[0, 1], [2]], **settings)
    images, at = random_images(3), torch.tensor([2, 0, 1])
    with torch.no_grad():
        shares = method.patch_shares(images, at)
        logits = method(images)
    assert shares is not None
    vit = backbone.vit
    rows, columns = backbone.grid
    assert shares.shape == (3, rows, columns)
    weight = method.weight - method.weight.mean(0)
    parts = backbone.tap_parts(method.layers, method.config.tokens)
    starts = [sum(p.width for p in parts[:i]) for i in range(len(parts))]
    for image, position, found, row in zip(images, at.tolist(), shares, logits, strict=True):
        expected = torch.zeros(rows * columns)
        rest = method.bias[position] - method.bias.mean()
        with torch.no_grad():
            x = vit._pos_embed(vit.patch_embed(image[None]))
            for number, block in enumerate(vit.blocks):
                x = block(x)
                normed = F.layer_norm(x, x.shape[-1:])
                if number == backbone.depth - 1:
                    normed = vit.norm(x)
                for part, start in zip(parts, starts, strict=True):
                    own = weight[position, start : start + part.width]
                    if part.layer == number and part.kind == "patch":
                        expected += normed[0, 1:] @ own / (rows * columns)
                    elif part.layer == number:
                        rest = rest + normed[0, 0] @ own
        torch.testing.assert_close(found.flatten(), expected, rtol=1e-3, atol=1e-3)
        total = float(expected.sum() + rest)
        assert total == pytest.approx(float(row[position] - row.mean()), rel=1e-3, abs=1e-2)


def test_what_a_patch_adds_to_all_logits_alike_is_no_part_of_its_share(backbone: FrozenViT) -> None:
    method = learnt(backbone, [[0, 1], [2]])
    images, at = random_images(3), torch.tensor([2, 0, 1])
    with torch.no_grad():
        before = method.patch_shares(images, at)
        assert before is not None
        scale = float(before.abs().max())
        method.weight = method.weight + method.weight.std() * torch.randn(method.weight.shape[1])
        after = method.patch_shares(images, at)
    torch.testing.assert_close(after, before, rtol=1e-3, atol=1e-4 * scale)


@pytest.mark.parametrize("settings", [{"tokens": "class"}, {"prediction_views": 2}])
def test_without_patches_of_one_view_no_share_is_told(
    backbone: FrozenViT, settings: dict[str, Any]
) -> None:
    method = learnt(backbone, [[0, 1]], **settings)
    assert method.patch_shares(random_images(2), torch.tensor([0, 1])) is None


def test_adaptation_needs_a_backbone_that_can_be_prompted() -> None:
    model = load_backbone("test_convnext", weights="random:0", image_size=64)
    with pytest.raises(ConfigError, match="adaptation prompt needs a timm VisionTransformer"):
        create_method("strata", model, {"adaptation": "prompt"})


def test_kept_images_of_classes_that_are_not_there_are_refused(backbone: FrozenViT) -> None:
    method = counted(backbone, [[(0, ALL), (1, ALL)]])
    fresh = create_method("strata", backbone, dataclasses.asdict(method.config))
    state = method.state_dict()
    state["kept.position"] = state["kept.position"] + 1
    with pytest.raises(RuntimeError, match="classes that are not there"):
        rebuild(fresh, method.task_sizes, state, open_=False)


def test_with_very_many_classes_fewer_images_are_left_out(
    backbone: FrozenViT, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = counted(backbone, [[(0, ALL), (1, ALL), (2, ALL)]])
    every = len(method._sample(method._statistics()))
    monkeypatch.setattr("cprompt.methods.strata.FEWEST_LEFT_OUT", 2)
    monkeypatch.setattr("cprompt.methods.strata.SCORES_LEFT_OUT", 3 * (every - 1))
    assert len(method._sample(method._statistics())) == every - 1
    monkeypatch.setattr("cprompt.methods.strata.SCORES_LEFT_OUT", 1)
    assert len(method._sample(method._statistics())) == 2
