"""Use cases of named messages: a name in a queue stands for at most one message.

:class:`Name` decides in which order the name, the messages and the claim log are changed;
``docs/architecture-names.md`` says why in this one. A process may stop at each ``await``.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Literal, NamedTuple

from queuey.errors import InvalidRequest, NameChanged, NameTaken, StoreBusy, StoreUnavailable, TooManyRequests, in_doubt
from queuey.messages import Location, Message, Named, NewMessage, Queue
from queuey.metrics import Metrics
from queuey.partitions import by_key
from queuey.service.claims import ClaimUseCases
from queuey.service.core import Core
from queuey.service.limits import Limits
from queuey.service.messages import Draft, content_of
from queuey.storage import Store

TRIES = 8
"""Max attempts at a change that others interfere with."""
PAUSE = 0.05
"""Interval in seconds, about, between attempts; longer with each."""
PATIENCE = 5.0
"""Timeout in seconds for others in the process who change the same name."""


class Changed(NamedTuple):
    """Place of a name's message after a change (None: it has none); True if the change stored it."""

    location: Location | None
    stored: bool


class Name:
    """A name of a queue.

    Args:
        store: Has the name.
        claims: Of this process.
        turns: Of its changes here.
        queue: Its queue.
        name: The name.
    """

    def __init__(self, store: Store, claims: ClaimUseCases, turns: Turns, queue: Queue, name: str) -> None:
        self._store = store
        self._claims = claims
        self._turns = turns
        self._queue = queue
        self._name = name
        self._core = claims.core

    async def change(self, item: NewMessage | None, content: bytes, *, free_only: bool = False) -> Changed:
        """Replaces the message of the name.

        Args:
            item: The message; None: the name gets free.
            content: A hash of it.
            free_only: Only if the name is free; a message with the same content is found instead.

        Raises:
            NameTaken: It has another message.
            StoreBusy: Too many concurrent changes of the name.
            StoreUnavailable: It failed.
        """
        for number in range(TRIES):
            named = await self.find()
            if named is not None and named.busy:
                await self.pause(number)
                continue
            if named is not None and named.replaced is not None:
                await self.finish(named)
                continue
            there = None if named is None else named.location
            if item is None and there is None:
                return Changed(None, stored=False)
            if free_only and named is not None and there is not None and await self.is_used(there):
                if named.content == content:
                    return Changed(there, stored=False)
                raise NameTaken(self._name)
            try:
                now = await self.write(item, content, named)
            except NameChanged:
                await self.pause(number)
                continue
            try:
                await self._end_replaced(now)
            except (StoreUnavailable, TooManyRequests) as error:
                # The new value is there, whatever becomes of the one before.
                raise in_doubt(error) from error
            return Changed(now.location, stored=item is not None)
        raise self._busy()

    async def current(self) -> Message | None:
        """Reads the name's row, then the message; if that is done, the row again, to be sure that the name is free."""
        done: Location | None = None
        for _ in range(TRIES):
            named = await self.find()
            there = None if named is None else named.location
            if named is None or there is None or there == done:
                message = None
            else:
                message = await self.fetch(there)
                if message is None or await self.is_done(there):
                    done = there  # Or another value has replaced it since the row was read.
                    continue
            if named is not None and named.replaced is not None:
                with suppress(StoreUnavailable, TooManyRequests):
                    await self.finish(named)
            return message
        raise self._busy()

    async def finish(self, named: Named) -> None:
        """Removes a replaced value, as a process was about to do that stopped, or is still doing."""
        if named.replaced is not None:
            await self.delete(named.replaced)
        await self._end_replaced(named)

    async def _end_replaced(self, named: Named) -> None:
        if named.replaced is not None:
            if self._queue.result_ttl:
                end: Literal["removed", "superseded"] = "removed" if named.location is None else "superseded"
                await self._claims.jobs.record_leaving(self._queue, [named.replaced], end)
            await self.supersede(named.replaced)
            await self.settle(named)

    def _busy(self) -> StoreBusy:
        return StoreBusy(f'Too many concurrent changes of name "{self._name}". Try again later.')

    # Steps

    async def find(self) -> Named | None:
        return await self._store.names.find_named(self._queue, self._name)

    async def write(self, item: NewMessage | None, content: bytes, seen: Named | None) -> Named:
        return await self._store.names.write_named(self._queue, self._name, item, content, seen)

    async def settle(self, seen: Named) -> None:
        """Removes the replaced value from the name's row. If that fails, the next caller finds the value there."""
        with suppress(StoreUnavailable, TooManyRequests):
            await self._store.names.settle_named(self._queue, self._name, seen)

    async def fetch(self, location: Location) -> Message | None:
        found: list[Message] = await self._store.messages.fetch(self._queue, [location])
        return next(iter(found), None)

    async def delete(self, location: Location) -> None:
        await self._store.messages.delete(self._queue, [location])

    async def is_done(self, location: Location) -> bool:
        return await self._claims.is_done(self._queue, location)

    async def is_used(self, location: Location) -> bool:
        """Returns whether a message is there, and not done."""
        return not await self.is_done(location) and await self.fetch(location) is not None

    async def supersede(self, location: Location) -> None:
        await self._claims.supersede(self._queue, location)

    async def pause(self, number: int) -> None:
        """Waits a little, longer after each attempt."""
        with self._turns.place(self._queue.application, self._name):
            await asyncio.sleep(PAUSE * (number + self._core.chance.random()))


