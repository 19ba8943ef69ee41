"""The attempts at one call: which server to ask, when to retry, and when to give up.

The next step after each attempt. ``tried`` has the servers that failed since the last pause:

====================================  ======================================================================
an answer                             done
a failure that must not be repeated   done, with that error
no connection, broken off, timed out  another server that is not resting: ask it at once
the same, no other server             pause, ``tried`` empty
503, 429, 502, 504                    the server rests; pause; Retry-After counts if there is no other server
a pause that would end after the      a shorter one before the last attempt; done, with the last error, if the server
deadline                              asked for that pause, or if that attempt has failed
====================================  ======================================================================
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable
from math import inf
from random import random
from typing import Generic, TypeVar

import msgspec

from queuey.client.calls.call import Call, HttpAnswer, Seconds, Timeouts, read_error, seconds
from queuey.client.errors import (
    ApiError,
    ClientError,
    InvalidAnswer,
    InvalidArgument,
    KeyInUse,
    ServerError,
    TooManyWaiters,
    TransportError,
)
from queuey.client.http.servers import Server

T = TypeVar("T")

Notice = Callable[[ClientError | None], None]
"""Called with the first of several errors in a row, and with None when calls work again."""
NoticePause = Callable[[float, ClientError], None]
MAX_UNREPEATED = 30.0
"""Max seconds of a call with a deadline of 0."""
MAX_LAST_ATTEMPT = 1.0
"""Max seconds from the begin of the last attempt, after a pause that was made shorter, to the deadline."""
ANSWER_TIMEOUT = 2.0
"""Max seconds by which a call may end after the time for which its caller waits."""
MIN_REPORTED_PAUSE = 1.0
"""Min seconds of a pause that is reported to :attr:`Timing.notice`."""

_MIN_ERROR_STATUS = 400
_MIN_FAILURE_STATUS = 500
_SUCCESS_STATUSES = range(200, 300)
_TEMPORARY_STATUSES = frozenset({429, 502, 503, 504})
"""Statuses of a server that may work again later. 500 is not one of them."""


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How long and after which pauses a client retries calls.

    A call is repeated only if that is safe: it changes nothing, it is idempotent (PUT and DELETE of messages by id), it
    has an idempotency key (sends do unless the deadline is 0), or it certainly was not processed (no connection; 429,
    or 503 with outcome ``none``; too many long polls). Any other failed call may have been carried out, and the caller
    decides.

    Attributes:
        deadline: Max seconds of a call with all its attempts, not counting the time that it asks the server to wait.
            With 0 a call never pauses to try again; it then has 30 seconds.
        base: Upper bound in seconds of the first pause, which is random. It doubles with each further pause.
        cap: Max seconds of that upper bound.
        retry_after_cap: Max seconds that Retry-After adds to a pause.
        cool_down: Seconds for which a failed server is avoided if there are others.

    Example:
        >>> from queuey.client import RetryPolicy
        >>> patient = RetryPolicy(deadline=600, cap=30)
        >>> patient.deadline, patient.base
        (600, 0.2)
    """

    deadline: float = 30.0
    base: float = 0.2
    cap: float = 5.0
    retry_after_cap: float = 30.0
    cool_down: float = 30.0

    def __post_init__(self) -> None:
        if not all(time >= 0 for time in msgspec.structs.astuple(self)):
            raise InvalidArgument("a retry policy has no negative times")

    def pause(self, failures: int, draw: float, retry_after: float | None = None) -> float:
        """Returns the seconds to wait after a number of failed attempts.

        Args:
            failures: Number of failed attempts.
            draw: A random number from 0 to 1, so that callers that failed together do not return together.
            retry_after: Seconds of pause that the server asked for. The jitter is added.
        """
        jitter = draw * min(self.cap, self.base * 2.0 ** min(failures - 1, 30))
        return min(retry_after or 0.0, self.retry_after_cap) + jitter


def may_repeat(error: ClientError, *, repeatable: bool) -> bool:
    """Returns whether to repeat a call: it certainly was not processed, or it is repeatable and the error is temporary.

    Temporary errors are a missing or broken answer, 429, 502, 503 and 504, and ``KeyInUse``.
    """
    if isinstance(error, TransportError):
        return repeatable or error.outcome == "none"
    if isinstance(error, ServerError) and error.not_processed:
        return True
    if isinstance(error, KeyInUse):
        return repeatable
    return repeatable and isinstance(error, ServerError) and error.status in _TEMPORARY_STATUSES


def may_have_been_carried_out(error: ClientError) -> bool:
    if isinstance(error, TransportError):
        return error.outcome == "unknown"
    return isinstance(error, KeyInUse) or (isinstance(error, ServerError) and not error.not_processed)


