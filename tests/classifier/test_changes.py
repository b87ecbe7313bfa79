"""Forgetting, renaming and merging, and that the order of learning does not matter."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import save

from cprompt import ContinualClassifier
from cprompt.errors import DataError, ModelError
from cprompt.files import write_bytes
from cprompt.vit.loading import load_backbone
from tests.classifier.common import batch, learnt, photos, tiny

ASKED = [photo for name in ("red", "green", "blue", "grey") for photo in photos(name, 3, seed=99)]


def by_name(classifier: ContinualClassifier) -> np.ndarray:
    """Probabilities with classes in alphabetical order, and familiarity."""
    order = np.argsort(classifier.classes_)
    familiar = [each.familiarity for each in classifier.explain(ASKED)]
    return np.column_stack([classifier.predict_proba(ASKED)[:, order], familiar])


A, B = {"red": 6, "green": 5}, {"blue": 7, "green": 3, "grey": 4}


def test_ten_batches_are_as_good_as_one() -> None:
    first, second = batch(0, **A), batch(1, **B)
    together = [*first[0], *second[0]], [*first[1], *second[1]]
    once = tiny().learn(*together)
    forward = tiny().learn(*first).learn(*second)
    backward = tiny().learn(*second).learn(*first)
    single = tiny()
    for photo, name in zip(*together, strict=True):
        single.learn([photo], [name])
    assert len(single.history_) == len(together[1])
    expected = once.method_.moments  # type: ignore[union-attr]
    for other in (forward, backward, single):
        order = [other.classes_.index(name) for name in once.classes_]
        moments = other.method_.moments  # type: ignore[union-attr]
        scale = float(expected.second.abs().max())
        assert float((moments.second - expected.second).abs().max()) < 1e-9 * scale
        np.testing.assert_allclose(moments.total[order], expected.total, rtol=1e-9, atol=1e-9)
        assert moments.count[order].tolist() == expected.count.tolist()
        np.testing.assert_allclose(by_name(other), by_name(once), atol=1e-5)
        assert other.predict(ASKED) == once.predict(ASKED)
        assert other.threshold_ == pytest.approx(once.threshold_, abs=1e-6)


def test_a_returning_class_moves_its_look_alikes_no_more_than_all_photos_at_once() -> None:
    """The same statistics, so the same answers: nothing is gained by coming back."""
    start = {"red": 10, "green": 10}
    back = learnt(start, *[{"red": 5}] * 4)
    again = [batch(number, red=5) for number in (1, 2, 3, 4)]
    images, names = batch(0, **start)
    once = tiny().learn(
        [*images, *(p for more in again for p in more[0])],
        [*names, *(n for more in again for n in more[1])],
    )
    assert back.classes_ == once.classes_ == ["red", "green"]
    np.testing.assert_allclose(by_name(back), by_name(once), atol=1e-5)


def overlapping(shade: int, count: int, seed: int) -> list[np.ndarray]:
    """Noise around a grey that differs from photo to photo, so that neighbours overlap."""
    rng = np.random.default_rng([seed, shade])
    greys = rng.normal(shade, 6, (count, 1, 1, 1))
    return list((greys + rng.normal(0, 4, (count, 24, 24, 3))).clip(0, 255).astype(np.uint8))


def test_a_return_costs_a_look_alike_no_answers() -> None:
    """A comes back four times; B, which it overlaps, loses no more than to all photos at once."""
    asked = {"a": overlapping(120, 60, seed=8), "b": overlapping(130, 60, seed=9)}
    first = overlapping(120, 20, seed=1), overlapping(130, 20, seed=2)
    more = [overlapping(120, 10, seed=seed) for seed in (3, 4, 5, 6)]

    def right(classifier: ContinualClassifier, name: str) -> float:
        return float(np.mean([n == name for n in classifier.predict(asked[name], unknown=False)]))

    back = tiny().learn([*first[0], *first[1]], ["a"] * 20 + ["b"] * 20)
    for photos_of_a in more:
        back.learn(photos_of_a, ["a"] * 10)
    all_of_a = [*first[0], *(photo for some in more for photo in some)]
    once = tiny().learn([*all_of_a, *first[1]], ["a"] * 60 + ["b"] * 20)
    assert 0.6 < right(once, "b") < 1  # they do look alike
    assert abs(right(back, "b") - right(once, "b")) <= 0.02
    assert abs(right(back, "a") - right(once, "a")) <= 0.02


def test_a_class_is_forgotten(tmp_path: Path) -> None:
    classifier = learnt(A, B)
    classifier.save(tmp_path / "model")
    classifier.forget("green")
    assert classifier.classes_ == ["red", "blue", "grey"]
    assert "green" not in classifier.predict(ASKED, unknown=False)
    assert all("green" not in each.photos for each in classifier.history_)
    assert classifier.history_[1].new == ["blue", "grey"]
    classifier.save(tmp_path / "model")
    loaded = ContinualClassifier.load(tmp_path / "model", device="cpu")
    assert np.array_equal(loaded.predict_proba(ASKED), classifier.predict_proba(ASKED))
    loaded.learn(*batch(5, green=3))
    assert loaded.classes_ == ["red", "blue", "grey", "green"]
    classifier.undo()
    assert classifier.classes_ == ["red", "green", "blue", "grey"]


def test_forgotten_with_its_photos_a_class_was_never_there() -> None:
    classifier = learnt(A, B)
    green = [*photos("green", 5, seed=0), *photos("green", 3, seed=1)]
    classifier.forget("green", green)
    without = learnt({"red": 6}, {"blue": 7, "grey": 4})
    np.testing.assert_allclose(by_name(classifier), by_name(without), atol=1e-5)


@pytest.mark.parametrize("given", [False, True])
def test_what_was_forgotten_is_there_again_once_it_is_taken_back(given: bool) -> None:
    classifier = learnt({"red": 6, "green": 6}, {"blue": 7})
    answers, counts = by_name(classifier), classifier.method_.moments.count.clone()
    classifier.forget("green", photos("green", 6) if given else None)
    classifier.undo()
    assert np.array_equal(by_name(classifier), answers)
    assert np.array_equal(classifier.method_.moments.count, counts)


@pytest.mark.parametrize("given", [False, True])
def test_after_forgetting_the_threshold_is_that_of_the_classes_that_stay(given: bool) -> None:
    """As many photos of each are answered with their class as were asked for: 90 %, left out."""
    classifier = learnt({"red": 9, "green": 9, "grey": 9}, accept=0.9)
    before = classifier.threshold_
    classifier.forget("green", photos("green", 9) if given else None)
    left_out = classifier.method_.left_out()
    assert left_out is not None
    familiar = np.sort(left_out.familiar.double().numpy())
    assert len(familiar) == 18
    # The largest that at least 90 % of 18 reach: all but the lowest one.
    assert classifier.threshold_ == pytest.approx(familiar[1], rel=1e-6)
    assert classifier.threshold_ != pytest.approx(before, rel=1e-6)


@pytest.mark.parametrize(("learnt_in", "forgotten_in"), [("bf16", "fp32"), ("fp32", "bf16")])
def test_photos_may_have_been_counted_in_another_precision(
    learnt_in: str, forgotten_in: str
) -> None:
    """As when a service learnt in bf16 and the command forgets in fp32."""
    classifier = tiny(precision=learnt_in)
    for number, counts in enumerate((A, B)):
        classifier.learn(*batch(number, **counts))
    classifier.set_params(precision=forgotten_in)
    green = [*photos("green", 5, seed=0), *photos("green", 3, seed=1)]
    classifier.forget("green", green)
    without = tiny(precision=learnt_in)
    for number, counts in enumerate(({"red": 6}, {"blue": 7, "grey": 4})):
        without.learn(*batch(number, **counts))
    classifier.set_params(precision=learnt_in)
    np.testing.assert_allclose(by_name(classifier), by_name(without), atol=1e-5)
    with pytest.raises(ModelError, match="not the 7 photos that the class was learnt from"):
        classifier.forget("blue", photos("blue", 7, seed=9))


def test_photos_that_were_not_learnt_cannot_be_forgotten() -> None:
    classifier = learnt(A, B)
    before = classifier.model_id
    with pytest.raises(ModelError, match="not the 8 photos that the class was learnt from"):
        classifier.forget("green", photos("green", 8, seed=3))
    assert classifier.model_id == before
    with pytest.raises(ModelError, match=r"no class 'gren'.*green"):
        classifier.forget("gren")


def test_too_few_photos_to_forget_are_refused_before_any_is_read() -> None:
    classifier = learnt({"red": 6, "green": 5}, {"blue": 7, "green": 3, "grey": 4})
    unreadable = [b"no image"]
    with pytest.raises(ModelError, match=r"^'green' was learnt from 8 photos, not from 1; give"):
        classifier.forget("green", unreadable)
    classifier.merge_classes("red", "green").rename("green", "lime").forget("grey")
    classifier.merge(learnt({"lime": 2}))
    with pytest.raises(ModelError, match="'lime' was learnt from 16 photos, not from 1;"):
        classifier.forget("lime", unreadable)
    assert [  # what history says is what was counted
        (sum(batch.photos.get(name, 0) for batch in classifier.history_), count)
        for name, count in zip(classifier.classes_, counted_images(classifier), strict=True)
    ] == [(16, 16), (7, 7)]


def counted_images(classifier: ContinualClassifier) -> list[float]:
    method = classifier.method_
    return [float(n) / method.config.views for n in method.moments.count]  # type: ignore[union-attr, attr-defined]


def test_photos_learnt_in_two_precisions_cannot_be_taken_back_and_it_is_said() -> None:
    classifier = tiny()
    classifier.learn(*batch(0, **A))
    classifier.set_params(precision="bf16")
    classifier.learn(*batch(1, **B))
    green = [*photos("green", 5, seed=0), *photos("green", 3, seed=1)]
    with pytest.raises(ModelError, match=r"partly in bf16 and partly in fp32 cannot be taken back"):
        classifier.forget("green", green)


def test_the_last_class_stays() -> None:
    with pytest.raises(ModelError, match="only class"):
        learnt({"red": 3}).forget("red")


def test_a_class_gets_another_name(tmp_path: Path) -> None:
    classifier = learnt(A, B)
    p = classifier.predict_proba(ASKED)
    classifier.rename("green", "lime")
    assert classifier.classes_ == ["red", "lime", "blue", "grey"]
    assert np.array_equal(classifier.predict_proba(ASKED), p)
    assert classifier.history_[1].returning == ["lime"]
    for bad, error in (("red", ModelError), ("Red", ModelError), ("unknown", DataError)):
        with pytest.raises(error):
            classifier.rename("lime", bad)
    classifier.rename("lime", "Lime")  # only the spelling
    assert classifier.classes_[1] == "Lime"


def test_two_sites_make_one_model() -> None:
    merged = tiny().learn(*batch(0, **A)).merge(tiny().learn(*batch(1, **B)))
    expected = learnt(A, B)
    assert merged.classes_ == expected.classes_
    np.testing.assert_allclose(by_name(merged), by_name(expected), atol=1e-5)
    last = merged.history_[-1]
    assert (last.number, last.photos) == (2, B)
    assert (last.new, last.returning) == (["blue", "grey"], ["green"])
    merged.undo()
    assert merged.classes_ == ["red", "green"]


def test_a_site_that_learnt_several_batches_in_another_order_keeps_its_names() -> None:
    mine = learnt(A)
    before = mine.model_id
    merged = mine.merge(learnt({"grey": 4, "green": 2}, {"blue": 7, "green": 3}))
    green = [*photos("green", 5), *photos("green", 2), *photos("green", 3, seed=1)]
    once = [*photos("red", 6), *green, *photos("grey", 4), *photos("blue", 7, seed=1)]
    names = ["red"] * 6 + ["green"] * 10 + ["grey"] * 4 + ["blue"] * 7
    expected = tiny().learn(once, names)
    assert merged.classes_ == ["red", "green", "grey", "blue"]
    np.testing.assert_allclose(by_name(merged), by_name(expected), atol=1e-5)
    last = merged.history_[-1]
    assert last.photos == {"grey": 4, "green": 5, "blue": 7}
    assert last.before == before
    assert merged.threshold_ == pytest.approx(expected.threshold_, abs=1e-5)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"weights": "random:1"}, r"backbone: test_vit \(random:0\) and test_vit \(random:1\);"),
        ({"image_size": 64}, "backbone: image_size 48 and 64;"),
        ({"backbone": "test_vit2"}, r"backbone: test_vit and test_vit2;"),
        ({"settings": {"views": 2}}, "method: views 3 and 2;"),
        ({"method": "nearest_mean"}, "method: strata and nearest_mean;"),
        ({"training": {"epochs": 2}}, "training: epochs 1 and 2, batch_size 8 and None;"),
        ({"seed": 3}, "seed: 0 and 3;"),
    ],
)
def test_different_models_are_not_merged(other: dict[str, object], said: str) -> None:
    classifier, foreign = learnt(A), learnt(B, **other)
    before = classifier.model_id
    with pytest.raises(ModelError, match=f"differ in their {said}") as caught:
        classifier.merge(foreign)
    assert len(str(caught.value)) < 200
    assert classifier.model_id == before


def test_models_on_the_same_weights_in_other_places_are_merged(tmp_path: Path) -> None:
    state = load_backbone("test_vit", "random:0", 48)._named_weights()
    files = [tmp_path / "here" / "w.safetensors", tmp_path / "there" / "of_a_friend.safetensors"]
    for file in files:
        write_bytes(file, save(dict(state)))
    one, other = (learnt(each, weights=str(file)) for each, file in zip((A, B), files, strict=True))
    assert one.merge(other).classes_ == ["red", "green", "blue", "grey"]


def test_what_strata_does_not_use_does_not_prevent_merging() -> None:
    merged = learnt(A, hold_out=0.3).merge(learnt(B, keep_held_out=5))
    assert merged.classes_ == ["red", "green", "blue", "grey"]


def test_a_trained_method_says_that_it_cannot() -> None:
    classifier = learnt(A, method="cprompt", settings={"length": 2})
    with pytest.raises(ModelError, match="the method cprompt cannot forget a class"):
        classifier.forget("red")
    with pytest.raises(ModelError, match="models of the method cprompt cannot be merged"):
        classifier.merge(learnt({"blue": 4}, method="cprompt", settings={"length": 2}))