class NameUseCases:
    """Creates, replaces, fetches and deletes messages by name, for callers who are authorized for the row."""

    def __init__(self, store: Store, limits: Limits, metrics: Metrics, claims: ClaimUseCases) -> None:
        self._store = store
        self._limits = limits
        self._metrics = metrics
        self._claims = claims
        self._turns = Turns(claims.core, max(1, limits.threads // 2))

    def statistics(self) -> dict[str, float]:
        return {"names_waiting": self._turns.waiting, "names_refused_total": self._turns.refused}

    async def create(self, queue: Queue, name: str, draft: Draft) -> Changed:
        """Stores a message under a name that is free. If the same message has the name, that one is found.

        Raises:
            NameTaken: Another message has it.
            ClaimsRefused: The queue's consistency level does not allow claims, nor names.
            StoreBusy: Too many concurrent changes of the name.
            StoreUnavailable: See its ``outcome``.
        """
        return await self._store_draft(queue, name, draft, free_only=True)

    async def replace(self, queue: Queue, name: str, draft: Draft) -> Changed:
        """Stores a message under a name, in place of its present one. Raises as :meth:`create`.

        When this returns, the replaced message is removed and delivered no more; its receipts are superseded.
        """
        return await self._store_draft(queue, name, draft, free_only=False)

    async def _store_draft(self, queue: Queue, name: str, draft: Draft, *, free_only: bool) -> Changed:
        if queue.kind == "dedup":
            raise InvalidRequest({"name": "This is a dedup queue, whose messages have no names. Leave it out."})
        if queue.kind == "ordered":
            text = "This is an ordered queue, whose messages have keys and no names. Leave it out."
            raise InvalidRequest({"name": text})
        if queue.max_claimed_per_key and draft.key is not None:
            text = "In a queue with max_claimed_per_key a message with a name has no key. Leave one out."
            raise InvalidRequest({"message_key": text})
        ttl = draft.ttl or queue.ttl or self._limits.default_ttl
        keeps = draft.ttl is None and queue.on_expiry == "dead-letter"
        item = NewMessage(draft.body, by_key(name, queue.partitions), ttl, draft.meta, kept=keeps)
        content = content_of([draft])
        self._claims.check(queue)
        async with self._turns.turn(queue, name):
            if keeps:
                await self._claims.rely(queue, [item])
            found = await self._name(queue, name).change(item, content, free_only=free_only)
            if keeps:
                await self._claims.rely(queue, [item], is_stored=True)
        if found.stored:
            self._metrics.received(1, queue)
        return found

    async def delete(self, queue: Queue, name: str) -> None:
        """Removes the message of a name, if there is one. Raises as :meth:`create`."""
        self._claims.check(queue)
        async with self._turns.turn(queue, name):
            await self._name(queue, name).change(None, b"")

    async def fetch(self, queue: Queue, name: str) -> Message | None:
        """Returns the message of a name; None: the name is free.

        Raises:
            StoreBusy: Others replace it faster than it can be read.
        """
        self._claims.check(queue)
        message = await self._name(queue, name).current()
        if message is not None:
            self._metrics.delivered(1, queue)
        return message

    def _name(self, queue: Queue, name: str) -> Name:
        return Name(self._store, self._claims, self._turns, queue, name)


class Turns:
    """Serializes changes of a name within a process: those that meet in the store hinder each other.

    Args:
        core: Their loop.
        most: Max waiting callers of one application.

    Attributes:
        refused: How often no place was free, or the turn did not come.
    """

    def __init__(self, core: Core, most: int) -> None:
        self._core = core
        self._most = most
        self._turns: dict[tuple[int, str], deque[asyncio.Future[None]]] = {}
        self._waiting: Counter[str] = Counter()
        self.refused = 0

    @property
    def waiting(self) -> int:
        return self._waiting.total()

    @contextmanager
    def place(self, application: str, name: str) -> Iterator[None]:
        """Occupies a place to wait.

        Raises:
            StoreBusy: The application has none left.
        """
        if self._waiting[application] >= self._most:
            raise self._refusal(name)
        self._waiting[application] += 1
        try:
            yield
        finally:
            self._waiting -= Counter((application,))

    @asynccontextmanager
    async def turn(self, queue: Queue, name: str) -> AsyncIterator[None]:
        key = queue.qid, name
        line = self._turns.get(key)
        if line is None:
            self._turns[key] = deque()
        else:
            with self.place(queue.application, name):
                await self._wait(line, key)
        try:
            yield
        finally:
            self._pass_on(key)

    async def _wait(self, line: deque[asyncio.Future[None]], key: tuple[int, str]) -> None:
        turn = self._core.loop.create_future()
        line.append(turn)
        timer = self._core.loop.call_later(PATIENCE, _refuse, turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._pass_on(key)
                raise
            turn.cancel()
            raise
        except TimeoutError:
            raise self._refusal(key[1]) from None
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

    def _refusal(self, name: str) -> StoreBusy:
        self.refused += 1
        return StoreBusy(f'Too many callers change what "{name}" stands for. Try again later.')


def _refuse(turn: asyncio.Future[None]) -> None:
    if not turn.done():
        turn.set_exception(TimeoutError())