def is_server_failure(error: ClientError) -> bool:
    """Returns whether an error makes the server rest: no answer, 429, 502, 503 or 504, but not too many long polls."""
    if isinstance(error, TransportError):
        return True
    return (
        isinstance(error, ServerError) and error.status in _TEMPORARY_STATUSES and not isinstance(error, TooManyWaiters)
    )


def retry_after_of(error: ClientError) -> float | None:
    return error.retry_after if isinstance(error, ApiError) else None


def within_of(remaining: float, wait: float = 0.0) -> float | None:
    """Returns ``within`` of a call whose caller waits for ``remaining`` seconds. Without an end, None."""
    return None if remaining == inf else max(0.0, remaining - wait) + ANSWER_TIMEOUT


class ServerChoice:
    """Chooses a server for each attempt, and remembers which ones failed.

    A client keeps its server until it fails. It prefers local servers that are not resting, and otherwise chooses at
    random, so that many clients spread. A failed server rests for the cool-down. If all servers rest, the one that has
    rested longest is asked. Threads may race on these records; the worst outcome is one more attempt at a server that
    is down.
    """

    def __init__(
        self, servers: tuple[Server, ...], *, cool_down: float, clock: Callable[[], float], draw: Callable[[], float]
    ) -> None:
        self.servers = servers
        self._cool_down = cool_down
        self._clock = clock
        self._draw = draw
        self._failed: dict[Server, float] = {}
        self._kept: Server | None = None

    def choose(self, tried: Iterable[Server] = ()) -> Server:
        """Returns the last server if it is still among the best, else one of them at random, which it then keeps.

        The best are the local servers that are not in ``tried`` and do not rest, or else the remote ones. Without any,
        returns the server whose failure is longest ago.
        """
        fresh = self._find_fresh(tried)
        if not fresh:
            return min(self.servers, key=lambda server: self._failed.get(server, float("-inf")))
        near = [server for server in fresh if server.local] or fresh
        if self._kept in near:
            return self._kept
        self._kept = near[min(int(self._draw() * len(near)), len(near) - 1)]
        return self._kept

    def has_fresh(self, tried: Iterable[Server]) -> bool:
        return bool(self._find_fresh(tried))

    def record_failure(self, server: Server) -> None:
        self._failed[server] = self._clock()

    def record_success(self, server: Server) -> None:
        self._failed.pop(server, None)

    def _find_fresh(self, tried: Iterable[Server]) -> list[Server]:
        now = self._clock()
        already_tried = set(tried)
        return [
            server
            for server in self.servers
            if server not in already_tried and now >= self._failed.get(server, float("-inf")) + self._cool_down
        ]


class Attempts(Generic[T]):
    """The attempts at one call.

    Args:
        call: The call.
        choice: Chooses servers and remembers failures across calls.
        policy: The retry policy.
        timing: The clock, the random numbers, and the callback for long pauses.
        timeout: Max seconds of each step, not counting the time that the server was asked to wait.
        within: Max seconds of all attempts, as ``timeout``, in place of the policy's deadline.
    """

    def __init__(
        self,
        call: Call[T],
        choice: ServerChoice,
        policy: RetryPolicy,
        timing: Timing | AsyncTiming,
        timeout: float,
        within: float | None,
    ) -> None:
        self.call = call
        self._choice = choice
        self._policy = policy
        self._timing = timing
        self._timeout = timeout if within is None else min(timeout, within)
        self._end = timing.clock() + (policy.deadline or MAX_UNREPEATED if within is None else within) + call.wait
        self._pauses = 0
        self._is_last = not policy.deadline
        self._tried: list[Server] = []
        self._may_be_done = False
        self.server = choice.choose()

    @property
    def times(self) -> Timeouts:
        remaining = max(0.001, self._end - self._timing.clock())
        return Timeouts(min(self._timeout + self.call.wait, remaining), remaining)

    def read(self, answer: HttpAnswer) -> T:
        """Returns the value of an answer. Any answer below 500 ends the server's rest.

        Raises:
            ApiError: The server refused the call.
            InvalidAnswer: The answer is not from Queuey.
        """
        if answer.status < _MIN_FAILURE_STATUS:
            self._choice.record_success(self.server)
        if answer.status >= _MIN_ERROR_STATUS:
            raise read_error(answer, alone=self.call.alone)
        if answer.status not in _SUCCESS_STATUSES:
            raise InvalidAnswer(f"the answer has the status {answer.status}, which Queuey never sends")
        return self.call.parse(answer)

    def pause_after(self, error: ClientError) -> float | None:
        """Records a failure, chooses the next server, and reports a pause of :data:`MIN_REPORTED_PAUSE` or more.

        Marks the error as in doubt if an earlier attempt may have been carried out.

        Returns:
            Seconds to wait before the next attempt, or None if there is no further attempt.
        """
        if self._may_be_done:
            error.doubt()
        if self.call.method != "GET":
            self._may_be_done = self._may_be_done or may_have_been_carried_out(error)
        self.record_failure(error)
        if not may_repeat(error, repeatable=self.call.repeatable):
            return None
        self._tried.append(self.server)
        other = self._choice.has_fresh(self._tried)
        at_once = other and isinstance(error, TransportError)
        pause = 0.0 if at_once else self._next_pause(None if other else retry_after_of(error))
        if pause is None or self._timing.clock() >= self._end:
            return None
        self.server = self._choice.choose(self._tried)
        if not other:
            self._tried.clear()
        if self._timing.notice is not None and pause >= MIN_REPORTED_PAUSE:
            self._timing.notice(pause, error)
        return pause

    def record_failure(self, error: ClientError) -> None:
        """Makes the server rest if it failed. Names it in an error about an answer, or a missing one."""
        if isinstance(error, InvalidAnswer | TransportError):
            error.server = self.server.root
        if is_server_failure(error):
            self._choice.record_failure(self.server)

    def _next_pause(self, retry_after: float | None) -> float | None:
        """Returns the seconds to wait, less before the last attempt, or None if no attempt fits before the deadline."""
        if self._is_last:
            return None
        self._pauses += 1
        pause = self._policy.pause(self._pauses, self._timing.draw(), retry_after)
        remaining = self._end - self._timing.clock()
        if pause >= remaining:
            self._is_last = True
            pause = max(remaining - MAX_LAST_ATTEMPT, remaining / 2, self._policy.pause(1, 0.0, retry_after))
        return pause if pause < remaining else None


