"""How a worker handles messages, and whether and when it tries a failed one again.

Nothing here sleeps or reads a clock.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Literal

from msgspec import Meta

from qdo.checked_settings import CheckedSettings
from qdo.errors import InvalidArgument
from qdo.subscriptions import QUEUE_NAME
from qdo.worker.keys import key_by
from queuey.client.deadletters import TTL

_MOST_DOUBLINGS = 1000
_YEAR = 31_536_000


class Retry(CheckedSettings, frozen=True, kw_only=True):
    """Exponential backoff with full jitter.

    The pause after the first attempt is drawn evenly from 0 to ``base``, after the second from 0 to twice that, and so
    on up to ``cap``. So workers that failed together, because a service was down, do not retry all at the same moment.
    ``never`` has names with or without their module; subclasses of those errors count too.

    Example:
        >>> from qdo import Retry
        >>> retry = Retry(attempts=3, base=1.0, never=("ValueError",))
        >>> [retry.longest(attempt) for attempt in (1, 2, 3)]
        [1.0, 2.0, 4.0]
        >>> retry.after(3, {"TimeoutError"}, draw=0.5) is None
        True

    Attributes:
        attempts: Attempts before a message counts as failed; 0: no limit. With ``claim`` the queue's
            ``max_deliveries`` decides.
        base: Longest pause after the first attempt; doubles with each attempt. The pause is random, from 0 to this.
        cap: Longest pause after any attempt.
        never: Class of an error that is not retried: ``ValueError``; several may be given.
    """

    attempts: Annotated[int, Meta(ge=0, le=1_000_000)] = 5
    base: Annotated[float, Meta(ge=0)] = 0.5
    cap: Annotated[float, Meta(ge=0, le=_YEAR)] = 60.0
    never: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.base > self.cap:
            raise InvalidArgument(f"base, {self.base:g} s, is at most cap, {self.cap:g} s")

    def after(self, attempt: int, kinds: Collection[str], draw: float) -> float | None:
        """Returns the seconds until the next attempt; None: there is none.

        Args:
            attempt: Number of attempts so far.
            kinds: Names of the class of the error and of its bases.
            draw: A random number from 0 to 1.
        """
        if (self.attempts and attempt >= self.attempts) or any(name in kinds for name in self.never):
            return None
        return draw * self.longest(attempt)

    def longest(self, attempt: int) -> float:
        """Returns the max pause after an attempt, in seconds."""
        return min(self.cap, self.base * 2.0 ** min(attempt - 1, _MOST_DOUBLINGS))


OnFailure = Literal["dead-letter", "skip", "stop", "retry"]

_DAY = 86_400


class WorkerSettings(CheckedSettings, frozen=True, kw_only=True):
    """The settings of a worker. Durations are seconds.

    Each key of ``by`` is handled like a partition of its own. An async handler that takes too long is cancelled, a
    process killed.

    Example:
        >>> from qdo import Retry, WorkerSettings
        >>> WorkerSettings(threads=4, retry=Retry(attempts=3), on_failure="skip").on_failure
        'skip'

    Attributes:
        threads: Partitions that a plain function handles at the same time.
        tasks: Partitions that an async function handles at the same time.
        processes: Run the handler in this many processes: for handlers that compute or need a time limit.
        by: Handle messages of a partition at the same time, those of one key in order: ``header:NAME``, ``body:FIELD``.
        parallel: With ``by``: messages of one partition that are handled at the same time.
        window: With ``by``: most messages of one partition that wait for the oldest of them to be handled.
        batch: Most messages taken from one partition at once.
        slice: Time after which another waiting partition has its turn. No running message is interrupted.
        retry: When a failed message is retried.
        on_failure: What happens to a failed message: it goes to ``<queue>.dead``, is only logged, ends the worker, or
            is tried again.
        time_limit: Longest time of one attempt. Needs an async function or ``processes``, because a thread cannot
            be stopped.
        stalled_after: Time after which an attempt counts as failed. A worker that hangs as a whole for this time ends.
        dead_queue: Queue for dead letters.
        dead_ttl: How long dead letters are kept.
        bury_dead: A failed message of a queue of dead letters becomes a dead letter of that queue again. If not, it is
            skipped and stays where it is.
        commit_messages: Number of handled messages after which offsets are committed.
        commit_seconds: Time after which they are committed if fewer messages were handled.
        drain: How long a stop waits for messages that are being handled.
        lag_seconds: Time between two measurements of the lag, if there are metrics.
    """

    threads: Annotated[int, Meta(ge=1, le=1024)] = 8
    tasks: Annotated[int, Meta(ge=1, le=100_000)] = 100
    processes: Annotated[int, Meta(ge=0, le=1024)] = 0
    by: Annotated[str, Meta(pattern=r"^(header|body):.+$")] | None = None
    parallel: Annotated[int, Meta(ge=1, le=1024)] = 8
    window: Annotated[int, Meta(ge=1, le=1_000_000)] = 1000
    batch: Annotated[int, Meta(ge=1, le=100_000)] = 1000
    slice: Annotated[float, Meta(ge=0.001, le=60)] = 0.5
    retry: Retry = Retry()
    on_failure: OnFailure = "dead-letter"
    time_limit: Annotated[float, Meta(ge=0.001, le=_DAY)] | None = None
    stalled_after: Annotated[float, Meta(ge=0.1, le=_DAY)] = 300.0
    dead_queue: Annotated[str, Meta(pattern=QUEUE_NAME)] | None = None
    dead_ttl: Annotated[int, Meta(ge=1, le=33_554_432)] = TTL
    bury_dead: bool = False
    commit_messages: Annotated[int, Meta(ge=1, le=1_000_000)] = 5000
    commit_seconds: Annotated[float, Meta(ge=0.001, le=3600)] = 1.0
    drain: Annotated[float, Meta(ge=0, le=_DAY)] = 30.0
    lag_seconds: Annotated[float, Meta(ge=0.1, le=_DAY)] = 15.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.by is not None:
            key_by(self.by)
