"""Prompt consistency for methods with a prompt per task: features under prompts drawn at random."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from cprompt.methods.base import Draws, Method
from cprompt.methods.parts.heads import ConsistencyConfig, ConsistentHeads


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


def any_drew_old(draws: Draws) -> bool:
    """Whether an image drew an old task."""
    return len(draws.get("old_images", ())) > 0


def old_features(draws: Draws, under: Callable[[Tensor, Tensor], Tensor]) -> Tensor | None:
    """f(x, P_i)[0] of the images that drew an old task i, without gradient; None if none did.

    `under(images, tasks)` computes it for these images of the batch under these tasks' prompts.
    """
    if not any_drew_old(draws):
        return None
    with torch.no_grad():
        return under(draws["old_images"], draws["old_tasks"])


def with_old(h: Tensor, draws: Draws, old: Tensor | None = None) -> Tensor:
    """f(x, P_i)[0] of all images (B, D), eq. 6.

    `h` (B, D) are the features under the current task's prompt. Images that drew the current task
    reuse them, with their gradient.
    """
    return h if old is None else h.index_copy(0, draws["old_images"], old)


class DrawnPromptsMethod(Method):
    """Draws for each image of a step the task whose prompt trains its head, if `pcl` is on."""

    config: ConsistencyConfig
    heads: ConsistentHeads

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
