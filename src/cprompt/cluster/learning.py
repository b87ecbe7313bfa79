"""Learning on Ray: shards are counted where there is room, and summed as a tree."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from cprompt.classifier.photos import PhotoLike
from cprompt.classifier.shards import Counts, Plan, Shard, ShardCounter, ShardReport, cut
from cprompt.cluster.connection import connected
from cprompt.cluster.tasks import Work, collect, named_worker, slots, value
from cprompt.device import pick_device
from cprompt.training.observers import Observer

SHARDS_PER_SLOT, FEWEST_PHOTOS = 4, 256
"""Shards for each task that can run at a time, unless asked otherwise: a slow one, or one that is
done again, then costs little. But none is so small that adding it up takes longer than counting."""


@dataclass(frozen=True)
class CountOnRay:
    """A `CountShards` for `ContinualClassifier.learn_counted`."""

    on: str
    shards: int | None = None
    work: Work = field(default_factory=Work)

    def __call__(
        self,
        plan: Plan,
        photos: Sequence[PhotoLike],
        labels: Sequence[str],
        observer: Observer,
    ) -> tuple[Counts, list[ShardReport]]:
        """Count everything; a shard whose worker died is counted again, and only once."""
        with connected(self.on) as ray:
            wanted = self.shards or default_shards(len(photos), slots(ray, self.work))
            device = pick_device(plan.parameters["device"])
            ranges = cut(len(photos), wanted, plan.extra_views, device)
            sent = ray.put((plan, self.work))
            count = self.work.remote(ray, _count, num_returns=2)
            add = self.work.remote(ray, _add)
            started: dict[int, Callable[[], Any]] = {}

            def submit(first: int, last: int) -> Any:
                """The sum of the shards from `first` to before `last`, the left half first.

                A task keeps its arguments alive, and what was lost with a machine is made again
                from there. So only the reports are held here, not the counts, which are large.
                """
                if last - first > 1:
                    middle = (first + last) // 2
                    return add.remote(sent, submit(first, middle), submit(middle, last))
                part = slice(ranges[first].start, ranges[first].stop)
                shard = Shard(part.start, photos[part], labels[part])
                counts, report = count.remote(sent, shard)
                started[first] = lambda: report
                return counts

            total = submit(0, len(ranges))
            reports: dict[int, ShardReport] = {}

            def keep(number: int, report: ShardReport) -> None:
                reports[number] = report
                done = sum(each.photos for each in reports.values())
                observer.decoded(done, len(photos))

            collect(ray, started, keep)
            return value(ray, total), [reports[i] for i in range(len(ranges))]


def default_shards(photos: int, slots: int) -> int:
    """How many shards, where `slots` of them are counted at a time.

    >>> default_shards(100, 2), default_shards(1500, 2), default_shards(10**6, 2)
    (2, 5, 8)
    """
    return max(slots, min(SHARDS_PER_SLOT * slots, photos // FEWEST_PHOTOS))


def _count(sent: tuple[Plan, Work], shard: Shard) -> tuple[Counts, ShardReport]:
    plan, work = sent
    with named_worker():
        work.begin()
        return _counter(plan).count(shard)


def _add(sent: tuple[Plan, Work], left: Counts, right: Counts) -> Counts:
    plan, work = sent
    with named_worker():
        work.begin()
        return _counter(plan).add(left, right)


_counters: list[ShardCounter] = []


def _counter(plan: Plan) -> ShardCounter:
    """The counter of this process, which keeps the backbone between tasks."""
    if not _counters or _counters[0].plan != plan:
        _counters[:] = [ShardCounter(plan)]
    return _counters[0]
