"""Claims in the hands of this process: which of them to renew or to acknowledge, and when.

A claim::

    held ──worked on, and the loop goes on──▶ finished ──acknowledged──▶ ended
     ├─────acknowledged or released by the program─────────────────────▶ ended
     ├─────seen lost by the program, and released by the loop──────────▶ ended
     └─────claimed by another caller, or refused until its time is over▶ lost

A held claim is renewed when half of its time is over. A finished one is acknowledged together with others, and at the
latest after :data:`SOON`, also while its process works on the next. Requests that fail come after those that work, and
take no longer than a shorter claim can wait, unless that is a very short one.

A program that reads that its job is lost may stop in the middle of the work. So the loop never acknowledges this job,
also if a later renewal brings the claim back. Only the program may still acknowledge it.

A renewal that is under way when its claim is released may reach the service after the release, and the service then
keeps the claim. So the claim is released once more when the renewal has ended.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from threading import Lock
from typing import Literal

import msgspec

from queuey.client.calls.call import Call
from queuey.client.calls.claim_calls import Receipts, acknowledge, each_queue, release, renew
from queuey.client.calls.job_calls import JobResult, JobResults, fitting
from queuey.client.errors import ClaimLost, ClientError, InvalidRequest, QueueNotFound
from queuey.client.results import Received

log = logging.getLogger("queuey.client")

State = Literal["held", "finished", "ended", "lost"]

SOON = 0.5
"""Max seconds until a finished claim is acknowledged, however long its process works on the next."""
LEAVING = 5.0
"""Timeout in seconds of the releases by a loop that is left, and by a client that is closed."""
_RETRY = 0.1
"""Ratio of a claim's time after which a failed request is sent again."""
_LONGEST_RETRY = 30.0
"""Max seconds after which a failed request is sent again."""
_TOGETHER = 0.125
"""Ratio of a claim's time by which its renewal may be early, to go out together with others."""
_WITHIN = 0.25
"""Ratio of a claim's time that sending a renewal may take; of the shortest claim's, if that is shorter."""
_SHORTEST = 10.0
"""Min seconds of a claim whose shortness hurries the renewals of others."""
_POSTPONED = 0.4
"""Ratio of a claim's time that a loop has for an acknowledgement. A claim that waits needs a third."""
_ABOUT_RECEIPTS = re.compile(r"(?:acknowledge|receipts)(?:\.(\d+))?")
"""Fields of a refusal that are about one receipt, by its number, or about all of them."""


class HeldClaim(msgspec.Struct, eq=False):
    """A claim and its state.

    Attributes:
        queue: The message's queue.
        receipt: Identifies the claim.
        ttl: Seconds for which each renewal keeps it.
        end: When the claim expires, in seconds of the client's clock.
        due: When it is to be renewed or acknowledged.
        state: See above.
        fails: The last request about it has failed.
        delay: Seconds until the message is delivered again, if the claim was released; None: it was not.
        seen_lost: The program has read that the job is lost.
        delay_if_left: Seconds until the message is delivered again, if the loop is left; 0: the loop has not begun it.
        result: The result of the job, which travels with the acknowledgement.
        cancelled: A renewal has said that an operator has cancelled the job.
    """

    queue: str
    receipt: str
    ttl: float
    end: float
    due: float
    state: State = "held"
    fails: bool = False
    delay: float | None = None
    seen_lost: bool = False
    delay_if_left: float = 0.0
    result: JobResult | None = None
    cancelled: bool = False


class Work(msgspec.Struct, frozen=True):
    """Requests about some claims: renewals, or acknowledgements.

    Attributes:
        claims: The claims.
        acknowledges: The requests are acknowledgements.
        calls: The requests, to be sent one after another.
        within: Max seconds for each.
    """

    claims: tuple[HeldClaim, ...]
    acknowledges: bool
    calls: tuple[Call[None], ...]
    within: float

    @property
    def again_within(self) -> float:
        """Max seconds for a repeated release, so that a claim that had to wait can still be renewed in time."""
        return self.within / 2


