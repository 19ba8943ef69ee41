"""Use cases of named messages: a name in a queue stands for at most one message.

:class:`Name` changes the name, the messages and the claim log in an order that ``docs/architecture-names.md``
explains: a process may stop at each ``await``.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Literal, NamedTuple, Protocol

from queuey.access.queue_access import find_same_queue
from queuey.api.claims import JobStatus
from queuey.messages.message_effects import MessageEffects, NotifyRemoved, notify_nobody
from queuey.messages.posts import Draft, hash_content
from queuey.model.errors import (
    NameChanged,
    NameTaken,
    QueueChanged,
    StoreBusy,
    StoreUnavailable,
    TooManyRequests,
    in_doubt,
)
from queuey.model.messages import Location, Message, Named, NewMessage, Queue
from queuey.model.partitions import by_key
from queuey.runtime.event_loop import Core
from queuey.runtime.limits import Limits
from queuey.runtime.metrics import Metrics
from queuey.storage import Store

MAX_ATTEMPTS = 8
RETRY_INTERVAL = 0.05
"""Pause after the first attempt, in seconds, approximately; it grows with each attempt."""
TURN_TIMEOUT = 5.0
"""Timeout in seconds for earlier changes of the same name in this process."""


class Changed(NamedTuple):
    """Result of a change of a name.

    Attributes:
        location: Place of the name's message; None if the name is free.
        stored: True if the change stored this message.
        merged: Status of the job of an equal message that has the name already.
    """

    location: Location | None
    stored: bool
    merged: JobStatus | None = None


class ClaimChecks(Protocol):
    def check(self, queue: Queue) -> None:
        """Raises ``ClaimsRefused`` if the queue's consistency level does not allow claims."""


class NamedJobs(MessageEffects, Protocol):
    """The jobs of named messages, as :class:`~queuey.claims.claims.ClaimUseCases` has them."""

    @property
    def core(self) -> Core: ...
    @property
    def logs(self) -> ClaimChecks: ...
    async def find_status(self, queue: Queue, location: Location) -> JobStatus | None: ...
    async def supersede(self, queue: Queue, location: Location) -> None: ...


