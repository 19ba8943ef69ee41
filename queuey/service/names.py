"""Use cases of named messages: a name in a queue stands for at most one message.

:func:`change` decides, as a generator of steps, in which order the name, the messages and the claim log are changed;
``docs/architecture-names.md`` says why in this one. :class:`NameUseCases` carries the steps out.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, NamedTuple

from queuey.errors import InvalidRequest, NameChanged, NameTaken, StoreBusy, StoreUnavailable, in_doubt
from queuey.messages import Location, Message, Named, NewMessage, Queue
from queuey.metrics import Metrics
from queuey.partitions import by_key
from queuey.service.claims import ClaimUseCases
from queuey.service.drafts import Draft
from queuey.service.limits import Limits
from queuey.service.post_keys import content_of
from queuey.service.queue_access import QueueAccess
from queuey.storage import Store

TRIES = 8
"""How often a name is looked at before a caller is told that others change it all the time."""
PAUSE = 0.05
"""Seconds, about, before it is looked at again; more with each time."""
PATIENCE = 5.0
"""Seconds that a caller waits for others in its process who change the same name."""


class Find(NamedTuple):
    """What does the name stand for? Sent back: :class:`Named`, or None."""


class IsUsed(NamedTuple):
    """Is the message there, and not done? Sent back: a bool."""

    location: Location


class Write(NamedTuple):
    """Put the new value in the place of what was seen. Sent back: :class:`Named`. Raises :class:`NameChanged`."""

    seen: Named | None


class Delete(NamedTuple):
    """Delete a message."""

    location: Location


class Supersede(NamedTuple):
    """Have the claim log note that a message is replaced."""

    location: Location


class Settle(NamedTuple):
    """Have the name forget the replaced value."""

    seen: Named


class Pause(NamedTuple):
    """Wait a little. ``number``: how often that was done before."""

    number: int


Step = Find | IsUsed | Write | Delete | Supersede | Settle | Pause


class Changed(NamedTuple):
    """Where the message of a name is after a change (None: it has none), and whether it was stored by that."""

    location: Location | None
    stored: bool


def change(name: str, content: bytes, *, free_only: bool = False, clear: bool = False) -> Generator[Step, Any, Changed]:
    """Yields the steps of one change and returns its result.

    Args:
        name: Of the message.
        content: A hash of the new one.
        free_only: Only if the name is free; a message with the same content is found instead.
        clear: The name is to have no message.

    Raises:
        NameTaken: It has another message.
        StoreBusy: Others change it all the time.
        StoreUnavailable: It failed.
    """
    for number in range(TRIES):
        named: Named | None = yield Find()
        if named is not None and named.busy:
            yield Pause(number)
            continue
        if named is not None and named.replaced is not None:
            yield from finish(named)
            continue
        there = None if named is None else named.location
        if clear and there is None:
            return Changed(None, stored=False)
        if free_only and named is not None and there is not None and (yield IsUsed(there)):
            if named.content == content:
                return Changed(there, stored=False)
            raise NameTaken(name)
        try:
            now: Named = yield Write(named)
        except NameChanged:
            yield Pause(number)
            continue
        try:
            yield from _supersede(now)
        except StoreUnavailable as error:
            # The new value is there, whatever becomes of the one before.
            raise in_doubt(error) from error
        return Changed(now.location, stored=not clear)
    raise StoreBusy(f'Others change what "{name}" stands for all the time. Try again later.')


def finish(named: Named) -> Generator[Step, Any, None]:
    """Does away with a replaced value: what a process was about to do that stopped, or is still doing."""
    if named.replaced is not None:
        yield Delete(named.replaced)
    yield from _supersede(named)


def _supersede(named: Named) -> Generator[Step, Any, None]:
    if named.replaced is not None:
        yield Supersede(named.replaced)
        yield Settle(named)


class NameUseCases:
    """Creates, replaces, fetches and deletes messages by name."""

    def __init__(
        self, store: Store, limits: Limits, metrics: Metrics, stopping: threading.Event, claims: ClaimUseCases
    ) -> None:
        self._store = store
        self._limits = limits
        self._metrics = metrics
        self._stopping = stopping
        self._claims = claims
        self._turns = _Turns(max(1, limits.threads // 2))

    def statistics(self) -> dict[str, float]:
        """Returns what this process does, by the names that the metrics have."""
        return {"names_waiting": self._turns.waiting, "names_refused_total": self._turns.refused}

    def create(self, access: QueueAccess, name: str, draft: Draft) -> Changed:
        """Stores a message under a name that is free. If the same message has the name, that one is found.

        Raises:
            NameTaken: Another message has it.
            ClaimsRefused: The queue's consistency level does not allow claims, nor names.
            StoreBusy: Others change what the name stands for all the time.
            StoreUnavailable: ``outcome`` says what became of it.
        """
        return self._store_draft(access, name, draft, free_only=True)

    def replace(self, access: QueueAccess, name: str, draft: Draft) -> Changed:
        """Stores a message under a name, in place of the one that it has. Raises as :meth:`create`.

        When this returns, the message before is removed and given to nobody any more; who had claimed it is told when
        acknowledging it.
        """
        return self._store_draft(access, name, draft, free_only=False)

    def _store_draft(self, access: QueueAccess, name: str, draft: Draft, *, free_only: bool) -> Changed:
        content = content_of([draft])

        def call(queue: Queue) -> Changed:
            if queue.kind == "dedup":
                raise InvalidRequest({"name": "This is a dedup queue, whose messages have no names. Leave it out."})
            ttl = draft.ttl or queue.ttl or self._limits.default_ttl
            item = NewMessage(draft.body, by_key(name, queue.partitions), ttl, draft.meta)
            return self._carry_out(queue, name, item, content, change(name, content, free_only=free_only))

        found = access.use(call)
        if found.stored:
            self._metrics.received(1)
        return found

    def delete(self, access: QueueAccess, name: str) -> None:
        """Removes the message that a name stands for, if there is one. Raises as :meth:`create`."""
        access.use(lambda queue: self._carry_out(queue, name, None, b"", change(name, b"", clear=True)))

    def fetch(self, access: QueueAccess, name: str) -> Message | None:
        """Returns the message that a name stands for; None: the name is free.

        Raises:
            StoreBusy: Others replace it faster than it can be read.
        """
        message = access.use(lambda queue: self._current(queue, name))
        if message is not None:
            self._metrics.delivered(1)
        return message

    def _current(self, queue: Queue, name: str) -> Message | None:
        """Reads the name's row, then the message. If that is done, reads again: the name is free if it still has it."""
        self._claims.check(queue)
        done: Location | None = None
        for _ in range(TRIES):
            named = self._store.find_named(queue, name)
            there = None if named is None else named.location
            if named is None or there is None or there == done:
                message = None
            else:
                message = next(iter(self._store.fetch(queue, [there])), None)
                if message is None or self._is_done(queue, there):
                    done = there  # Or another value has replaced it since the row was read.
                    continue
            if named is not None and named.replaced is not None:
                with suppress(StoreUnavailable):
                    self._run(queue, name, None, b"", finish(named))
            return message
        raise StoreBusy(f'Others change what "{name}" stands for all the time. Try again later.')

    def _carry_out(
        self, queue: Queue, name: str, item: NewMessage | None, content: bytes, steps: Generator[Step, Any, Changed]
    ) -> Changed:
        self._claims.check(queue)
        with self._turns.turn(queue, name):
            changed: Changed = self._run(queue, name, item, content, steps)
            return changed

    def _run(
        self, queue: Queue, name: str, item: NewMessage | None, content: bytes, steps: Generator[Step, Any, Any]
    ) -> Any:  # noqa: ANN401 - what the steps return
        do: dict[type, Callable[[Any], Any]] = {
            Find: lambda _: self._store.find_named(queue, name),
            IsUsed: lambda step: self._is_used(queue, step.location),
            Write: lambda step: self._store.write_named(queue, name, item, content, step.seen),
            Delete: lambda step: self._store.delete(queue, [step.location]),
            Supersede: lambda step: self._claims.core.run(self._claims.supersede(queue, step.location)),
            Settle: lambda step: self._settle(queue, name, step.seen),
            Pause: lambda step: self._pause(queue, name, step.number),
        }
        call: Callable[[], Step] = partial(next, steps)
        while True:
            try:
                step = call()
            except StopIteration as ended:
                return ended.value
            try:
                call = partial(steps.send, do[type(step)](step))
            except Exception as error:  # noqa: BLE001 - the steps decide what it means
                call = partial(steps.throw, error)

    def _pause(self, queue: Queue, name: str, number: int) -> None:
        with self._turns.place(queue, name):
            self._stopping.wait(PAUSE * (number + random.random()))  # noqa: S311 - spreads callers

    def _is_used(self, queue: Queue, location: Location) -> bool:
        return not self._is_done(queue, location) and bool(self._store.fetch(queue, [location]))

    def _is_done(self, queue: Queue, location: Location) -> bool:
        return self._claims.core.run(self._claims.is_done(queue, location))

    def _settle(self, queue: Queue, name: str, seen: Named) -> None:
        """Settles a name. If that fails, the next caller finds the value and has nothing to do with it."""
        with suppress(StoreUnavailable):
            self._store.settle_named(queue, name, seen)


