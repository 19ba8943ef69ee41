"""The storage contracts. SQLite and Cassandra implement them; one contract suite runs on both.

A :class:`Store` combines a clock and twelve small contracts over one connection: :class:`Catalogue` (queues),
:class:`Messages`, :class:`KeyedPosts`, :class:`Names`, :class:`Bulk`, :class:`Applications` (and their keys),
:class:`OffsetRecords`, :class:`GroupRecords`, :class:`Ledger`, :class:`Records`, :class:`ClaimLogs` and
:class:`Covers`. A message is always identified by ``(queue.qid, partition, position)``, and every read is bounded by a
horizon that the store reports.

Rules for every implementation:

* Calls that take time are coroutines. They may be awaited on any event loop, and any thread may run them to completion
  with :mod:`.bridge`. The other methods never wait. Each call is all or nothing, unless its docstring says otherwise.
* No call waits longer than the store's configured deadline. Calls of :class:`Bulk` may take longer in total, but no
  single step of them waits longer than that.
* Failures of the backend raise :class:`~queuey.model.errors.StoreUnavailable` (or a subclass) and nothing else, with
  the cause kept by ``from``. Once the backend is back, the same store object works again.
* Positions are ordered as in :mod:`queuey.model.ids`. Expired messages are not returned, whether swept or not, except
  where a docstring says so.
* Calls that take a :class:`~queuey.model.messages.Queue` raise :class:`~queuey.model.errors.QueueChanged`, without any
  effect, if that row is out of date in a way that matters: the queue is gone, was purged, or has other fields. They
  never act on messages of a purged or deleted queue.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from queuey.model.ids import StoreClock
from queuey.storage.contracts.bulk import Bulk
from queuey.storage.contracts.catalogue import Applications, Catalogue
from queuey.storage.contracts.claim_logs import ClaimLogs
from queuey.storage.contracts.covers import Covers
from queuey.storage.contracts.groups import GroupRecords
from queuey.storage.contracts.keyed_posts import KeyedPosts
from queuey.storage.contracts.ledger import IDENTITY, LEDGER_TTL, Entry, Ledger
from queuey.storage.contracts.messages import Messages
from queuey.storage.contracts.names import Names
from queuey.storage.contracts.offsets import OffsetRecords
from queuey.storage.contracts.records import Records, change_record

if TYPE_CHECKING:
    import asyncio

    from queuey.model.messages import Acknowledgement, Queue

__all__ = [
    "IDENTITY",
    "LEDGER_TTL",
    "Applications",
    "Bulk",
    "Catalogue",
    "ClaimLogs",
    "Covers",
    "Entry",
    "GroupRecords",
    "KeyedPosts",
    "Ledger",
    "Messages",
    "Names",
    "OffsetRecords",
    "Records",
    "Store",
    "StoreClock",
    "change_record",
]


@dataclass(kw_only=True, eq=False)
class Store(ABC):
    """An open backend: its contracts, and calls that concern the store as a whole.

    Attributes:
        catalogue, messages, keyed_posts, names, bulk, applications: Contracts.
        offsets, groups, ledger, records, claim_logs, covers, clock: Further contracts.
        name: ``sqlite`` or ``cassandra``.
        waits_for_network: Reads mostly wait for the network, so concurrent reads are faster than sequential ones.
        readers: Max concurrent reads of the store; further reads wait.
        ids_follow_clocks: True if every new id is above ``clock`` minus ``clock_difference``. False if every new id is
            above the horizon of each page read before.
    """

    catalogue: Catalogue
    messages: Messages
    keyed_posts: KeyedPosts
    names: Names
    bulk: Bulk
    applications: Applications
    offsets: OffsetRecords
    groups: GroupRecords
    ledger: Ledger
    records: Records
    claim_logs: ClaimLogs
    covers: Covers
    clock: StoreClock

    name: ClassVar[str]
    waits_for_network: ClassVar[bool] = False
    readers = 1 << 16
    ids_follow_clocks = False

    @property
    def clock_difference(self) -> float:
        """Max seconds by which the clocks of two processes differ (S)."""
        return 1.0

    async def identity(self) -> str:
        """Returns the id of this store: 32 hex digits. The first call creates it, and it never changes.

        A copy of the store's files has the same identity.
        """
        return await self.ledger.identity()

    @abstractmethod
    async def ping(self) -> None:
        """Checks that the backend can write and read.

        Raises:
            StoreUnavailable: The backend cannot write or read; the message says why.
        """

    @abstractmethod
    def close(self, timeout: float = 10.0) -> None:
        """Finishes accepted writes and closes the store. Afterwards every call raises ``StoreClosed``.

        Blocks. Idempotent. Writes still waiting after ``timeout`` seconds are refused with outcome ``none`` or
        ``unknown``.
        """

    @abstractmethod
    def adopt(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """Sets the event loop on which most calls are awaited, so that the store can use it. None when the loop ends.

        Must be called in the loop's thread.
        """

    @abstractmethod
    async def acknowledgement(self) -> Acknowledgement:
        """Describes what an acknowledged write guarantees with this store's configuration."""

    @abstractmethod
    def guarantee(self, queue: Queue) -> str:
        """Returns a sentence about the guarantees for a queue with its consistency level."""

    @abstractmethod
    def read_delay(self, queue: Queue) -> float:
        """Returns how far range reads of a queue stay behind the clock (seconds)."""

    @abstractmethod
    async def statistics(self) -> dict[str, float]:
        """Returns counters and gauges of the store, by Prometheus name without prefix."""
