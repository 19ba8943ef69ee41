"""Use cases of the console: searches for messages, and causes of dead letters.

They only read, each call at most a given number of messages, and work on them in a thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec

from queuey.access.queue_access import QueueAccess
from queuey.messages.range_reads import Reader
from queuey.messages.ranges import RangeAnswer, RangeRequest, make_mark, parse_bound
from queuey.model import ids
from queuey.model.deadletters import DeadLetter, decode_stored_dead_letter, generalize_error_text
from queuey.model.ids import Position
from queuey.model.messages import Message, Meta, body_bytes
from queuey.model.task_calls import find_call
from queuey.runtime.event_loop import Core

__all__ = ["Browsing", "Failures", "MessageFilter", "SearchStep", "Sizes", "group_by_reason", "make_short_cursor"]

T = TypeVar("T")

MAX_SCANNED = 500
"""Max messages that one step of a scan reads; the byte limit of a page may end it sooner."""
MAX_SAMPLED = 100

NO_META = Meta()
MAX_COMPARED_LENGTH = 500
"""Max characters of an error's text that are compared."""


class SearchStep:
    """Result of one step of a scan.

    Attributes:
        messages: Matches, newest first.
        scanned: Number of messages that were read.
        cursor: Start of the next step; blank after the last one.
        reached: Ticks of the last message that was read, or None if no message was read.
    """

    def __init__(self, messages: list[Message], scanned: int, cursor: str, reached: int | None) -> None:
        self.messages = messages
        self.scanned = scanned
        self.cursor = cursor
        self.reached = reached


class Sizes:
    """Sizes of the bodies in a sample of messages.

    Attributes:
        count: Messages in the sample.
        total: Total bytes of their bodies.
    """

    def __init__(self, messages: Sequence[Message]) -> None:
        self.count = len(messages)
        self.total = sum(body_bytes(message.body) for message in messages)

    def estimate_bytes(self, count: int) -> int:
        return self.total if count <= self.count else round(self.total / max(1, self.count) * count)


class Browsing:
    """Searches and samples the messages of queues, newest first."""

    def __init__(self, reader: Reader, core: Core) -> None:
        self._reader = reader
        self._core = core

    async def scan(
        self,
        access: QueueAccess,
        message_filter: MessageFilter,
        *,
        partitions: tuple[int, ...] | None,
        since: str,
        limit: int,
        upcoming: bool = False,
    ) -> SearchStep:
        """Runs one step of a scan.

        Args:
            access: The queue, for a caller that may read it.
            message_filter: Selects messages.
            partitions: Partitions to read; None means all.
            since: An id, an instant, or the cursor of the previous step; blank starts at the newest message.
            limit: Max messages to read; never more than ``MAX_SCANNED``.
            upcoming: Read delayed messages that are not due instead, the next one first.

        Raises:
            ValueError: ``since`` is not an id, an instant or a cursor.
        """
        requested = RangeRequest(
            partitions=partitions,
            limit=min(limit, MAX_SCANNED),
            descending=not upcoming,
            since=parse_bound(since),
            after=make_mark((self._reader.now(), ids.LOW_MAX)) if upcoming else None,
            keeps_read_delay=False,
            due=not upcoming,
            merge=True,
        )
        reading = await self._reader.read(access, requested)
        messages = reading.messages
        if not message_filter.matches_all:
            matching = filter(message_filter.matches, reading.messages)
            messages = await self._core.in_thread(lambda: list(matching))
        reached = reading.messages[-1].ticks if reading.messages else None
        cursor = make_short_cursor(reading, nearest=min if upcoming else max)
        return SearchStep(messages, len(reading.messages), cursor, reached)

    async def find_neighbours(
        self, access: QueueAccess, partition: int, position: Position
    ) -> tuple[str | None, str | None]:
        mark = make_mark(position)

        async def nearest(**bounds: Any) -> str | None:  # noqa: ANN401 - fields
            single = RangeRequest(
                partitions=(partition,), limit=1, keeps_read_delay=False, due=False, bodies=False, **bounds
            )
            messages = (await self._reader.read(access, single)).messages
            return messages[0].id if messages else None

        return await nearest(descending=True, before=mark), await nearest(after=mark)

    async def sample_sizes(self, access: QueueAccess) -> Sizes:
        return await self._sample(access, Sizes)

    async def count_tasks(self, access: QueueAccess) -> tuple[Counter[str], int]:
        def count(messages: Sequence[Message]) -> tuple[Counter[str], int]:
            calls = (find_call(message.body) for message in messages if message.meta is not None and message.meta.json)
            return Counter(call.task for call in calls if call is not None), len(messages)

        return await self._sample(access, count)

    async def sample_failures(self, access: QueueAccess) -> Failures:
        return await self._sample(access, lambda messages: group_failures(messages, access.queue.name))

    async def _sample(self, access: QueueAccess, summarize: Callable[[Sequence[Message]], T]) -> T:
        newest = RangeRequest(partitions=None, limit=MAX_SAMPLED, descending=True, keeps_read_delay=False, merge=True)
        reading = await self._reader.read(access, newest)
        return await self._core.in_thread(partial(summarize, reading.messages))