class Name:
    """A name of a queue."""

    def __init__(self, store: Store, claims: NamedJobs, turns: Turns, queue: Queue, name: str) -> None:
        self._store = store
        self._claims = claims
        self._turns = turns
        self._queue = queue
        self._name = name
        self._core = claims.core

    async def change(self, item: NewMessage | None, content: bytes, *, free_only: bool = False) -> Changed:
        """Replaces the message of the name.

        Args:
            content: A hash of the message.
            free_only: Store the message only if the name is free. If the name has a message with the same content,
                return that one.

        Raises:
            NameTaken: ``free_only``, and the name has a message with other content.
            StoreBusy: Too many concurrent changes of the name.
            StoreUnavailable: The store failed.
        """
        for attempt in range(MAX_ATTEMPTS):
            named = await self.find()
            if named is not None and named.busy:
                await self.pause(attempt)
                continue
            if named is not None and named.replaced is not None:
                await self.finish_replacement(named)
                continue
            location = None if named is None else named.location
            if item is None and location is None:
                return Changed(None, stored=False)
            if free_only and location is not None and (status := await self.find_status(location)) is not None:
                if named is not None and named.content == content:
                    return Changed(location, stored=False, merged=status)
                raise NameTaken(self._name)
            try:
                written = await self.write(item, content, named)
            except NameChanged:
                await self.pause(attempt)
                continue
            try:
                await self._finish_change(written)
            except (StoreUnavailable, TooManyRequests) as error:
                # The new value is stored already; only the removal of the old one failed.
                raise in_doubt(error) from error
            return Changed(written.location, stored=item is not None)
        raise self._make_busy_error()

    async def read_current(self) -> Message | None:
        """Returns the name's message, or None if the name is free.

        If the row's message is done, the row is read again: another message may have replaced it since. Also finishes
        the removal of a replaced value, if the store allows.
        """
        done: Location | None = None
        for _ in range(MAX_ATTEMPTS):
            named = await self.find()
            location = None if named is None else named.location
            if named is None or location is None or location == done:
                message = None
            else:
                message = await self.fetch(location)
                if message is None or await self._claims.find_status(self._queue, location) is None:
                    done = location  # Or another value has replaced it since the row was read.
                    continue
            if named is not None and named.replaced is not None:
                with suppress(StoreUnavailable, TooManyRequests):
                    await self.finish_replacement(named)
            return message
        raise self._make_busy_error()

    async def finish_replacement(self, named: Named) -> None:
        """Deletes the replaced message, ends its job and claims, then clears it from the row. Does not retry."""
        if named.replaced is not None:
            await self.delete(named.replaced)
        await self._end_replaced(named)

    async def _finish_change(self, written: Named) -> None:
        for _ in range(MAX_ATTEMPTS):
            with suppress(QueueChanged):
                return await self._end_replaced(written)
            present = await find_same_queue(self._store, self._queue.application, self._queue.name, self._queue.qid)
            if present is None:
                return None  # So are all its messages.
            self._queue = present
        raise self._make_busy_error()

    async def _end_replaced(self, named: Named) -> None:
        if named.replaced is not None:
            if self._queue.result_ttl:
                end: Literal["removed", "superseded"] = "removed" if named.location is None else "superseded"
                await self._claims.jobs.record_leaving(self._queue, [named.replaced], end, is_stored=False)
            await self.supersede(named.replaced)
            await self.settle(named)

    def _make_busy_error(self) -> StoreBusy:
        return StoreBusy(f'Too many concurrent changes of name "{self._name}". Try again later.')

    # Steps

    async def find(self) -> Named | None:
        return await self._store.names.find_named(self._queue, self._name)

    async def write(self, item: NewMessage | None, content: bytes, seen: Named | None) -> Named:
        return await self._store.names.write_named(self._queue, self._name, item, content, seen)

    async def settle(self, seen: Named) -> None:
        """Removes the replaced value from the name's row. If that fails, the next caller finishes it."""
        with suppress(StoreUnavailable, TooManyRequests):
            await self._store.names.settle_named(self._queue, self._name, seen)

    async def fetch(self, location: Location) -> Message | None:
        messages: list[Message] = await self._store.messages.fetch(self._queue, [location])
        return next(iter(messages), None)

    async def delete(self, location: Location) -> None:
        await self._store.messages.delete(self._queue, [location])

    async def find_status(self, location: Location) -> JobStatus | None:
        status = await self._claims.find_status(self._queue, location)
        return None if status is None or await self.fetch(location) is None else status

    async def supersede(self, location: Location) -> None:
        await self._claims.supersede(self._queue, location)

    async def pause(self, attempt: int) -> None:
        with self._turns.wait_slot(self._queue.application, self._name):
            await asyncio.sleep(RETRY_INTERVAL * (attempt + self._core.rng.random()))


