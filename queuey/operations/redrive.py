"""Sends dead letters back to their queues, a page at a time, each once.

A dead letter is posted under an idempotency key made of its location and content, and then removed. If the process ends
in between, a repeated call within :data:`KEY_SECONDS` does not send the dead letter again. Another dead letter that was
written to the same location since is sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from hashlib import blake2b
from itertools import groupby

import msgspec

from queuey.access.queue_access import QueueAccess
from queuey.messages.posts import Draft, MessageUseCases
from queuey.messages.range_reads import Reader
from queuey.messages.ranges import RangeRequest, parse_bound
from queuey.model import ids
from queuey.model.deadletters import (
    DeadLetter,
    Redriven,
    choose_partition_and_key,
    decode_stored_dead_letter,
    generalize_error_text,
    group_by_origin,
    make_unsent_result,
)
from queuey.model.errors import NotAllowed, NotFound, QueueChanged, QueueyError
from queuey.model.messages import Location, Message, Meta, PostKey, Queue
from queuey.operations.message_search import MAX_COMPARED_LENGTH, make_short_cursor

PAGE_SIZE = 100
KEY_SECONDS = 86_400

Enter = Callable[[str], Awaitable[QueueAccess]]
"""Opens the queue of a name for sending. Raises NotFound and NotAllowed."""


class RedriveFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Selects dead letters of a queue. A field that is None selects all.

    Attributes:
        reason: Original queue, class of the last error and common form of its text. Class and text are cut
            to :data:`~queuey.operations.message_search.MAX_COMPARED_LENGTH` characters.
        place: Location of a single dead letter.
    """

    reason: tuple[str, str, str] | None = None
    place: Location | None = None

    def matches_letter(self, letter: DeadLetter) -> bool:
        """Returns whether the reason matches. The caller compares ``place``."""
        cause = letter.cause
        shape = generalize_error_text(cause.text[:MAX_COMPARED_LENGTH])
        return self.reason in {None, (letter.queue, cause.error[:MAX_COMPARED_LENGTH], shape[:MAX_COMPARED_LENGTH])}


class DeadLetterPage(msgspec.Struct, frozen=True):
    """A page of a dead-letter queue, the oldest first.

    Attributes:
        letters: The dead letters that match.
        read_count: Number of messages that were read.
        cursor: Start of the next page; blank on the last one.
    """

    letters: list[DeadLetter]
    read_count: int
    cursor: str


class Redriving:
    """Finds dead letters and sends them back.

    Pages that are read do not count as deliveries; a single dead letter counts only in the process's total.
    """

    def __init__(self, messages: MessageUseCases, reader: Reader) -> None:
        self._messages = messages
        self._reader = reader

    async def find(self, access: QueueAccess, letter_filter: RedriveFilter, cursor: str = "") -> DeadLetterPage:
        """Reads a page of a dead-letter queue, for a caller that may read it.

        Raises:
            ValueError: ``cursor`` is not a cursor.
        """
        if letter_filter.place is not None:
            letters = await self.fetch(access, [letter_filter.place])
            read_count, following = len(letters), ""
        else:
            page = RangeRequest(
                partitions=None, limit=PAGE_SIZE, since=parse_bound(cursor), keeps_read_delay=False, merge=True
            )
            reading = await self._reader.read(access, page)
            letters = _decode(access, reading.messages)
            read_count, following = len(reading.messages), make_short_cursor(reading, nearest=min)
        return DeadLetterPage(list(filter(letter_filter.matches_letter, letters)), read_count, following)

    async def fetch(self, access: QueueAccess, places: Sequence[Location]) -> list[DeadLetter]:
        return _decode(access, await self._messages.fetch(access, places, charted=False))

    async def send_back(
        self,
        access: QueueAccess,
        letters: Sequence[DeadLetter],
        enter: Enter,
        *,
        ttl: int | None = None,
        trusted: str | None = None,
        dry_run: bool = False,
    ) -> Redriven:
        """Appends dead letters of one page to the partitions that they came from, and removes them.

        The caller must be allowed to delete in the dead-letter queue; ``enter`` checks its rights to the other queues.

        Args:
            access: The dead-letter queue.
            letters: The dead letters.
            enter: Opens the other queues.
            ttl: TTL of the messages; by default their queue's.
            trusted: See :func:`~queuey.model.deadletters.group_by_origin`.
            dry_run: Change nothing, and return the expected result.
        """
        accesses: dict[str, QueueAccess] = {}
        outcome, allowed = Redriven(), []
        for name, of_queue in groupby(sorted(letters, key=_origin), key=_origin):
            own = list(of_queue)
            try:
                accesses[name] = await enter(name)
                allowed += own
            except NotFound as refusal:
                outcome += make_unsent_result(own, str(refusal))
            except NotAllowed as refusal:
                outcome += make_unsent_result(own, f"queue {name}: {refusal}")
        rows = {name: (target.queue.partitions, target.queue.dead_letter) for name, target in accesses.items()}
        going, staying = group_by_origin(allowed, rows, trusted)
        outcome += staying
        if dry_run:
            return outcome + Redriven({name: len(indexes) for name, indexes in going.items()})
        for name, indexes in going.items():
            own = [allowed[index] for index in indexes]
            try:
                results = await accesses[name].apply(partial(self._post, access.queue.uid, own, {}, ttl))
                outcome += Redriven({name: results.count(False)}, results.count(True))
                posted = []
                for letter, result in zip(own, results, strict=True):
                    if isinstance(result, bool):
                        posted.append(letter)
                    else:
                        outcome += make_unsent_result([letter], str(result))
                if posted:
                    await self._messages.delete(access, [_location(letter) for letter in posted])
            except QueueyError as error:
                return outcome + Redriven(error=str(error))
        return outcome

    async def _post(
        self, uid: int, letters: Sequence[DeadLetter], posted: dict[str, bool], ttl: int | None, queue: Queue
    ) -> list[bool | QueueyError]:
        """Posts dead letters to their queue, except what an attempt with an older row has ``posted``.

        Returns:
            For each letter True if an earlier call had sent it, False if this call sent it, or its error.
        """

        async def post(letter: DeadLetter) -> bool | QueueyError:
            draft = _make_draft(letter, queue, ttl)
            digest = blake2b(msgspec.msgpack.encode(letter), digest_size=16).digest()
            content = digest.hex()
            key = PostKey(f"redrive-{uid}-{content}", digest, KEY_SECONDS)
            try:
                if content not in posted:
                    posted[content] = (await self._messages.post(queue, [draft], key=key)).replayed
            except QueueyError as error:
                return error
            return posted[content]

        results = await asyncio.gather(*map(post, letters))
        if changed := next((error for error in results if isinstance(error, QueueChanged)), None):
            raise changed  # The call is repeated; the keys make sure that each is stored once.
        return results


def _decode(access: QueueAccess, messages: Iterable[Message]) -> list[DeadLetter]:
    letters = (decode_stored_dead_letter(message, access.queue.name) for message in messages)
    return [letter for letter in letters if letter is not None]


def _origin(letter: DeadLetter) -> str:
    return letter.queue


def _location(letter: DeadLetter) -> Location:
    return letter.stored_partition, ids.parse_position(letter.stored_id)


def _make_draft(letter: DeadLetter, queue: Queue, ttl: int | None) -> Draft:
    headers = tuple(letter.headers.items())
    meta = Meta(letter.content_type, headers, letter.json) if letter.content_type or headers or letter.json else None
    partition, key = choose_partition_and_key(letter, queue.traits)
    return Draft(letter.body, ttl, meta=meta, partition=partition, key=key)