class HeldClaims:
    """The claims that are held. Its methods may be called from any thread.

    Args:
        clock: Monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.forget_all()

    def forget_all(self) -> None:
        """Holds nothing; in a child process, whose parent keeps its claims."""
        self._claims: set[HeldClaim] = set()
        self._lock = Lock()

    def add(self, queue: str, receipt: str, ttl: float, asked: float) -> HeldClaim:
        """Holds a claim from now on, whose time begins no earlier than ``asked``.

        One that came too late is left to the loop, which releases it: a renewal would keep it from other callers.
        """
        now, end = self._clock(), asked + ttl
        claim = HeldClaim(queue, receipt, ttl, end, asked + ttl / 2 if now < end else now + _POSTPONED * ttl)
        with self._lock:
            self._claims.add(claim)
        return claim

    def expired(self, claim: HeldClaim, batch: Iterable[HeldClaim]) -> list[HeldClaim]:
        """Returns the expired claims of a batch if ``claim``, which is the next, is one. None of them may begin."""
        now = self._clock()
        if claim.state != "held" or now < claim.end:
            return []
        return [each for each in batch if each.state == "held" and now >= each.end]

    def is_lost(self, claim: HeldClaim) -> bool:
        """Returns whether another caller may have the message. After True it is always True."""
        with self._lock:
            over = claim.state == "held" and self._clock() >= claim.end
            claim.seen_lost = claim.seen_lost or over or claim.state == "lost"
        return claim.seen_lost

    def finish_unless_lost(self, claim: HeldClaim) -> list[HeldClaim]:
        """Finishes a claim that was worked on; returns it instead if the program has read that it is lost."""
        with self._lock:
            claim.delay_if_left = 0.0
            if claim.state == "held" and not claim.seen_lost:
                claim.state, claim.due = "finished", self._clock() + SOON
        return [claim] if claim.state == "held" else []

    def finish(self, claim: HeldClaim) -> None:
        """Schedules the acknowledgement of a claim, also of a lost one."""
        with self._lock:
            if claim.state in {"held", "lost"}:
                claim.state, claim.due = "finished", self._clock() + SOON
                self._claims.add(claim)

    def finished(self, queues: Collection[str]) -> list[HeldClaim]:
        """Returns the finished claims of some queues."""
        with self._lock:
            return [claim for claim in self._claims if claim.state == "finished" and claim.queue in queues]

    def hold_again(self, claim: HeldClaim) -> None:
        """Holds a claim again whose release was refused."""
        with self._lock:
            if claim.state == "ended":
                claim.state, claim.delay = "held", None
                self._claims.add(claim)

    def postpone(self, claims: Iterable[HeldClaim]) -> None:
        """Reserves claims for an acknowledgement by the caller: no other thread sends one for a while."""
        now = self._clock()
        with self._lock:
            for claim in claims:
                claim.due = now + _POSTPONED * claim.ttl

    def end(self, claims: Iterable[HeldClaim], refused: Iterable[str] = (), queues: Collection[str] = ()) -> None:
        """Ends claims; those with a refused receipt, and claims of some queues, are lost."""
        lost = set(refused)
        with self._lock:
            for claim in claims:
                claim.state = "lost" if claim.receipt in lost or claim.queue in queues else "ended"
                self._claims.discard(claim)

    def answered(self, finished: Sequence[HeldClaim], received: Received, passed_over: set[str]) -> set[str]:
        """Ends the claims that a claim of messages has acknowledged; logs the queues that it could not claim from.

        Args:
            finished: These claims.
            received: The answer.
            passed_over: Queues that are in the log already.

        Returns:
            The queues that it could not claim from.
        """
        self.end(finished, [each.receipt for each in received.refused], received.errors)
        for queue in received.errors.keys() - passed_over:
            log.warning("No messages are claimed from queue %s: %s", queue, received.errors[queue])
        return set(received.errors)

    def end_by_release(self, claims: Sequence[HeldClaim], delay: float = 0.0) -> None:
        """Ends claims that are about to be released, for ``delay`` seconds."""
        for claim in claims:
            claim.delay = delay
        self.end(claims)

    def repeated_releases(self, work: Work) -> list[Call[None]]:
        """Returns the calls that release once more the claims that were released since a renewal began."""
        return _releases(work.claims)

    def renewed(self, claim: HeldClaim, asked: float, ttl: float) -> None:
        """Records a renewal for ``ttl`` seconds that was requested at ``asked``."""
        with self._lock:
            claim.end = max(claim.end, asked + ttl)
            claim.due = asked + min(ttl, claim.ttl) / 2
            claim.fails = False

    def cancel(self, receipts: Collection[str]) -> None:
        """Records that an operator has cancelled jobs."""
        with self._lock:
            for claim in self._claims:
                claim.cancelled = claim.cancelled or claim.receipt in receipts

    def pause(self) -> float | None:
        """Returns the seconds until a claim is due, 0 if one is; None: nothing is held."""
        with self._lock:
            due = min((claim.due for claim in self._claims), default=None)
        return None if due is None else max(0.0, due - self._clock())

    def work(self) -> Work | None:
        """Returns the most urgent requests, with claims that are due soon; None: nothing is due."""
        now = self._clock()
        groups: dict[tuple[str, float, State], list[HeldClaim]] = {}
        with self._lock:
            for claim in self._claims:
                if claim.due <= now + _TOGETHER * claim.ttl:
                    groups.setdefault((claim.queue, claim.ttl, claim.state), []).append(claim)
            shortest = min((claim.ttl for claim in self._claims if not claim.fails), default=0.0)
        if not groups:
            return None
        (queue, ttl, state), claims = min(groups.items(), key=lambda group: _urgency(group[1]))
        receipts = [claim.receipt for claim in claims]
        done = state == "finished"
        calls = acknowledge(queue, receipts, results_of(claims)) if done else renew(queue, receipts, ttl, self.cancel)
        within = _WITHIN * min(ttl, max(shortest, _SHORTEST))
        return Work(tuple(claims), done, tuple(calls), within)

    def done(self, work: Work, began: float, refused: Iterable[str]) -> None:
        """Records the success of requests that began at ``began``, but for the refused receipts."""
        lost = set(refused)
        self.end([claim for claim in work.claims if work.acknowledges or claim.receipt in lost], lost)
        for claim in work.claims:
            if claim.state == "held":
                self.renewed(claim, began, claim.ttl)

    def leave(self, claims: Iterable[HeldClaim]) -> tuple[Iterator[Call[None]], Iterator[Call[None]]]:
        """Ends claims; returns the calls that acknowledge the finished ones, and those that release the others."""
        open_ = [claim for claim in claims if claim in self._claims]
        finished = [claim for claim in open_ if claim.state == "finished"]
        held = [claim for claim in open_ if claim.state == "held"]
        self.end(finished)
        for claim in held:
            self.end_by_release([claim], claim.delay_if_left)
        return acknowledgements(finished), iter(_releases(held))

    def leave_all(self) -> list[Call[None]]:
        """Ends all claims; returns the calls that acknowledge and release them. The released ones are lost."""
        with self._lock:
            claims = list(self._claims)
        held = [claim for claim in claims if claim.state == "held"]
        calls: list[Call[None]] = []
        for some in self.leave(claims):
            calls += some
        for claim in held:
            claim.state = "lost"
        return calls

    def refused(self, claims: Sequence[HeldClaim], error: Exception) -> bool:
        """Ends the claims that an error names: another caller has them, or the queue was purged since.

        Returns:
            True if there are any; without them the same call may succeed.
        """
        lost = _refused_by(claims, error)
        self.end(lost, [claim.receipt for claim in lost])
        return bool(lost)

    def failed(self, work: Work, error: Exception) -> None:
        """Records the failure of requests: they are sent again soon, unless that is of no use.

        A proxy may give an answer that will not pass, so only a deleted queue ends claims at once.
        """
        now, temporary = self._clock(), isinstance(error, ClientError) and error.temporary
        if len(work.calls) == 1:  # Of several calls it is not known which one failed.
            self.refused(work.claims, error)
        with self._lock:
            for claim in work.claims:
                claim.due, claim.fails = now + min(_RETRY * claim.ttl, _LONGEST_RETRY), True
                if isinstance(error, QueueNotFound) or (not temporary and now >= claim.end):
                    self._claims.discard(claim)
                    if claim.state == "held":
                        claim.state = "lost"


def receipts_by_queue(claims: Iterable[HeldClaim]) -> Receipts:
    receipts: Receipts = {}
    for claim in claims:
        receipts.setdefault(claim.queue, []).append(claim.receipt)
    return receipts


def results_of(claims: Iterable[HeldClaim]) -> JobResults:
    return {claim.receipt: claim.result for claim in claims if claim.result is not None}


def acknowledgements(claims: Collection[HeldClaim]) -> Iterator[Call[None]]:
    """Returns the calls that acknowledge claims, with their results."""
    return each_queue(acknowledge, receipts_by_queue(claims), results_of(claims))


def first_finished(claims: Sequence[HeldClaim]) -> Sequence[HeldClaim]:
    """Returns the first claims that one request may acknowledge."""
    return claims[: fitting(claim.result for claim in claims)]


def _urgency(claims: Sequence[HeldClaim]) -> tuple[bool, float]:
    """Sorts claims: first those that have not failed, and of these those that end first."""
    return all(claim.fails for claim in claims), min(claim.end for claim in claims)


def _releases(claims: Iterable[HeldClaim]) -> list[Call[None]]:
    """Returns the calls that release those of some claims that were released, each with its delay."""
    receipts: dict[tuple[str, float], list[str]] = {}
    for claim in claims:
        if claim.delay is not None:
            receipts.setdefault((claim.queue, claim.delay), []).append(claim.receipt)
    return [call for (queue, delay), some in receipts.items() for call in release(queue, some, delay)]


def _refused_by(claims: Sequence[HeldClaim], error: Exception) -> list[HeldClaim]:
    """Returns the claims whose receipts an error names; none if it is about anything else, too."""
    if isinstance(error, ClaimLost):
        receipts = {each.receipt for each in error.refused}
        return [claim for claim in claims if claim.receipt in receipts]
    fields = error.fields if isinstance(error, InvalidRequest) else {}
    found = [_ABOUT_RECEIPTS.fullmatch(name) for name in fields]
    numbers = {each[1] for each in found if each}
    return [claim for at, claim in enumerate(claims) if all(found) and numbers & {None, str(at)}]
