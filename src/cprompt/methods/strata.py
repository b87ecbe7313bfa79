"""Closed form over all layers: class means and one shared covariance, in one pass.

Prior work: streaming linear discriminant analysis (Hayes, Kanan 2020), several layers (LayUP,
Ahrens et al. 2023), first-session adaptation (Panos et al. 2023).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from cprompt.errors import ModelError, counted
from cprompt.methods.base import (
    Batches,
    ClassifierDefaults,
    Draws,
    LeftOut,
    Method,
    Response,
    register,
)
from cprompt.methods.parts.class_moments import ClassMoments
from cprompt.methods.parts.first_prompt import FirstPrompt, FirstPromptConfig
from cprompt.methods.parts.kept_images import KeptImages
from cprompt.methods.parts.left_out import Sample, Statistics
from cprompt.methods.parts.mixed_head import (
    FEWEST_TO_WEIGH,
    Familiarity,
    answers_without,
    mixed_head,
)
from cprompt.methods.parts.random_signs import RandomSigns
from cprompt.methods.parts.seen_images import SeenImages, were_learnt
from cprompt.settings import check, setting
from cprompt.vit.promptable import Embedded, FrozenViT, Precision

JUDGED_AT_ONCE = 256
"""Images whose labels are judged at a time; memory grows with their number times classes."""

LEFT_OUT = 1000
"""Most images that are left out one by one when the head is worked out."""

SCORES_LEFT_OUT = 20_000_000
"""Most scores, images times classes, of those images: four heads of them are held in memory. With
more than 20,000 classes fewer images are left out, but at least `FEWEST_LEFT_OUT`."""

FEWEST_LEFT_OUT = 200


@dataclass(frozen=True)
class StrataConfig(FirstPromptConfig):
    """Settings of the closed form."""

    layers: tuple[int, ...] | None = setting(None, "blocks that are read, from 0; empty: all")
    tokens: Literal["both", "class", "patch"] = setting(
        "both", "read after each block: class token, mean of the patch tokens, or both"
    )
    width: int | None = setting(
        None, "numbers per feature that are counted, more go through random signs; empty: all"
    )
    head: Literal["mixed", "single"] = setting(
        "mixed", "four heads weighted by the images at hand, or the one over all layers"
    )
    shrinkage: float = setting(
        0.001, "added to the diagonal of the covariance, in parts of its mean variance"
    )
    views: int = setting(5, "views of every image that are counted: the test view and random ones")
    keep: int = setting(
        600, "images kept as features, by which heads are weighted; at least two per class, or 0"
    )
    prediction_views: int = setting(
        1, "views averaged in an answer: 2 adds the mirror image, 4 a closer view of both"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.layers is not None:
            check(
                len(self.layers) > 0 and len(set(self.layers)) == len(self.layers),
                f"layers {self.layers} must be different block numbers",
            )
        check(self.width is None or self.width >= 1, f"width {self.width} must be at least 1")
        check(self.shrinkage > 0, f"shrinkage {self.shrinkage} must be positive")
        check(self.views >= 1, f"views {self.views} must be at least 1")
        check(self.keep >= 0, f"keep {self.keep} must be 0 or more")
        check(
            self.prediction_views in (1, 2, 4),
            f"prediction_views {self.prediction_views} must be 1, 2 or 4",
        )


@register("strata", StrataConfig)
class Strata(Method):
    """Gaussians of all classes over the tokens of all layers, with one covariance; no forgetting.

    A feature has, for every layer read, the normalised class token and mean of the patch tokens:
    F numbers. If that is more than `width`, the last layer's class token stays and random signed
    sums take the place of the rest. Per class a count and a sum are kept, and one second moment
    for all; the head follows in closed form. All of these add up, so the order of classes and the
    cut into tasks do not matter, and a class may return in any task.

    The head is mixed from four, weighted by what they say of some images that each leaves out; see
    `cprompt.methods.parts.mixed_head`. The features of those images are kept, chosen by content.

    With `adaptation` prompt, key/value prefixes at every block are first trained on the first task,
    by cross-entropy on the last layer's tokens, and then never change.
    """

    config: StrataConfig
    features_are_final = True
    needs_prompts = False
    takes_returning = True
    adds_over_ranks = True
    tasks_leave_no_trace = True
    classifier_defaults = ClassifierDefaults(settings={"width": 2048, "views": 3})
    weight: Tensor
    bias: Tensor
    narrow_weight: Tensor
    shares: Tensor
    last_weight: Tensor
    last_bias: Tensor
    last_centre: Tensor
    last_curve: Tensor
    last_scale: Tensor
    left_out_logits: Tensor
    left_out_familiar: Tensor
    left_out_position: Tensor

    def __init__(self, backbone: FrozenViT, config: StrataConfig) -> None:
        super().__init__(backbone, config)
        check(
            config.adaptation == "none" or isinstance(backbone, FrozenViT),
            f"adaptation {config.adaptation} needs a timm VisionTransformer with a class token; "
            f"{backbone.name} is not one",
        )
        self.layers = tuple(sorted(config.layers or range(backbone.depth)))
        parts = backbone.tap_parts(self.layers, config.tokens)
        self.extra_views = config.views - 1
        size = sum(part.width for part in parts)
        self.last = _last_part([part.width for part in parts], [part.kind for part in parts])
        width = size if config.width is None else max(config.width, _length(self.last) + 1)
        self.project = RandomSigns(size, width, self.last)
        self.narrow_last = self.project.kept if self.project.signs is not None else self.last
        self.moments = ClassMoments(self.project.width)
        self.kept = KeptImages(self.project.width)
        self.first = FirstPrompt(config)
        self.counted: list[SeenImages] | None = None
        self.solved: Statistics | None = None
        """What the head was worked out from, while `judge` may ask for it."""
        dim = _length(self.last)
        self.register_buffer("weight", torch.zeros(0, size), persistent=False)
        self.register_buffer("narrow_weight", torch.zeros(0, self.project.width))
        self.register_buffer("bias", torch.zeros(0))
        self.register_buffer("shares", torch.zeros(4))
        self.register_buffer("last_weight", torch.zeros(0, dim))
        self.register_buffer("last_bias", torch.zeros(0))
        self.register_buffer("last_centre", torch.zeros(dim))
        self.register_buffer("last_curve", torch.zeros(dim, dim))
        self.register_buffer("last_scale", torch.tensor([1.0, 0.0, 0.0]))
        for name in ("left_out_logits", "left_out_familiar", "left_out_position"):
            self.register_buffer(name, torch.zeros(0), persistent=False)

    # --- learning -------------------------------------------------------------------------------

    def begin_task(self, n_classes: int, rng: torch.Generator) -> None:
        """Make room for the new classes; before the first task, for the prompt."""
        super().begin_task(n_classes, rng)
        self.moments.open(n_classes)
        self._set_head(_empty_head(self.n_classes, self.project.width, _length(self.last)))
        if self.n_tasks == 1:
            last = sum(self.backbone.tap_widths([self.backbone.depth - 1]))
            self.first.open(self.backbone, n_classes, last, rng)

    def loss(self, embedded: Embedded, targets: Tensor, draws: Draws) -> dict[str, Tensor]:
        """`ce` of a head on the last layer's tokens; in the first task, with a prompt to train."""
        if not self.first.is_open:
            return {}
        layers = [self.backbone.depth - 1]
        last = self.backbone.taps(embedded, layers, prompts=self.first.prompts())
        return self.first.loss(last, targets)

    def end_task(self, batches: Batches) -> None:
        """Count the task's images, then work out the head over all classes."""
        with (
            self.ranks.counting(*self.moments.sums),
            self.kept.counting(self.ranks, self._kept_per_class()),
        ):
            for embedded, targets in batches:
                self.count_images(embedded, targets)
        self.solve()

    @torch.no_grad()
    def count_images(self, embedded: Embedded, targets: Tensor) -> None:
        """Add images, each under all of its views, to what is known of their classes."""
        self.count_features(self.feature(embedded), targets, embedded.keys)

    def count_features(self, features: Tensor, targets: Tensor, keys: Tensor | None) -> None:
        """The same from features (V · B, F), view by view, and the images' content keys (B,)."""
        self.solved = None
        x = self.project(features)
        self.moments.add(x, targets)
        if keys is None:
            return
        by_view = x.unflatten(0, (self.config.views, -1))
        position = targets[: by_view.shape[1]]
        if self.config.keep:
            self.kept.add(keys, position, by_view[0], by_view.mean(0), self._kept_per_class())
        if self.counted is not None:
            self.counted.append(SeenImages.of(keys, position, by_view))

    @torch.no_grad()
    def solve(self) -> None:
        """Work out the head from what was counted."""
        moments, config = self.moments, self.config
        if config.head == "single":
            weight, bias = moments.discriminant(config.shrinkage)
            empty = _empty_head(self.n_classes, self.project.width, _length(self.last))
            self._set_head(dataclasses.replace(empty, narrow_weight=weight, bias=bias))
            return
        statistics = self._statistics()
        self.solved = statistics if self.counted else None
        sample = self._sample(statistics)
        head = mixed_head(statistics, sample, self.narrow_last, config.shrinkage)
        self._set_head(
            _Head(
                narrow_weight=head.weight,
                bias=head.bias,
                shares=head.shares,
                last_weight=head.familiar.weight,
                last_bias=head.familiar.bias,
                last_centre=head.familiar.centre,
                last_curve=head.familiar.curve,
                last_scale=head.familiar.scale,
            )
        )
        self.left_out_logits = head.left_out.float()
        self.left_out_familiar = head.left_out_familiar.float()
        self.left_out_position = sample.position

    def close_task(self) -> None:
        """Freeze the prompt."""
        self.first.close()

    def _kept_per_class(self) -> int:
        return min(40, max(2, -(-self.config.keep // max(1, self.n_classes))))

    def _statistics(self) -> Statistics:
        moments, views = self.moments, self.config.views
        total = float(moments.count.sum() + moments.left)
        return Statistics(moments.means(), moments.within(), moments.count / views, views, total)

    def _sample(self, statistics: Statistics) -> Sample:
        """The kept images of classes with two images or more, at most `LEFT_OUT` of them."""
        most = min(LEFT_OUT, max(FEWEST_LEFT_OUT, SCORES_LEFT_OUT // max(1, self.n_classes)))
        kept = self.kept
        several = statistics.images[kept.position] > 1.5
        chosen = kept.smallest(len(kept))
        chosen = chosen[several[chosen]][:most]
        position = kept.position[chosen]
        apart = kept.mean[chosen].double() - statistics.means[position]
        return Sample(kept.feature[chosen].double(), apart, position)

    def kept_keys(self) -> frozenset[int]:
        """Those of the kept images."""
        return frozenset(self.kept.key.tolist())

    # --- what was learnt can be changed --------------------------------------------------------

    def forget(self, at: int, batches: Batches | None = None) -> None:
        """Drop class `at`; later classes move up by one. See `ClassMoments.drop`.

        `batches` are all of its images, under the views they were counted with.
        """
        features = None
        if batches is not None:
            with torch.no_grad():
                found = [self.project(self.feature(embedded)) for embedded, _ in batches]
            features = torch.cat(found)
            if not self.moments.were_counted(at, features):
                images = int(self.moments.count[at]) // self.config.views
                raise ModelError(
                    f"these are not the {counted(images, 'photo')} that the class was learnt from",
                    hint="give exactly those, or forget the class without photos; photos learnt "
                    "partly in bf16 and partly in fp32 cannot be taken back",
                )
        self.moments.drop(at, features)
        self.kept.drop(at)
        self._drop_position(at)
        self.solve()

    def merge(self, other: Method, positions: Sequence[int], n_new: int) -> None:
        """Add what `other` counted; its class i is class `positions[i]` here.

        `n_new` of them are new and come last.
        """
        self.begin_task(n_new, torch.Generator())
        self.absorb(other, positions)
        self.solve()

    def absorb(self, other: Method, positions: Sequence[int]) -> None:
        """Add what `other` counted; the head is not worked out again."""
        assert isinstance(other, Strata)
        if self.first.prefixes is not None or other.first.prefixes is not None:
            raise ModelError("models with adaptation prompt see images differently: no merging")
        at = torch.tensor(list(positions), dtype=torch.long, device=self.moments.count.device)
        self.moments.merge(other.moments, at)
        kept = other.kept
        most = self._kept_per_class()
        self.kept.add(kept.key, at[kept.position.to(at.device)], kept.feature, kept.mean, most)

    # --- answering ------------------------------------------------------------------------------

    def respond(
        self,
        images: Tensor,
        *,
        query: Tensor | None = None,
        task: Tensor | None = None,
        precision: Precision = "fp32",
    ) -> Response:
        """Answer images (B, 3, H, W); with several prediction views, by their mean feature."""
        views = _views(images, self.config.prediction_views)
        features = [self.feature(self.embed(view, precision)) for view in views]
        return self.respond_to_features(torch.stack(features).mean(0))

    def respond_to_features(self, feature: Tensor) -> Response:
        """The same from features (B, F)."""
        logits = self.answer(feature)
        familiar = None
        if self.config.head == "mixed":
            familiar = self.familiarity()(feature[:, self.last], logits)
        return Response(logits, feature, None, None, familiar)

    def feature(
        self, embedded: Embedded, query: Tensor | None = None, task: Tensor | None = None
    ) -> Tensor:
        """The tokens of all layers read, one after another (B, F)."""
        prompts = self.first.prompts()
        return self.backbone.taps(embedded, self.layers, self.config.tokens, prompts)

    def answer(self, feature: Tensor) -> Tensor:
        """Logits of the head in closed form."""
        return F.linear(feature, self.weight, self.bias)

    def patch_shares(
        self, images: Tensor, positions: Tensor, precision: Precision = "fp32"
    ) -> Tensor | None:
        """See `Method.patch_shares`; exact, since logits are linear in patch tokens.

        Class tokens and the bias add the rest. None if patch tokens of several views are averaged,
        are not read, or lie on different grids.
        """
        if not isinstance(self.backbone, FrozenViT) or self.config.prediction_views > 1:
            return None
        parts = self.backbone.tap_parts(self.layers, self.config.tokens)
        weight = (self.weight - self.weight.mean(0))[positions]
        columns = torch.split(weight, [part.width for part in parts], dim=1)
        read = {
            part.layer: own
            for part, own in zip(parts, columns, strict=True)
            if part.kind == "patch"
        }
        if not read:
            return None
        embedded, prompts = self.embed(images, precision), self.first.prompts()
        scores = self.backbone.patch_scores(embedded, read, prompts)
        return (scores / scores.shape[1]).view(len(scores), *self.backbone.grid)

    def left_out(self) -> LeftOut | None:
        """What the head says of kept images, each left out."""
        if self.config.head == "single":
            return None
        if not len(self.left_out_logits) and len(self.kept):
            self.solve()  # after loading, only the head is there
        return LeftOut(self.left_out_logits, self.left_out_position.long(), self.left_out_familiar)

    def remember(self) -> None:
        """Keep the features of images counted from now on, for `judge`."""
        self.counted = []

    @torch.no_grad()
    def judge(self, batches: Batches | None = None) -> Tensor | None:
        """Logits of labelled images, each left out if it was learnt; see `Method.judge`.

        None if too few images are kept to weigh the heads: without itself an image of a small class
        may then be answered wrongly by those that do not suit it.
        """
        parts, self.counted = self.counted or [], None
        solved, self.solved = self.solved, None
        if self.config.head == "single":
            return None
        if batches is not None and not self.config.keep:
            return None  # nothing is kept to tell which of them were learnt
        if batches is not None:
            for embedded, targets in batches:
                assert embedded.keys is not None
                by_view = self.project(self.feature(embedded)).unflatten(0, (embedded.views, -1))
                position = targets[: by_view.shape[1]]
                parts.append(SeenImages.of(embedded.keys, position, by_view))
        if not parts:
            return None
        seen, statistics = SeenImages.joined(parts), solved or self._statistics()
        learnt = torch.ones_like(seen.key, dtype=torch.bool)
        if batches is not None:
            learnt = were_learnt(seen, self.kept, statistics.images)
        learnt &= statistics.images[seen.position] > 1.5  # of a single image nothing would be left
        sample = self._sample(statistics)
        if learnt.any() and len(sample) < FEWEST_TO_WEIGH:
            return None
        some = torch.split(seen.feature, JUDGED_AT_ONCE)  # float16; not all are widened at once
        logits = torch.cat([x.float() @ self.narrow_weight.T + self.bias for x in some])
        last, shrinkage = self.narrow_last, self.config.shrinkage
        head = mixed_head(statistics, sample, last, shrinkage)
        for at in torch.split(learnt.nonzero()[:, 0], JUDGED_AT_ONCE):
            position = seen.position[at]
            apart = seen.mean[at].double() - statistics.means[position]
            asked = Sample(seen.feature[at].double(), apart, position)
            logits[at] = answers_without(head, statistics, asked, last, shrinkage).float()
        return logits

    # --- the head ------------------------------------------------------------------------------

    def familiarity(self) -> Familiarity:
        """How familiar an image looks, from the last layer's class part and its logits."""
        return Familiarity(
            self.last_weight, self.last_bias, self.last_centre, self.last_curve, self.last_scale
        )

    def _set_head(self, head: _Head) -> None:
        for field in dataclasses.fields(_Head):
            value: Tensor = getattr(head, field.name)
            setattr(self, field.name, value.float().to(self.moments.count.device))
        self._fold()

    def _fold(self) -> None:
        if self.narrow_weight.any():
            self.weight = self.project.fold(self.narrow_weight)
        else:  # as yet empty: folding would only take time and memory, at every start of a task
            nothing = self.narrow_weight.new_zeros(())
            self.weight = nothing.expand(len(self.narrow_weight), self.project.features)

    def _load_from_state_dict(self, *args: Any) -> None:
        super()._load_from_state_dict(*args)
        self._fold()

    def load_state_dict(self, *args: Any, **options: Any) -> Any:
        """As every module; a RuntimeError also if kept images are of classes that are not there."""
        loaded = super().load_state_dict(*args, **options)
        position = self.kept.position
        if len(position) and not 0 <= int(position.min()) <= int(position.max()) < self.n_classes:
            raise RuntimeError("kept images are of classes that are not there")
        return loaded


@dataclass(frozen=True)
class _Head:
    """What answers; worked out from what was counted."""

    narrow_weight: Tensor
    bias: Tensor
    shares: Tensor
    last_weight: Tensor
    last_bias: Tensor
    last_centre: Tensor
    last_curve: Tensor
    last_scale: Tensor


def _empty_head(n_classes: int, width: int, last: int) -> _Head:
    return _Head(
        narrow_weight=torch.zeros(n_classes, width),
        bias=torch.zeros(n_classes),
        shares=torch.zeros(4),
        last_weight=torch.zeros(n_classes, last),
        last_bias=torch.zeros(n_classes),
        last_centre=torch.zeros(last),
        last_curve=torch.zeros(last, last),
        last_scale=torch.tensor([1.0, 0.0, 0.0]),
    )


def _last_part(widths: Sequence[int], kinds: Sequence[str]) -> slice:
    """Where the last layer's class part is; without one, its patch mean."""
    at = len(widths) - 1
    if "class" in kinds[-2:]:
        at = len(kinds) - 1 - kinds[::-1].index("class")
    start = sum(widths[:at])
    return slice(start, start + widths[at])


def _length(part: slice) -> int:
    return int(part.stop - part.start)


def _views(images: Tensor, count: int) -> list[Tensor]:
    """The images; mirrored; and both, 1/0.8 times closer."""
    views = [images]
    if count >= 2:
        views.append(images.flip(-1))
    if count >= 4:
        height, width = images.shape[-2:]
        top, left = height // 10, width // 10
        inner = images[:, :, top : height - top, left : width - left]
        closer = F.interpolate(inner, (height, width), mode="bilinear", align_corners=False)
        views += [closer, closer.flip(-1)]
    return views
