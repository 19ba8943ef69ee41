"""The messages of one partition that a worker holds, and which of them may be handled now. Pure bookkeeping.

A message is in one of these states::

    waiting ──take──► running ──settle──► done
       ▲                 │
       │              (failed)
       │                 ▼
       └───again────── held ────finish──► done

While a message is held, whatever must come after it waits: in an :class:`OrderedQueue` everything, in a
:class:`KeyedQueue` the messages with its key. A partition queue's ``end`` is the id up to which everything is done.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from typing import NamedTuple, TypeAlias

from qdo.worker.dispatch.contiguous_offset import ContiguousOffset
from qdo.worker.keys import Key
from queuey.client import Message


class MessageRun(NamedTuple):
    """Messages to be handled one after another, without a pause.

    Attributes:
        messages: At least one. One that failed before travels alone.
        attempt: Which attempt at them it is, from 1 on.
        keys: The keys that they have; in an ordered partition queue none.
    """

    messages: Sequence[Message]
    attempt: int
    keys: tuple[Hashable, ...] = ()


class FailedMessage(NamedTuple):
    """A message that failed, until somebody says what becomes of it."""

    message: Message
    attempt: int
    key: Hashable = None


class OrderedQueue:
    """One message after another.

    Attributes:
        end: The id up to which everything is done; None: nothing yet.
    """

    def __init__(self) -> None:
        self._messages: Sequence[Message] = ()
        self._at = 0
        self._running = False
        self._held = False
        self._attempt = 1
        self.end: str | None = None

    @property
    def count(self) -> int:
        """How many messages are not done."""
        return len(self._messages) - self._at

    @property
    def waiting(self) -> bool:
        """Whether there is anything that may be handled, now or after what is running."""
        return self._at < len(self._messages)

    @property
    def full(self) -> bool:
        """Whether no more messages are to be added now: anything is left to do, so more would only take room."""
        return self._at < len(self._messages)

    def add(self, messages: Sequence[Message]) -> None:
        """Appends messages in their order."""
        self._messages = [*self._messages[self._at :], *messages] if self.full else messages
        self._at = 0

    @property
    def first(self) -> Message | None:
        """The next message, if it may be handled now."""
        return None if self._running or self._held or not self.full else self._messages[self._at]

    def charge(self, attempts: int) -> None:
        """Counts so many attempts of the next message, if there were no more."""
        self._attempt = max(self._attempt, attempts + 1)

    def take(self, most: int) -> MessageRun | None:
        """Returns up to so many messages that may be handled now; they are running from then on."""
        if self.first is None:
            return None
        self._running = True
        if self._attempt > 1:
            most = 1
        if self._at == 0 and most >= len(self._messages):
            return MessageRun(self._messages, self._attempt)
        return MessageRun(self._messages[self._at : self._at + most], self._attempt)

    def settle(self, run: MessageRun, handled: int, *, failed: bool = False) -> FailedMessage | None:
        """Says how a run ended.

        Args:
            run: The run.
            handled: So many from the front are done.
            failed: The one after those failed.

        Returns:
            The failed message, which is held now.
        """
        self._running = False
        if handled:
            self._advance(handled)
        if not failed:
            return None
        self._held = True
        return FailedMessage(run.messages[handled], self._attempt)

    def again(self, held: FailedMessage) -> None:
        """Lets the held message be tried again."""
        self._held = False
        self._attempt = held.attempt + 1

    def finish(self, held: FailedMessage) -> None:  # noqa: ARG002 - there is only one
        """Marks the held message as done."""
        self._held = False
        self._advance(1)

    def narrow(self) -> bool:
        """Drops whatever waits, but for what keeps messages that are done from being recorded: here that is nothing.

        To be called when nothing is running. From then on only that is given; returns whether there is any.
        """
        self._messages = self._messages[: self._at]
        return False

    def _advance(self, count: int) -> None:
        self._at += count
        self._attempt = 1
        self.end = self._messages[self._at - 1].id


class KeyedQueue:
    """Several at a time, those with one key one after another.

    Args:
        key: Finds a message's key.
        parallel: Runs at the same moment.
        window: Messages from the first unfinished one on, beyond which no more are wanted.
    """

    def __init__(self, key: Key, parallel: int, window: int) -> None:
        self._key = key
        self._parallel = parallel
        self._window = window
        self._prefix = ContiguousOffset()
        self._chains: dict[Hashable, deque[Message]] = {}
        """The messages of each key that are not done, without those that are running or held."""
        self._ready: deque[Hashable] = deque()
        """Keys of which nothing is running or held, in the order in which they are to be served."""
        self._attempts: dict[Hashable, int] = {}
        """The attempt that the first message of a key is at, if it is not the first."""
        self._held: set[str] = set()
        self._waiting = 0
        self._running = 0
        self._narrow = False

    @property
    def end(self) -> str | None:
        """The id up to which everything is done."""
        return self._prefix.end

    @property
    def count(self) -> int:
        """How many messages are not done."""
        return self._prefix.unfinished

    @property
    def waiting(self) -> bool:
        """Whether any message is neither done, nor running, nor held."""
        return self._waiting > 0

    @property
    def full(self) -> bool:
        """Whether the window is used up, or there is as much to do as can be done at once."""
        return len(self._prefix) >= self._window or self._waiting >= max(1, self._window // 2)

    def add(self, messages: Sequence[Message]) -> None:
        """Appends messages; see :class:`OrderedQueue`."""
        self._prefix.add(message.id for message in messages)
        self._waiting += len(messages)
        for message in messages:
            key = self._key(message)
            chain = self._chains.get(key)
            if chain is None:
                self._chains[key] = deque((message,))
                self._ready.append(key)
            else:
                chain.append(message)

    def take(self, most: int) -> MessageRun | None:
        """Returns a fair share of what may be handled now: whole keys, until there are enough messages."""
        if self._running >= self._parallel or not self._ready:
            return None
        first = self._ready[0]
        attempt = self._attempts.get(first, 1)
        if attempt > 1:
            self._ready.popleft()
            taken, keys = [self._chains[first].popleft()], [first]
        else:
            taken, keys = self._gather(min(most, -(-self._waiting // (self._parallel - self._running))))
        self._running += 1
        self._waiting -= len(taken)
        return MessageRun(taken, attempt, tuple(keys))

    def settle(self, run: MessageRun, handled: int, *, failed: bool = False) -> FailedMessage | None:
        """Says how a run ended; see :class:`OrderedQueue`."""
        self._running -= 1
        held = None
        for message in run.messages[:handled]:
            self._prefix.done(message.id)
        rest = run.messages[handled:]
        if failed:
            held, rest = FailedMessage(rest[0], run.attempt, self._key(rest[0])), rest[1:]
            self._held.add(held.message.id)
        elif handled and run.attempt > 1:
            self._attempts.pop(run.keys[0], None)
        for message in reversed(rest):
            self._chains[self._key(message)].appendleft(message)
        self._waiting += len(rest)
        for key in run.keys:
            if held is None or key != held.key:
                self._freed(key)
        if held is not None and self._narrow:
            self.narrow()
        return held

    def again(self, held: FailedMessage) -> None:
        """Lets a held message be tried again, before all others that wait."""
        self._held.discard(held.message.id)
        self._chains[held.key].appendleft(held.message)
        self._waiting += 1
        self._attempts[held.key] = held.attempt + 1
        self._ready.appendleft(held.key)

    def finish(self, held: FailedMessage) -> None:
        """Marks a held message as done."""
        self._held.discard(held.message.id)
        self._prefix.done(held.message.id)
        self._attempts.pop(held.key, None)
        self._freed(held.key)

    def narrow(self) -> bool:
        """Drops what fills no gap; see :class:`OrderedQueue`. What lies behind a held message fills none."""
        self._narrow = True
        gaps = self._prefix.gaps(self._held)
        self._waiting = 0
        for key, chain in self._chains.items():
            self._chains[key] = deque(message for message in chain if message.id in gaps)
            self._waiting += len(self._chains[key])
        self._ready = deque(key for key in self._ready if self._chains[key])
        return bool(self._ready)

    def _gather(self, most: int) -> tuple[list[Message], list[Hashable]]:
        """Takes the waiting messages of one key after another, at least one message."""
        taken: list[Message] = []
        keys: list[Hashable] = []
        while self._ready and len(taken) < most and self._ready[0] not in self._attempts:
            key = self._ready.popleft()
            keys.append(key)
            chain = self._chains[key]
            while chain and len(taken) < most:
                taken.append(chain.popleft())
        return taken, keys

    def _freed(self, key: Hashable) -> None:
        """Nothing of a key is running or held any more."""
        if self._chains[key]:
            self._ready.append(key)
        else:
            del self._chains[key]


PartitionQueue: TypeAlias = OrderedQueue | KeyedQueue
