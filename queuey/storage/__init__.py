"""The storage contracts. SQLite and Cassandra implement them; one contract suite runs on both.

A :class:`Store` is twelve small contracts over one connection: :class:`Catalogue` (queues), :class:`Messages`,
:class:`KeyedPosts`, :class:`Names`, :class:`Bulk`, :class:`Applications` (and their keys), :class:`Offsets`,
:class:`ConsumerGroups`, :class:`Ledger`, :class:`Records`, :class:`ClaimLogs` and :class:`Covers`. A message is always
named by ``(queue.qid, partition, position)``, and every read is bounded by a horizon that the store reports.

Rules for every implementation:

* Calls that take time are coroutines. They may be awaited on any event loop, and any thread may run them to their end
  by :mod:`.bridge`; the other methods never wait. Each call either has its whole effect or none, unless its docstring
  says less.
* No call waits longer than the store's configured deadline, whatever it waits for; those of :class:`Bulk` may take as
  long as there is something to be done, but wait no longer than that for any one step.
* Failures of the backend surface as :class:`~queuey.errors.StoreUnavailable` (or a child) and as nothing else, the
  cause kept with ``from``. After the backend has come back the same store object works again.
* Positions are ordered as in :mod:`queuey.ids`. No expired message is ever returned, whether swept or not.
* Calls that take a :class:`~queuey.messages.Queue` raise :class:`~queuey.errors.QueueChanged`, with no effect, when
  that row is out of date in a way that matters: the queue is gone, was purged, or has other fields. Never do they
  act on messages of a purged or deleted queue.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from queuey.storage.contracts.bulk import Bulk
from queuey.storage.contracts.catalogue import Applications, Catalogue
from queuey.storage.contracts.claim_logs import ClaimLogs
from queuey.storage.contracts.covers import Covers
from queuey.storage.contracts.groups import ConsumerGroups
from queuey.storage.contracts.keyed_posts import KeyedPosts
from queuey.storage.contracts.messages import Messages
from queuey.storage.contracts.names import Names
from queuey.storage.contracts.progress import LEDGER_TTL, Ledger, Offsets, exchange
from queuey.storage.contracts.records import Records

if TYPE_CHECKING:
    import asyncio

    from queuey.messages import Acknowledgement, Queue

__all__ = [
    "IDENTITY",
    "LEDGER_TTL",
    "Applications",
    "Bulk",
    "Catalogue",
    "ClaimLogs",
    "ConsumerGroups",
    "Covers",
    "KeyedPosts",
    "Ledger",
    "Messages",
    "Names",
    "Offsets",
    "Records",
    "Store",
    "exchange",
]

IDENTITY = "identity of the store"
"""Name of the ledger's work that holds it."""


@dataclass(kw_only=True, eq=False)
class Store(ABC):
    """One backend, open: its contracts, and what concerns all of it.

    Attributes:
        catalogue, messages, keyed_posts, names, bulk, applications: Contracts.
        offsets, groups, ledger, records, claim_logs, covers: Further contracts.
        name: ``sqlite`` or ``cassandra``.
        waits_for_network: A read mostly waits, so that many of them at once are faster than one after the other.
        readers: Max reads that the store does at the same time; further ones wait until one of them has ended.
        ids_follow_clocks: Every id made from now on lies above ``claim_time()`` less the largest difference of clocks.
            Else it lies above the horizon of each page read before.
    """

    catalogue: Catalogue
    messages: Messages
    keyed_posts: KeyedPosts
    names: Names
    bulk: Bulk
    applications: Applications
    offsets: Offsets
    groups: ConsumerGroups
    ledger: Ledger
    records: Records
    claim_logs: ClaimLogs
    covers: Covers

    name: ClassVar[str]
    waits_for_network: ClassVar[bool] = False
    readers = 1 << 16
    ids_follow_clocks = False

    @property
    def clock_difference(self) -> float:
        """Max seconds by which the clocks of two processes differ (S)."""
        return 1.0

    @abstractmethod
    async def identity(self) -> str:
        """Returns the id of this store: 32 hex digits, made at the first call and kept for ever.

        A copy of the store's files has the identity of the original.
        """

    @abstractmethod
    async def ping(self) -> None:
        """Proves that the backend can write and read.

        Raises:
            StoreUnavailable: It cannot; the message says why.
        """

    @abstractmethod
    def close(self, timeout: float = 10.0) -> None:
        """Finishes the writes that were accepted, then closes; afterwards every call raises ``StoreClosed``.

        Idempotent; it blocks. Writes still waiting after ``timeout`` seconds are refused with outcome ``none`` or
        ``unknown``.
        """

    @abstractmethod
    def adopt(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """Names the event loop on which most calls are awaited, so that a store may use it; None at its end.

        It is called in that loop's thread.
        """

    @abstractmethod
    async def acknowledgement(self) -> Acknowledgement:
        """Returns the meaning of an acknowledged write on this store as it is configured."""

    @abstractmethod
    def guarantee(self, queue: Queue) -> str:
        """Returns a sentence on the guarantees for a queue of its consistency level on this store."""

    @abstractmethod
    def read_delay(self, queue: Queue) -> float:
        """Returns the seconds by which a range read stays behind the clock for this queue."""

    @abstractmethod
    async def statistics(self) -> dict[str, float]:
        """Returns counters and gauges of the store's work, by Prometheus-style name without prefix."""
