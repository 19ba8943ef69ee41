"""The contract of messages: writing, reading and waiting."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from queuey.model.ids import Position
    from queuey.model.messages import Lag, Message, NewMessage, Page, PartitionBounds, Queue, Slice
    from queuey.storage.partition_watches import Wake


class Messages(ABC):
    """Messages of queues, by partition and position."""

    @abstractmethod
    async def append(
        self, queue: Queue, items: Sequence[NewMessage], *, after: Position | None = None
    ) -> list[Position]:
        """Stores new messages with new ids, all or none. Returns their positions in the order of ``items``.

        Ids of messages without delay are above ``after``, and above every id of an append that returned on this process
        before this call. Within one call they ascend per partition in the order of ``items``. The id of a delayed
        message has its due time; it does not move the id generator.

        Raises:
            GivenUp: The awaiting task was cancelled; see its ``outcome``.
            InvalidRequest: ``after`` is more than a second ahead of the clock and above every id made before, or the
                queue does not have a partition.
            StoreUnavailable: See its ``outcome``.
        """

    def write_within(self, queue: Queue) -> float:  # noqa: ARG002 - the default
        """Returns the seconds within which an append is acknowledged or undone (``WriteUndone``); 0: never undone."""
        return 0.0

    @abstractmethod
    async def put(self, queue: Queue, locations: Sequence[tuple[int, Position]], item: NewMessage) -> None:
        """Writes one body at each of the given ids, creating or overwriting messages.

        With the capability ``whole_puts`` all ids are written or none. Without it each id is written separately: after
        an error with outcome ``unknown`` some ids may have the new message and others the old one. Repeating the call
        is safe.

        The TTL counts from now, or from the id's time if that is later. ``item.partition`` and ``item.delay`` are
        ignored. Id generators do not move.

        Raises:
            InvalidRequest: The queue does not have a partition.
        """

    @abstractmethod
    async def fetch(
        self, queue: Queue, locations: Sequence[tuple[int, Position]], *, kept: bool = False
    ) -> list[Message]:
        """Returns the live messages at these ids, in the order of ``locations``. Missing messages are left out.

        No read delay applies, and delayed messages are included. With ``kept`` expired messages are included too if
        their rows still exist.
        """

    @abstractmethod
    async def delete(self, queue: Queue, locations: Iterable[tuple[int, Position]]) -> int:
        """Deletes messages by id. Returns how many existed; a store that cannot tell returns the number of ids."""

    @abstractmethod
    async def read(self, queue: Queue, slices: Sequence[Slice]) -> list[Page]:
        """Reads slices, one page each, all below one horizon that is sampled before the first read.

        All pages together have at most the sum of the slices' ``max_bytes``, not counting the last message. Once they
        have that many bytes, the remaining slices are put off
        (:meth:`~queuey.model.messages.Slice.make_postponed_page`). The first slice never is.

        **G1**: every acknowledged message of an append below a cursor from a page that keeps the read delay was shown
        by that page or an earlier page of the chain. (This does not hold for puts.) The horizon is part of the query
        and is never applied after the limit. Partitions that the queue does not have give empty pages.
        """

    exact_horizon = False
    """True if, without a read delay, all messages acknowledged before a read lie below that read's horizon."""

    @abstractmethod
    async def inspect(self, queue: Queue, *, rough: bool = False) -> tuple[int, list[PartitionBounds]]:
        """Returns the horizon (ticks) and the info of each partition, 1 to N. Cost: bounded per partition.

        With ``rough``, counts that take long may be estimated from a sample of the messages.
        """

    @abstractmethod
    async def lag(self, queue: Queue, offsets: Sequence[tuple[int, Position | None]]) -> list[Lag]:
        """Estimates the number of messages above each offset and below the horizon. None stands for the beginning."""

    @abstractmethod
    def watch(
        self, queue: Queue, partition: int, wake: Wake, *, keeps_read_delay: bool = True, early: bool = False
    ) -> Callable[[], None]:
        """Calls ``wake`` whenever a read of a partition may show new messages. Never blocks.

        ``wake`` is called for messages acknowledged after this call and for messages that become due. The call comes at
        once if this process, or one connected by :meth:`share_news`, stores the message. Otherwise it comes within
        0.25 s, or later if more partitions are watched than the store can poll that often. So a caller first watches,
        then reads, and waits if the read returned nothing.

        ``wake`` is also called when the queue's row is out of date and when the store is closed; the next read raises
        the error. It may be called without new messages. It may not be called for a message that another process puts
        at an id below the horizon.

        Args:
            queue: The queue.
            partition: A partition of the queue; for other numbers ``wake`` is never called.
            wake: Called from any thread, any number of times. It must be quick and must not raise.
            keeps_read_delay: The reads keep the queue's read delay.
            early: Some reads keep the read delay and others do not, so ``wake`` is called twice for a message. If
                processes do not notify each other, the first call usually comes within 0.15 s.

        Returns:
            A function that ends the watch. ``wake`` may be called once more while it runs.
        """

    @abstractmethod
    def share_news(self, stored: Callable[[int, Collection[int]], None], wanted: Callable[[], None]) -> None:
        """Calls ``stored`` for messages that this process stores, so that other processes can call :meth:`hear_news`.

        Args:
            stored: Called from any thread with the arguments for :meth:`hear_news`; only stores interpret them. It must
                be quick and must not raise.
            wanted: Called in the same way when the first watch is added.
        """

    @abstractmethod
    def hear_news(self, moment: int, partitions: Iterable[int]) -> bool:
        """Wakes the watches of partitions in which another process on this machine has stored messages.

        Args:
            moment: First argument of ``stored`` in the other process.
            partitions: Second argument of ``stored``.

        Returns:
            Whether any partition is watched.
        """
