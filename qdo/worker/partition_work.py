"""The work of this worker on one partition, from its first message until the partition is released or lost.

::

    open ──close──► closed ◄──fill──► filling
      │               │                  │
      └───────────────┴──────cancel──────┴──► lost, or handed over

closed       Messages in flight are finished and their results count. No other message starts.
filling      Unfinished messages before a done one are handled, so that the next owner need not repeat the done one.
             Failed ones are retried if their pause ends before the deadline.
lost         Results are discarded. A running thread cannot be stopped, so the partition accepts no messages here until
             the thread has ended or its message has failed because it took too long.
handed over  Like lost, after a handler that hangs. The partition still has to move to another worker; then it is lost.

**Messages.** A message is in one of these states::

    waiting ──take──► running ──settle──► done
       ▲                 │
       │              (failed)
       │                 ▼
       └───again────── held ────finish──► done

A held message makes later messages wait: in an :class:`OrderedQueue` all of them, in a :class:`KeyedQueue` those with
its key. A queue's ``end`` is the id up to which all messages are done.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from itertools import count
from time import time
from typing import Literal, NamedTuple, TypeAlias

from qdo.group.offsets import PartitionOwnership
from qdo.group.records import HandlingNote
from qdo.loops import wait_for_event
from qdo.settings import Key
from qdo.worker.crash_suspicion import CrashSuspicion
from qdo.worker.failure import Failure
from qdo.worker.runs import Delivery, MessageRun
from qdo.worker.sources import Handling
from queuey.client import AsyncClient, Message, RetryPolicy, deadletters
from queuey.client.deadletters import Cause

_DEAD_LETTER_PAUSES = RetryPolicy(base=0.5, cap=30.0)
"""Pauses between attempts to store a dead letter."""


class FailedMessage(NamedTuple):
    """A failed message that is held until it is retried, skipped or stored as a dead letter."""

    message: Message
    attempt: int
    key: Hashable = None


class OrderedQueue:
    """The messages of a partition, handled one after another.

    Attributes:
        end: The id up to which all messages are done, or None if no message is done.
    """

    done_behind = False
    """Whether messages after an unfinished one are done. Always False here, because messages are handled in order."""

    def __init__(self) -> None:
        self._messages: Sequence[Message] = ()
        self._next_index = 0
        self._running = False
        self._held = False
        self._attempt = 1
        self.end: str | None = None

    @property
    def count(self) -> int:
        return len(self._messages) - self._next_index

    @property
    def has_waiting(self) -> bool:
        """Whether there are messages that are not done, including running and held ones."""
        return self._next_index < len(self._messages)

    is_full = has_waiting
    """Whether adding more messages now would only use memory."""

    def add(self, messages: Sequence[Message]) -> None:
        self._messages = [*self._messages[self._next_index :], *messages] if self.has_waiting else messages
        self._next_index = 0

    @property
    def has_next(self) -> bool:
        """Whether a message may be handled now."""
        return not (self._running or self._held) and self._next_index < len(self._messages)

    @property
    def first(self) -> Message | None:
        return self._messages[self._next_index] if self.has_next else None

    def take(self, most: int) -> MessageRun | None:
        """Returns a run of up to ``most`` messages, or None if no message may be handled now.

        A message that has failed before runs alone.
        """
        if not self.has_next:
            return None
        self._running = True
        if self._attempt > 1:
            most = 1
        if self._next_index == 0 and most >= len(self._messages):
            return MessageRun(self._messages, self._attempt)
        return MessageRun(self._messages[self._next_index : self._next_index + most], self._attempt)

    def settle(self, run: MessageRun, handled: int, *, failed: bool = False) -> FailedMessage | None:
        """Ends a run whose first ``handled`` messages are done. With ``failed`` holds the next one and returns it."""
        self._running = False
        if handled:
            self._mark_done(handled)
        if not failed:
            return None
        self._held = True
        return FailedMessage(run.messages[handled], run.attempt)

    def retry(self, held: FailedMessage) -> None:
        self._held = False
        self._attempt = held.attempt + 1

    def finish(self, held: FailedMessage) -> None:  # noqa: ARG002 - there is only one
        self._held = False
        self._mark_done(1)

    def leave(self, held: FailedMessage) -> None:
        """Leaves a held message to the next owner."""

    def keep_gap_fillers(self) -> set[str]:
        """Drops the waiting messages that are not before a done message. Here these are all.

        Called when no message is running, and again whenever a message is left. Returns the ids of the messages that
        remain to be handled.
        """
        self._messages = self._messages[: self._next_index]
        return set()

    def _mark_done(self, count: int) -> None:
        self._next_index += count
        self._attempt = 1
        self.end = self._messages[self._next_index - 1].id


class KeyedQueue:
    """The messages of a partition, handled in parallel but in order for each key.

    The methods are those of :class:`OrderedQueue`. A run gets an equal share of the waiting messages, of one or more
    keys. After a run its unhandled messages wait again, before others of their keys.

    Args:
        key: Returns a message's key.
        parallel: Max runs at the same time.
        window: Max messages from the first unfinished one on.
    """

    first: Message | None = None
    """Always None, because several messages may be next."""

    def __init__(self, key: Key, parallel: int, window: int) -> None:
        self._key = key
        self._parallel = parallel
        self._window = window
        self._prefix = ContiguousOffset()
        self._chains: dict[Hashable, deque[Message]] = {}
        """The messages of each key that are neither done nor running nor held."""
        self._ready: deque[Hashable] = deque()
        """Keys without running or held messages, in the order in which they are served."""
        self._attempts: dict[Hashable, int] = {}
        """The number of the next attempt at the first message of a key, if that message has failed before."""
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
    def has_next(self) -> bool:
        return self._running < self._parallel and bool(self._ready)

    @property
    def has_waiting(self) -> bool:
        """Whether there are messages that are neither done nor running nor held."""
        return self._waiting > 0

    @property
    def is_full(self) -> bool:
        """Whether the window is full, or half of it is waiting."""
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
        if not self.has_next:
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

    def wait_again(self, run: MessageRun, messages: Sequence[Message]) -> None:
        present = {self._key(message) for message in run.messages[-1:]}
        self._queue_again(messages, set(run.keys) - present)
        run.keys = tuple(present)

    def _queue_again(self, messages: Sequence[Message], keys: Iterable[Hashable]) -> None:
        for message in reversed(messages):
            self._chains[self._key(message)].appendleft(message)
        self._waiting += len(messages)
        for key in keys:
            self._release_key(key)

    def settle(self, run: MessageRun, handled: int, *, failed: bool = False) -> FailedMessage | None:
        self._running -= 1
        held = None
        for message in run.messages[:handled]:
            self._prefix.mark_done(message.id)
        rest = run.messages[handled:]
        if failed:
            held, rest = FailedMessage(rest[0], run.attempt, self._key(rest[0])), rest[1:]
        elif handled and run.attempt > 1:
            self._attempts.pop(run.keys[0], None)
        self._queue_again(rest, [key for key in run.keys if held is None or key != held.key])
        return held

    def retry(self, held: FailedMessage) -> None:
        self._chains[held.key].appendleft(held.message)
        self._waiting += 1
        self._attempts[held.key] = held.attempt + 1
        self._ready.appendleft(held.key)

    def finish(self, held: FailedMessage) -> None:
        self._prefix.mark_done(held.message.id)
        self._attempts.pop(held.key, None)
        self._release_key(held.key)

    def leave(self, held: FailedMessage) -> None:
        self._left.add(held.message.id)

    def keep_gap_fillers(self) -> set[str]:
        gaps = self._prefix.find_gaps(self._left)
        self._waiting = 0
        for key, chain in self._chains.items():
            self._chains[key] = deque(message for message in chain if message.id in gaps)
            self._waiting += len(self._chains[key])
        self._ready = deque(key for key in self._ready if self._chains[key])
        return gaps

    def _gather(self, max_messages: int) -> tuple[list[Message], list[Hashable]]:
        taken: list[Message] = []
        keys: list[Hashable] = []
        while self._ready and len(taken) < max_messages and self._ready[0] not in self._attempts:
            key = self._ready.popleft()
            keys.append(key)
            chain = self._chains[key]
            while chain and len(taken) < max_messages:
                taken.append(chain.popleft())
        return taken, keys

    def _release_key(self, key: Hashable) -> None:
        if self._chains[key]:
            self._ready.append(key)
        else:
            del self._chains[key]


class ContiguousOffset:
    """Messages in their order, some of them done.

    Only messages before the first unfinished one may be recorded as processed. So no message is lost when the partition
    goes to another worker.
    """

    __slots__ = ("_done", "_order", "end")

    def __init__(self) -> None:
        self._order: deque[str] = deque()
        self._done: set[str] = set()
        self.end: str | None = None
        """The last message before the first unfinished one, or None if the first message is not done."""

    def __len__(self) -> int:
        return len(self._order)

    @property
    def unfinished(self) -> int:
        return len(self._order) - len(self._done)

    def add(self, ids: Iterable[str]) -> None:
        self._order.extend(ids)

    def mark_done(self, identifier: str) -> None:
        order, done = self._order, self._done
        done.add(identifier)
        while order and order[0] in done:
            self.end = order.popleft()
            done.remove(self.end)

    def find_gaps(self, barriers: Collection[str]) -> set[str]:
        """Returns the unfinished messages that keep done ones from being recorded.

        Barriers are messages that will not be finished. No message after the first barrier can be recorded.
        """
        remaining = len(self._done)
        blocking: set[str] = set()
        between: list[str] = []
        for identifier in self._order:
            if not remaining or identifier in barriers:
                break
            if identifier in self._done:
                remaining -= 1
                blocking.update(between)
                between.clear()
            else:
                between.append(identifier)
        return blocking


PartitionQueue: TypeAlias = OrderedQueue | KeyedQueue


WorkState = Literal["open", "closed", "filling", "lost", "handed over"]


class PartitionWork:
    """The work on one partition. The module describes its states.

    Args:
        row: The ownership of the partition.
        partition_queue: The messages of the partition.
        ended: Called, perhaps twice, when the results are discarded and no message is in flight any more.
        suspicion: Watches for messages that crash the worker. None if the partition is not watched.

    Attributes:
        queued: Whether the work waits for a handler.
        handing_over: The task that releases the partition because a handler cannot be stopped. None if there is no
            such handler.
    """

    def __init__(
        self,
        row: PartitionOwnership,
        partition_queue: PartitionQueue,
        ended: Callable[[PartitionWork], None],
        suspicion: CrashSuspicion | None = None,
    ) -> None:
        self.row = row
        self.partition = row.partition
        self.partition_queue = partition_queue
        self.suspicion = suspicion
        self.state: WorkState = "open"
        self.queued = False
        self.handing_over: asyncio.Task[None] | None = None
        self.recorded: str | None = None
        """The last offset passed on to be committed."""
        self.runs: dict[MessageRun, None] = {}
        self._ended = ended
        self._timers: dict[asyncio.TimerHandle, FailedMessage] = {}
        self._deadline = float("inf")
        self._may_fill_gaps = True
        self._dead_letters: set[asyncio.Task[None]] = set()
        self._closing = asyncio.Event()
        self._quiet = asyncio.Event()
        self._quiet.set()

    @property
    def may_start_run(self) -> bool:
        """Whether a run may start now, perhaps one that fills a gap."""
        return self.state in {"open", "filling"} and self.partition_queue.has_next

    @property
    def is_discarded(self) -> bool:
        return self.state in {"lost", "handed over"}

    @property
    def wants_more(self) -> bool:
        return self.state == "open" and not self.partition_queue.is_full

    @property
    def is_quiet(self) -> bool:
        return self._quiet.is_set()

    @property
    def has_unfinished(self) -> bool:
        """Whether messages in flight, or handled ones, will be handled again if the work ends now."""
        return not self.is_quiet or self.partition_queue.done_behind

    @property
    def must_run_alone(self) -> bool:
        if self.suspicion is None or not self.may_start_run or (first := self.partition_queue.first) is None:
            return False
        return self.suspicion.must_run_alone(first)

    @property
    def note_without_own_attempt(self) -> HandlingNote | None:
        return None if self.suspicion is None else self.suspicion.make_final_note()

    def take(self, most: int) -> MessageRun | None:
        """Returns the next run; None if closed or nothing may run. A suspected message runs alone."""
        suspicion = self.suspicion
        if suspicion is not None and (first := self.partition_queue.first) is not None:
            most = 1 if suspicion.is_suspected(first) else most
        run = self.partition_queue.take(most) if self.may_start_run else None
        if run is not None:
            if suspicion is not None:
                run.attempt = max(run.attempt, suspicion.attempt_number(run.messages[0]))
            self.runs[run] = None
            self._quiet.clear()
        return run

    def settle(self, run: MessageRun, handled: int, *, failed: bool) -> FailedMessage | None:
        self.runs.pop(run, None)
        if self.is_discarded or run.settled:
            return None
        return self.partition_queue.settle(run, handled, failed=failed)

    def wait_again(self, run: MessageRun, messages: Sequence[Message]) -> None:
        if (
            run in self.runs
            and not run.settled
            and not self.is_discarded
            and isinstance(self.partition_queue, KeyedQueue)
        ):
            self.partition_queue.wait_again(run, messages)

    def retry_later(self, held: FailedMessage, seconds: float, ready: Callable[[PartitionWork], None]) -> None:
        """Holds a failed message for some seconds, then queues it again and calls ``ready``.

        While gaps are filled, leaves it at once if the retry is after the deadline.
        """

        def again() -> None:
            del self._timers[timer]
            self.partition_queue.retry(held)
            ready(self)

        timer = asyncio.get_running_loop().call_later(seconds, again)
        self._timers[timer] = held
        if self.state == "filling":
            self._keep_gap_fillers()

    def leave(self, held: FailedMessage) -> None:
        """Leaves a held message to the next owner; while gaps are filled, drops messages that fill none any more."""
        self.partition_queue.leave(held)
        if self.state == "filling":
            self._keep_gap_fillers()

    def add_dead_letter_task(self, task: asyncio.Task[None]) -> None:
        self._dead_letters.add(task)
        self._quiet.clear()
        task.add_done_callback(self._on_dead_letter_done)

    async def publish_dead_letter(
        self, client: AsyncClient, handling: Handling, held: FailedMessage, failure: Failure
    ) -> bool:
        queue, place = self.partition.queue.name, Delivery(self.partition, held.attempt)
        cause = Cause(attempts=held.attempt, error=failure.kind, text=failure.text, at=time())
        dead_queue, ttl = handling.settings.dead_queue, handling.settings.dead_ttl
        for failures in count(1):
            try:
                target = await deadletters.bury(client, queue, held.message, cause, dead_queue=dead_queue, ttl=ttl)
            except Exception as error:  # noqa: BLE001 - no error may lose the message
                handling.metrics.increment("dead_letter_failures")
                pause = _DEAD_LETTER_PAUSES.pause(failures, 1.0)
                text = "its dead letter could not be stored (%s), next attempt in %g s: %s"
                handling.report(logging.ERROR, place, held.message, failure, text, error, pause)
                if not await self.pause(pause):
                    return False
            else:
                break
        text = "given up after %d attempts, moved to %s: %s"
        handling.report(logging.ERROR, place, held.message, failure, text, held.attempt, target)
        return True

    def halt(self) -> None:
        for run in self.runs:
            run.stop()

    def close(self) -> None:
        if self.state == "open":
            self.state = "closed"
        self._closing.set()
        self.halt()

    def start_filling_gaps(self, deadline: float) -> bool:
        """Starts to handle the gaps before done messages. Returns False if no gap can be filled.

        Call it when the work is quiet; it is quiet again once the gaps are filled. Several tasks may call it. Messages
        whose retry is after the deadline, by the loop's clock, are left to the next owner.
        """
        if self.is_quiet and not self.is_discarded and self._may_fill_gaps:
            self._deadline = deadline
            self.state = "filling" if self._keep_gap_fillers() else "closed"
            if self.state == "filling":
                self._quiet.clear()
        return self.state == "filling"

    def settle_active_runs(self) -> None:
        """Settles active runs early. Their unhandled messages wait again but may yet be handled, so no more start."""
        self._may_fill_gaps = False
        if self.state == "filling":
            self.state = "closed"
        for run in self.runs:
            if not run.settled:
                self.partition_queue.settle(run, run.handled)
                run.settled = True

    def _keep_gap_fillers(self) -> bool:
        for timer, held in self._timers.items():
            if timer.when() > self._deadline:
                self.partition_queue.leave(held)
        gaps = self.partition_queue.keep_gap_fillers()
        for timer in [timer for timer, held in self._timers.items() if held.message.id not in gaps]:
            timer.cancel()
            del self._timers[timer]
        return self.partition_queue.has_waiting or bool(self._timers)

    def discard(self) -> None:
        """Discards results, and cancels retries and dead letters. Running handlers go on."""
        self.close()
        self.state = "lost" if self.handing_over is None else "handed over"
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        for task in self._dead_letters:
            task.cancel()
        self.update_quiet()

    async def wait_until_quiet(self) -> None:
        await self._quiet.wait()

    async def pause(self, seconds: float) -> bool:
        return not await wait_for_event(self._closing, seconds)

    def _on_dead_letter_done(self, task: asyncio.Task[None]) -> None:
        self._dead_letters.discard(task)
        self.update_quiet()

    def update_quiet(self) -> None:
        """Ends :meth:`wait_until_quiet` if no message is in flight, and then calls ``ended`` for discarded work."""
        if self.state == "filling" and (self.partition_queue.has_waiting or self._timers):
            return
        if not self.runs and not self._dead_letters:
            self._quiet.set()
            if self.is_discarded:
                self._ended(self)
