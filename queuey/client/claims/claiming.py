"""Claiming job after job, without I/O: which claim comes next, when it is given up, and when to acknowledge."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import inf
from typing import Literal, TypedDict, get_args

from queuey.client.calls.call import Call, number_text, partitions_text
from queuey.client.calls.claim_calls import Claim, claim, each_queue, names_of, receipts_of
from queuey.client.calls.read_calls import Partitions
from queuey.client.claims.held import Hold, receipts_by_queue
from queuey.client.claims.results import Received
from queuey.client.errors import ClientError, InvalidArgument
from queuey.client.http.attempts import Notice, Patience

SHORTEST_TTL = 2.0
"""Seconds of the shortest claim that can be renewed in time."""
LONGEST_WAIT = 20.0
"""Seconds that the server holds a claim open at most."""
_SHORTEST_POLL = 0.5
"""Seconds. A server that does not hold a claim open is asked no more often than this."""
_TOGETHER = 0.1
"""Seconds for which a job that is done waits for the acknowledgement of the next ones."""


class ClaimOptions(TypedDict, total=False):
    """Which messages to claim.

    Example:
        >>> for job in client.job_queue("orders").claim(idle=0, limit=10, ttl=60, partitions=1):
        ...     print(job.body)
        one apple
        two eggs

    Attributes:
        limit: Messages that one request claims, at most 1,000; those that wait for their turn are renewed, too. 1.
        ttl: Seconds, 2 to 43,200, after which the messages of a process that has died go to another. 30.
        partitions: ``"*"`` for all, a number, or several. All.
    """

    limit: int
    ttl: float
    partitions: Partitions


class LoopOptions(ClaimOptions, total=False):
    """What a loop over jobs takes.

    Example:
        >>> client.job_queue("orders").run(lambda job: print(job.body), idle=0, patience=60)
        one apple
        two eggs

    Attributes:
        idle: Seconds without a message after which it ends. Never.
        patience: Seconds of uninterrupted failure of the service after which it gives up. Never.
        notice: Called with the error when the service begins to fail, and with None when it answers again.
    """

    idle: float | None
    patience: float | None
    notice: Notice | None


OnError = Literal["retry", "raise"]
"""What becomes of a run of jobs when one fails: it goes on, or ends with the error."""


def check_on_error(on_error: OnError) -> None:
    """Refuses what is none.

    Raises:
        InvalidArgument: It is none.
    """
    if on_error not in get_args(OnError):
        raise InvalidArgument(f"on_error is {on_error!r}: it is 'retry' or 'raise'")


class ClaimedQueues:
    """The queues that jobs come from, in order of preference.

    Args:
        queues: One name, or up to 10.

    Raises:
        InvalidArgument: No queue can be called so, or there are too many.
    """

    def __init__(self, queues: str | Iterable[str]) -> None:
        self.queues = names_of(queues)

    def __repr__(self) -> str:
        """Names the queues."""
        return f"<{type(self).__name__} {', '.join(self.queues)}>"

    @property
    def name(self) -> str:
        """Of the queue.

        Raises:
            InvalidArgument: There are several, and this is about one.
        """
        if len(self.queues) > 1:
            raise InvalidArgument(f"This is about one queue, not {', '.join(self.queues)}: use job_queue(name)")
        return self.queues[0]

    def _each(
        self, call: Callable[..., Iterator[Call[None]]], claims: Claim | Iterable[Claim], *given: object
    ) -> Iterator[Call[None]]:
        return each_queue(call, receipts_of(self.queues, claims), *given)


class Claiming:
    """The state of a loop over jobs.

    Args:
        queues: Whose messages, in order of preference.
        idle: Seconds without a message after which the loop ends; None: never.
        patience: Decides how long failures are put up with.
        clock: Monotonic seconds.
        options: What to claim.

    Raises:
        InvalidArgument: An option cannot be used.
    """

    def __init__(
        self,
        queues: Sequence[str],
        idle: float | None,
        patience: Patience,
        clock: Callable[[], float],
        options: ClaimOptions,
    ) -> None:
        self._queues = queues
        self._limit = options.get("limit", 1)
        self.ttl = float(number_text("ttl", options.get("ttl", 30.0)))
        self._partitions = partitions_text(options.get("partitions", "*"))
        if not self.ttl >= SHORTEST_TTL:
            raise InvalidArgument(
                f"ttl is {self.ttl}: a claim of less than {SHORTEST_TTL:g} s cannot be renewed in time"
            )
        if len(queues) > 1 and self._partitions != "*":
            raise InvalidArgument(f"partitions are {self._partitions}: of several queues all are claimed from")
        if idle is not None and idle != inf and not float(number_text("idle", idle)) >= 0:
            raise InvalidArgument(f"idle is {idle}: it is not negative, or None to go on for ever")
        self._idle = idle
        self._patience = patience
        self._clock = clock
        self._last = clock()
        self.asked = self._last
        """When the claim that was sent last was asked for."""
        self.finished: list[Hold] = []
        """Claims that were worked on and are to be acknowledged."""
        self._acknowledged = self._last

    def call(self) -> Call[Received]:
        """Returns the claim to send now, which acknowledges what is finished."""
        self.asked = now = self._clock()
        # A message that comes at the end of the wait still has most of its time.
        wait = min(LONGEST_WAIT, self.ttl / 3)
        if self._idle is not None:
            wait = max(0.0, min(wait, self._last + self._idle - now))
        return claim(self._queues, self._limit, self.ttl, wait, self._partitions, receipts_by_queue(self.finished))

    def pause(self, count: int) -> float | None:
        """Returns what comes after a claim of so many messages.

        Returns:
            Seconds to pause before the next claim; None: the loop has been idle for long enough.
        """
        if count:
            return 0.0
        now = self._clock()
        if self._idle is not None and now >= self._last + self._idle:
            return None
        return max(0.0, _SHORTEST_POLL - (now - self.asked))

    def worked(self, hold: Hold) -> bool:
        """Notes that a job was worked on; returns whether the finished ones are to be acknowledged before the next."""
        now = self._last = self._clock()
        if hold.state == "finished":
            self.finished.append(hold)
        return now - self._acknowledged >= _TOGETHER

    def to_acknowledge(self) -> list[Hold]:
        """Returns the claims to acknowledge now; those that were acknowledged meanwhile are left out."""
        self._acknowledged = self._clock()
        self.finished = [hold for hold in self.finished if hold.state == "finished"]
        return self.finished

    def acknowledged(self) -> None:
        """Notes that the service works, and that nothing is to be acknowledged any more."""
        self._patience.restored()
        self.finished = []

    def pause_after(self, error: ClientError) -> float:
        """Returns the seconds to wait before the same is sent again.

        Raises:
            ClientError: The error will not pass, or has lasted for too long.
        """
        pause = self._patience.pause_after(error)
        if pause is None:
            raise error
        return pause
