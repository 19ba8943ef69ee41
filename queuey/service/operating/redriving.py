"""Sends dead letters back to their queues, a page at a time, each once.

A dead letter is posted under a key made of its place and all its parts, and removed when that is done. So one that
was sent and not removed, because the process had ended, is not sent again when this is repeated within
:data:`KEY_SECONDS`; and another one that was put at the same place since is sent.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from hashlib import blake2b

import msgspec

from queuey import ids
from queuey.deadletters import DeadLetter, by_origin, place_of, shape_of, stored_dead_letter
from queuey.errors import NotAllowed, NotFound, QueueChanged, QueueyError
from queuey.messages import Location, Message, Meta, PostKey, Queue
from queuey.service.browsing import MAX_SHAPED, short_cursor
from queuey.service.core import Core
from queuey.service.messages import Draft, MessageUseCases, content_of
from queuey.service.queue_access import QueueAccess
from queuey.service.ranges import Range, parse_bound
from queuey.service.reading import Reader

PAGE = 100
KEY_SECONDS = 86_400

Enter = Callable[[str], QueueAccess]
"""Opens the queue of a name to send; raises NotFound and NotAllowed."""


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """Selects dead letters of a queue; None: any.

    Attributes:
        reason: Origin, class of the last error and common form of its text, both
            cut to :data:`~queuey.service.browsing.MAX_SHAPED` characters.
        place: The only one that is meant.
    """

    reason: tuple[str, str, str] | None = None
    place: Location | None = None

    def takes(self, one: DeadLetter) -> bool:
        cause = one.cause
        shape = shape_of(cause.text[:MAX_SHAPED])
        return self.reason in {None, (one.queue, cause.error[:MAX_SHAPED], shape[:MAX_SHAPED])}


class Found(msgspec.Struct, frozen=True):
    """A page of a queue of dead letters, the oldest first.

    Attributes:
        letters: Those that match.
        looked: Messages that were read.
        cursor: Start of the next page; blank: there is none.
    """

    letters: list[DeadLetter]
    looked: int
    cursor: str


class SentBack(msgspec.Struct, frozen=True):
    """Result for some dead letters.

    Attributes:
        sent: By queue.
        before: Those that were sent before, and only had to be removed.
        left: Those that stay, by reason.
        error: Why it was given up; None: it was not.
    """

    sent: Counter[str]
    before: int
    left: Counter[str]
    error: QueueyError | None


class Redriving:
    """Finds dead letters and sends them back; blocks. Its reads do not count as deliveries."""

    def __init__(self, messages: MessageUseCases, reader: Reader, core: Core) -> None:
        self._messages = messages
        self._reader = reader
        self._core = core

    def find(self, access: QueueAccess, wanted: Wanted, cursor: str = "") -> Found:
        """Reads a page of a queue of dead letters, whose caller may read it.

        Raises:
            ValueError: ``cursor`` is none.
        """
        if wanted.place is not None:
            messages: Sequence[Message] = self._messages.fetch(access, [wanted.place], charted=False)
            following = ""
        else:
            page = Range(partitions=None, limit=PAGE, since=parse_bound(cursor), delayed=False, merge=True)
            reading = self._reader.read(access, page)
            messages, following = reading.messages, short_cursor(reading, nearest=min)
        letters = (stored_dead_letter(message, access.queue.name) for message in messages)
        return Found([one for one in letters if one and wanted.takes(one)], len(messages), following)

    def send_back(self, access: QueueAccess, letters: Sequence[DeadLetter], enter: Enter) -> SentBack:
        """Sends dead letters of one page to the ends of the partitions that they came from, and removes them.

        The caller may delete in their queue; ``enter`` checks its rights in the others.
        """
        ways, left = _entered({one.queue for one in letters}, enter)
        rows = {name: (way.queue.partitions, way.queue.dead_letter) for name, way in ways.items()}
        known = [one for one in letters if one.queue in ways]
        reasons = Counter(left[one.queue] for one in letters if one.queue in left)
        going, staying = by_origin(known, rows)
        sent: Counter[str] = Counter()
        before, failure = 0, None
        for name, indexes in going.items():
            some = [known[index] for index in indexes]
            try:
                results = self._core.run(ways[name].apply(partial(self._post, access.queue.uid, some)))
                gone = [one for one, result in zip(some, results, strict=True) if isinstance(result, bool)]
                sent[name] = results.count(False)
                before += results.count(True)
                reasons.update(str(result) for result in results if not isinstance(result, bool))
                if gone:
                    self._messages.delete(access, [_location(one) for one in gone])
            except QueueyError as error:
                failure = error
                break
        return SentBack(+sent, before, reasons + Counter(staying.left), failure)

    async def _post(self, uid: int, letters: Sequence[DeadLetter], queue: Queue) -> list[bool | QueueyError]:
        """Posts dead letters each under a key of its own; returns whether that was done before, or the error."""

        async def post(one: DeadLetter) -> bool | QueueyError:
            draft = _draft(one, queue)
            content = blake2b(msgspec.msgpack.encode(one), digest_size=16).hexdigest()
            key = PostKey(f"redrive-{uid}-{content}", content_of([draft]), KEY_SECONDS)
            try:
                return (await self._messages.post(queue, [draft], key=key)).replayed
            except QueueyError as error:
                return error

        results = await asyncio.gather(*map(post, letters))
        if changed := next((error for error in results if isinstance(error, QueueChanged)), None):
            raise changed  # They are all posted again, each once.
        return results


def _entered(names: set[str], enter: Enter) -> tuple[dict[str, QueueAccess], dict[str, str]]:
    """Returns the queues that the caller may send to, and the errors of the others."""
    ways: dict[str, QueueAccess] = {}
    left: dict[str, str] = {}
    for name in names:
        try:
            ways[name] = enter(name)
        except (NotAllowed, NotFound) as refusal:
            left[name] = str(refusal)
    return ways, left


def _location(one: DeadLetter) -> Location:
    return one.stored_partition, ids.parse_position(one.stored_id)


def _draft(one: DeadLetter, queue: Queue) -> Draft:
    """Returns a dead letter as the message that it was, for the partition that it was in."""
    headers = tuple(one.headers.items())
    meta = Meta(one.content_type, headers, one.json) if one.content_type or headers or one.json else None
    partition, key = place_of(one, queue.kind, keeps_keys=queue.keeps_keys)
    return Draft(one.body, meta=meta, partition=partition, key=key)
