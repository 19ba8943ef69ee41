"""The threads that take messages from a queue and hand them to the program."""

from __future__ import annotations

import heapq
import logging
import random
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias

from qdo.curator.consuming.backlog import Backlog, now_ms
from qdo.curator.consuming.taking import TRY_AGAIN, LockingTaker, Taker, Untaken
from qdo.curator.lifecycle import Lifecycle
from qdo.curator.names import Child
from qdo.curator.znodes import Znodes
from qdo.errors import BadItem, ConsumerFailed, CoordinationLost, QdoError, SessionLost
from qdo.worker.settings import Retry

ErrorMode: TypeAlias = Literal["requeue", "delete"]

MOST_PARKED = 1000
"""Max failed messages in a pause; at the limit no further message is taken."""
MOST_COUNTED = 10_000
"""Max messages put back whose failures are remembered."""
LONGEST_WAIT = 60.0
"""Max seconds until the clock is read again: it may have been set."""

log = logging.getLogger("qdo.curator")


class Parked(NamedTuple):
    """A failed message that stays locked for a while."""

    until: float
    child: Child
    failures: int


@dataclass(frozen=True)
class Handling:
    """The program's side of a queue.

    Attributes:
        consume: Called with each message, in one of the threads.
        error_mode: The fate of a message that failed.
        retry: How long a failed message stays locked before it is put back, and how often.
        report: Called with every error.
    """

    consume: Callable[[Any], object]
    error_mode: ErrorMode
    retry: Retry
    report: Callable[[QdoError], None]


