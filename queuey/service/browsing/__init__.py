"""Use cases for people who look at a queue: scans for messages, and what dead letters have in common.

Everything here reads, and one call reads no more than its caller says. Calls block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from queuey import ids
from queuey.ids import Position
from queuey.messages import Message, body_bytes
from queuey.service.browsing.failures import Failures, by_reason, grouped
from queuey.service.browsing.wanted import Wanted
from queuey.service.queue_access import QueueAccess
from queuey.service.ranges import Range, Reading, mark_of, parse_bound
from queuey.service.reading import Reader

__all__ = ["Browsing", "Failures", "Found", "Sizes", "Wanted", "by_reason", "short_cursor"]

MAX_SCANNED = 500
"""Messages that one step of a scan reads; a page of so many bytes as a read may have ends it sooner."""
MAX_SAMPLED = 100
"""Messages whose sizes stand for those of a queue, and dead letters whose reasons do."""


class Found:
    """What one step of a scan found.

    Attributes:
        messages: Those that match, newest first.
        scanned: How many were looked at.
        cursor: Where the next step begins, in few characters; blank: all were looked at.
        reached: Ticks of the last message that was looked at; None: there was none.
    """

    def __init__(self, messages: list[Message], scanned: int, cursor: str, reached: int | None) -> None:
        self.messages = messages
        self.scanned = scanned
        self.cursor = cursor
        self.reached = reached


class Sizes:
    """The bytes of a sample of messages' bodies.

    Attributes:
        count: Messages in the sample.
        total: Bytes of their bodies.
    """

    def __init__(self, messages: Sequence[Message]) -> None:
        self.count = len(messages)
        self.total = sum(body_bytes(message.body) for message in messages)

    def of(self, count: int) -> int:
        """Returns about how many bytes so many messages have."""
        return self.total if count <= self.count else round(self.total / max(1, self.count) * count)


class Browsing:
    """Looks at the messages of queues, newest first.

    Args:
        reader: Reads ranges.
    """

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def scan(
        self,
        access: QueueAccess,
        wanted: Wanted,
        *,
        partitions: tuple[int, ...] | None,
        since: str,
        limit: int,
        upcoming: bool = False,
    ) -> Found:
        """Does one step of a scan.

        Args:
            access: The way to the queue: its caller may read.
            wanted: Which messages are looked for.
            partitions: Where; None: in all.
            since: An id, an instant, or the cursor of the step before; blank: from the newest message on.
            limit: Messages to look at, at most.
            upcoming: Look at delayed messages that are not due instead, the next one first.

        Raises:
            ValueError: ``since`` is none of these.
        """
        reading = self._reader.read(
            access,
            Range(
                partitions=partitions,
                limit=min(limit, MAX_SCANNED),
                descending=not upcoming,
                since=parse_bound(since),
                after=mark_of((self._reader.now(), ids.LOW_MAX)) if upcoming else None,
                delayed=False,
                due=not upcoming,
                merge=True,
            ),
        )
        messages = [message for message in reading.messages if wanted.takes(message)]
        reached = reading.messages[-1].ticks if reading.messages else None
        return Found(messages, len(reading.messages), short_cursor(reading, nearest=min if upcoming else max), reached)

    def neighbours(self, access: QueueAccess, partition: int, position: Position) -> tuple[str | None, str | None]:
        """Returns the ids of the messages before and after one in its partition, whether they are due or not."""
        mark = mark_of(position)

        def nearest(**bounds: Any) -> str | None:  # noqa: ANN401 - fields
            wanted = Range(partitions=(partition,), limit=1, delayed=False, due=False, bodies=False, **bounds)
            found = self._reader.read(access, wanted).messages
            return found[0].id if found else None

        return nearest(descending=True, before=mark), nearest(after=mark)

    def sizes(self, access: QueueAccess) -> Sizes:
        """Returns the sizes of a queue's newest messages."""
        return Sizes(self._newest(access))

    def failures(self, access: QueueAccess) -> Failures:
        """Groups the newest messages of a queue of dead letters by why they are there."""
        return grouped(self._newest(access), access.queue.name)

    def _newest(self, access: QueueAccess) -> Sequence[Message]:
        wanted = Range(partitions=None, limit=MAX_SAMPLED, descending=True, delayed=False, merge=True)
        return self._reader.read(access, wanted).messages


def short_cursor(reading: Reading, nearest: Callable[[Iterable[Position]], Position]) -> str:
    """Returns where to go on after a reading of several partitions: mostly one id in place of one for each of them.

    No partition has anything unread between the last message and the nearest of the positions to go on from, so all may
    go on from there. Those are named beside it that have an unread message with the very id of the last one.

    Args:
        reading: What was read, in order.
        nearest: ``max`` if it descends, ``min`` if not.
    """
    if not reading.more or not reading.messages:
        return reading.cursor if reading.more else ""
    last = reading.messages[-1].position
    left = {number: at for number, at in reading.next.items() if at is not None}
    beyond = [at for at in left.values() if at != last]
    common = [ids.to_hex(nearest(beyond))] if beyond else []
    return ",".join(common + [f"{number}:{ids.to_hex(last)}" for number, at in left.items() if at == last])
