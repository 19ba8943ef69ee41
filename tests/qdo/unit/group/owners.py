"""Test doubles for the owner of a member's partitions and for its catalogue of queues."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping

from qdo.consumer.owned_partition import OwnedPartition
from qdo.consumer.partition_listener import PartitionListener
from qdo.coordination import Visibility
from qdo.errors import CoordinationRefused
from qdo.partitions import Partition, Queue, Subscription

PATIENCE = 60.0
"""Timeout in seconds of the waits in tests."""


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110 - the condition is over everything that runs here
            await asyncio.sleep(0)


class Catalogue:
    """A catalogue whose queues a test sets.

    Attributes:
        own_subscription: The member's own subscription.
        queues: The existing queues, with their numbers of partitions.
        sight: The queues that the member may see.
    """

    def __init__(self, own: Subscription, queues: Mapping[Queue, int]) -> None:
        self.own_subscription = own
        self.queues = queues
        self.sight = Visibility(("*",))

    @property
    def partition_counts(self) -> Mapping[Queue, int]:
        return self.queues

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
        notified: Kinds and partitions of all notifications, in order.
        stopped: Rows whose messages it must no longer hand out.
        refusals: The refusals that it was notified of.
        slow: Partitions that it gives up only after the event.
        on_revoke: Called when it gives partitions up; a coroutine is awaited.
        wrong: Notifications that came out of order.
    """

    def __init__(self) -> None:
        self.have: set[Partition] = set()
        self.notified: list[tuple[str, frozenset[Partition]]] = []
        self.is_stopped: set[OwnedPartition] = set()
        self.refusals: list[CoordinationRefused] = []
        self.slow: dict[Partition, asyncio.Event] = {}
        self.on_revoke: Callable[[frozenset[Partition]], object] | None = None
        self.wrong: list[str] = []

    def hurry(self) -> None:
        for given_up in self.slow.values():
            given_up.set()
        self.slow.clear()

    def times(self, what: str) -> list[frozenset[Partition]]:
        return [partitions for notified, partitions in self.notified if notified == what]

    async def assigned(self, rows: Collection[OwnedPartition]) -> None:
        partitions = self._record_notification("assigned", rows)
        if self.have & partitions:
            self.wrong.append(f"{partitions} assigned twice")
        self.have |= partitions

    def stop(self, rows: Collection[OwnedPartition]) -> None:
        self.wrong += [f"{row.partition} stopped while it is owned" for row in rows if row.state == "owned"]
        self.is_stopped |= set(rows)

    async def revoke(self, row: OwnedPartition) -> None:
        partitions = self._record_notification("revoke", [row])
        if not partitions <= self.have or row not in self.is_stopped:
            self.wrong.append(f"{partitions} revoked, but not had or not stopped")
        for partition in partitions & self.slow.keys():
            await self.slow[partition].wait()
        if self.on_revoke is not None:
            result = self.on_revoke(partitions)
            if asyncio.iscoroutine(result):
                await result
        self.have -= partitions

    async def lost(self, rows: Collection[OwnedPartition]) -> None:
        partitions = self._record_notification("lost", rows)
        if not partitions <= self.have or not self.is_stopped.issuperset(rows):
            self.wrong.append(f"{partitions} lost, but not had or not stopped")
        self.have -= partitions

    def refused(self, error: CoordinationRefused) -> None:
        self.refusals.append(error)

    def suspended(self) -> None:
        self._record_notification("suspended", ())

    def resumed(self) -> None:
        self._record_notification("resumed", ())

    def _record_notification(self, what: str, rows: Collection[OwnedPartition]) -> frozenset[Partition]:
        partitions = frozenset(row.partition for row in rows)
        self.notified.append((what, partitions))
        return partitions