class Consumption:
    """Threads that take and handle messages, each one after another.

    The lifecycle's condition guards everything here. ``allowed`` says if messages may be taken now;
    :meth:`look_again` has to be called when that changes.
    """

    def __init__(
        self,
        lifecycle: Lifecycle,
        znodes: Znodes,
        path: str,
        taker: Taker,
        backlog: Backlog,
        handling: Handling,
        *,
        threads: int,
        allowed: Callable[[], bool],
    ) -> None:
        self._lifecycle = lifecycle
        self._allowed = allowed
        self._znodes = znodes
        self._path = path
        self._taker = taker
        self._backlog = backlog
        self._handling = handling
        self._parked: list[Parked] = []
        self._failures: OrderedDict[str, int] = OrderedDict()
        self._listing = False
        self._threads = [
            threading.Thread(target=self._work, name=f"qdo-curator-{number}", daemon=True) for number in range(threads)
        ]
        self._running: set[threading.Thread] = set()
        self._closers: set[threading.Thread] = set()

    def start(self) -> None:
        with self._lifecycle.changed:
            self._running.update(self._threads)
        for thread in self._threads:
            thread.start()

    def look_again(self, _: object = None) -> None:
        """Wakes the threads: messages may be taken now."""
        with self._lifecycle.changed:
            self._lifecycle.changed.notify_all()

    def join(self, seconds: float) -> bool:
        """Waits for messages in hand after the queue was closed; returns False if there are still some.

        Consumers that wait here themselves do not wait for each other.
        """
        own = threading.current_thread()
        with self._lifecycle.changed:
            if own not in self._running:
                return self._lifecycle.changed.wait_for(lambda: not self._running, seconds)
            self._closers.add(own)
            self._lifecycle.changed.notify_all()
            return self._lifecycle.changed.wait_for(lambda: self._running <= self._closers, seconds)

    def _work(self) -> None:
        try:
            while (step := self._next()) is not None:
                try:
                    step()
                except SessionLost as error:
                    self._lifecycle.happened("lost")
                    self._handling.report(error)
                except QdoError as error:
                    self._handling.report(error)
                    time.sleep(TRY_AGAIN)
        finally:
            with self._lifecycle.changed:
                self._running.discard(threading.current_thread())
                if not self._running:
                    self._taker.leave()
                self._lifecycle.changed.notify_all()

    def _next(self) -> Callable[[], None] | None:
        """Waits for something to do; None: the queue has ended."""
        condition = self._lifecycle.changed
        with condition:
            while True:
                state = self._lifecycle.state
                if state == "closed" and self._parked:
                    return partial(self._put_back, heapq.heappop(self._parked))
                if state not in {"started", "suspended"}:
                    return None
                wait = LONGEST_WAIT
                if state == "started":
                    now = time.monotonic()
                    step = self._step(now)
                    if step is not None:
                        return step
                    wait = self._pause(now)
                condition.wait(wait)

    def _step(self, now: float) -> Callable[[], None] | None:
        if self._parked and self._parked[0].until <= now:
            return partial(self._put_back, heapq.heappop(self._parked))
        if not self._allowed():
            return None
        epoch = now_ms()
        listing = self._backlog.listing_due(now, epoch)
        if listing is not None and listing <= 0 and not self._listing:
            self._listing = True
            self._backlog.listing()
            return self._list
        child = self._backlog.take(epoch) if len(self._parked) < MOST_PARKED else None
        return None if child is None else partial(self._handle, child)

    def _pause(self, now: float) -> float:
        """Returns the seconds until there may be something to do."""
        epoch = now_ms()
        due = [LONGEST_WAIT]
        if self._parked:
            due.append(self._parked[0].until - now)
        if not self._allowed():
            return max(0.0, min(due))
        if not self._listing and (listing := self._backlog.listing_due(now, epoch)) is not None:
            due.append(listing)
        if len(self._parked) < MOST_PARKED and (first := self._backlog.due(epoch)) is not None:
            due.append(first)
        return max(0.0, min(due))

    def _list(self) -> None:
        began = time.monotonic()
        names: list[str] | None = None
        try:
            names = self._znodes.children(self._path, self._changed).get()
            if names is None:
                self._znodes.ensure(self._path).get()
        finally:
            with self._lifecycle.changed:
                self._listing = False
                if names is None:
                    self._backlog.changed()
                else:
                    foreign = self._backlog.listed(names, began, time.monotonic())
                self._lifecycle.changed.notify_all()
        if names is not None and foreign:
            log.warning(
                "%d nodes in %s are no messages and stay there, such as %r", len(foreign), self._path, min(foreign)
            )

    def _changed(self, _: object) -> None:
        """Called in kazoo's thread: the queue changed, or the connection broke and nobody watches any more."""
        with self._lifecycle.changed:
            self._backlog.changed()
            self._lifecycle.changed.notify_all()

    def _unblocked(self, child: Child, _: object = None) -> None:
        """The lock is gone, also when its holder died, or nobody watches it any more."""
        with self._lifecycle.changed:
            self._backlog.unblock(child.name)
            self._lifecycle.changed.notify_all()

    def _handle(self, child: Child) -> None:
        try:
            messages = self._taker.take(child)
            if messages is Untaken.BLOCKED:
                messages = self._wait_for(child)
        except BadItem as error:
            self._set_aside(child)
            raise BadItem(f"{self._path}/{child.name} is left where it is: {error}", error.data) from error
        except CoordinationLost:
            self._return_to_backlog(child)
            raise
        except QdoError:
            self._set_aside(child)
            raise
        if isinstance(messages, Untaken):
            if messages is Untaken.GONE:
                self._drop(child)
            return
        self._conclude(child, self._handed_over(child, messages))

    def _wait_for(self, child: Child) -> list[Any] | Untaken:
        """Watches a node that another consumer holds; returns its messages if this consumer holds it after all."""
        assert isinstance(self._taker, LockingTaker)  # noqa: S101 - no other blocks
        with self._lifecycle.changed:
            if not self._backlog.block(child, time.monotonic()):
                return Untaken.BLOCKED
        own = self._taker.holder(child, partial(self._unblocked, child))
        if own is None:
            self._unblocked(child)
        if not own:
            return Untaken.BLOCKED
        with self._lifecycle.changed:
            if not self._backlog.hold(child):
                return Untaken.BLOCKED
        return self._taker.resume(child)

    def _handed_over(self, child: Child, messages: list[Any]) -> BaseException | None:
        failure: BaseException | None = None
        for message in messages:
            try:
                self._handling.consume(message)
            except BaseException as error:  # noqa: BLE001 - a thread that ends would keep the lock
                failed = ConsumerFailed(
                    f"a message of {self._path}/{child.name} failed: {type(error).__name__}: {error}"
                )
                failed.__cause__ = error
                self._handling.report(failed)
                if self._taker.recoverable and self._handling.error_mode == "requeue":
                    failure = error
                    break
        return failure

    def _conclude(self, child: Child, failure: BaseException | None) -> None:
        with self._lifecycle.changed:
            failures = self._failures.pop(child.name, 0) + (failure is not None)
        if failure is not None:
            kinds = {kind.__name__ for kind in type(failure).__mro__}
            pause = self._handling.retry.after(failures, kinds, random.random())  # noqa: S311 - no secret
            if pause is not None:
                with self._lifecycle.changed:
                    heapq.heappush(self._parked, Parked(time.monotonic() + pause, child, failures))
                    self._lifecycle.changed.notify_all()
                return
        try:
            self._taker.finish(child)
        finally:
            self._drop(child)

    def _put_back(self, parked: Parked) -> None:
        assert isinstance(self._taker, LockingTaker)  # noqa: S101 - messages of others are not parked
        try:
            name = self._taker.put_back(parked.child)
        finally:
            self._drop(parked.child)
        with self._lifecycle.changed:
            self._failures[name or parked.child.name] = parked.failures
            while len(self._failures) > MOST_COUNTED:
                self._failures.popitem(last=False)
            if name is None:
                self._backlog.changed()

    def _drop(self, child: Child) -> None:
        with self._lifecycle.changed:
            self._backlog.drop(child)

    def _return_to_backlog(self, child: Child) -> None:
        with self._lifecycle.changed:
            self._backlog.put_back(child)

    def _set_aside(self, child: Child) -> None:
        with self._lifecycle.changed:
            self._backlog.set_aside(child)
