"""The messages of a partition that are held, and how far it is handled. Pure bookkeeping.

A message is in one of these states::

    waiting ──take──► running ──settle──► done
       ▲                 │
       │              (failed)
       │                 ▼
       └───again────── held ────finish──► done

While a message is held, whatever must come after it waits: in an :class:`OrderedQueue` everything, in a
:class:`KeyedQueue` the messages with its key. A queue's ``end`` is the id up to which everything is done.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Hashable, Iterable, Sequence
from typing import NamedTuple, TypeAlias

from qdo.settings import Key
from qdo.worker.runs import MessageRun
from queuey.client import Message


class FailedMessage(NamedTuple):
    """A failed message whose fate is not decided yet."""

    message: Message
    attempt: int
    key: Hashable = None


class OrderedQueue:
    """One message after another.

    Attributes:
        end: The id up to which everything is done; None: nothing yet.
    """

    done_behind = False
    """Messages are done that cannot be recorded, because one before them is not: here there are none."""

    def __init__(self) -> None:
        self._messages: Sequence[Message] = ()
        self._at = 0
        self._running = False
        self._held = False
        self._attempt = 1
        self.end: str | None = None

    @property
    def count(self) -> int:
        return len(self._messages) - self._at

    @property
    def waiting(self) -> bool:
        """Something may be handled, now or after what is running."""
        return self._at < len(self._messages)

    @property
    def full(self) -> bool:
        """No more messages are to be added now: they would only take memory."""
        return self._at < len(self._messages)

    def add(self, messages: Sequence[Message]) -> None:
        self._messages = [*self._messages[self._at :], *messages] if self.full else messages
        self._at = 0

    @property
    def first(self) -> Message | None:
        """The next message, if it may be handled now."""
        return None if self._running or self._held or not self.full else self._messages[self._at]

    def take(self, most: int) -> MessageRun | None:
        """Returns a run of messages that may be handled now."""
        if self.first is None:
            return None
        self._running = True
        if self._attempt > 1:
            most = 1
        if self._at == 0 and most >= len(self._messages):
            return MessageRun(self._messages, self._attempt)
        return MessageRun(self._messages[self._at : self._at + most], self._attempt)

    def settle(self, run: MessageRun, handled: int, *, failed: bool = False) -> FailedMessage | None:
        """Ends a run: the first ``handled`` messages are done; with ``failed`` the next one is held, and returned."""
        self._running = False
        if handled:
            self._advance(handled)
        if not failed:
            return None
        self._held = True
        return FailedMessage(run.messages[handled], run.attempt)

    def again(self, held: FailedMessage) -> None:
        self._held = False
        self._attempt = held.attempt + 1

    def finish(self, held: FailedMessage) -> None:  # noqa: ARG002 - there is only one
        self._held = False
        self._advance(1)

    def leave(self, held: FailedMessage) -> None:
        """The held message is not tried again here."""

    def keep_gap_fillers(self) -> set[str]:
        """Drops all waiting messages that no done message waits for: here all of them.

        Called when nothing is running, and again when a message is left. Returns the ids of what is left to do.
        """
        self._messages = self._messages[: self._at]
        return set()

    def _advance(self, count: int) -> None:
        self._at += count
        self._attempt = 1
        self.end = self._messages[self._at - 1].id


class KeyedQueue:
    """Several messages at a time, those with one key one after another; methods are as in :class:`OrderedQueue`.

    Args:
        key: Returns a message's key.
        parallel: Max runs at the same moment.
        window: Max messages from the first unfinished one on.
    """

    first: Message | None = None
    """The only message that may be handled next: here there are several."""

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
        self._left: set[str] = set()
        self._waiting = 0
        self._running = 0

    @property
    def end(self) -> str | None:
        return self._prefix.end

    @property
    def count(self) -> int:
        return self._prefix.unfinished

    @property
    def done_behind(self) -> bool:
        return len(self._prefix) > self._prefix.unfinished

    @property
    def waiting(self) -> bool:
        """Messages are neither done, nor running, nor held."""
        return self._waiting > 0

    @property
    def full(self) -> bool:
        """The window is used up, or there is as much to do as can be done at once."""
        return len(self._prefix) >= self._window or self._waiting >= max(1, self._window // 2)

    def add(self, messages: Sequence[Message]) -> None:
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
        """Returns a fair share: whole keys, until there are enough messages."""
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
        self._running -= 1
        held = None
        for message in run.messages[:handled]:
            self._prefix.done(message.id)
        rest = run.messages[handled:]
        if failed:
            held, rest = FailedMessage(rest[0], run.attempt, self._key(rest[0])), rest[1:]
        elif handled and run.attempt > 1:
            self._attempts.pop(run.keys[0], None)
        for message in reversed(rest):
            self._chains[self._key(message)].appendleft(message)
        self._waiting += len(rest)
        for key in run.keys:
            if held is None or key != held.key:
                self._freed(key)
        return held

    def again(self, held: FailedMessage) -> None:
        """The held message is tried before all others that wait."""
        self._chains[held.key].appendleft(held.message)
        self._waiting += 1
        self._attempts[held.key] = held.attempt + 1
        self._ready.appendleft(held.key)

    def finish(self, held: FailedMessage) -> None:
        self._prefix.done(held.message.id)
        self._attempts.pop(held.key, None)
        self._freed(held.key)

    def leave(self, held: FailedMessage) -> None:
        self._left.add(held.message.id)

    def keep_gap_fillers(self) -> set[str]:
        gaps = self._prefix.gaps(self._left)
        self._waiting = 0
        for key, chain in self._chains.items():
            self._chains[key] = deque(message for message in chain if message.id in gaps)
            self._waiting += len(self._chains[key])
        self._ready = deque(key for key in self._ready if self._chains[key])
        return gaps

    def _gather(self, most: int) -> tuple[list[Message], list[Hashable]]:
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
        if self._chains[key]:
            self._ready.append(key)
        else:
            del self._chains[key]


class ContiguousOffset:
    """Messages in their order, some of them done.

    Only messages before every unfinished one may be recorded as processed, so that nothing is lost when the
    partition goes to another worker.
    """

    __slots__ = ("_done", "_order", "end")

    def __init__(self) -> None:
        self._order: deque[str] = deque()
        self._done: set[str] = set()
        self.end: str | None = None
        """The last message of the part that is done without a gap; None: not even the first."""

    def __len__(self) -> int:
        """Messages from the first unfinished one on."""
        return len(self._order)

    @property
    def unfinished(self) -> int:
        """Messages among those that are not done."""
        return len(self._order) - len(self._done)

    def add(self, ids: Iterable[str]) -> None:
        self._order.extend(ids)

    def done(self, identifier: str) -> None:
        order, done = self._order, self._done
        done.add(identifier)
        while order and order[0] in done:
            self.end = order.popleft()
            done.remove(self.end)

    def gaps(self, barriers: Collection[str]) -> set[str]:
        """Returns the unfinished messages that keep finished ones from being recorded.

        Barriers are messages that will not be finished: nothing behind the first of them can be recorded.
        """
        left = len(self._done)
        found: set[str] = set()
        between: list[str] = []
        for identifier in self._order:
            if not left or identifier in barriers:
                break
            if identifier in self._done:
                left -= 1
                found.update(between)
                between.clear()
            else:
                between.append(identifier)
        return found


PartitionQueue: TypeAlias = OrderedQueue | KeyedQueue
