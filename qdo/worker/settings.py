"""How a worker handles messages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, get_args

import msgspec

from qdo.errors import InvalidArgument
from qdo.worker.keys import key_by
from qdo.worker.retry import Retry
from queuey.client.deadletters import TTL

OnFailure = Literal["dead-letter", "skip", "stop", "retry"]

_THREADS = 8
_TASKS = 100
_DAY = 86_400
_RANGES = (
    ("threads", 1, 1024),
    ("tasks", 1, 100_000),
    ("processes", 0, 1024),
    ("parallel", 1, 1024),
    ("window", 1, 1_000_000),
    ("batch", 1, 100_000),
    ("slice", 0.001, 60),
    ("time_limit", 0.001, _DAY),
    ("stalled_after", 0.1, _DAY),
    ("dead_ttl", 1, 33_554_432),
    ("commit_messages", 1, 1_000_000),
    ("commit_seconds", 0.001, 3600),
    ("drain", 0, _DAY),
    ("lag_seconds", 0.1, _DAY),
)


class WorkerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Checked when made. Lengths of time are seconds.

    Attributes:
        threads: Partitions (with ``by``: shares of them) that a plain function handles at the same moment.
        tasks: The same for an async function.
        processes: Handle in so many processes instead; 0: in this one.
        by: Handle messages of one partition at the same time, those with one key in order: ``header:<name>`` or
            ``body:<field>``; None: one after another.
        parallel: With ``by``, how many of one partition at the same moment.
        window: With ``by``, how many messages of one partition are held at most until the first of them is done.
        batch: Most messages taken from one partition at once.
        slice: How long a partition is handled before others that wait have their turn. Nothing is interrupted for it.
        retry: Whether and when a message is tried again.
        on_failure: What becomes of a message that failed at last: put into the queue of dead letters, skipped (it is
            logged), the worker stops without marking it, or it is tried for ever.
        time_limit: How long one attempt may take; None: as long as it likes. Not for threads.
        stalled_after: How long a message may be in hand. Then its attempt has failed: an async handler is cancelled, a
            process killed. A thread cannot be stopped, so the worker leaves it, hands its partitions back and joins
            again. A worker that is held up as a whole, so that it can do nothing, is out of its group after so long.
        dead_queue: Queue for dead letters; None: the message's own with ``.dead`` behind.
        dead_ttl: How long dead letters are kept.
        bury_dead: Whether messages of a queue of dead letters may become dead letters of that queue in turn. If not
            they are skipped: reading has removed nothing, so they lie there still.
        commit_messages: Handled messages after which progress is recorded.
        commit_seconds: Time after which it is recorded if there were fewer.
        drain: How long a stop may wait for messages in hand.
        lag_seconds: Time between two measurements of the lag, if there are metrics.
    """

    threads: int = _THREADS
    tasks: int = _TASKS
    processes: int = 0
    by: str | None = None
    parallel: int = 8
    window: int = 1000
    batch: int = 1000
    slice: float = 0.5
    retry: Retry = Retry()
    on_failure: OnFailure = "dead-letter"
    time_limit: float | None = None
    stalled_after: float = 300.0
    dead_queue: str | None = None
    dead_ttl: int = TTL
    bury_dead: bool = False
    commit_messages: int = 5000
    commit_seconds: float = 1.0
    drain: float = 30.0
    lag_seconds: float = 15.0

    def __post_init__(self) -> None:
        """Refuses what contradicts itself or is out of range.

        Raises:
            InvalidArgument
        """
        refused = next(_refusals(self), None)
        if refused:
            raise InvalidArgument(refused)
        if self.by is not None:
            key_by(self.by)


def _refusals(settings: WorkerSettings) -> Iterator[str]:
    """Yields what is wrong."""
    for name, lowest, highest in _RANGES:
        value = getattr(settings, name)
        if value is not None and not lowest <= value <= highest:
            yield f"{name} is {lowest:g} to {highest:g}, not {value!r}"
    if settings.dead_queue == "":
        yield "the queue for dead letters has a name"
    if settings.on_failure not in get_args(OnFailure):
        yield f"on_failure is one of {', '.join(get_args(OnFailure))}, not {settings.on_failure!r}"