def make_short_cursor(reading: RangeAnswer, nearest: Callable[[Iterable[Position]], Position]) -> str:
    """Returns a short cursor after a reading of several partitions: usually one id instead of one for each.

    No partition has unread messages between the last message and the nearest of the next positions, so all partitions
    can continue from there. Partitions with an unread message of the same id as the last one are named separately.
    ``nearest`` is ``max`` for a descending reading, else ``min``.
    """
    if not reading.more or not reading.messages:
        return reading.cursor if reading.more else ""
    last = reading.messages[-1].position
    starts = {number: start for number, start in reading.next.items() if start is not None}
    beyond = [start for start in starts.values() if start != last]
    common = [ids.to_hex(nearest(beyond))] if beyond else []
    return ",".join(common + [f"{number}:{ids.to_hex(last)}" for number, start in starts.items() if start == last])


class MessageFilter(msgspec.Struct, frozen=True, kw_only=True):
    """A filter of messages; blank fields match all messages.

    Attributes:
        text: Text in the body, regardless of case. In a body of bytes, the exact UTF-8 bytes of the text.
        header: Name of a header, regardless of case.
        value: Text in the value of that header, or of any header if ``header`` is blank. Case matters.
        key: The message's key.
    """

    text: str = ""
    header: str = ""
    value: str = ""
    key: str = ""

    @property
    def matches_all(self) -> bool:
        return not (self.text or self.header or self.value or self.key)

    def matches(self, message: Message) -> bool:
        meta = message.meta or NO_META
        if self.key and meta.key != self.key:
            return False
        if (self.header or self.value) and not self._has_header(meta):
            return False
        return not self.text or _has_text(message.body, self.text)

    def _has_header(self, meta: Meta) -> bool:
        name, value = self.header.lower(), self.value
        return any(name in {"", own_name} and value in own_value for own_name, own_value in meta.headers)


def _has_text(body: str | bytes, text: str) -> bool:
    if isinstance(body, bytes):
        return text.encode("utf-8", "surrogatepass") in body
    return text.lower() in body.lower()


class FailureCount(msgspec.Struct, frozen=True):
    """Dead letters with one reason.

    Attributes:
        queue: The queue that the messages failed in.
        error: Class of the last error.
        shape: The common form of the errors' texts.
        count: Number of dead letters in the sample.
        latest: When the last message failed for good, in seconds since 1970.
        partition, id: Location of that dead letter.
    """

    queue: str
    error: str
    shape: str
    count: int
    latest: float
    partition: int
    id: str


class Failures(msgspec.Struct, frozen=True):
    """A sample of a dead-letter queue, grouped by reason.

    Attributes:
        dead_letter_queue: Name of the dead-letter queue.
        sampled: Number of messages in the sample, which are the newest ones.
        unknown: Number of messages without a reason.
        groups: Dead letters by reason, the most frequent reason first.
    """

    dead_letter_queue: str
    sampled: int
    unknown: int
    groups: list[FailureCount]


def group_failures(messages: Iterable[Message], dead_letter_queue: str) -> Failures:
    groups: dict[tuple[str, str, str], list[DeadLetter]] = {}
    sampled = unknown = 0
    for message in messages:
        sampled += 1
        letter = decode_stored_dead_letter(message, dead_letter_queue)
        if letter is None:
            unknown += 1
            continue
        key = (letter.queue, letter.cause.error, generalize_error_text(letter.cause.text[:MAX_COMPARED_LENGTH]))
        groups.setdefault(key, []).append(letter)
    failures = [_make_failure(key, letters) for key, letters in groups.items()]
    return Failures(dead_letter_queue, sampled, unknown, sorted(failures, key=lambda f: (-f.count, -f.latest)))


def group_by_reason(samples: Iterable[Failures]) -> list[list[tuple[str, FailureCount]]]:
    reasons: dict[tuple[str, str], list[tuple[str, FailureCount]]] = {}
    for sample in samples:
        for failure in sample.groups:
            reasons.setdefault((failure.error, failure.shape), []).append((sample.dead_letter_queue, failure))
    return sorted(reasons.values(), key=lambda group: -sum(failure.count for _, failure in group))


def _make_failure(key: tuple[str, str, str], letters: list[DeadLetter]) -> FailureCount:
    last = max(letters, key=lambda letter: letter.cause.at)
    return FailureCount(*key, len(letters), last.cause.at, last.stored_partition, last.stored_id)
