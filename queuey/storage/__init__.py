"""The storage contracts. SQLite and Cassandra implement them; one contract suite runs on both.

A :class:`Store` is twelve small contracts over one connection: :class:`Catalogue` (queues), :class:`Messages`,
:class:`KeyedPosts`, :class:`Names`, :class:`Bulk`, :class:`Applications` (and their keys), :class:`Offsets`,
:class:`ConsumerGroups`, :class:`Ledger`, :class:`Records`, :class:`ClaimLogs` and :class:`Covers`. A message is always
named by ``(queue.qid, partition, position)``, and every read is bounded by a horizon that the store reports.

Rules for every implementation:

* All methods may be called from any thread. Each either has its whole effect or none, unless its docstring says less.
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

from abc import abstractmethod
from typing import TYPE_CHECKING

from queuey.storage.contracts import never_waits
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
    "ConsumerGroups",
    "Ledger",
    "Messages",
    "Offsets",
    "Records",
    "Store",
    "exchange",
]

IDENTITY = "identity of the store"
"""Name of the ledger's work that holds it."""


class Store(
    Catalogue,
    Messages,
    KeyedPosts,
    Names,
    Bulk,
    Applications,
    Offsets,
    ConsumerGroups,
    Ledger,
    Records,
    ClaimLogs,
    Covers,
):
    """One backend, open."""

    name: str
    """``sqlite`` or ``cassandra``."""

    @abstractmethod
    def identity(self) -> str:
        """Returns the id of this store: 32 hex digits, made at the first call and kept for ever.

        A copy of the store's files has the identity of the original.
        """

    @abstractmethod
    def ping(self) -> None:
        """Proves that the backend can write and read.

        Raises:
            StoreUnavailable: It cannot; the message says why.
        """

    @abstractmethod
    def close(self, timeout: float = 10.0) -> None:
        """Finishes the writes that were accepted, then closes; afterwards every call raises ``StoreClosed``.

        Idempotent. Writes still waiting after ``timeout`` seconds are refused with outcome ``none`` or ``unknown``.
        """

    @never_waits
    def adopt(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """Names the event loop in whose thread calls are begun, so that a store may use it; None at its end.

        It is called in that thread. The default does nothing: calls that are begun call back from any thread.
        """

    @abstractmethod
    def acknowledgement(self) -> Acknowledgement:
        """Returns the meaning of an acknowledged write on this store as it is configured."""

    @never_waits
    @abstractmethod
    def guarantee(self, queue: Queue) -> str:
        """Returns a sentence on the guarantees for a queue of its consistency level on this store."""

    @never_waits
    @abstractmethod
    def read_delay(self, queue: Queue) -> float:
        """Returns the seconds by which a range read stays behind the clock for this queue."""

    @abstractmethod
    def statistics(self) -> dict[str, float]:
        """Returns counters and gauges of the store's work, by Prometheus-style name without prefix."""
