"""Renews claims in the background: one thread or one task for all claims of a client."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Awaitable, Callable, Sequence
from threading import Condition, Thread
from typing import TYPE_CHECKING

from queuey.client.calls.call import Call
from queuey.client.claims.held import LEAVE_TIMEOUT, HeldClaim, HeldClaims, Work
from queuey.client.errors import ClientError, InvalidArgument, RenewalError
from queuey.client.forks import register_forkable

if TYPE_CHECKING:
    import asyncio

SendCall = Callable[[Call[None], float | None], None]
"""Sends a call about claims until it is answered, for at most the given seconds."""
AsyncSendCall = Callable[[Call[None], float | None], Awaitable[None]]
"""As :data:`SendCall`, in async code."""
SendWork = Callable[[SendCall, HeldClaims, Work, Callable[[], float], Callable[[Exception], None]], None]
"""Sends the calls of a renewal; see ``send_work`` in :mod:`queuey.client._sync.job`."""
AsyncSendWork = Callable[
    [AsyncSendCall, HeldClaims, Work, Callable[[], float], Callable[[Exception], None]], Awaitable[None]
]
"""As :data:`SendWork`, in async code."""
_IDLE_TIMEOUT = 5.0
"""Max seconds for which the thread stays alive without a claim."""


class ClaimRenewer:
    """Renews held claims and acknowledges finished ones in a background thread.

    The thread runs while a claim is held, and a few seconds longer. An unexpected error in it goes to
    :func:`threading.excepthook`, and the renewal is tried again. If the thread has ended, the next claim starts a new
    one.

    Args:
        send: Sends a call.
        send_work: Sends the calls of a renewal, and records their results.
        clock: Monotonic seconds.
    """

    def __init__(self, send: SendCall, send_work: SendWork, clock: Callable[[], float]) -> None:
        self._send = send
        self._send_work = send_work
        self._clock = clock
        self.claims = HeldClaims(clock)
        self._closed = False
        self._reset()
        register_forkable(self)

    def begin_in_child(self) -> None:
        self.claims.forget_all()
        self._reset()

    def _reset(self) -> None:
        self._changed = Condition()
        self._work: Work | None = None
        self._wake_at = 0.0
        self._is_running = False

    def keep(self, claims: Sequence[HeldClaim]) -> None:
        """Renews the claims of one request from now on. They are already in :attr:`claims`, and due at one time.

        Raises:
            RenewalError: The thread cannot be started.
        """
        if claims:
            self.wake_by(min(claims[0].due, claims[0].batch.begin_by))

    def wake_by(self, due: float) -> None:
        """Makes the thread wake no later than ``due``. Starts it if it is not running and the renewer is not closed.

        Raises:
            RenewalError: The thread cannot be started.
        """
        with self._changed:
            if not self._is_running and not self._closed:
                self._start_thread()
            elif due < self._wake_at:
                self._changed.notify()

    def _start_thread(self) -> None:
        try:
            Thread(target=self._serve, name="queuey-claims", daemon=True).start()
        except RuntimeError as error:
            raise RenewalError(
                f"The thread that renews claims cannot be started, so the claims are released: {error}. "
                "Allow the process more threads, or start fewer."
            ) from error
        self._is_running = True  # The thread waits for the lock that the caller holds, so it sees this.

    def close(self) -> None:
        """Stops renewing. Claims that are still held expire.

        Waits for a running renewal only if claims were released during it: the thread then releases them once more.
        """
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            self._changed.wait_for(
                lambda: not (self._work and self.claims.repeated_releases(self._work)), LEAVE_TIMEOUT
            )

    def _serve(self) -> None:
        try:
            while (work := self._wait_for_work()) is not None:
                self._send_work(self._send, self.claims, work, self._clock, _report_in_thread)
        except BaseException:
            with self._changed:
                self._work, self._is_running = None, False
                self._changed.notify_all()
            raise

    def _wait_for_work(self) -> Work | None:
        """Blocks until a claim is due, and returns the requests for it.

        Returns None if the thread must end: the renewer is closed, or was idle for :data:`_IDLE_TIMEOUT`.
        """
        with self._changed:
            self._work = None
            self._changed.notify_all()  # Wakes close().
            while not self._closed:
                pause = self.claims.seconds_until_due()
                if pause == 0 and (work := self.claims.next_work()) is not None:
                    self._work = work
                    return work
                timeout = _IDLE_TIMEOUT if pause is None else pause
                self._wake_at = self._clock() + timeout
                woken = self._changed.wait(timeout)
                if pause is None and not woken and self.claims.seconds_until_due() is None:
                    break
            self._is_running = False
            return None


def _report_in_thread(error: Exception) -> None:
    args = type(error), error, error.__traceback__, threading.current_thread()
    threading.excepthook(threading.ExceptHookArgs(args))


class AsyncClaimRenewer:
    """Renews held claims and acknowledges finished ones in a task, which runs while a claim is held.

    An unexpected error in it goes to the event loop's exception handler, and the renewal is tried again.

    Args:
        send: Sends a call.
        send_work: Sends the calls of a renewal, and records their results.
        clock: Monotonic seconds.
    """

    def __init__(self, send: AsyncSendCall, send_work: AsyncSendWork, clock: Callable[[], float]) -> None:
        self._send = send
        self._send_work = send_work
        self._clock = clock
        self.claims = HeldClaims(clock)
        self._task: asyncio.Task[None] | None = None
        self._work: Work | None = None
        self._wake_at = 0.0
        self._closed = False

    def keep(self, claims: Sequence[HeldClaim]) -> None:
        """Renews the claims of one request from now on. They are already in :attr:`claims`, and due at one time.

        Raises:
            InvalidArgument: The client is closed.
        """
        if self._closed:
            raise InvalidArgument("the client is closed")
        if claims:
            self.wake_by(min(claims[0].due, claims[0].batch.begin_by))

    def wake_by(self, due: float) -> None:
        import asyncio  # noqa: PLC0415 - the caller has already loaded it

        if self._closed:
            return
        if self._task is None or self._task.done() or (self._work is None and due < self._wake_at):
            self._cancel_task()
            self._wake_at = due
            self._task = asyncio.get_running_loop().create_task(self._serve())

    def _cancel_task(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def close(self) -> None:
        """Stops renewing. Acknowledges finished claims and releases the others, within a few seconds.

        A loop that was left does the same, but Python may close the loop's generator later than its client. If claims
        were released during a running renewal, waits for the renewal: its task then releases them once more.
        """
        import asyncio  # noqa: PLC0415 - already loaded

        self._closed = True
        end = self._clock() + LEAVE_TIMEOUT
        try:
            for call in self.claims.leave_all():
                remaining = end - self._clock()
                if remaining <= 0:
                    break
                with contextlib.suppress(ClientError):
                    await self._send(call, remaining)
            if self._task is not None and self._work is not None and self.claims.repeated_releases(self._work):
                await asyncio.wait({self._task}, timeout=max(0.0, end - self._clock()))
        finally:
            self._cancel_task()

    async def _serve(self) -> None:
        import asyncio  # noqa: PLC0415 - already loaded

        while (pause := self.claims.seconds_until_due()) is not None:
            self._wake_at = self._clock() + pause
            if pause:
                await asyncio.sleep(pause)
                continue
            self._work = self.claims.next_work()
            try:
                if self._work is not None:
                    await self._send_work(self._send, self.claims, self._work, self._clock, _report_in_task)
            finally:
                self._work = None


def _report_in_task(error: Exception) -> None:
    import asyncio  # noqa: PLC0415 - already loaded

    context = {"message": "queuey: an error while claims were renewed", "exception": error}
    asyncio.get_running_loop().call_exception_handler(context)
