"""The storage contracts. SQLite and Cassandra implement them; one contract suite runs on both.

A :class:`Store` is six small contracts over one connection: :class:`Catalogue` (queues), :class:`Messages`,
:class:`Bulk`, :class:`Applications` (and their keys), :class:`Offsets` and :class:`Ledger`. The claim log, jobs and
named messages are further contracts beside these; none of these needs to change for them, because a message is always
named by ``(queue.qid, partition, position)`` and every read is bounded by a horizon the store reports.

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

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from queuey.ids import FIRST, LAST

if TYPE_CHECKING:
    from pyarrow import RecordBatch

    from queuey.errors import Outcome
    from queuey.ids import Position
    from queuey.messages import (
        Acknowledgement,
        Key,
        Lag,
        Measure,
        Message,
        NewMessage,
        Offset,
        OffsetChange,
        Page,
        PartitionInfo,
        Queue,
        QueueSpec,
        Scope,
        Slice,
    )

IDENTITY = "identity of the store"
"""The work under which ledgers keep it."""


class Catalogue(ABC):
    """Which queues exist. All changes are linearizable per queue name."""

    @abstractmethod
    def create_queue(self, application: str, name: str, spec: QueueSpec) -> tuple[Queue, bool]:
        """Creates the queue, or finds it. Fields that ``spec`` does not give take their defaults.

        Returns:
            The queue as it stands and whether this call created it.

        Raises:
            QueueExists: It exists and a field given in ``spec`` differs. Nothing was changed.
            ApplicationNotFound: No such application.
        """

    @abstractmethod
    def queue(self, application: str, name: str, *, fresh: bool = False) -> Queue:
        """Looks a queue up, from a cache unless ``fresh``.

        The cache may be behind other processes' changes; the calls that take a queue notice that themselves.

        Raises:
            QueueNotFound: No such queue.
        """

    @abstractmethod
    def cached_queue(self, application: str, name: str) -> Queue | None:
        """Returns what :meth:`queue` would return from its cache, None where it would have to ask the backend.

        Never blocks.
        """

    @abstractmethod
    def update_queue(self, queue: Queue, changes: QueueSpec, *, clear: Iterable[str] = ()) -> Queue:
        """Changes the fields that ``changes`` gives and resets those named by ``clear`` to their defaults.

        Raises:
            InvalidRequest: ``partitions`` is lower than now (code ``InvalidUpdate``).
            QueueChanged: ``queue`` is out of date.
        """

    @abstractmethod
    def delete_queue(self, queue: Queue) -> None:
        """Deletes the queue, its messages and its offsets in O(1); space is reclaimed later.

        When it has returned, no read shows a message of it, no write to it succeeds, and the name is free.

        Raises:
            QueueChanged: ``queue`` is out of date.
        """

    @abstractmethod
    def purge_queue(self, queue: Queue) -> Queue:
        """Removes all messages in O(1), delayed ones included; fields, offsets and name stay.

        Returns:
            The queue with its new ``qid``.

        Raises:
            QueueChanged: ``queue`` is out of date.
        """

    @abstractmethod
    def list_queues(self, application: str, *, start: str = "", limit: int = 1000) -> list[Queue]:
        """Lists queues by name, ``start`` inclusive, in an order that is the same at every call.

        Cost: proportional to ``limit``, not to the number of queues.
        """


class Messages(ABC):
    """Messages of queues, by partition and position."""

    @abstractmethod
    def append(self, queue: Queue, items: Sequence[NewMessage], *, after: Position | None = None) -> list[Position]:
        """Stores new messages, all or none, and mints their ids.

        Ids of messages without delay are above every id minted before by this store for whoever saw that call's
        answer on this process, and above ``after``. Within one call they ascend per partition in the order given.
        A delayed message's id time is its due time; it moves no generator.

        Returns:
            The positions, in the order of ``items``.

        Raises:
            InvalidRequest: ``after`` lies more than a second ahead of the clock and above every id minted before; a
                partition is beyond the queue's.
            StoreUnavailable: ``outcome`` says what became of the messages.
        """

    @abstractmethod
    def begin_append(
        self,
        queue: Queue,
        items: Sequence[NewMessage],
        done: Callable[[list[Position] | None, Exception | None], None],
        *,
        after: Position | None = None,
    ) -> Callable[[], Outcome]:
        """Starts an append and returns at once; for callers that serve many requests from one thread.

        ``done`` is called once, from a thread of the store, with what ``append`` would return or raise; it must be
        quick and must not raise.

        Returns:
            A function that gives up: afterwards ``done`` is not called, and its answer says what may become of the
            messages.

        Raises:
            InvalidRequest: As in ``append``, where it shows at once; ``done`` is not called.
            StoreClosed: The store is shutting down; ``done`` is not called.
        """

    @abstractmethod
    def put(self, queue: Queue, locations: Sequence[tuple[int, Position]], item: NewMessage) -> None:
        """Writes one body at the given ids, creating or overwriting each.

        All or none where a store writes to several ids at once (capability ``whole_puts``). Elsewhere each id is
        written by itself: after an error with outcome ``unknown`` some may have the new message and the others what
        they had. Repeating the call is safe.

        The TTL counts from now, or from the id's time if that is later; ``item.partition`` and ``item.delay`` are
        ignored. Moves no generator.

        Raises:
            InvalidRequest: A partition is beyond the queue's.
        """

    @abstractmethod
    def fetch(self, queue: Queue, locations: Sequence[tuple[int, Position]]) -> list[Message]:
        """Returns the live messages at these ids, in the order asked, missing ones left out.

        No read delay applies and delayed messages are found.
        """

    @abstractmethod
    def delete(self, queue: Queue, locations: Iterable[tuple[int, Position]]) -> int:
        """Deletes messages by id and returns how many of them were there (stores that cannot tell: how many ids)."""

    @abstractmethod
    def read(self, queue: Queue, slices: Sequence[Slice]) -> list[Page]:
        """Reads slices, one page each, all under one horizon sampled before the first of them.

        **G1**: for any cursor taken from a page with ``delayed=True``, an acknowledged message below it (minted, not
        put) was shown by that page or an earlier one of the chain. The bound is part of the query, never applied
        after the limit. Partitions beyond the queue's give empty pages.
        """

    waits_for_network = False
    """Whether a read is mostly waiting, so that many of them at once are faster than one after the other."""

    def begin_read(self, queue: Queue, part: Slice, done: Callable[[Page | None, Exception | None], None]) -> bool:  # noqa: ARG002
        """Starts a read of one slice if the caller need not wait for that: for a thread that must not be held up.

        Args:
            queue: The queue.
            part: What to read.
            done: Called once, with what ``read`` would return or raise: from a thread of the store, or from this one
                before this call returns. It must be quick and must not raise.

        Returns:
            False: nothing was begun, and ``done`` is not called; ``read`` can do it.
        """
        return False

    @abstractmethod
    def inspect(self, queue: Queue) -> tuple[int, list[PartitionInfo]]:
        """Returns the horizon (ticks) and what is known of each partition, 1 to N. Cost: bounded per partition."""

    @abstractmethod
    def lag(self, queue: Queue, offsets: Sequence[tuple[int, Position | None]]) -> list[Lag]:
        """Estimates what lies above each offset and below the horizon; None means from the beginning."""

    @abstractmethod
    def watch(self, queue: Queue, partitions: Sequence[int]) -> Callable[[float], bool]:
        """Starts watching for new messages and returns a function that waits for them.

        The function takes seconds to wait at most and returns whether a read is worthwhile; it may return True for
        nothing, and it may be late by up to 0.25 s for messages stored by other processes. Messages committed after
        ``watch`` was called are noticed, so a caller watches, reads, and waits if the read gave nothing.
        """


class Bulk(ABC):
    """Whole ranges out of a store and into it, for pipelines: past the limits of single calls, in any process."""

    @abstractmethod
    def plan(
        self, queue: Queue, lower: Position = FIRST, upper: Position = LAST, *, pieces: int = 1
    ) -> tuple[int, list[Slice]]:
        """Divides what lies between two positions and below the horizon into slices to be scanned side by side.

        Args:
            queue: What to scan.
            lower: The lowest position of interest.
            upper: The lowest position above it.
            pieces: About how many slices; at least one for each partition that holds anything, of about equal size
                if messages are spread evenly over time.

        Returns:
            The horizon (ticks), and the slices by partition and position. They do not overlap.
        """

    @abstractmethod
    def scan(self, queue: Queue, part: Slice) -> Iterator[list[Message]]:
        """Reads a whole slice, in lists of at most its ``limit`` messages and about ``max_bytes``."""

    @abstractmethod
    def horizon(self, queue: Queue) -> int:
        """Returns the horizon (ticks) that a read with ``delayed=True`` would have now."""

    @abstractmethod
    def scan_arrow(self, queue: Queue, part: Slice, *, bodies: bool = True) -> Iterator[RecordBatch]:
        """Reads a whole slice as Arrow record batches of the shape in :mod:`queuey.storage.columns`.

        What ``scan`` would give, in its order, in batches of at most the slice's ``limit`` rows (a batch may be
        smaller, never empty) and about its ``max_bytes``. Ascending only.

        Args:
            queue: What to scan.
            part: The slice.
            bodies: False leaves the columns ``body`` and ``meta`` out, and does not read them where the backend can.
        """

    @abstractmethod
    def extent(self, queue: Queue, part: Slice) -> tuple[int, Position]:
        """Finds how far the first messages of an ascending slice reach, without reading bodies.

        Cost: proportional to ``limit`` at most, whatever lies below or above.

        Returns:
            How many messages were found, at most ``limit``; and the position up to which the slice was considered:
            above the last one counted, or the slice's upper bound (below the horizon) if there are fewer.
        """

    @abstractmethod
    def measure(self, queues: Sequence[Queue]) -> Iterator[list[Measure]]:
        """Measures queues, each partition that holds anything, without moving bodies out of the store's process.

        Yields:
            The measures of one queue, by partition, in the order of ``queues``; empty for a queue that is empty, gone
            or changed.
        """

    @abstractmethod
    def load(self, queue: Queue, messages: Iterable[Message]) -> int:
        """Writes messages at their own partitions and ids, with their own ends; idempotent.

        Overwrites what is at these ids. Moves no generator. After an error some of them may be written.

        Returns:
            How many were written; messages that have expired are left out.

        Raises:
            InvalidRequest: A partition is beyond the queue's.
        """

    @abstractmethod
    def load_unread(self, queue: Queue, messages: Sequence[Message]) -> int:
        """Writes messages like :meth:`load`, at ids that lie above every horizon that a reader may have been given.

        So no reader whose cursor is below them misses them (G1 holds for them as for minted ones).

        Raises:
            TooLate: The lowest of the ids is not certain to be unread, or was not any more when the write was
                acknowledged; ``written`` says which. Nothing was written in the first case.
        """


class Applications(ABC):
    """Applications and the SHA-256 hashes of their keys."""

    @abstractmethod
    def create_application(self, name: str) -> None:
        """Creates an application.

        Raises:
            ApplicationExists: It exists.
        """

    @abstractmethod
    def applications(self) -> list[str]:
        """Lists the names, sorted."""

    @abstractmethod
    def has_application(self, name: str) -> bool:
        """Tells whether the application exists; may answer from a cache that is at most 5 s old."""

    @abstractmethod
    def add_key(
        self,
        application: str,
        digest: bytes,
        *,
        expires: float | None = None,
        note: str = "",
        scope: Scope | None = None,
    ) -> Key:
        """Adds a key by its 32-byte SHA-256; adding one that the application has already gives that one.

        Args:
            application: Whose key it is; :data:`~queuey.messages.OPERATORS`, which need not be created, for an
                operator's.
            digest: Its hash.
            expires: Seconds since 1970 when it ends; None: never.
            note: What it is for.
            scope: What it is limited to; None: to nothing.

        Raises:
            ApplicationNotFound: No such application.
            Conflict: Another application has this key.
        """

    @abstractmethod
    def keys(self, application: str) -> list[Key]:
        """Lists the application's keys that are not revoked, expired ones included, oldest first."""

    @abstractmethod
    def revoke_key(self, application: str, key_id: str) -> None:
        """Removes a key; reading it finds nothing from then on.

        Raises:
            KeyNotFound: The application has no such key.
        """

    @abstractmethod
    def expire_key(self, application: str, key_id: str, expires: float) -> Key:
        """Sets when a key ends (seconds since 1970), for rotation.

        Raises:
            KeyNotFound: The application has no such key.
        """

    @abstractmethod
    def find_key(self, digest: bytes) -> Key | None:
        """Finds a key by its hash, expired ones included. Always asks the backend; callers cache."""


