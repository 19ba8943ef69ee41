"""Units of archive work: parts of queues to scan, and their distribution to tasks. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import pairwise

import msgspec

from queuey.model.ids import LOW_MIN
from queuey.model.messages import Queue
from queuey.pipeline.archive.buckets import ArchiveBucket
from queuey.spark.slices import QueueSlice, divide_into_groups

MAX_COUNTED = 1_000_000
"""Max messages of one partition in one bucket that are counted before the scan."""
MAX_UNIT_PARTS = 8
"""Number of parts into which a larger unit is divided."""
MIN_TASK_WEIGHT = 20_000
"""Min messages that make a task worthwhile."""
PART_OPENING_WEIGHT = 50
"""Cost of opening a part, in messages."""


class BucketSearch(msgspec.Struct, frozen=True, gc=False):
    """A queue in which to search for buckets.

    Attributes:
        done: Starts of the buckets to skip.
    """

    queue: str
    qid: int
    seconds: int
    done: tuple[int, ...] = ()


class WorkUnit(QueueSlice, frozen=True, gc=False, kw_only=True):
    """A part of one partition of a queue, within one bucket.

    Attributes:
        bucket: The bucket's start in seconds since 1970.
        seconds: Width of the bucket.
        weight: Number of messages found, at most ``MAX_COUNTED``.
    """

    bucket: int
    seconds: int
    weight: int

    @property
    def key(self) -> tuple[str, str]:
        return self.queue, ArchiveBucket(self.bucket, self.seconds).name


def make_bucket_units(queue: Queue, bucket: ArchiveBucket, weight: int) -> list[WorkUnit]:
    return [
        WorkUnit(
            queue.name,
            number,
            bucket.lower,
            bucket.upper,
            queue.uid,
            queue.qid,
            bucket=bucket.start,
            seconds=bucket.seconds,
            weight=weight,
        )
        for number in range(1, queue.partitions + 1)
    ]


def divide_large_units(units: Iterable[WorkUnit]) -> list[WorkUnit]:
    """Divides each unit of ``MAX_COUNTED`` messages or more into up to ``MAX_UNIT_PARTS`` spans of equal time."""
    result: list[WorkUnit] = []
    for unit in units:
        step = math.ceil((unit.upper[0] - unit.lower[0]) / MAX_UNIT_PARTS)
        if unit.weight < MAX_COUNTED or step < 1:
            result.append(unit)
            continue
        cuts = [(unit.lower[0] + step * number, LOW_MIN) for number in range(1, MAX_UNIT_PARTS)]
        bounds = [unit.lower, *(cut for cut in cuts if cut < unit.upper), unit.upper]
        parts = [(lower, upper) for lower, upper in pairwise(bounds) if lower < upper]
        result += [
            msgspec.structs.replace(unit, lower=lower, upper=upper, weight=unit.weight // len(parts))
            for lower, upper in parts
        ]
    return result


def group_units(units: Iterable[WorkUnit], tasks: int) -> list[tuple[WorkUnit, ...]]:
    """Sorts units and divides them into at most ``tasks`` groups of about equal weight; fewer if the work is small.

    Units of one bucket stay together if possible, so that a bucket becomes few files.
    """
    ordered = sorted(units, key=lambda unit: (unit.queue, unit.bucket, unit.partition, unit.lower))
    total = sum(map(_cost, ordered))
    return divide_into_groups(ordered, max(1, min(tasks, math.ceil(total / MIN_TASK_WEIGHT))), _cost)


def _cost(unit: WorkUnit) -> int:
    return unit.weight + PART_OPENING_WEIGHT


def divide_into_waves(units: Iterable[WorkUnit], *, buckets: int, messages: int) -> list[list[WorkUnit]]:
    """Divides units into waves of whole buckets, oldest first.

    A wave is finished before the next one begins, so a crash undoes at most one wave.

    Args:
        units: All units.
        buckets: Max buckets in a wave.
        messages: A wave ends with the bucket that brings it to this number of messages.
    """
    by_bucket: dict[tuple[int, str], list[WorkUnit]] = {}
    for unit in units:
        by_bucket.setdefault((unit.bucket, unit.queue), []).append(unit)
    result: list[list[WorkUnit]] = []
    held, weight = buckets, 0
    for _, parts in sorted(by_bucket.items()):
        if held >= buckets or weight >= messages:
            result.append([])
            held, weight = 0, 0
        result[-1] += parts
        held += 1
        weight += sum(unit.weight for unit in parts)
    return result
