"""Use cases about single messages: post, put, fetch and delete by id."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from hashlib import blake2b
from operator import attrgetter
from random import Random
from typing import ClassVar, cast

import msgspec

from queuey.access.queue_access import QueueAccess
from queuey.messages.message_effects import MessageEffects, NotifyRemoved, notify_nobody
from queuey.model import ids
from queuey.model.errors import InvalidRequest, StoreUnavailable, TooLarge, WriteUndone
from queuey.model.ids import Position
from queuey.model.messages import (
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
from queuey.model.partitions import by_key, partition_error, spread
from queuey.runtime.event_loop import Core
from queuey.runtime.limits import Limits
from queuey.runtime.metrics import Metrics
from queuey.storage import Store

MIN_KEY_SECONDS = 60
"""Min seconds for which a key is remembered: posts of short-lived messages are also repeated."""

MAX_REPEAT_RATIO = 0.1
MAX_COUNTED_POSTS = 10_000
REPEATS_INTERVAL = 1.0
"""Interval in seconds over which posts and repeats are counted."""
MAX_SECONDS_AHEAD = 1.0
"""Max seconds by which ``after``, an id sent by a client, may be ahead of the clock for a post to wait for it."""

Placed = tuple[float, Location]
"""Delay and location of a stored message."""

_get_partition = attrgetter("partition")
_encode = msgspec.msgpack.Encoder().encode
_NO_META = Meta()


class Draft(msgspec.Struct, gc=False):
    """A message as its producer gives it.

    Attributes:
        body: ``str`` for text, ``bytes`` for anything else. Never empty.
        partition: If None, the service chooses one, by ``key`` if it is set.
        ttl: Seconds; by default the queue's TTL, or else the deployment's.
        key: Messages with the same key go to the same partition.
        delay: Seconds until the message is due.
    """

    body: str | bytes
    ttl: int | None = None
    partition: int | None = None
    meta: Meta | None = None
    delay: float = 0.0
    key: str | None = None


class PlainDraft(msgspec.Struct, gc=False):
    """A message of a batch with a text body and no metadata, stored as it was decoded.

    The use case sets its partition and TTL, and then stores it as a :class:`~queuey.model.messages.NewMessage`.
    """

    body: str
    ttl: int | None = None
    partition: int | None = None
    meta: ClassVar[None] = None
    delay: ClassVar[float] = 0.0
    key: ClassVar[None] = None
    kept: ClassVar[bool] = False


AnyDraft = Draft | PlainDraft


def hash_content(drafts: Sequence[AnyDraft]) -> bytes:
    """Returns a BLAKE2b hash (16 bytes) of all fields that a caller sets in its messages.

    Every version must compute the same hash.
    """
    fields = []
    for draft in drafts:
        meta = draft.meta or _NO_META
        routing = (draft.partition, draft.key, draft.ttl, draft.delay)
        fields.append((draft.body, *routing, meta.content_type, meta.headers, meta.json))
    return blake2b(_encode(fields), digest_size=16).digest()


class StickyChoice:
    """Chooses a uniformly random partition and keeps it for a few milliseconds.

    Posts that name no partition share one for ``hold`` seconds, so concurrent writes form one batch.
    Threads may race on the state; the worst outcome is one more random choice.
    """

    __slots__ = ("_core", "_draw", "_hold", "_random", "_until")

    def __init__(self, core: Core, hold: float = 0.004) -> None:
        self._core = core
        self._random = Random(core.rng.getrandbits(64)).random  # noqa: S311 - no secret, and no system call for each
        self._hold = hold
        self._draw = 0.0
        self._until = 0.0

    def choose(self, partitions: int) -> int:
        now = self._core.boottime()
        if now >= self._until:
            self._draw = self._random()
            self._until = now + self._hold
        return int(self._draw * partitions) + 1


class RepeatBudget:
    """Limits the repeated posts of a process to a tenth of the posts of the last second, but allows at least one.

    An overloaded store undoes many posts; the limit keeps repeats from doubling its load.
    Used in one thread; times are boot times.
    """

    def __init__(self) -> None:
        self._posts: deque[float] = deque(maxlen=MAX_COUNTED_POSTS)
        self._repeats: deque[float] = deque()
        self.repeated = 0
        self.record_post = self._posts.append

    def try_acquire(self, now: float) -> bool:
        _drop_old(self._posts, now)
        _drop_old(self._repeats, now)
        if len(self._repeats) + 1 > max(1.0, len(self._posts) * MAX_REPEAT_RATIO):
            return False
        self._repeats.append(now)
        self.repeated += 1
        return True


def _drop_old(moments: deque[float], now: float) -> None:
    while moments and moments[0] <= now - REPEATS_INTERVAL:
        moments.popleft()


class MessageUseCases:
    """Posts, puts, fetches and deletes messages.

    Args:
        effects: Makes sure that expired messages become dead letters, and records the ends of deleted messages in a
            queue that keeps results. By default nothing does.
        notify_removed: Called after messages were deleted or written by id.
    """

    def __init__(
        self,
        store: Store,
        limits: Limits,
        metrics: Metrics,
        core: Core,
        *,
        effects: MessageEffects | None = None,
        notify_removed: NotifyRemoved = notify_nobody,
    ) -> None:
        self._store = store
        self._effects = effects
        self._ensure_expiry = None if effects is None else effects.ensure_expiry
        self._notify_removed = notify_removed
        self._core = core
        self._limits = limits
        self._metrics = metrics
        self._sticky = StickyChoice(core)
        self._budget = RepeatBudget()
        self._clock_offset: float | None = None
        """Last difference between the clock of ids and the boot time, in seconds; None before the first reading."""

    def statistics(self) -> dict[str, float]:
        return {"posts_repeated_total": self._budget.repeated}

    async def post(
        self,
        queue: Queue,
        drafts: Sequence[AnyDraft],
        *,
        after: Position | None = None,
        key: str | PostKey | None = None,
        content: bytes = b"",
        more: bool = False,
    ) -> PostResult:
        """Stores new messages, all or none. The caller must be authorized for this row, and not reuse the drafts.

        With ``key`` the messages are stored once: a repeated post returns the result of the first one. ``content`` is
        their hash, if it was computed before.

        If the store has undone the write in time (``WriteUndone``), it is repeated once with new ids. It is not
        repeated if a message has a delay, or beyond :class:`RepeatBudget` and the deadline of a request.

        In an ordered queue, all later posts get higher ids than these messages, whichever process stores them. Where
        several clocks make ids, this waits until all clocks have passed them. With ``more`` the caller posts again
        before it answers, and then awaits :meth:`settle_order`. This post then waits only for messages that the next
        post of this process might overtake: delayed ones, and those of a replayed post.

        If ``after`` is ahead of the clock, this waits until the clock has reached it. Otherwise the store would make
        all its ids, also for other callers, ahead of the clock, and other nodes would reject them as forged.

        Raises:
            InvalidRequest: The queue does not have a partition, or ``after`` is too far ahead.
            QueueChanged: The row is out of date; nothing was stored.
            KeyReused: Another post has used the key.
            KeyInUse: A post with this key is still running.
            StoreUnavailable: The store failed; see ``outcome``.
        """
        began = self._core.boottime()
        self._budget.record_post(began)
        if after is not None and 0 < (seconds := self._seconds_ahead(after)) <= MAX_SECONDS_AHEAD:
            await asyncio.sleep(seconds)
        # Hashed before the service chooses partitions: a repeated post may get another one.
        content = content or (hash_content(drafts) if isinstance(key, str) else b"")
        ensure_expiry = self._ensure_expiry if queue.on_expiry == "dead-letter" else None
        is_repeated = False
        while True:
            items = (
                await self._address_by_body(queue, drafts)
                if queue.traits.unites_bodies
                else self._address_drafts(queue, drafts)
            )
            if isinstance(key, str) and items:
                key = PostKey(key, content, self._remembered_seconds(items))
            if ensure_expiry is not None:
                await ensure_expiry(queue, items)
            try:
                result = await self._append(queue, items, after, key)
                break
            except WriteUndone:
                if is_repeated or not self._may_repeat(queue, items, began):
                    raise
                is_repeated = True
        if ensure_expiry is not None:
            await ensure_expiry(queue, items, is_stored=True)
        if not result.replayed:
            self._metrics.count_received(len(result.locations), queue)
        if queue.traits.in_order and (result.replayed or not more or any(item.delay for item in items)):
            placed = zip((item.delay for item in items), result.locations, strict=True)
            await self.settle_order(queue, placed)
        return result

    async def settle_order(self, queue: Queue, placed: Iterable[Placed]) -> None:
        """In an ordered queue, waits until no clock can make an id below those of the messages minus their delays."""
        if queue.traits.in_order and self._store.ids_follow_clocks:
            seconds_ahead = [self._seconds_ahead(position) - delay for delay, (_, position) in placed]
            await asyncio.sleep(max(seconds_ahead, default=-math.inf) + self._store.clock_difference)

    def _seconds_ahead(self, position: Position) -> float:
        """Returns the seconds by which a position is ahead of the clock of ids, negative if it is past.

        While the clock is unavailable, its last offset from the boot time is used. That may be behind if the machine
        was paused, but unlike a wall clock it is never ahead. If no offset is known, returns ``MAX_SECONDS_AHEAD``.
        """
        boottime = self._core.boottime()
        with suppress(StoreUnavailable):
            self._clock_offset = self._store.clock.now_ticks() / ids.TICKS_PER_SECOND - boottime
        if self._clock_offset is None:
            return MAX_SECONDS_AHEAD
        return position[0] / ids.TICKS_PER_SECOND - boottime - self._clock_offset

    def _may_repeat(self, queue: Queue, items: Sequence[NewMessage], began: float) -> bool:
        # The delete of a delayed message may have a timestamp as late as its due time.
        if any(item.delay for item in items):
            return False
        now = self._core.boottime()
        remaining_seconds = began + self._limits.deadline - now
        return remaining_seconds >= self._store.messages.write_within(queue) and self._budget.try_acquire(now)

    async def _append(
        self, queue: Queue, items: Sequence[NewMessage], after: Position | None, key: str | PostKey | None
    ) -> PostResult:
        if not isinstance(key, PostKey):
            positions = await self._store.messages.append(queue, items, after=after)
            return PostResult(list(zip(map(_get_partition, items), positions, strict=True)), replayed=False)
        return await self._store.keyed_posts.append_once(queue, items, key, after=after)

    def _remembered_seconds(self, items: Sequence[NewMessage]) -> int:
        longest = max(item.ttl + math.ceil(item.delay) + item.kept * KEPT_SECONDS for item in items)
        return min(self._limits.idempotency_ttl, max(MIN_KEY_SECONDS, longest))

    async def put(self, access: QueueAccess, locations: Sequence[Location], draft: Draft) -> None:
        """Writes one body at all locations, creating or overwriting each message.

        Raises:
            InvalidRequest: The queue does not have a partition, or does not allow writes by id.
            TooLarge: All copies together are larger than a batch may be.
        """
        locations = list(dict.fromkeys(locations))
        max_bytes = self._limits.max_batch_bytes
        size = body_bytes(draft.body)
        if len(locations) > 1 and size * len(locations) > max_bytes:
            text = f"{len(locations)} copies of {size} bytes are more than {max_bytes} bytes together"
            raise TooLarge({"body": text})

        async def write(queue: Queue) -> None:
            queue.traits.check("put", queue, "messages")
            for partition, _ in locations:
                if (error := partition_error(partition, queue.partitions)) is not None:
                    raise InvalidRequest({"partition": error})
            ttl = draft.ttl or queue.ttl or self._limits.default_ttl
            message = NewMessage(draft.body, locations[0][0], ttl, draft.meta)
            await self._store.messages.put(queue, locations, message)

        await access.apply(write)
        self._notify_removed(access.queue)
        self._metrics.count_received(len(locations), access.queue)

    async def fetch(self, access: QueueAccess, locations: Sequence[Location], *, charted: bool = True) -> list[Message]:
        """Returns the messages that exist, in the order of ``locations``, each once.

        The metrics count them as the queue's if ``charted``, else only in total.

        Raises:
            TooLarge: Together the messages have more than ``page_bytes``.
        """
        locations = list(dict.fromkeys(locations))
        step = max(1, 2 * self._limits.page_bytes // self._limits.longest)
        messages: list[Message] = []
        weight = 0
        # Each step reads at most two pages, so memory holds at most three.
        for start in range(0, len(locations), step):
            batch = locations[start : start + step]
            fetched = await access.apply(partial(self._fetch, batch))
            weight += bytes_of(fetched)
            if weight > self._limits.page_bytes and len(locations) > 1:
                text = f"The messages are longer than {self._limits.page_bytes} bytes together. Ask for fewer ids."
                raise TooLarge({"InvalidMessageID": text})
            messages += fetched
        self._metrics.count_delivered(len(messages), access.queue if charted else None)
        return messages

    async def _fetch(self, locations: Sequence[Location], queue: Queue) -> Sequence[Message]:
        return await self._store.messages.fetch(queue, _keep_valid_locations(queue, locations))

    async def delete(self, access: QueueAccess, locations: Sequence[Location]) -> int:
        """Deletes messages; in a queue that keeps results, their ends are recorded first.

        Returns how many existed, or how many were named if the store cannot tell. Partitions that the queue does not
        have are ignored.
        """

        async def delete(queue: Queue) -> int:
            existing_locations = _keep_valid_locations(queue, locations)
            if queue.result_ttl and self._effects is not None:
                await self._effects.jobs.record_leaving(queue, existing_locations, "removed")
            return await self._store.messages.delete(queue, existing_locations)

        count = await access.apply(delete)
        self._notify_removed(access.queue)
        return count

    def check(self, queue: Queue, draft: Draft) -> None:
        self._address_drafts(queue, [draft])

    async def _address_by_body(self, queue: Queue, drafts: Sequence[AnyDraft]) -> Sequence[NewMessage]:
        # A KiB costs as much time as one of the items that `compute` counts.
        kibibytes = sum(len(draft.body) for draft in drafts) >> 10
        return await self._core.compute(kibibytes, partial(self._address_drafts, queue, drafts))

    def _address_drafts(self, queue: Queue, drafts: Sequence[AnyDraft]) -> Sequence[NewMessage]:
        """Returns drafts as messages with a partition and a TTL.

        A message without a TTL of its own is kept when it expires if the queue makes dead letters of expired messages.
        """
        ttl = self._limits.default_ttl if queue.ttl is None else queue.ttl
        keeps = queue.on_expiry == "dead-letter"
        to_place = 1 if len(drafts) == 1 else sum([draft.partition is None and draft.key is None for draft in drafts])
        first = self._sticky.choose(queue.partitions) if to_place and queue.partitions > 1 else 1
        chosen = iter((first,) if to_place == 1 else spread(to_place, first, queue.partitions))
        if not queue.traits.refuses and not keeps and drafts and isinstance(drafts[0], PlainDraft):
            return _complete_plain(cast("Sequence[PlainDraft]", drafts), chosen, ttl)
        items = []
        for draft in drafts:
            partition, meta = draft.partition, draft.meta
            if queue.traits.refuses:
                partition, meta = _route_by_kind(queue, draft)
            if partition is None:
                partition = next(chosen) if draft.key is None else by_key(draft.key, queue.partitions)
            elif not 1 <= partition <= queue.partitions:
                raise InvalidRequest({"partition": partition_error(partition, queue.partitions) or ""})
            if draft.ttl is None:
                items.append(NewMessage(draft.body, partition, ttl, meta, draft.delay, keeps))
            else:
                items.append(NewMessage(draft.body, partition, draft.ttl, meta, draft.delay))
        return items


def _complete_plain(drafts: Sequence[PlainDraft], chosen: Iterator[int], ttl: int) -> Sequence[NewMessage]:
    for draft in drafts:
        if draft.partition is None:
            draft.partition = next(chosen)
        if draft.ttl is None:
            draft.ttl = ttl
    return cast("Sequence[NewMessage]", drafts)


def _route_by_kind(queue: Queue, draft: AnyDraft) -> tuple[int | None, Meta | None]:
    traits, meta = queue.traits, draft.meta
    traits.check_post(queue, draft.key, draft.partition)
    partition = traits.choose_partition(draft.body, meta, draft.key, queue.partitions) or draft.partition
    if traits.stores_keys and draft.key is not None:
        meta = msgspec.structs.replace(meta or _NO_META, key=draft.key)
    return partition, meta


def _keep_valid_locations(queue: Queue, locations: Sequence[Location]) -> list[Location]:
    return [location for location in locations if 1 <= location[0] <= queue.partitions]
