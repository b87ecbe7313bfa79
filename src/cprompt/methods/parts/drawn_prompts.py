"""Prompt consistency for methods with a prompt per task: features under prompts drawn at random."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from cprompt.methods.base import Draws, LossPart, Method, add_terms
from cprompt.methods.parts.heads import ConsistencyConfig, ConsistentHeads
from cprompt.vit.promptable import Embedded


def draw_tasks(
    n_images: int, n_tasks: int, rng: torch.Generator, multiple: int
) -> dict[str, Tensor]:
    """Draw i ~ Uni(1, t) per image (eq. 7); return the images that drew an old task, i < t.

    `old_images` (n,) are the images that drew an old task and `old_tasks` (n,) those tasks,
    counted from 0. n is rounded up to a multiple of `multiple`, or to all images, by repeating the
    last pair.
    """
    drawn = torch.randint(n_tasks, (n_images,), generator=rng)
    old = (drawn < n_tasks - 1).nonzero()[:, 0]
    if len(old):
        wanted = min(n_images, math.ceil(len(old) / multiple) * multiple)
        old = torch.cat([old, old[-1:].expand(wanted - len(old))])
    return {"old_images": old, "old_tasks": drawn[old]}


def split_drawn_tasks(draws: Draws, part: slice) -> dict[str, Tensor]:
    """Of `draw_tasks`, what the images in `part` of the batch drew; they count from 0 again."""
    if "old_images" not in draws:
        return {}
    images, tasks = draws["old_images"], draws["old_tasks"]
    inside = (images >= part.start) & (images < part.stop)
    return {"old_images": images[inside] - part.start, "old_tasks": tasks[inside]}


class DrawnPromptsMethod(Method):
    """Draws for each image of a step the task whose prompt trains its head, if `pcl` is on."""

    config: ConsistencyConfig
    heads: ConsistentHeads

    def loss(self, embedded: Embedded, targets: Tensor, draws: Draws) -> dict[str, Tensor]:
        """The terms of all parts."""
        return add_terms(part() for part in self.parts(embedded, targets, draws))

    def loss_parts(self, embedded: Embedded, targets: Tensor, draws: Draws) -> list[LossPart]:
        """The parts; not asked for by a class that changes `loss`."""
        return self.parts(embedded, targets, draws)

    def parts(self, embedded: Embedded, targets: Tensor, draws: Draws) -> list[LossPart]:
        """What `loss` is made of; see `Method.loss_parts`."""
        raise NotImplementedError

    def parts_of_heads(
        self,
        h: Callable[[], Tensor],
        under: Callable[[Tensor, Tensor], Tensor],
        targets: Tensor,
        draws: Draws,
    ) -> list[LossPart]:
        """What trains the heads: `ce`, `aux` and `ccl`, those that are on.

        `h()` are the features (B, D) under the current task's prompt. `under(images, tasks)` are
        those of these images under these old tasks' prompts, and need no gradient. Images that
        drew the current task reuse h, with its gradient (eq. 6); the others make a part of their
        own. The two share `ce`, a mean over all images.
        """
        local = targets - self.known
        if not len(draws.get("old_images", ())):
            return [lambda: self._under_current(h(), local, draws)]
        images, tasks = draws["old_images"], draws["old_tasks"]
        drew_old = torch.zeros_like(local, dtype=torch.bool).index_fill(0, images, True)

        def under_old() -> dict[str, Tensor]:
            with torch.no_grad():
                old = under(images, tasks)
                features = old.new_zeros(len(local), old.shape[1]).index_copy(0, images, old)
            return {"ce": self.heads.cross_entropy(features, local, drew_old)}

        return [lambda: self._under_current(h(), local, draws, ~drew_old), under_old]

    def _under_current(
        self, h: Tensor, local: Tensor, draws: Draws, drew: Tensor | None = None
    ) -> dict[str, Tensor]:
        return self.heads.losses(h, h, local, draws, drew)

    def draw(self, n_images: int, rng: torch.Generator, multiple: int = 1) -> Draws:
        """With pcl, a task per image; and what the heads need."""
        pcl = self.config.pcl and self.n_tasks > 1
        tasks = draw_tasks(n_images, self.n_tasks, rng, multiple) if pcl else {}
        return {**tasks, **self.heads.draw(n_images, rng)}

    def split_draws(self, draws: Draws, n_images: int, part: slice) -> Draws:
        """Rows of `classes`, and the tasks that the images in `part` drew."""
        tasks = split_drawn_tasks(draws, part)
        rest = {name: tensor for name, tensor in draws.items() if name not in tasks}
        return {**tasks, **super().split_draws(rest, n_images, part)}
