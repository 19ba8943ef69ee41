"""Dead letters that go back to their queues, a page at a time, each once.

A dead letter is posted under a key that names its place, and removed when that is done. So one that was sent and not
removed, as the process had ended, is not sent again by whoever repeats this within :data:`KEY_SECONDS`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec

from queuey import ids
from queuey.deadletters import DeadLetter, by_origin, shape_of
from queuey.errors import NotAllowed, NotFound, QueueChanged, QueueyError
from queuey.messages import Location, Message, Meta, PostKey, Queue
from queuey.service.browsing.failures import MAX_SHAPED, letter_of
from queuey.service.core import Core
from queuey.service.drafts import Draft, content_of
from queuey.service.messages import MessageUseCases
from queuey.service.queue_access import QueueAccess
from queuey.service.ranges import Range, parse_bound
from queuey.service.reading import Reader

PAGE = 100
KEY_SECONDS = 86_400

Enter = Callable[[str], QueueAccess]
"""Lets the caller in to the queue of a name, to send; raises NotFound and NotAllowed."""


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """Which dead letters of a queue are meant; what is blank may be anything.

    Attributes:
        queue: Where they came from.
        error: Class of the last error.
        shape: What its text has in common with others.
        place: The only one that is meant.
    """

    queue: str = ""
    error: str = ""
    shape: str = ""
    place: Location | None = None

    def takes(self, one: DeadLetter) -> bool:
        """Returns whether a dead letter is meant."""
        cause = one.cause
        if self.queue not in {"", one.queue} or self.error not in {"", cause.error}:
            return False
        return not self.shape or self.shape == shape_of(cause.text[:MAX_SHAPED])


class Found(msgspec.Struct, frozen=True):
    """A page of a queue of dead letters, the oldest first.

    Attributes:
        letters: Those that are meant.
        looked: Messages that were looked at.
        cursor: Where the next page begins; blank: there is none.
    """

    letters: list[DeadLetter]
    looked: int
    cursor: str


class SentBack(msgspec.Struct, frozen=True):
    """What became of some dead letters.

    Attributes:
        sent: By queue.
        left: Those that stay, by reason.
    """

    sent: Counter[str]
    left: Counter[str]


class Redriving:
    """Finds dead letters and sends them back; blocks.

    Args:
        messages: Stores and removes them.
        reader: Reads them; what it reads is not counted as delivered.
        core: Where coroutines run.
    """

    def __init__(self, messages: MessageUseCases, reader: Reader, core: Core) -> None:
        self._messages = messages
        self._reader = reader
        self._core = core

    def find(self, access: QueueAccess, wanted: Wanted, cursor: str = "") -> Found:
        """Looks at a page of a queue of dead letters, whose caller may read it.

        Raises:
            ValueError: ``cursor`` is none.
        """
        if wanted.place is not None:
            messages: Sequence[Message] = self._messages.fetch(access, [wanted.place], charted=False)
            following = ""
        else:
            page = Range(partitions=None, limit=PAGE, since=parse_bound(cursor), delayed=False, merge=True)
            reading = self._reader.read(access, page)
            messages, following = reading.messages, reading.cursor if reading.more else ""
        letters = (letter_of(message, access.queue.name) for message in messages)
        return Found([one for one in letters if one and wanted.takes(one)], len(messages), following)

    def send_back(self, access: QueueAccess, letters: Sequence[DeadLetter], enter: Enter) -> SentBack:
        """Sends dead letters to the ends of the partitions that they came from, and removes those that were sent.

        Args:
            access: The way to their queue: its caller may delete.
            letters: Of one page.
            enter: Lets the caller in to their queues.

        Raises:
            QueueyError: Some could not be sent; what was sent is removed.
        """
        ways, rows, left = _entered({one.queue for one in letters}, enter)
        known = [one for one in letters if one.queue in rows]
        reasons = Counter(left[one.queue] for one in letters if one.queue in left)
        going, staying = by_origin(known, rows)
        sent: Counter[str] = Counter()
        for name, indexes in going.items():
            some = [known[index] for index in indexes]
            results = self._core.use(ways[name], partial(self._post, access.queue.uid, some))
            gone = [one for one, error in zip(some, results, strict=True) if error is None]
            if gone:
                self._messages.delete(access, [_location(one) for one in gone])
            sent[name] = len(gone)
            reasons.update(str(error) for error in results if error is not None)
        return SentBack(+sent, reasons + Counter(staying.left))

    async def _post(self, uid: int, letters: Sequence[DeadLetter], queue: Queue) -> list[QueueyError | None]:
        """Posts dead letters each under a key of its own; returns what went wrong with each."""

        async def post(one: DeadLetter) -> QueueyError | None:
            draft = _draft(one, queue)
            key = PostKey(f"redrive-{uid}-{one.stored_partition}-{one.stored_id}", content_of([draft]), KEY_SECONDS)
            try:
                await self._messages.post(queue, [draft], key=key)
            except QueueyError as error:
                return error
            return None

        results = await asyncio.gather(*map(post, letters))
        if changed := next((error for error in results if isinstance(error, QueueChanged)), None):
            raise changed  # They are all posted again, each once.
        return results


def _entered(
    names: set[str], enter: Enter
) -> tuple[dict[str, QueueAccess], Mapping[str, tuple[int, str] | None], dict[str, str]]:
    """Returns the ways to queues, what is known of those the caller may send to, and why not to the others."""
    ways: dict[str, QueueAccess] = {}
    rows: dict[str, tuple[int, str] | None] = {}
    left: dict[str, str] = {}
    for name in names:
        try:
            ways[name] = enter(name)
        except (NotAllowed, NotFound) as refusal:
            left[name] = str(refusal)
        else:
            rows[name] = ways[name].queue.partitions, ways[name].queue.dead_letter
    return ways, rows, left


def _location(one: DeadLetter) -> Location:
    return one.stored_partition, ids.parse_position(one.stored_id)


def _draft(one: DeadLetter, queue: Queue) -> Draft:
    """Returns a dead letter as the message that it was, for the partition that it was in."""
    headers = tuple(one.headers.items())
    meta = Meta(one.content_type, headers, one.json) if one.content_type or headers or one.json else None
    partition = one.partition if queue.kind == "plain" else None
    return Draft(one.body, meta=meta, partition=partition, key=one.key if queue.kind == "ordered" else None)
