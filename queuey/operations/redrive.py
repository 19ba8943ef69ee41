"""Sends dead letters back to their queues, a page at a time, each once.

A dead letter is posted under an idempotency key made of its location and content, and then removed. If the process ends
in between, a repeated call within :data:`KEY_SECONDS` does not send the dead letter again. Another dead letter that was
written to the same location since is sent.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from hashlib import blake2b

import msgspec

from queuey.access.queue_access import QueueAccess
from queuey.messages.posts import Draft, MessageUseCases, hash_content
from queuey.messages.range_reads import Reader
from queuey.messages.ranges import RangeRequest, parse_bound
from queuey.model import ids
from queuey.model.deadletters import (
    DeadLetter,
    choose_partition_and_key,
    decode_stored_dead_letter,
    generalize_error_text,
    group_by_origin,
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


class SentBack(msgspec.Struct, frozen=True):
    """Result of sending dead letters back.

    Attributes:
        sent: Number of sent dead letters, by queue.
        already_sent: Number of dead letters that were sent by an earlier call and only had to be removed.
        kept: Number of dead letters that stay, by reason.
        error: The error that ended the call early, or None.
    """

    sent: Counter[str]
    already_sent: int
    kept: Counter[str]
    error: QueueyError | None


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
            messages: Sequence[Message] = await self._messages.fetch(access, [letter_filter.place], charted=False)
            following = ""
        else:
            page = RangeRequest(
                partitions=None, limit=PAGE_SIZE, since=parse_bound(cursor), keeps_read_delay=False, merge=True
            )
            reading = await self._reader.read(access, page)
            messages, following = reading.messages, make_short_cursor(reading, nearest=min)
        letters = (decode_stored_dead_letter(message, access.queue.name) for message in messages)
        return DeadLetterPage(
            [letter for letter in letters if letter and letter_filter.matches_letter(letter)], len(messages), following
        )

    async def send_back(self, access: QueueAccess, letters: Sequence[DeadLetter], enter: Enter) -> SentBack:
        """Appends dead letters of one page to the partitions that they came from, and removes them.

        The caller must be allowed to delete in the dead-letter queue; ``enter`` checks its rights to the other queues.
        """
        accesses, refusals = await _enter_all({letter.queue for letter in letters}, enter)
        rows = {name: (target.queue.partitions, target.queue.dead_letter) for name, target in accesses.items()}
        allowed = [letter for letter in letters if letter.queue in accesses]
        reasons = Counter(refusals[letter.queue] for letter in letters if letter.queue in refusals)
        going, staying = group_by_origin(allowed, rows)
        sent: Counter[str] = Counter()
        before, failure = 0, None
        for name, indexes in going.items():
            of_queue = [allowed[index] for index in indexes]
            try:
                results = await accesses[name].apply(partial(self._post, access.queue.uid, of_queue, {}))
                posted = [letter for letter, result in zip(of_queue, results, strict=True) if isinstance(result, bool)]
                sent[name] = results.count(False)
                before += results.count(True)
                reasons.update(str(result) for result in results if not isinstance(result, bool))
                if posted:
                    await self._messages.delete(access, [_location(letter) for letter in posted])
            except QueueyError as error:
                failure = error
                break
        return SentBack(+sent, before, reasons + Counter(staying.left), failure)

    async def _post(
        self, uid: int, letters: Sequence[DeadLetter], posted: dict[str, bool], queue: Queue
    ) -> list[bool | QueueyError]:
        """Posts dead letters to their queue, except what an attempt with an older row has ``posted``.

        Returns:
            For each letter True if an earlier call had sent it, False if this call sent it, or its error.
        """

        async def post(letter: DeadLetter) -> bool | QueueyError:
            draft = _make_draft(letter, queue)
            content = blake2b(msgspec.msgpack.encode(letter), digest_size=16).hexdigest()
            key = PostKey(f"redrive-{uid}-{content}", hash_content([draft]), KEY_SECONDS)
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


async def _enter_all(names: set[str], enter: Enter) -> tuple[dict[str, QueueAccess], dict[str, str]]:
    accesses: dict[str, QueueAccess] = {}
    refusals: dict[str, str] = {}
    for name in names:
        try:
            accesses[name] = await enter(name)
        except (NotAllowed, NotFound) as refusal:
            refusals[name] = str(refusal)
    return accesses, refusals


def _location(letter: DeadLetter) -> Location:
    return letter.stored_partition, ids.parse_position(letter.stored_id)


def _make_draft(letter: DeadLetter, queue: Queue) -> Draft:
    headers = tuple(letter.headers.items())
    meta = Meta(letter.content_type, headers, letter.json) if letter.content_type or headers or letter.json else None
    partition, key = choose_partition_and_key(letter, queue.traits)
    return Draft(letter.body, meta=meta, partition=partition, key=key)
