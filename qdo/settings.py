"""The settings of consumers and workers, and the rule that decides when a failed message is retried.

Nothing here sleeps or reads a clock. Settings are checked whenever they are made, also by ``msgspec``.
"""

from __future__ import annotations

import functools
import typing
from collections.abc import Callable, Collection, Hashable, Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from qdo.errors import InvalidArgument
from qdo.partitions import QUEUE_NAME
from queuey.client import Message
from queuey.client.deadletters import TTL


class CheckedSettings(msgspec.Struct, frozen=True, kw_only=True):
    """A struct that checks the types and bounds of its fields when it is made."""

    def __post_init__(self) -> None:
        for name, hint in _hints(type(self)).items():
            value = getattr(self, name)
            try:
                msgspec.convert(value, hint)
            except msgspec.ValidationError as error:
                raise InvalidArgument(f"setting {name} is {value!r}: {error}") from error


@functools.cache  # a worker makes settings for every message that fails
def _hints(kind: type) -> Mapping[str, object]:
    return typing.get_type_hints(kind, include_extras=True)


MIB = 1024 * 1024
MAX_READ_WAIT_SECONDS = 20.0
"""Max seconds for which the service holds a read open."""
MAX_PAGE_MESSAGES = 1000
"""Max messages of one partition in a response of the service."""

Start = Literal["earliest", "latest"]


class ConsumerSettings(CheckedSettings, frozen=True, kw_only=True):
    """The settings of a consumer. Durations are seconds.

    Example:
        >>> from qdo import ConsumerSettings
        >>> ConsumerSettings(start="latest", commit_every=5).commit_every
        5

    A quarter of ``prefetch_messages`` is reserved, in equal parts, for partitions without fetched messages, so that
    slow partitions do not starve others. Responses still being received are not counted. Each partition may exceed
    ``prefetch_bytes`` by one message. If a group starts at the latest messages, this position is recorded before any
    message is returned. With ``commit_every``, messages that poll returned count as processed when poll is called
    again without skipping their partition.

    Attributes:
        start: Where a group without an offset starts: at the oldest message, or at new messages only.
        page: Max messages of one partition per read, up to 1000.
        prefetch_messages: Max messages that a worker fetches in advance, over all partitions.
        prefetch_bytes: Max bytes of the bodies of these messages.
        wait: Seconds for which the service holds a read open, up to 20.
        discover: Interval between two searches for new queues and partitions.
        settle: Seconds for which the leader collects further changes before it makes an assignment. The first change
            after a quiet period does not wait.
        grace: How long members with a ``name`` keep their partitions while absent. Use the same value for all members.
        revoke_timeout: How long a rebalance waits until a partition is released. Then the next owner gets its messages.
        commit_every: Interval between automatic commits, or None for none.
        mirror: Record the offsets in the service too, so that ``queuey offsets show`` shows them.
    """

    start: Start = "earliest"
    page: Annotated[int, Meta(ge=1, le=MAX_PAGE_MESSAGES)] = MAX_PAGE_MESSAGES
    prefetch_messages: Annotated[int, Meta(ge=1, le=1_000_000)] = 5000
    prefetch_bytes: Annotated[int, Meta(ge=1, le=1 << 40)] = 16 * MIB
    wait: Annotated[float, Meta(gt=0, le=MAX_READ_WAIT_SECONDS)] = MAX_READ_WAIT_SECONDS
    discover: Annotated[float, Meta(ge=0.01, le=3600)] = 30.0
    settle: Annotated[float, Meta(ge=0)] = 0.05
    grace: Annotated[float, Meta(ge=0, le=86_400)] = 0.0
    revoke_timeout: Annotated[float, Meta(ge=0.01, le=86_400)] = 30.0
    commit_every: Annotated[float, Meta(gt=0)] | None = None
    mirror: bool = False


_MAX_DOUBLINGS = 1000
_YEAR_SECONDS = 31_536_000


class Retry(CheckedSettings, frozen=True, kw_only=True):
    """Exponential backoff with full jitter.

    The pause after the first attempt is uniformly random from 0 to ``base``, after the second from 0 to twice that,
    and so on up to ``cap``. So workers that failed together, because a service was down, do not retry all at once.
    ``never`` has class names with or without their module, and covers subclasses.

    Example:
        >>> from qdo import Retry
        >>> retry = Retry(attempts=3, base=1.0, never=("ValueError",))
        >>> [retry.longest(attempt) for attempt in (1, 2, 3)]
        [1.0, 2.0, 4.0]
        >>> retry.after(3, {"TimeoutError"}, draw=0.5) is None
        True

    Attributes:
        attempts: Attempts before a message counts as failed; 0 for no limit. With ``claim`` the queue's
            ``max_deliveries`` decides.
        base: Max pause after the first attempt; doubles with each attempt. The pause is random, from 0 to this.
        cap: Max pause after any attempt.
        never: Class of errors that are not retried, such as ``ValueError``. Can be repeated.
    """

    attempts: Annotated[int, Meta(ge=0, le=1_000_000)] = 5
    base: Annotated[float, Meta(ge=0)] = 0.5
    cap: Annotated[float, Meta(ge=0, le=_YEAR_SECONDS)] = 60.0
    never: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.base > self.cap:
            raise InvalidArgument(f"base is {self.base:g} s, more than cap, which is {self.cap:g} s")

    def after(self, attempt: int, kinds: Collection[str], draw: float) -> float | None:
        """Returns the seconds until the next attempt, or None if there is no further attempt.

        Args:
            attempt: Number of attempts so far.
            kinds: Names of the error's class and of its bases.
            draw: A random number from 0 to 1.
        """
        if (self.attempts and attempt >= self.attempts) or any(name in kinds for name in self.never):
            return None
        return draw * self.longest(attempt)

    def longest(self, attempt: int) -> float:
        return min(self.cap, self.base * 2.0 ** min(attempt - 1, _MAX_DOUBLINGS))