class Patience:
    """Decides how long a live read continues after failures.

    Args:
        policy: Determines the pauses.
        limit: Max seconds of uninterrupted failure, or None for no limit.
        timing: The clock and the random numbers.
        notice: Called with the first of several errors in a row, and with None when calls work again.
    """

    def __init__(
        self, policy: RetryPolicy, limit: Seconds | None, timing: Timing | AsyncTiming, notice: Notice | None
    ) -> None:
        self._policy = policy
        self._notice = notice
        self._limit = seconds(limit)
        self._timing = timing
        self._failures = 0
        self._since = 0.0

    def pause_after(self, error: ClientError, at_least: float = 0.0) -> float:
        """Returns the seconds to wait before the next attempt. Calls ``notice`` with the first error in a row.

        Raises:
            ClientError: The given error, if it is permanent or has lasted too long.
        """
        if not error.temporary:
            raise error
        now = self._timing.clock()
        if not self._failures:
            self._since = now
        self._failures += 1
        pause = max(at_least, self._policy.pause(self._failures, self._timing.draw(), retry_after_of(error)))
        if self._limit is not None:
            remaining = self._limit - (now - self._since)
            if remaining <= 0:
                raise error
            pause = min(pause, remaining)
        if self._failures == 1 and self._notice is not None:
            self._notice(error)
        return pause

    def record_success(self) -> None:
        if self._failures and self._notice is not None:
            self._notice(None)
        self._failures = 0


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """The clock, the sleep function and the random numbers of a client. Tests replace them.

    Example:
        >>> from queuey.client import Client, Timing
        >>> pauses = []
        >>> timing = Timing(clock=lambda: sum(pauses), sleep=pauses.append, draw=lambda: 1.0)
        >>> with Client("http://127.0.0.1:1", key="k", timing=timing) as client:
        ...     try:
        ...         client.hello()
        ...     except Exception as error:
        ...         print(type(error).__name__, sum(pauses))
        ConnectionFailed 29.0

    Attributes:
        clock: Monotonic seconds.
        sleep: Waits for a number of seconds.
        draw: Random numbers from 0 to 1.
        notice: Called before a pause of a second or more, with its seconds and the error that caused it.
    """

    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    draw: Callable[[], float] = random
    notice: NoticePause | None = None


async def _sleep(length: float) -> None:
    import asyncio  # noqa: PLC0415 - the caller has already loaded it

    await asyncio.sleep(length)


class AsyncTiming(msgspec.Struct, frozen=True, kw_only=True):
    """:class:`Timing` for async code. For an event loop other than asyncio's, set ``sleep``.

    Example:
        >>> import asyncio
        >>> from queuey.client import AsyncClient, AsyncTiming
        >>> async def main():
        ...     timing = AsyncTiming(draw=lambda: 0.0)  # retries do not pause
        ...     async with AsyncClient(timing=timing) as client:
        ...         return (await client.hello()).store
        >>> asyncio.run(main())
        'sqlite'
    """

    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = _sleep
    draw: Callable[[], float] = random
    notice: NoticePause | None = None
