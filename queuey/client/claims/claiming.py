"""The state of a claim loop: what to claim next, when to acknowledge, and when to end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Literal, TypedDict, get_args

from queuey.client.calls.call import Call, Seconds, number_text, partitions_text, seconds
from queuey.client.calls.claim_calls import claim
from queuey.client.calls.message_calls import Partitions
from queuey.client.claims.held import HeldClaim, first_with_fitting_results, receipts_by_queue, results_of
from queuey.client.errors import InvalidArgument
from queuey.client.http.attempts import Notice
from queuey.client.results import Received

MIN_TTL = 2.0
"""Min ``ttl`` in seconds; shorter claims cannot be renewed in time."""
MAX_WAIT = 20.0
"""Max seconds that the server holds a claim open."""
MAX_LIMIT = 1000
FIRST_LIMIT = 1
"""Max messages of the first claim of a loop, and of the first one after the queue was empty or a job took long."""
_MIN_POLL_INTERVAL = 0.5
"""Min seconds between two claims, in case the server does not hold claims open."""
_MAX_ACK_DELAY = 0.1
"""Max seconds that a finished job waits to be acknowledged together with later ones."""


class ClaimOptions(TypedDict, total=False):
    """Which messages to claim.

    Example:
        >>> for job in client.job_queue("orders").claim(idle=0, limit=10, ttl=60, partitions=1):
        ...     print(job.body)
        one apple
        two eggs

    Attributes:
        limit: Max messages that one request claims, up to 1,000. All of them are renewed until their turn. Default 1.
        ttl: Seconds, 2 to 43,200, after which the messages of a crashed process go to another one. Default 30.
        partitions: ``"*"`` for all, a number, or several. Default ``"*"``.
    """

    limit: int
    ttl: Seconds
    partitions: Partitions


class LoopOptions(ClaimOptions, total=False):
    """Options of a loop over jobs.

    Example:
        >>> client.job_queue("orders").run(lambda job: print(job.body), idle=0, patience=60)
        one apple
        two eggs

    Attributes:
        idle: Seconds without a message after which the loop ends. By default it never ends.
        patience: Max seconds of uninterrupted failure of the service. Unlimited by default.
        notice: Called with the error when the service begins to fail, and with None when it answers again.
    """

    idle: Seconds | None
    patience: Seconds | None
    notice: Notice | None


OnError = Literal["retry", "raise"]
"""What the loop does after a job has failed: continue, or end with the error."""


def check_on_error(on_error: OnError) -> None:
    if on_error not in get_args(OnError):
        raise InvalidArgument(f"on_error is {on_error!r}: use 'retry' or 'raise'")


class Claiming:
    """The state of a loop over jobs.

    Raises:
        InvalidArgument: An option is not valid.
    """

    def __init__(
        self, queues: Sequence[str], idle: Seconds | None, clock: Callable[[], float], options: ClaimOptions
    ) -> None:
        self._queues = queues
        self._limit = int(number_text("limit", options.get("limit", 1)))
        self._present_limit = min(self._limit, FIRST_LIMIT)
        self.ttl = float(number_text("ttl", seconds(options.get("ttl", 30.0))))
        self._partitions = partitions_text(options.get("partitions", "*"))
        if self._limit > MAX_LIMIT:
            raise InvalidArgument(f"limit is {self._limit}: a request claims up to {MAX_LIMIT:,} messages")
        if not self.ttl >= MIN_TTL:
            raise InvalidArgument(f"ttl is {self.ttl}: a claim of less than {MIN_TTL:g} s cannot be renewed in time")
        if len(queues) > 1 and self._partitions != "*":
            raise InvalidArgument(f"partitions are {self._partitions}: with several queues, claim from all partitions")
        idle = seconds(idle)
        if idle is not None and idle != inf and not float(number_text("idle", idle)) >= 0:
            raise InvalidArgument(f"idle is {idle}: use 0 or more seconds, or None to never end")
        self._idle = idle
        self._clock = clock
        self._last = clock()
        self.requested_at = self._last
        self.finished: list[HeldClaim] = []
        """Claims to acknowledge with the next request."""
        self._acknowledged = self._last

    def next_call(self) -> Call[Received]:
        """Records the time, and returns the next claim, which also acknowledges finished jobs.

        It waits for a third of the ttl, at most :data:`MAX_WAIT`, and not longer than the loop may be idle.
        """
        self.requested_at = now = self._clock()
        # The client counts the ttl from the request. A message that arrives at the end of the wait keeps most of it.
        wait = min(MAX_WAIT, self.ttl / 3)
        if self._idle is not None:
            wait = max(0.0, min(wait, self._last + self._idle - now))
        receipts, results = receipts_by_queue(self.finished), results_of(self.finished)
        return claim(self._queues, self._present_limit, self.ttl, wait, self._partitions, receipts, results)

    def pause_after_claim(self, batch: Sequence[HeldClaim]) -> float | None:
        """Returns the seconds to pause after a claim of messages, or None if an idle loop must end.

        While work begins on most messages that claims ask for, each asks for four times as many as the last. So an idle
        loop, or one with long jobs, leaves the other messages to others.
        """
        begun = sum(claim.begun for claim in batch)
        self._present_limit = min(self._limit, max(FIRST_LIMIT, 4 * begun if 2 * begun >= self._present_limit else 0))
        if batch:
            return 0.0
        now = self._clock()
        if self._idle is not None and now >= self._last + self._idle:
            return None
        return max(0.0, _MIN_POLL_INTERVAL - (now - self.requested_at))

    def record_work(self, claim: HeldClaim) -> bool:
        """Records that a job was worked on, for the next acknowledgement if it is finished.

        Returns whether to acknowledge finished jobs before the next job. This is so once :data:`_MAX_ACK_DELAY` has
        passed since the last acknowledgement began, or if their results do not fit into one request.
        """
        now = self._last = self._clock()
        if claim.state == "finished":
            self.finished.append(claim)
        # The next claim request cannot carry more results than fit into one request.
        return now - self._acknowledged >= _MAX_ACK_DELAY or len(first_with_fitting_results(self.finished)) < len(
            self.finished
        )

    def begin_acknowledgement(self) -> list[HeldClaim]:
        """Restarts the delay, and returns the finished claims for an acknowledgement.

        Forgets claims that have ended since they were finished.
        """
        self._acknowledged = self._clock()
        self.finished = [c for c in self.finished if c.state == "finished"]
        return self.finished

    def clear_finished(self) -> None:
        self.finished = []