OnFailure = Literal["dead-letter", "skip", "stop", "retry"]

_DAY_SECONDS = 86_400


class WorkerSettings(CheckedSettings, frozen=True, kw_only=True):
    """The settings of a worker. Durations are seconds.

    With ``by``, each key is handled like a partition. An async handler that takes too long is cancelled; a process is
    killed.

    Example:
        >>> from qdo import Retry, WorkerSettings
        >>> WorkerSettings(threads=4, retry=Retry(attempts=3), on_failure="skip").on_failure
        'skip'

    Attributes:
        threads: Max partitions that a plain function handles at the same time.
        tasks: Max partitions that an async function handles at the same time.
        processes: Run the handler in this many processes. Use it for CPU-bound handlers and for time limits.
        by: Handle messages of a partition in parallel, but those of one key in order: ``header:NAME``, ``body:FIELD``.
        parallel: With ``by``: max messages of one partition that are handled at the same time.
        window: With ``by``: max messages of one partition from the oldest unfinished one on.
        batch: Max messages taken from one partition at once.
        slice: Time after which another waiting partition has its turn. Running messages are not interrupted.
        retry: When to retry a failed message.
        on_failure: What to do with a failed message: move it to ``<queue>.dead``, only log it, end the worker, or retry
            it.
        time_limit: Max time of one attempt. Needs an async function or ``processes``, because a thread cannot be
            stopped.
        stalled_after: Time after which an attempt counts as failed. A worker that hangs as a whole for this time ends.
        dead_queue: Queue for dead letters.
        dead_ttl: How long dead letters are kept.
        bury_dead: Add failed messages of a dead-letter queue to that queue again. Without it they are skipped and stay
            where they are.
        commit_messages: Number of handled messages after which offsets are committed.
        commit_seconds: Time after which offsets are committed if fewer messages were handled.
        drain: How long a stop waits for messages that are being handled.
        lag_seconds: Interval between measurements of the lag, if metrics are enabled.
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
    time_limit: Annotated[float, Meta(ge=0.001, le=_DAY_SECONDS)] | None = None
    stalled_after: Annotated[float, Meta(ge=0.1, le=_DAY_SECONDS)] = 300.0
    dead_queue: Annotated[str, Meta(pattern=QUEUE_NAME)] | None = None
    dead_ttl: Annotated[int, Meta(ge=1, le=33_554_432, extra={"seconds": True})] = TTL
    bury_dead: bool = False
    commit_messages: Annotated[int, Meta(ge=1, le=1_000_000)] = 5000
    commit_seconds: Annotated[float, Meta(ge=0.001, le=3600)] = 1.0
    drain: Annotated[float, Meta(ge=0, le=_DAY_SECONDS)] = 30.0
    lag_seconds: Annotated[float, Meta(ge=0.1, le=_DAY_SECONDS)] = 15.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.by is not None:
            key_by(self.by)


Key = Callable[[Message], Hashable]


def key_by(text: str) -> Key:
    """Returns a function that returns a message's key. Messages without a key share the key None.

    Args:
        text: ``header:<name>``, or ``body:<field>`` with dots between the names of nested fields. A body that is JSON
            text is decoded first.

    Raises:
        InvalidArgument: The text has neither form.
    """
    kind, _, name = text.partition(":")
    if kind == "header" and name:
        lower = name.lower()
        return lambda message: message.headers.get(lower)
    if kind == "body" and all(name.split(".")):
        names = name.split(".")
        return lambda message: _read_field(message.body, names)
    raise InvalidArgument(f"a key is header:<name> or body:<field>, not {text!r}")


def _read_field(body: Any, names: list[str]) -> Hashable:  # noqa: ANN401 - any JSON value
    if isinstance(body, str | bytes):
        try:
            body = msgspec.json.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
    for name in names:
        if not isinstance(body, dict):
            return None
        body = body.get(name)
    return msgspec.json.encode(body) if isinstance(body, dict | list) else body