class _Turns:
    """Lets the callers of a process change a name one after another: those who meet in the store hinder each other.

    Args:
        most: Callers of one application who may wait at the same time, each in a thread.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._turns: dict[tuple[int, str], list[Any]] = {}
        self._waiting: Counter[str] = Counter()
        self.refused = 0
        """How often no place was free, or the turn did not come."""

    @property
    def waiting(self) -> int:
        """How many callers wait now."""
        with self._lock:
            return self._waiting.total()

    @contextmanager
    def place(self, queue: Queue, name: str) -> Iterator[None]:
        """Gives a caller a place to wait.

        Raises:
            StoreBusy: The application has none left.
        """
        with self._lock:
            if self._waiting[queue.application] >= self._most:
                raise self._refusal(name)
            self._waiting[queue.application] += 1
        try:
            yield
        finally:
            with self._lock:
                self._waiting -= Counter((queue.application,))

    @contextmanager
    def turn(self, queue: Queue, name: str) -> Iterator[None]:
        """Waits for the turn.

        Raises:
            StoreBusy: It has not come, or the application has no place left for waiting.
        """
        key = queue.qid, name
        with self._lock:
            turn = self._turns.setdefault(key, [threading.Lock(), 0])
            turn[1] += 1
        try:
            if not turn[0].acquire(blocking=False):
                self._wait(turn[0], queue, name)
            try:
                yield
            finally:
                turn[0].release()
        finally:
            with self._lock:
                turn[1] -= 1
                if not turn[1]:
                    del self._turns[key]

    def _wait(self, turn: threading.Lock, queue: Queue, name: str) -> None:
        with self.place(queue, name):
            if turn.acquire(timeout=PATIENCE):
                return
        with self._lock:
            raise self._refusal(name)

    def _refusal(self, name: str) -> StoreBusy:
        self.refused += 1
        return StoreBusy(f'Too many callers change what "{name}" stands for. Try again later.')
