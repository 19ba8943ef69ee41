"""Work that follows an entry of the log: delete messages and publish dead letters.

The log lists deletions and dead letters until an entry says that they are done. If a process dies before that, another
one does the work. Doing it twice has the same effect as once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import count, islice
from math import inf

import msgspec

from queuey.claims.job_records import EXPIRED_ERROR, JobRecords
from queuey.claims.rules.partition_state import State
from queuey.claims.rules.receipts import LastDelivery
from queuey.model import deadletters, ids
from queuey.model.deadletters import Attempt, Cause
from queuey.model.errors import QueueChanged, QueueExists, QueueNotFound, QueueyError
from queuey.model.ids import Position
from queuey.model.kinds import choose_target_partition
from queuey.model.messages import Location, Message, NewMessage, PostKey, Queue, QueueSpec
from queuey.runtime.event_loop import Core
from queuey.runtime.limits import Limits
from queuey.storage import Store

OVERDUE_SECONDS = 10.0
"""Timeout in seconds after which this process does the work of another one."""
MAX_LETTERS = 50
"""Max dead letters published between two entries. Other requests to the log wait meanwhile."""
TOO_MANY_DELIVERIES_ERROR = "TooManyDeliveries"
"""Error class of dead letters that were delivered too often."""
MAX_CONCURRENT_BATCHES = 8
KEY_TTL = 7 * 86_400
"""Number of seconds for which the key of a dead letter is remembered. A letter published again later may be stored
twice."""
_MAX_ATTEMPTS = 3

Letters = Mapping[Position, tuple[str, int]]
"""Messages that become dead letters: the target queue and the number of deliveries, by position."""


class FollowUps:
    """The open deletions and dead letters of one log, as one process knows them.

    Attributes:
        open: Deletions (by entry) and dead letters (by position), with the boot time since which they are open.
    """

    __slots__ = ("_deleted", "open")

    def __init__(self) -> None:
        self.open: dict[object, float] = {}
        self._deleted: set[int] = set()

    def add_open(self, keys: Iterable[object], since: float = -OVERDUE_SECONDS) -> None:
        """Adds open work of other processes' entries.

        ``since`` is the boot time of the entry. Without it the work is overdue at once: a process may drop a log and
        read it again before work is overdue, so the time of reading does not count.
        """
        for key in keys:
            self.open.setdefault(key, since)

    def find_due_deletions(self, state: State, own: int, now: float) -> list[int]:
        """Returns the entries whose deletions this process carries out now: ``own`` and overdue ones.

        Overdue ones are returned again only ``OVERDUE_SECONDS`` later, unless they are marked as deleted.
        """
        self._deleted.intersection_update(state.pending_deletes)
        return [
            key
            for key in state.pending_deletes
            if key not in self._deleted and (key == own or self._is_overdue(key, now))
        ]

    def mark_deleted(self, number: int) -> None:
        self._deleted.add(number)
        self.open.pop(number, None)

    def find_last_deleted(self, state: State) -> int:
        """Returns the entry up to which this process knows all deletions to be done; 0 if none."""
        last_deleted = 0
        for number in state.pending_deletes:
            if number not in self._deleted:
                break
            last_deleted = number
        return last_deleted

    def find_due_letters(self, state: State, own: Iterable[Position], now: float, limit: int) -> Letters:
        """Returns the dead letters to publish now, ``own`` and overdue ones, up to ``limit`` and ``MAX_LETTERS``.

        Each is returned again only ``OVERDUE_SECONDS`` later, if it is still in the outbox.
        """
        self._forget_done(state)
        self.open.update(dict.fromkeys(own, -inf))
        due = (position for position in state.outbox if self._is_overdue(position, now))
        return {position: state.outbox[position] for position in islice(due, min(limit, MAX_LETTERS))}

    def put_off(self, state: State, now: float) -> None:
        self.open.update(dict.fromkeys(state.outbox, now))

    def _forget_done(self, state: State) -> None:
        if len(self.open) > 2 * (len(state.pending_deletes) + len(state.outbox)):
            pending = state.pending_deletes.keys() | state.outbox.keys()
            self.open = {key: since for key, since in self.open.items() if key in pending}

    def _is_overdue(self, key: object, now: float) -> bool:
        """Returns whether work is overdue. If so, it is overdue again ``OVERDUE_SECONDS`` later.

        Work that was not known counts as opened now.
        """
        since = self.open.setdefault(key, now)
        if now - since < OVERDUE_SECONDS:
            return False
        # Wait before the next attempt, even if this one fails.
        self.open[key] = now
        return True


class FollowUpRunner:
    """Carries out the follow-up work of one log. Failed work is repeated later.

    Attributes:
        known: The open work.
    """

    def __init__(self, store: Store, partition: int, core: Core, limits: Limits) -> None:
        self.known = FollowUps()
        self._store = store
        self._partition = partition
        self._core = core
        self._max_letters = max(1, limits.page_bytes // limits.longest)

    async def delete(self, queue: Queue, state: State, number: int) -> None:
        for key in self.known.find_due_deletions(state, number, self._core.boottime()):
            locations = [(self._partition, position) for position in state.pending_deletes[key]]
            try:
                await self._store.messages.delete(queue, locations)
            except QueueyError:
                return
            self.known.mark_deleted(key)

    async def publish(
        self, queue: Queue, state: State, own_letters: Sequence[Position], gone_below: Position
    ) -> list[Position]:
        """Publishes some dead letters, ``own_letters`` first; returns the messages that are published or gone.

        After an error, the others wait for ``OVERDUE_SECONDS``.
        """
        letters = self.known.find_due_letters(state, own_letters, self._core.boottime(), self._max_letters)
        if not letters:
            return []
        now = self._store.clock.now_ms() / 1000
        work = partial(
            publish, self._store, queue, self._partition, gone_below=gone_below, now=now, kept=state.keeps_expired
        )
        # Publish concurrently, because very many messages may expire at once.
        batches = [
            dict(islice(letters.items(), first, None, MAX_CONCURRENT_BATCHES))
            for first in range(min(MAX_CONCURRENT_BATCHES, len(letters)))
        ]
        batches = batches if state.keeps_expired else [dict(letters)]
        results = await asyncio.gather(*map(work, batches))
        if any(failed for _, failed in results):
            self.known.put_off(state, self._core.boottime())
        return [position for sent, _ in results for position in sent]

    async def record_expired_claims(self, queue: Queue, lapsed: Mapping[Position, LastDelivery]) -> None:
        if claims := {position: delivery for position, delivery in lapsed.items() if delivery.worker}:
            with suppress(QueueyError):
                await JobRecords(self._store.ledger).add_expired_claims(queue, self._partition, claims)


def delivery_limit(queue: Queue) -> int:
    """Returns the max deliveries of a message; 0 for no limit, as in a queue of dead letters."""
    return 0 if deadletters.holds_dead(queue.name) else queue.max_deliveries


async def publish(
    store: Store,
    queue: Queue,
    partition: int,
    letters: Letters,
    *,
    gone_below: Position,
    now: float,
    kept: bool = False,
) -> tuple[list[Position], bool]:
    """Publishes dead letters, and records the ends of gone and cancelled messages, until an error occurs.

    Also deletes cancelled messages if the queue deletes acknowledged ones.

    Args:
        store: Store of all queues.
        queue: Queue of the messages.
        partition: Partition of the messages.
        letters: Messages to publish.
        gone_below: A message below this that is not found no longer exists.
        now: Seconds since 1970.
        kept: Reads include messages that have ended.

    Returns:
        The messages that are published or gone, and whether an error occurred.
    """
    finished: list[Position] = []
    records = JobRecords(store.ledger)
    try:
        messages = await store.messages.fetch(queue, [(partition, position) for position in letters], kept=kept)
        existing = {message.position for message in messages}
        for position in letters:
            if position not in existing and position < gone_below:
                await records.record_end(queue, partition, position, "expired", now)
                finished.append(position)
        for message in messages:
            name, deliveries = letters[message.position]
            if not name:  # The message was cancelled.
                await records.record_end(queue, partition, message.position, "removed", now)
                if queue.on_ack == "delete":
                    await store.messages.delete(queue, [(partition, message.position)])
                finished.append(message.position)
                continue
            attempts = (await records.read(queue, partition, message.position)).attempts
            letter = make_dead_letter(queue, message, deliveries, now, attempts)
            await _store_letter(store, queue, name, (partition, message.position), letter)
            await records.record_dead_letter(queue, partition, message.position, letter, now)
            finished.append(message.position)
    except QueueyError:
        return finished, True
    return finished, False


async def _store_letter(store: Store, queue: Queue, name: str, location: Location, letter: NewMessage) -> None:
    """Stores a dead letter at its message's position, or under a key where it could overwrite another message.

    Tries again with a fresh row of the target if that has changed.
    """
    partition, position = location
    # Callers cannot choose a key with this control character.
    text = f"\x01dead {queue.qid:x} {partition} {position[0]:x} {position[1]}"
    for attempt in range(_MAX_ATTEMPTS):
        target = await _find_target(store, queue, name, fresh=attempt > 0)
        try:
            if await _may_keep_position(store, queue, target, location, letter):
                await store.messages.put(target, [location], letter)
            else:
                item = msgspec.structs.replace(letter, partition=choose_target_partition(letter, partition, target))
                await store.keyed_posts.append_once(target, [item], PostKey(text, text.encode(), KEY_TTL))
        except QueueChanged:
            if attempt == _MAX_ATTEMPTS - 1:
                raise
        else:
            return


async def _may_keep_position(store: Store, queue: Queue, target: Queue, location: Location, letter: NewMessage) -> bool:
    """Returns whether a letter may be stored at its message's position.

    It may if the target has only dead letters of this queue, and the position is free or has the same letter. Messages
    of several queues, and of partitions that share a target partition, may have the same id.
    """
    if "put" in target.traits.refuses or target.name != deadletters.queue_for(queue.name):
        return False
    if location[0] > target.partitions:
        return False
    origin = deadletters.read_origin(letter.meta)
    return all(
        stored.body == letter.body and deadletters.read_origin(stored.meta) == origin
        for stored in await store.messages.fetch(target, [location])
    )


def make_dead_letter(
    queue: Queue, message: Message, deliveries: int, now: float, attempts: Sequence[Attempt] = ()
) -> NewMessage:
    """Returns the dead letter of a message, which lives for ``deadletters.TTL``.

    Its reason is expiry, else the last recorded error, else too many deliveries.
    """
    error, text = TOO_MANY_DELIVERIES_ERROR, f"delivered {deliveries} times without an acknowledgement"
    if attempts:
        error, text = attempts[-1].error, attempts[-1].text
    if message.expires <= ids.seconds_to_ticks(now):
        last = f"the last attempt failed with {error}: {text}" if attempts else f"delivered {deliveries} times"
        error, text = EXPIRED_ERROR, f"not done before its TTL ended; {last}"
    numbers = count(max(1, deliveries - len(attempts) + 1))
    history = tuple(
        msgspec.structs.replace(attempt, number=number) for attempt, number in zip(attempts, numbers, strict=False)
    )
    cause = Cause(attempts=deliveries, error=error, text=text, at=now, history=history)
    dead = deadletters.dead_letter_of(message, queue.name, cause)
    return NewMessage(dead.body, dead.partition, deadletters.TTL, dead.meta)


async def _find_target(store: Store, queue: Queue, name: str, *, fresh: bool) -> Queue:
    """Returns the row of the queue that gets a dead letter: the named one if it exists, else ``<queue>.dead``.

    Only ``<queue>.dead`` is created, readable by the principals of the source, and gets more partitions.
    """
    default_name = deadletters.queue_for(queue.name)
    if name != default_name:
        with suppress(QueueNotFound):
            return await store.catalogue.queue(queue.application, name, fresh=fresh)
    try:
        target = await store.catalogue.queue(queue.application, default_name, fresh=fresh)
    except QueueNotFound:
        spec = QueueSpec(
            partitions=queue.partitions, type=queue.type, consistency=queue.consistency, principals=queue.principals
        )
        try:
            target, _ = await store.catalogue.create_queue(queue.application, default_name, spec)
        except QueueExists as error:
            target = error.queue
    may_grow = "add partitions" not in target.traits.refuses and not 0 < target.max_claimed < queue.partitions
    if target.partitions < queue.partitions and may_grow:
        target = await store.catalogue.update_queue(target, QueueSpec(partitions=queue.partitions))
    return target