class Offsets(ABC):
    """How far consumer groups have processed a queue."""

    @abstractmethod
    def set_offsets(self, queue: Queue, group: str, changes: Sequence[OffsetChange]) -> list[Offset]:
        """Records offsets, each partition by its own compare-and-set.

        Returns:
            The offsets now recorded for the partitions of ``changes``.

        Raises:
            InvalidRequest: A partition is beyond the queue's.
            OffsetConflict: Some comparison failed; those partitions are unchanged, the others are set.
        """

    @abstractmethod
    def offsets(self, queue: Queue, group: str) -> list[Offset]:
        """Returns what is recorded, by partition.

        Raises:
            GroupNotFound: Nothing is recorded for the group.
        """

    @abstractmethod
    def groups(self, queue: Queue) -> list[str]:
        """Lists the groups with recorded offsets, sorted."""

    @abstractmethod
    def delete_group(self, queue: Queue, group: str) -> None:
        """Forgets a group's offsets.

        Raises:
            GroupNotFound: Nothing is recorded for the group.
        """


class Ledger(ABC):
    """Notes about pieces of work that may be done again, each changed by compare-and-set. They are kept for 30 days.

    A piece is named by ``work`` (any text up to 500 bytes) and ``piece`` (an integer from 0).
    """

    @abstractmethod
    def now(self) -> int:
        """Returns the clock that ids are compared with (ticks)."""

    @abstractmethod
    def entry(self, work: str, piece: int) -> bytes | None:
        """Returns what stands for a piece: the newest value that was ever accepted; None: nothing."""

    @abstractmethod
    def enter(self, work: str, piece: int, value: bytes, *, expected: bytes | None) -> bytes:
        """Sets what stands for a piece if ``expected`` stands there now (None: nothing does).

        Repeating it after an error is safe.

        Returns:
            What stands there afterwards: ``value``, or what another has set.

        Raises:
            Conflict: Something was expected and nothing stands there, as after 30 days.
        """


class Store(Catalogue, Messages, Bulk, Applications, Offsets, Ledger):
    """One backend, open."""

    name: str
    """``sqlite`` or ``cassandra``."""

    @abstractmethod
    def identity(self) -> str:
        """Returns what tells this store from every other: 32 hex digits, made at the first call and kept for ever.

        A copy of the store's files has the identity of what it is a copy of.
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

    @abstractmethod
    def acknowledgement(self) -> Acknowledgement:
        """Says what an acknowledged write means on this store as it is configured."""

    @abstractmethod
    def guarantee(self, queue: Queue) -> str:
        """Says in a sentence which guarantees hold for a queue of its consistency level on this store."""

    @abstractmethod
    def read_delay(self, queue: Queue) -> float:
        """Returns the seconds that a range read stays behind the clock for this queue."""

    @abstractmethod
    def statistics(self) -> dict[str, float]:
        """Returns counters and gauges of the store's work, by Prometheus-style name without prefix."""
