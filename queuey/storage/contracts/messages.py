"""The contract on messages: write, read, wait."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from queuey.ids import Position
    from queuey.messages import Lag, Message, NewMessage, Page, PartitionInfo, Queue, Slice


class Messages(ABC):
    """Messages of queues, by partition and position."""

    @abstractmethod
    async def append(
        self, queue: Queue, items: Sequence[NewMessage], *, after: Position | None = None
    ) -> list[Position]:
        """Stores new messages, all or none, makes their ids, and returns their positions in the order of ``items``.

        Ids of messages without delay are above every id that this store made before for a caller that saw that call's
        answer on this process, and above ``after``. Within one call they ascend per partition in the order given.
        A delayed message's id time is its due time; it moves no generator.

        Raises:
            GivenUp: The awaiting task was cancelled; see its ``outcome``.
            InvalidRequest: ``after`` lies more than a second ahead of the clock and above every id made before; a
                partition is beyond the queue's.
            StoreUnavailable: See its ``outcome``.
        """

    def write_within(self, queue: Queue) -> float:  # noqa: ARG002 - the default
        """Returns the seconds in which an append is acknowledged or undone (``WriteUndone``); 0: none is undone."""
        return 0.0

    @abstractmethod
    async def put(self, queue: Queue, locations: Sequence[tuple[int, Position]], item: NewMessage) -> None:
        """Writes one body at the given ids, creating or overwriting each.

        All or none where a store writes to several ids at once (capability ``whole_puts``). Elsewhere each id is
        written alone: after an error with outcome ``unknown`` some ids may have the new message and some the old one.
        Repeating the call is safe.

        The TTL counts from now, or from the id's time if that is later; ``item.partition`` and ``item.delay`` are
        ignored. Moves no generator.

        Raises:
            InvalidRequest: A partition is beyond the queue's.
        """

    @abstractmethod
    async def fetch(
        self, queue: Queue, locations: Sequence[tuple[int, Position]], *, kept: bool = False
    ) -> list[Message]:
        """Returns the live messages at these ids, in the order asked, missing ones left out.

        No read delay applies and delayed messages are found. ``kept``: so are messages that have ended and whose rows
        are there.
        """

    @abstractmethod
    async def delete(self, queue: Queue, locations: Iterable[tuple[int, Position]]) -> int:
        """Deletes messages by id; returns how many existed (on stores that do not know it: how many ids)."""

    @abstractmethod
    async def read(self, queue: Queue, slices: Sequence[Slice]) -> list[Page]:
        """Reads slices, one page each, all under one horizon sampled before the first of them.

        All pages together have no more bytes than the sum of the slices' ``max_bytes``, not counting the last message.
        When some have as many, others are put off (:meth:`~queuey.messages.Slice.put_off`); never the first slice.

        **G1**: for any cursor taken from a page with ``delayed=True``, an acknowledged message below it (of a POST, not
        put) was shown by that page or an earlier one of the chain. The bound is part of the query, never applied
        after the limit. Partitions beyond the queue's give empty pages.
        """

    exact_horizon = False
    """True if all messages acknowledged before a read lie below that read's horizon, without a read delay."""

    @abstractmethod
    async def inspect(self, queue: Queue, *, rough: bool = False) -> tuple[int, list[PartitionInfo]]:
        """Returns the horizon (ticks) and the info of each partition, 1 to N. Cost: bounded per partition.

        ``rough``: counts may be estimates from a small part of the messages, where counting takes long.
        """

    @abstractmethod
    async def lag(self, queue: Queue, offsets: Sequence[tuple[int, Position | None]]) -> list[Lag]:
        """Estimates the messages above each offset and below the horizon; None means from the beginning."""

    @abstractmethod
    def watch(
        self, queue: Queue, partition: int, wake: Callable[[], None], *, delayed: bool = True, early: bool = False
    ) -> Callable[[], None]:
        """Calls ``wake`` whenever a read of a partition may show messages that it did not show before. Never blocks.

        It is called for messages acknowledged after this call, and for those that come due: at once if this process
        stores them, or one that shares its news with this one (:meth:`share_news`), else within 0.25 s; later if more
        partitions are watched than the store can poll so often. So a caller watches, reads, and waits if the read gave
        nothing. It is also called when the queue's row is out of date, and when the store is closed: the next read
        shows that. It may be called for nothing, and it need not be for a message that another process puts at an id
        below the horizon.

        Args:
            queue: The queue.
            partition: One that it has; for others ``wake`` is never called.
            wake: Called from any thread, any number of times; it must be quick and must not raise.
            delayed: The reads keep the queue's read delay.
            early: Some reads keep it, and others do not: it is called twice for a message. Where processes do not
                notify each other, the first call comes mostly within 0.15 s.

        Returns:
            A function that ends the watch. ``wake`` may be called once more while that runs.
        """

    @abstractmethod
    def share_news(self, stored: Callable[[int, Collection[int]], None], wanted: Callable[[], None]) -> None:
        """Calls ``stored`` for messages that this process stores, to be given to :meth:`hear_news` in other processes.

        Args:
            stored: Called from any thread with a moment and the numbers of partitions, which only stores understand.
                It must be quick and must not raise.
            wanted: Called, likewise, when a partition is watched after none was.
        """

    @abstractmethod
    def hear_news(self, moment: int, partitions: Iterable[int]) -> bool:
        """Wakes the watchers of partitions in which another process of this machine has stored messages.

        Returns whether any partition is watched.
        """
