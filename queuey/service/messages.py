"""Use cases about single messages: post, put, fetch and delete by id."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import Any, ClassVar, cast

import msgspec

from queuey import ids
from queuey.claims.covers import digest_of, partition_of
from queuey.errors import InvalidRequest, StoreUnavailable, TooLarge, WriteUndone
from queuey.ids import Position
from queuey.messages import (
    KEPT_SECONDS,
    Location,
    Message,
    Meta,
    NewMessage,
    PostKey,
    PostResult,
    Queue,
    body_bytes,
    bytes_of,
)
from queuey.metrics import Metrics
from queuey.partitions import by_key, spread
from queuey.service.claims import Rely
from queuey.service.core import Core
from queuey.service.limits import Limits
from queuey.service.queue_access import QueueAccess
from queuey.storage import Store, bridge

MIN_REMEMBERED = 60
"""Min seconds for which a key is remembered: posts of short-lived messages are repeated as well."""

REPEATED = 0.1
"""Ratio of the posts that may be repeated."""
REPEATS_INTERVAL = 1.0
"""Interval in seconds over which they are counted."""
LONGEST_AHEAD = 1.0
"""Max seconds that an id may be ahead of the clock that new ones are to be above: not a time of the store, because
clients send it."""

Placed = tuple[float, Location]
"""Delay and place of a stored message."""
NO_CHOICE = "This is a dedup queue, which puts equal bodies into one partition and chooses ids."
IN_ORDER = "This is an ordered queue, which puts the messages of a key into one partition and chooses ids."
BY_KEY = "This queue has max_claimed_per_key: it puts the messages of a key into one partition and chooses ids."

_encode = msgspec.msgpack.Encoder().encode
_NOTHING = Meta()


class Draft(msgspec.Struct, gc=False):
    """A message as its producer gives it.

    Attributes:
        body: ``str`` for text, ``bytes`` for anything else. Never empty.
        partition: None: chosen, by ``key`` if there is one.
        ttl: Seconds; None: the queue's, or else the deployment's.
        key: Messages of one key go to one partition.
        delay: Seconds until it is due.
    """

    body: str | bytes
    ttl: int | None = None
    partition: int | None = None
    meta: Meta | None = None
    delay: float = 0.0
    key: str | None = None


class PlainDraft(msgspec.Struct, gc=False):
    """A message of a batch that is text with nothing beside it, which is stored as it was decoded.

    With its partition and TTL, which the use case sets, it is a :class:`~queuey.messages.NewMessage`.
    """

    body: str
    ttl: int | None = None
    partition: int | None = None
    meta: ClassVar[None] = None
    delay: ClassVar[float] = 0.0
    key: ClassVar[None] = None
    kept: ClassVar[bool] = False


AnyDraft = Draft | PlainDraft


def content_of(drafts: Sequence[AnyDraft]) -> bytes:
    """Returns a hash of everything that a caller says about messages. It must stay the same in other versions."""
    said = []
    for draft in drafts:
        meta = draft.meta or _NOTHING
        place = (draft.partition, draft.key, draft.ttl, draft.delay)
        said.append((draft.body, *place, meta.content_type, meta.headers, meta.json))
    return blake2b(_encode(said), digest_size=16).digest()


def partition_error(partition: int, queue: Queue) -> str | None:
    """Returns the error of a partition to write to, or None."""
    if partition < 1:
        return f"{partition} is less than minimum value 1"
    if partition > queue.partitions:
        return f"{partition} is greater than maximum value {queue.partitions}"
    return None


class StickyChoice:
    """A uniformly random partition, kept for a few milliseconds.

    Callers that name no partition share one for ``hold`` seconds, so that the writes of one moment travel as one batch.
    Threads may race on the state; the worst outcome is one more random choice.
    """

    __slots__ = ("_core", "_draw", "_hold", "_until")

    def __init__(self, core: Core, hold: float = 0.004) -> None:
        self._core = core
        self._hold = hold
        self._draw = 0.0
        self._until = 0.0

    def choose(self, partitions: int) -> int:
        if partitions == 1:
            return 1
        now = self._core.boottime()
        if now >= self._until:
            self._draw = self._core.chance.random()
            self._until = now + self._hold
        return int(self._draw * partitions) + 1


class RepeatBudget:
    """Limits repeated posts of a process to a tenth of all posts of a second, at least one.

    So an overloaded store, which undoes many, does not get twice as many. Used in one thread; times are boot times.
    """

    def __init__(self) -> None:
        self._posts: deque[float] = deque()
        self._repeats: deque[float] = deque()
        self.repeated = 0

    def note_post(self, now: float) -> None:
        self._posts.append(now)
        _forget(self._posts, now)

    def take(self, now: float) -> bool:
        """Returns whether a post may be repeated, and counts it then."""
        _forget(self._posts, now)
        _forget(self._repeats, now)
        if len(self._repeats) + 1 > max(1.0, len(self._posts) * REPEATED):
            return False
        self._repeats.append(now)
        self.repeated += 1
        return True


def _forget(moments: deque[float], now: float) -> None:
    while moments and moments[0] <= now - REPEATS_INTERVAL:
        moments.popleft()


class MessageUseCases:
    """Single messages.

    Args:
        store: Has them.
        limits: Bounds of one request.
        metrics: Counts messages in and out.
        core: The loop.
        rely: Makes sure that expired messages become dead letters, if given.
    """

    def __init__(self, store: Store, limits: Limits, metrics: Metrics, core: Core, *, rely: Rely | None = None) -> None:
        self.record_removal: Callable[[Queue, Sequence[Location]], Coroutine[Any, Any, None]]
        """Is called before messages are deleted from a queue that keeps results."""
        self._store = store
        self._rely = rely
        self._core = core
        self._limits = limits
        self._metrics = metrics
        self._sticky = StickyChoice(core)
        self._budget = RepeatBudget()
        self._clock_offset: float | None = None
        """Seconds by which the clock of ids was ahead of the boot time; None: not known yet."""

    def statistics(self) -> dict[str, float]:
        return {"posts_repeated_total": self._budget.repeated}

    async def post(
        self,
        queue: Queue,
        drafts: Sequence[AnyDraft],
        *,
        after: Position | None = None,
        key: str | PostKey | None = None,
        more: bool = False,
    ) -> PostResult:
        """Stores new messages, all or none, for a caller that is authorized for this row. Drafts are not used again.

        With a key it stores them once: a repeated post has the result of the first.

        If the store has undone them in time (``WriteUndone``), it stores them anew, as the caller would, with new ids:
        once, unless one has a delay, within :class:`RepeatBudget` and the time of a request.

        In an ordered queue, all later posts come after these messages, whichever process stores them: where ids are
        made by several clocks, this waits until all of them are past. With ``more`` the caller posts on before it
        answers, and then awaits :meth:`settle_order`; so this waits only for messages that the next post of this
        process might overtake: delayed ones, and those that another process may have stored.

        If ``after`` is ahead of the clock, it waits until the clock is there. Otherwise the store would make all its
        ids, also other callers', ahead of the clock, and other nodes would take them for forged.

        Raises:
            InvalidRequest: A partition is beyond the queue's; ``after`` lies too far ahead.
            QueueChanged: The row is out of date; nothing was stored.
            KeyReused: The key is that of another post.
            KeyInUse: A post with this key is being carried out.
            StoreUnavailable: See its ``outcome``.
        """
        began = self._core.boottime()
        self._budget.note_post(began)
        if after is not None and 0 < (seconds := self._ahead(after)) <= LONGEST_AHEAD:
            await asyncio.sleep(seconds)
        # Of what the caller says, before the service chooses: a repeated post may get another partition.
        content = content_of(drafts) if isinstance(key, str) else b""
        items = self._addressed(queue, drafts)
        if isinstance(key, str) and items:
            key = PostKey(key, content, self._remembered(items))
        rely = self._rely if queue.on_expiry == "dead-letter" else None
        if rely is not None:
            await rely(queue, items)
        try:
            result = await self._append(queue, items, after, key)
        except WriteUndone:
            if not self._may_repeat(queue, items, began):
                raise
            items = self._addressed(queue, drafts)
            if rely is not None:
                await rely(queue, items)
            result = await self._append(queue, items, after, key)
        if rely is not None:
            await rely(queue, items, is_stored=True)
        if not result.replayed:
            self._metrics.received(len(result.locations), queue)
        if queue.kind == "ordered" and (result.replayed or not more or any(item.delay for item in items)):
            placed = zip((item.delay for item in items), result.locations, strict=True)
            await self.settle_order(queue, placed)
        return result

    async def settle_order(self, queue: Queue, placed: Iterable[Placed]) -> None:
        """Waits, in an ordered queue, until no clock can make an id below those of messages without delays."""
        if queue.kind == "ordered" and self._store.ids_follow_clocks:
            left = [self._ahead(position) - delay for delay, (_, position) in placed]
            await asyncio.sleep(max(left, default=-math.inf) + self._store.clock_difference)

    def _ahead(self, position: Position) -> float:
        """Returns the seconds by which a position is ahead of the clock of ids, negative if it is past.

        While the clock is not known to be right, its last offset is used: perhaps behind, if the machine has stood
        still, but not ahead as a wall clock may be.
        """
        boottime = self._core.boottime()
        with suppress(StoreUnavailable):
            self._clock_offset = self._store.claim_logs.claim_time() / ids.TICKS_PER_SECOND - boottime
        if self._clock_offset is None:
            return LONGEST_AHEAD
        return position[0] / ids.TICKS_PER_SECOND - boottime - self._clock_offset

    def _may_repeat(self, queue: Queue, items: Sequence[NewMessage], began: float) -> bool:
        # The delete of a delayed message may have a timestamp as late as its due time.
        if any(item.delay for item in items):
            return False
        now = self._core.boottime()
        left = began + self._limits.deadline - now
        return left >= self._store.messages.write_within(queue) and self._budget.take(now)

    async def _append(
        self,
        queue: Queue,
        items: Sequence[NewMessage],
        after: Position | None,
        key: str | PostKey | None,
    ) -> PostResult:
        if not isinstance(key, PostKey):
            positions = await self._store.messages.append(queue, items, after=after)
            locations = [(item.partition, position) for item, position in zip(items, positions, strict=True)]
            return PostResult(locations, replayed=False)
        return await self._store.keyed_posts.append_once(queue, items, key, after=after)

    def _remembered(self, items: Sequence[NewMessage]) -> int:
        """Returns for how many seconds the key of a post of these messages is remembered."""
        longest = max(item.ttl + math.ceil(item.delay) + item.kept * KEPT_SECONDS for item in items)
        return min(self._limits.idempotency_ttl, max(MIN_REMEMBERED, longest))

    def put(self, access: QueueAccess, locations: Sequence[Location], draft: Draft) -> None:
        """Writes one body at all the places, creating or overwriting each.

        Raises:
            InvalidRequest: A partition is beyond the queue's.
            TooLarge: All the copies together are longer than a batch may be.
        """
        locations = list(dict.fromkeys(locations))
        most = self._limits.max_batch_bytes
        size = body_bytes(draft.body)
        if len(locations) > 1 and size * len(locations) > most:
            text = f"{len(locations)} copies of {size} bytes are more than {most} bytes together"
            raise TooLarge({"body": text})

        def write(queue: Queue) -> None:
            if queue.kind == "dedup":
                raise InvalidRequest({"messages": f"{NO_CHOICE} POST the message instead."})
            if queue.kind == "ordered":
                raise InvalidRequest({"messages": f"{IN_ORDER} POST the message with a key instead."})
            if queue.max_claimed_per_key:
                raise InvalidRequest({"messages": f"{BY_KEY} POST the message instead."})
            for partition, _ in locations:
                if (error := partition_error(partition, queue)) is not None:
                    raise InvalidRequest({"partition": error})
            ttl = draft.ttl or queue.ttl or self._limits.default_ttl
            bridge.run(
                self._store.messages.put(queue, locations, NewMessage(draft.body, locations[0][0], ttl, draft.meta))
            )

        access.use(write)
        self._metrics.received(len(locations), access.queue)

    def fetch(self, access: QueueAccess, locations: Sequence[Location], *, charted: bool = True) -> list[Message]:
        """Returns the messages that are there, in the order asked, each once.

        Raises:
            TooLarge: Together they have more than ``page_bytes``.
        """
        locations = list(dict.fromkeys(locations))
        step = max(1, 2 * self._limits.page_bytes // self._limits.longest)
        messages: list[Message] = []
        weight = 0
        # So many at a time that what is read is never more than three pages.
        for at in range(0, len(locations), step):
            some = locations[at : at + step]
            found = access.use(
                lambda queue, some=some: bridge.run(  # type: ignore[misc]
                    self._store.messages.fetch(queue, _within(queue, some))
                )
            )
            weight += bytes_of(found)
            if weight > self._limits.page_bytes and len(locations) > 1:
                text = f"The messages are longer than {self._limits.page_bytes} bytes together. Ask for fewer ids."
                raise TooLarge({"InvalidMessageID": text})
            messages += found
        self._metrics.delivered(len(messages), access.queue if charted else None)
        return messages

    def delete(self, access: QueueAccess, locations: Sequence[Location]) -> int:
        """Deletes messages; returns how many existed (on stores that do not know it: how many were named)."""

        def delete(queue: Queue) -> int:
            places = _within(queue, locations)
            if queue.result_ttl:
                self._core.run(self.record_removal(queue, places))
            return bridge.run(self._store.messages.delete(queue, places))

        return access.use(delete)

    def check(self, queue: Queue, draft: Draft) -> None:
        """Refuses a message that the queue does not take (``InvalidRequest``), as :meth:`post` does."""
        self._addressed(queue, [draft])

    def _addressed(self, queue: Queue, drafts: Sequence[AnyDraft]) -> Sequence[NewMessage]:
        """Gives each draft its partition and TTL; those without a TTL are kept, if the queue does not drop them."""
        ttl = self._limits.default_ttl if queue.ttl is None else queue.ttl
        keeps = queue.on_expiry == "dead-letter"
        free = 1 if len(drafts) == 1 else sum([draft.partition is None and draft.key is None for draft in drafts])
        first = self._sticky.choose(queue.partitions) if free else 0
        chosen = iter((first,) if free == 1 else spread(free, first, queue.partitions))
        if queue.kind == "plain" and not keeps and drafts and isinstance(drafts[0], PlainDraft):
            return _completed(cast("Sequence[PlainDraft]", drafts), chosen, ttl)
        items = []
        for draft in drafts:
            partition, meta = draft.partition, draft.meta
            if queue.kind == "dedup":
                partition = _partition_by_body(queue, draft)
            elif queue.kind == "ordered" or (queue.max_claimed_per_key and draft.key is not None):
                partition, meta = _with_key(queue, draft)
            elif partition is None:
                partition = next(chosen) if draft.key is None else by_key(draft.key, queue.partitions)
            elif not 1 <= partition <= queue.partitions:
                raise InvalidRequest({"partition": partition_error(partition, queue) or ""})
            if draft.ttl is None:
                items.append(NewMessage(draft.body, partition, ttl, meta, draft.delay, keeps))
            else:
                items.append(NewMessage(draft.body, partition, draft.ttl, meta, draft.delay))
        return items


def _completed(drafts: Sequence[PlainDraft], chosen: Iterator[int], ttl: int) -> Sequence[NewMessage]:
    """Sets the partitions and TTLs that drafts do not have, which makes them the messages to store."""
    for draft in drafts:
        if draft.partition is None:
            draft.partition = next(chosen)
        if draft.ttl is None:
            draft.ttl = ttl
    return cast("Sequence[NewMessage]", drafts)


def _partition_by_body(queue: Queue, draft: AnyDraft) -> int:
    for field, value in (("partition", draft.partition), ("message_key", draft.key)):
        if value is not None:
            raise InvalidRequest({field: f"{NO_CHOICE} Leave it out."})
    return partition_of(digest_of(draft.body, draft.meta), queue.partitions)


def _with_key(queue: Queue, draft: AnyDraft) -> tuple[int, Meta]:
    """Returns partition and metadata, with the key, of a message of a queue that keeps keys."""
    if draft.partition is not None:
        raise InvalidRequest({"partition": f"{BY_KEY if queue.max_claimed_per_key else IN_ORDER} Leave it out."})
    if draft.key is None:
        raise InvalidRequest({"message_key": "Required: this queue is ordered by keys"})
    meta = msgspec.structs.replace(draft.meta or Meta(), key=draft.key)
    return by_key(draft.key, queue.partitions), meta


def _within(queue: Queue, locations: Sequence[Location]) -> list[Location]:
    """Leaves out places in partitions that the queue does not have."""
    return [location for location in locations if 1 <= location[0] <= queue.partitions]