class NameUseCases:
    """Creates, replaces, fetches and deletes messages by name, for callers who are authorized for the row."""

    def __init__(
        self,
        store: Store,
        limits: Limits,
        metrics: Metrics,
        claims: NamedJobs,
        notify_removed: NotifyRemoved = notify_nobody,
    ) -> None:
        self._store = store
        self._limits = limits
        self._metrics = metrics
        self._claims = claims
        self._turns = Turns(claims.core, max(1, limits.threads // 2))
        self._notify_removed = notify_removed

    def statistics(self) -> dict[str, float]:
        return {"names_waiting": self._turns.waiting, "names_refused_total": self._turns.refused}

    async def create(self, queue: Queue, name: str, draft: Draft) -> Changed:
        """Stores a message under a free name. If the name already has the same message, returns that one.

        Raises:
            InvalidRequest: The queue's kind rules names out.
            NameTaken: The name has another message.
            ClaimsRefused: The queue's consistency level allows neither claims nor names.
        """
        return await self._store_draft(queue, name, draft, free_only=True)

    async def replace(self, queue: Queue, name: str, draft: Draft) -> Changed:
        """Stores a message under a name and replaces its present message. Raises as :meth:`create`.

        When this returns, the old message is removed and no longer delivered; its receipts are superseded.
        """
        return await self._store_draft(queue, name, draft, free_only=False)

    async def _store_draft(self, queue: Queue, name: str, draft: Draft, *, free_only: bool) -> Changed:
        """Stores the message in the partition that its name determines, and counts it if it is new.

        If the message is kept when it expires, ensures its expiry before and after it is stored.
        """
        queue.traits.check("name", queue, "name")
        ttl = draft.ttl or queue.ttl or self._limits.default_ttl
        keeps = draft.ttl is None and queue.on_expiry == "dead-letter"
        item = NewMessage(draft.body, by_key(name, queue.partitions), ttl, draft.meta, kept=keeps)
        content = hash_content([draft])
        self._claims.logs.check(queue)
        async with self._turns.take_turn(queue, name):
            if keeps:
                await self._claims.ensure_expiry(queue, [item])
            changed = await self._make_name(queue, name).change(item, content, free_only=free_only)
            if keeps:
                await self._claims.ensure_expiry(queue, [item], is_stored=True)
        if changed.stored:
            self._metrics.count_received(1, queue)
            self._notify_removed(queue)
        return changed

    async def delete(self, queue: Queue, name: str) -> None:
        self._claims.logs.check(queue)
        async with self._turns.take_turn(queue, name):
            await self._make_name(queue, name).change(None, b"")
        self._notify_removed(queue)

    async def fetch(self, queue: Queue, name: str) -> Message | None:
        self._claims.logs.check(queue)
        message = await self._make_name(queue, name).read_current()
        if message is not None:
            self._metrics.count_delivered(1, queue)
        return message

    def _make_name(self, queue: Queue, name: str) -> Name:
        return Name(self._store, self._claims, self._turns, queue, name)


class Turns:
    """Serializes changes of a name within a process: concurrent changes in the store hinder each other.

    Attributes:
        refused: Number of callers that were refused: too many waited, or their turn did not come in time.
    """

    def __init__(self, core: Core, max_waiting: int) -> None:
        self._core = core
        self._max_waiting = max_waiting
        self._turns: dict[tuple[int, str], deque[asyncio.Future[None]]] = {}
        self._waiting: Counter[str] = Counter()
        self.refused = 0

    @property
    def waiting(self) -> int:
        return self._waiting.total()

    @contextmanager
    def wait_slot(self, application: str, name: str) -> Iterator[None]:
        if self._waiting[application] >= self._max_waiting:
            raise self._count_refusal(name)
        self._waiting[application] += 1
        try:
            yield
        finally:
            self._waiting -= Counter((application,))

    @asynccontextmanager
    async def take_turn(self, queue: Queue, name: str) -> AsyncIterator[None]:
        """Waits for earlier changes of the name, and lets no other begin until the context ends."""
        key = queue.qid, name
        line = self._turns.get(key)
        if line is None:
            self._turns[key] = deque()
        else:
            with self.wait_slot(queue.application, name):
                await self._wait_in_line(line, key)
        try:
            yield
        finally:
            self._pass_on(key)

    async def _wait_in_line(self, line: deque[asyncio.Future[None]], key: tuple[int, str]) -> None:
        """Waits for the turn. A caller that is cancelled when it has just got the turn passes it on."""
        turn = self._core.loop.create_future()
        line.append(turn)
        timer = self._core.loop.call_later(TURN_TIMEOUT, _time_out, turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._pass_on(key)
                raise
            turn.cancel()
            raise
        except TimeoutError:
            raise self._count_refusal(key[1]) from None
        finally:
            timer.cancel()

    def _pass_on(self, key: tuple[int, str]) -> None:
        line = self._turns[key]
        while line:
            turn = line.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        del self._turns[key]

    def _count_refusal(self, name: str) -> StoreBusy:
        self.refused += 1
        return StoreBusy(f'Too many callers are changing the message of name "{name}". Try again later.')


def _time_out(turn: asyncio.Future[None]) -> None:
    if not turn.done():
        turn.set_exception(TimeoutError())
