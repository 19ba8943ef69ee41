"""Units of an archive's work: parts of queues to be scanned, and how they are shared out among tasks. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TypeVar

import msgspec

from queuey.ids import LOW_MIN, Position
from queuey.messages import Queue
from queuey.spark.jobs.archive.buckets import ArchiveBucket

T = TypeVar("T")

MOST_COUNTED = 1_000_000
"""Messages of one partition in one bucket that are counted before they are scanned."""
PIECES = 8
"""Parts of what holds more than that."""
LEAST_WEIGHT = 20_000
"""Messages below which a task is not worth starting."""
BUCKET_WEIGHT = 50
"""What opening a part costs beside its messages, in messages."""


class Search(msgspec.Struct, frozen=True, gc=False):
    """A queue in which buckets are searched.

    Attributes:
        done: The starts of buckets that are not searched any more.
    """

    queue: str
    qid: int
    seconds: int
    done: tuple[int, ...] = ()


class WorkUnit(msgspec.Struct, frozen=True, gc=False):
    """A part of one partition of a queue, within one bucket.

    Attributes:
        uid, qid: The queue and its messages that are meant; others are not touched.
        bucket: The bucket's start in seconds since 1970.
        seconds: How wide it is.
        lower, upper: Positions; what lies in ``[lower, upper)``.
        weight: How many messages were found there, ``MOST_COUNTED`` at most.
    """

    queue: str
    uid: int
    qid: int
    bucket: int
    seconds: int
    partition: int
    lower: Position
    upper: Position
    weight: int

    @property
    def key(self) -> tuple[str, str]:
        """Queue and name of the bucket."""
        return self.queue, ArchiveBucket(self.bucket, self.seconds).name


def whole(queue: Queue, bucket: ArchiveBucket, weight: int) -> list[WorkUnit]:
    """Returns a bucket as units, one for each partition, with an estimate of what each holds."""
    return [
        WorkUnit(
            queue.name,
            queue.uid,
            queue.qid,
            bucket.start,
            bucket.seconds,
            number,
            bucket.lower,
            bucket.upper,
            weight,
        )
        for number in range(1, queue.partitions + 1)
    ]


def divided(units: Iterable[WorkUnit]) -> list[WorkUnit]:
    """Cuts units that are too large to have been counted into parts that take equal times."""
    found: list[WorkUnit] = []
    for unit in units:
        step = math.ceil((unit.upper[0] - unit.lower[0]) / PIECES)
        if unit.weight < MOST_COUNTED or step < 1:
            found.append(unit)
            continue
        cuts = [(unit.lower[0] + step * number, LOW_MIN) for number in range(1, PIECES)]
        bounds = [unit.lower, *(cut for cut in cuts if cut < unit.upper), unit.upper]
        parts = [(lower, upper) for lower, upper in pairwise(bounds) if lower < upper]
        found += [
            msgspec.structs.replace(unit, lower=lower, upper=upper, weight=unit.weight // len(parts))
            for lower, upper in parts
        ]
    return found


def grouped(units: Iterable[WorkUnit], tasks: int) -> list[list[WorkUnit]]:
    """Shares units out among about so many tasks of about equal weight.

    Units of one bucket stay together as far as that goes, so that a bucket becomes few files.
    """
    ordered = sorted(units, key=lambda unit: (unit.queue, unit.bucket, unit.partition, unit.lower))
    total = sum(unit.weight + BUCKET_WEIGHT for unit in ordered)
    target = max(LEAST_WEIGHT, math.ceil(total / tasks))
    groups: list[list[WorkUnit]] = []
    room = 0
    for unit in ordered:
        weight = unit.weight + BUCKET_WEIGHT
        if not groups or weight > room:
            groups.append([])
            room = target
        groups[-1].append(unit)
        room -= weight
    return groups


def waves(units: Iterable[WorkUnit], *, buckets: int, messages: int) -> list[list[WorkUnit]]:
    """Divides units into runs of whole buckets, oldest first; a run is finished before the next one begins.

    What a crash undoes is one run.

    Args:
        units: All there is to do.
        buckets: At most so many buckets in a run.
        messages: A run ends with the bucket that brings it to so many messages.
    """
    by_bucket: dict[tuple[int, str], list[WorkUnit]] = {}
    for unit in units:
        by_bucket.setdefault((unit.bucket, unit.queue), []).append(unit)
    found: list[list[WorkUnit]] = []
    held, weight = buckets, 0
    for _, parts in sorted(by_bucket.items()):
        if held >= buckets or weight >= messages:
            found.append([])
            held, weight = 0, 0
        found[-1] += parts
        held += 1
        weight += sum(unit.weight for unit in parts)
    return found


def shared(items: Sequence[T], tasks: int) -> list[list[T]]:
    """Deals items out among at most so many tasks."""
    return [list(items[number::tasks]) for number in range(min(tasks, len(items)))]
