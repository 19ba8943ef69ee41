"""Renews claims during the work: one thread for all claims of a client."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from threading import Condition, Thread
from typing import Protocol, TypeVar

from queuey.client.calls.call import Call
from queuey.client.claims.held import LEAVING, Hold, Holding, Work
from queuey.client.claims.results import Refused
from queuey.client.errors import ClaimLost, ClientError, RenewalError
from queuey.client.forks import begin_in_children

T = TypeVar("T")

_LINGERS = 5.0
"""Seconds for which the thread stays when nothing is held."""


class SendCall(Protocol):
    """Sends a call until it is answered or may not be sent again, within the client's patience or so many seconds."""

    def __call__(self, call: Call[T], within: float | None = None, /) -> T:
        """Sends a call."""


def send_all(run: SendCall, calls: Iterable[Call[None]], within: float | None = None) -> list[Refused]:
    """Sends calls about receipts; returns those that were refused."""
    refused: list[Refused] = []
    for call in calls:
        try:
            run(call, within)
        except ClaimLost as error:
            if not error.refused:
                raise
            refused.extend(error.refused)
    return refused


class Keeper:
    """Renews claims, and acknowledges those that are finished, in a background thread.

    The thread runs while something is held, and a few seconds longer. An unexpected error in it goes to
    :func:`threading.excepthook`, and what it was about is tried again. If the thread ends, the next claim starts a new
    one.

    Args:
        run: Sends a call.
        clock: Monotonic seconds.
    """

    def __init__(self, run: SendCall, clock: Callable[[], float]) -> None:
        self._run = run
        self._clock = clock
        self.holding = Holding(clock)
        self._closed = False
        self._begin()
        begin_in_children(self)

    def begin_in_child(self) -> None:
        """Holds nothing, without a thread."""
        self.holding.forget_all()
        self._begin()

    def _begin(self) -> None:
        self._changed = Condition()
        self._work: Work | None = None
        self._wakes = 0.0
        self._runs = False

    def keep(self, holds: Sequence[Hold]) -> None:
        """Renews claims of one request from now on.

        Raises:
            RenewalError: No thread can be started for it.
        """
        if holds:
            self.wake_by(holds[0].due)

    def wake_by(self, due: float) -> None:
        """Has the thread look at the claims at a time, if it would sleep longer.

        Raises:
            RenewalError: There is none, and none can be started.
        """
        with self._changed:
            if not self._runs and not self._closed:
                self._start()
            elif due < self._wakes:
                self._changed.notify()

    def _start(self) -> None:
        try:
            Thread(target=self._serve, name="queuey-claims", daemon=True).start()
        except RuntimeError as error:
            raise RenewalError(
                f"No thread can be started to renew claims, so they are released: {error}. "
                "Allow the process more threads, or start fewer."
            ) from error
        self._runs = True  # The thread waits for the lock until this is said.

    def close(self) -> None:
        """Stops renewing; the claims that are still held expire.

        Waits for a renewal only if claims were released during it, which are released once more then.
        """
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not (self._work and self.holding.released_again(self._work)), LEAVING)

    def _serve(self) -> None:
        """Is the thread."""
        try:
            while (work := self._next()) is not None:
                self._do(work)
        except BaseException:
            with self._changed:
                self._work, self._runs = None, False
                self._changed.notify_all()
            raise

    def _next(self) -> Work | None:
        """Waits until something is due; returns what is to be sent, or None if the thread is to end."""
        with self._changed:
            self._work = None
            self._changed.notify_all()  # A caller of close() may wait for this.
            while not self._closed:
                pause = self.holding.pause()
                if pause == 0 and (work := self.holding.work()) is not None:
                    self._work = work
                    return work
                longest = _LINGERS if pause is None else pause
                self._wakes = self._clock() + longest
                woken = self._changed.wait(longest)
                if pause is None and not woken and self.holding.pause() is None:
                    break
            self._runs = False
            return None

    def _do(self, work: Work) -> None:
        asked = self._clock()
        try:
            refused = send_all(self._run, work.calls, work.within)
        except Exception as error:  # noqa: BLE001 - whatever it is, the other claims are to be renewed
            self.holding.failed(work, error)
            _report(error)
        else:
            self.holding.done(work, asked, [each.receipt for each in refused])
        for call in self.holding.released_again(work):
            try:
                self._run(call, work.again_within)
            except Exception as error:  # noqa: BLE001 - the message is delivered when its claim expires
                _report(error)


def _report(error: Exception) -> None:
    """Says what would have ended the thread, as if it had, unless the service or the network is the cause."""
    if not isinstance(error, ClientError):
        about = type(error), error, error.__traceback__, threading.current_thread()
        threading.excepthook(threading.ExceptHookArgs(about))
