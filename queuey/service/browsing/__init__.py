"""Use cases for people who look at a queue: scans for messages, and causes of dead letters.

All only read, each call no more than its caller allows. Calls block.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from queuey import ids
from queuey.deadletters import DeadLetter, shape_of, stored_dead_letter
from queuey.ids import Position
from queuey.messages import Message, Meta, body_bytes
from queuey.service.queue_access import QueueAccess
from queuey.service.ranges import Range, Reading, mark_of, parse_bound
from queuey.service.reading import Reader
from queuey.terminal.task_calls import shown_call

__all__ = ["Browsing", "Failures", "Found", "Sizes", "Wanted", "by_reason", "short_cursor"]

MAX_SCANNED = 500
"""Max messages that one step of a scan reads; a page's bytes may end it sooner."""
MAX_SAMPLED = 100
"""Max messages in a sample of sizes, and of dead letters."""

NOTHING = Meta()
MAX_SHAPED = 500
"""Max characters of an error's text that count."""


class Found:
    """Result of one step of a scan.

    Attributes:
        messages: Matches, newest first.
        scanned: How many were read.
        cursor: Start of the next step, short; blank: all were read.
        reached: Ticks of the last message that was read; None: there was none.
    """

    def __init__(self, messages: list[Message], scanned: int, cursor: str, reached: int | None) -> None:
        self.messages = messages
        self.scanned = scanned
        self.cursor = cursor
        self.reached = reached


class Sizes:
    """Bodies in a sample of messages.

    Attributes:
        count: Messages in the sample.
        total: Bytes of their bodies.
    """

    def __init__(self, messages: Sequence[Message]) -> None:
        self.count = len(messages)
        self.total = sum(body_bytes(message.body) for message in messages)

    def of(self, count: int) -> int:
        """Estimates the bytes of ``count`` messages."""
        return self.total if count <= self.count else round(self.total / max(1, self.count) * count)


class Browsing:
    """Looks at the messages of queues, newest first."""

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
        """Runs one step of a scan.

        Args:
            access: The way to the queue: its caller may read.
            wanted: Selects messages.
            partitions: None: all.
            since: An id, an instant, or the cursor of the step before; blank: from the newest message on.
            limit: Max messages to read.
            upcoming: Read delayed messages that are not due instead, the next one first.

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
        return Sizes(self._newest(access))

    def tasks(self, access: QueueAccess) -> tuple[Counter[str], int]:
        """Counts the newest messages by the task that they call; returns the number of all of them, too."""
        messages = self._newest(access)
        calls = (shown_call(message.body) for message in messages if message.meta is not None and message.meta.json)
        return Counter(call.task for call in calls if call is not None), len(messages)

    def failures(self, access: QueueAccess) -> Failures:
        """Groups the newest messages of a queue of dead letters by their reasons."""
        return grouped(self._newest(access), access.queue.name)

    def _newest(self, access: QueueAccess) -> Sequence[Message]:
        wanted = Range(partitions=None, limit=MAX_SAMPLED, descending=True, delayed=False, merge=True)
        return self._reader.read(access, wanted).messages


def short_cursor(reading: Reading, nearest: Callable[[Iterable[Position]], Position]) -> str:
    """Returns the start of the next step after a reading of several partitions: mostly one id in place of one for each.

    No partition has unread messages between the last message and the nearest of the next positions, so all may
    go on from there. Partitions that have an unread message with the very id of the last one are named beside it.
    ``nearest`` is ``max`` for a descending reading, else ``min``.
    """
    if not reading.more or not reading.messages:
        return reading.cursor if reading.more else ""
    last = reading.messages[-1].position
    left = {number: at for number, at in reading.next.items() if at is not None}
    beyond = [at for at in left.values() if at != last]
    common = [ids.to_hex(nearest(beyond))] if beyond else []
    return ",".join(common + [f"{number}:{ids.to_hex(last)}" for number, at in left.items() if at == last])


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """Conditions for a message; blank fields do not count.

    Attributes:
        text: In its body, in any case. A body of bytes has the UTF-8 of the text, as it is.
        header: The name of one of its headers.
        value: In the value of that header; without ``header``: in that of any header.
        key: Its key, in an ordered queue.
    """

    text: str = ""
    header: str = ""
    value: str = ""
    key: str = ""

    @property
    def anything(self) -> bool:
        """True if every message matches."""
        return not (self.text or self.header or self.value or self.key)

    def takes(self, message: Message) -> bool:
        meta = message.meta or NOTHING
        if self.key and meta.key != self.key:
            return False
        if (self.header or self.value) and not self._has_header(meta):
            return False
        return not self.text or _holds(message.body, self.text)

    def _has_header(self, meta: Meta) -> bool:
        name, value = self.header.lower(), self.value
        return any(name in {"", given} and value in held for given, held in meta.headers)


def _holds(body: str | bytes, text: str) -> bool:
    if isinstance(body, bytes):
        return text.encode("utf-8", "surrogatepass") in body
    return text.lower() in body.lower()


class Failure(msgspec.Struct, frozen=True):
    """Dead letters with one reason.

    Attributes:
        queue: Where they came from.
        error: Class of the last error.
        shape: The common form of the errors' texts.
        count: Number in the sample.
        latest: When the last of them was given up, in seconds since 1970.
        partition, id: Place of that one.
    """

    queue: str
    error: str
    shape: str
    count: int
    latest: float
    partition: int
    id: str


class Failures(msgspec.Struct, frozen=True):
    """A sample of a queue of dead letters.

    Attributes:
        lies_in: The queue.
        sampled: Messages in the sample, the newest ones.
        unknown: Those without a reason.
        groups: The most frequent reason first.
    """

    lies_in: str
    sampled: int
    unknown: int
    groups: list[Failure]


def grouped(messages: Iterable[Message], lies_in: str) -> Failures:
    groups: dict[tuple[str, str, str], list[DeadLetter]] = {}
    sampled = unknown = 0
    for message in messages:
        sampled += 1
        one = stored_dead_letter(message, lies_in)
        if one is None:
            unknown += 1
            continue
        key = (one.queue, one.cause.error, shape_of(one.cause.text[:MAX_SHAPED]))
        groups.setdefault(key, []).append(one)
    found = [_failure(key, letters) for key, letters in groups.items()]
    return Failures(lies_in, sampled, unknown, sorted(found, key=lambda each: (-each.count, -each.latest)))


def by_reason(samples: Iterable[Failures]) -> list[list[tuple[str, Failure]]]:
    """Merges failures of one reason, each with its queue of dead letters; the most frequent reason first."""
    reasons: dict[tuple[str, str], list[tuple[str, Failure]]] = {}
    for sample in samples:
        for one in sample.groups:
            reasons.setdefault((one.error, one.shape), []).append((sample.lies_in, one))
    return sorted(reasons.values(), key=lambda some: -sum(one.count for _, one in some))


def _failure(key: tuple[str, str, str], letters: list[DeadLetter]) -> Failure:
    last = max(letters, key=lambda one: one.cause.at)
    return Failure(*key, len(letters), last.cause.at, last.stored_partition, last.stored_id)
