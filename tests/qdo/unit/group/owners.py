"""Test doubles for the owner of a member's partitions and for its catalogue of queues."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping

from qdo.errors import CoordinationRefused
from qdo.group.callbacks import PartitionListener
from qdo.group.offsets import PartitionOwnership
from qdo.group.records import Visibility
from qdo.partitions import Partition, Queue, Subscription


class Catalogue:
    """A catalogue of queues that never change.

    Attributes:
        own_subscription: The member's own subscription.
        partition_counts: The queues, with their numbers of partitions.
        sight: The queues that the member may see.
    """

    def __init__(self, own: Subscription, queues: Mapping[Queue, int]) -> None:
        self.own_subscription = own
        self.partition_counts = queues
        self.sight = Visibility(("*",))

    def look_up(self, *_: object) -> None:
        """Knows all queues."""

    def follow(self, *_: object) -> None:
        """Knows all queues."""

    def warn_of_unseen_queues(self, _: object) -> None:
        """There are none."""


class RecordingListener(PartitionListener):
    """An owner that records its calls.

    Attributes:
        have: The partitions that it believes to own.
        lost_partitions: All partitions that it lost.
        refusals: The refusals that it was notified of.
        revoking: The number of partitions that it was asked to give up.
        gives_up: It gives partitions up only after this event.
    """

    def __init__(self) -> None:
        self.have: set[Partition] = set()
        self.lost_partitions: set[Partition] = set()
        self.refusals: list[CoordinationRefused] = []
        self.revoking = 0
        self.gives_up = asyncio.Event()
        self.gives_up.set()

    async def assigned(self, rows: Collection[PartitionOwnership]) -> None:
        self.have |= {row.partition for row in rows}

    async def revoke(self, row: PartitionOwnership) -> None:
        self.revoking += 1
        await self.gives_up.wait()
        self.have.discard(row.partition)

    async def lost(self, rows: Collection[PartitionOwnership]) -> None:
        partitions = {row.partition for row in rows}
        self.have -= partitions
        self.lost_partitions |= partitions

    def refused(self, error: CoordinationRefused) -> None:
        self.refusals.append(error)
