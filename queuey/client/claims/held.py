"""Claims held by this process: which to renew or acknowledge, and when.

States of a claim::

    held ──worked on, and the loop continues──▶ finished ──acknowledged─▶ ended
     ├─────acknowledged or released by the program──────────────────────▶ ended
     ├─────seen lost by the program, and released by the loop───────────▶ ended
     └─────claimed by another caller, or refused until its time is over─▶ lost

A held claim is renewed after half of its time. A finished claim is acknowledged together with others, at the latest
after :data:`MAX_ACK_DELAY`, even while the process works on its next job. Claims with a failed request come after the
others. A request for them may take no longer than the shortest claim can wait, unless that claim is very short.

The claims of one request are a batch. If work on one takes long, the others of its batch that have not begun are
released, so that other callers get their messages.

A program that sees that its job is lost may stop in the middle of the work. The loop therefore never acknowledges this
job, even if a later renewal restores the claim. Only the program itself may still acknowledge it.

If a claim is released while a renewal is running, the renewal may reach the service last and keep the claim. The claim
is therefore released once more after the renewal.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from math import inf
from threading import Lock
from typing import Literal

import msgspec

from queuey.client.calls.call import Call
from queuey.client.calls.claim_calls import Receipts, acknowledge, each_queue, release, renew
from queuey.client.calls.job_calls import JobResult, JobResults, count_fitting
from queuey.client.errors import ClaimLost, ClientError, InvalidRequest, QueueNotFound
from queuey.client.results import Received

log = logging.getLogger("queuey.client")

State = Literal["held", "finished", "ended", "lost"]

MAX_ACK_DELAY = 0.5
"""Max seconds until a finished claim is acknowledged, even while its process works on the next job."""
MAX_BODY_SECONDS = 0.05
"""Seconds of work on a job after which the other jobs of its batch are released."""
LEAVE_TIMEOUT = 5.0
"""Timeout in seconds for releasing claims when a loop is left or a client is closed."""
_RETRY_RATIO = 0.1
"""Ratio of a claim's time after which a failed request is sent again."""
_MAX_RETRY_PAUSE = 30.0
"""Max seconds of a request with its repetitions, and after which a failed one is sent again."""
_BATCH_RATIO = 0.125
"""Ratio of a claim's time by which its renewal may be early, to be sent together with others."""
_TIMEOUT_RATIO = 0.25
"""Ratio of a claim's time that a request may take; of the shortest held claim's time if that is less."""
_MIN_SHORTEST_TTL = 10.0
"""Min seconds that are assumed for the shortest held claim where it limits the requests of other claims."""
_POSTPONE_RATIO = 0.4
"""Ratio of a claim's time for which its acknowledgement is reserved for the loop. A waiting claim request takes at
most a third."""
_RECEIPT_FIELD = re.compile(r"(?:acknowledge|receipts)(?:\.(\d+))?")
"""Error fields that name one receipt, by its number, or all receipts."""


class ClaimBatch(msgspec.Struct, eq=False):
    """The claims of one request.

    Attributes:
        max_seconds: Seconds of work on one claim after which claims that have not begun are released, or None.
        begin_by: When claims that have not begun are released, in seconds of the client's clock.
    """

    max_seconds: float | None = None
    begin_by: float = inf


class HeldClaim(msgspec.Struct, eq=False):
    """A claim and its state.

    Attributes:
        queue: The message's queue.
        receipt: The receipt of the claim.
        ttl: Seconds by which each renewal extends the claim.
        end: When the claim expires, in seconds of the client's clock.
        due: When to renew or acknowledge the claim, in seconds of the client's clock.
        batch: The claims of the same request.
        state: See the module.
        has_failed: The last request about the claim has failed.
        delay: Seconds until a released message is delivered again. None if the claim was not released.
        seen_lost: The program has seen that the job is lost.
        delay_if_left: Seconds until the message is delivered again if the loop is left. 0 before the loop reaches it.
        begun: Work on the message has begun, or may have, so that its attempt counts if the claim is released.
        result: The result of the job, to be sent with the acknowledgement.
        cancelled: A renewal has reported that the job was cancelled.
    """

    queue: str
    receipt: str
    ttl: float
    end: float
    due: float
    batch: ClaimBatch
    state: State = "held"
    has_failed: bool = False
    delay: float | None = None
    seen_lost: bool = False
    delay_if_left: float = 0.0
    begun: bool = False
    result: JobResult | None = None
    cancelled: bool = False

    @property
    def next_due(self) -> float:
        """When to renew or acknowledge the claim, or to release it because work on it has not begun."""
        return self.due if self.begun or self.state != "held" else min(self.due, self.batch.begin_by)


class Work(msgspec.Struct, frozen=True):
    """Requests that renew or acknowledge claims.

    Attributes:
        claims: The claims.
        is_acknowledgement: The requests are acknowledgements.
        calls: The requests, to be sent one after another.
        timeout: Max seconds for each request.
    """

    claims: tuple[HeldClaim, ...]
    is_acknowledgement: bool
    calls: tuple[Call[None], ...]
    timeout: float

    @property
    def repeat_timeout(self) -> float:
        return self.timeout / 2


class HeldClaims:
    """The claims that this process holds. Thread-safe.

    Args:
        clock: Monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.forget_all()

    def forget_all(self) -> None:
        self._claims: set[HeldClaim] = set()
        self._lock = Lock()

    def add(self, queue: str, receipt: str, ttl: float, sent_at: float, batch: ClaimBatch | None = None) -> HeldClaim:
        """Adds a claim whose time begins no earlier than ``sent_at``. Without a batch, it is a batch of its own.

        A claim that has already expired is not due soon: the loop must release it, and a renewal would keep its message
        from other callers.
        """
        now, end = self._clock(), sent_at + ttl
        due = sent_at + ttl / 2 if now < end else now + _POSTPONE_RATIO * ttl
        claim = HeldClaim(queue, receipt, ttl, end, due, batch or ClaimBatch())
        with self._lock:
            self._claims.add(claim)
        return claim

    def list_expired(self, claim: HeldClaim, batch: Iterable[HeldClaim]) -> list[HeldClaim]:
        """Returns the expired claims of a batch, or none if ``claim``, the next one, has not expired.

        The loop must not start work on an expired claim.
        """
        now = self._clock()
        if claim.state != "held" or now < claim.end:
            return []
        return [c for c in batch if c.state == "held" and now >= c.end]

    def begin(self, claims: Iterable[HeldClaim]) -> None:
        """Marks claims as begun that are held and have not expired; the program must not work on others.

        If work may take only so long, this also sets when the other claims of the batch are released: now if they have
        expired.
        """
        with self._lock:
            now = self._clock()
            for claim in claims:
                claim.begun = claim.state == "held" and now < claim.end
                if not claim.begun:
                    claim.batch.begin_by = now
                elif claim.batch.max_seconds is not None:
                    claim.batch.begin_by = now + claim.batch.max_seconds

    def is_lost(self, claim: HeldClaim) -> bool:
        """Returns whether another caller may have the message. Once True, it stays True.

        The claim then counts as seen lost, so that the loop does not acknowledge it.
        """
        with self._lock:
            expired = claim.state == "held" and self._clock() >= claim.end
            claim.seen_lost = claim.seen_lost or expired or claim.state == "lost"
        return claim.seen_lost

    def finish_or_return_lost(self, claim: HeldClaim) -> list[HeldClaim]:
        """Marks a held claim as finished. If the program has seen that it is lost, it stays held and is returned.

        The caller must release a returned claim; its message is then delivered again at once. A claim that is not held
        keeps its state.
        """
        with self._lock:
            claim.delay_if_left, claim.batch.begin_by = 0.0, inf
            if claim.state == "held" and not claim.seen_lost:
                claim.state, claim.due = "finished", self._clock() + MAX_ACK_DELAY
        return [claim] if claim.state == "held" else []

    def finish(self, claim: HeldClaim) -> None:
        """Marks a held or lost claim as finished; the renewer then acknowledges it within ``MAX_ACK_DELAY``."""
        with self._lock:
            if claim.state in {"held", "lost"}:
                claim.state, claim.due = "finished", self._clock() + MAX_ACK_DELAY
                self._claims.add(claim)

    def list_finished(self, queues: Collection[str]) -> list[HeldClaim]:
        with self._lock:
            return [claim for claim in self._claims if claim.state == "finished" and claim.queue in queues]

    def hold_again(self, claim: HeldClaim) -> None:
        """Holds an ended claim again after its release was refused, so that it is renewed."""
        with self._lock:
            if claim.state == "ended":
                claim.state, claim.delay = "held", None
                self._claims.add(claim)

    def reserve_for_acknowledgement(self, claims: Iterable[HeldClaim]) -> None:
        """Postpones claims that the caller acknowledges, so that the renewer does not do it as well."""
        now = self._clock()
        with self._lock:
            for claim in claims:
                claim.due = now + _POSTPONE_RATIO * claim.ttl

    def end(self, claims: Iterable[HeldClaim], refused: Iterable[str] = (), queues: Collection[str] = ()) -> None:
        """Ends claims, which are then not renewed.

        Claims whose receipt is in ``refused``, or whose queue is in ``queues``, are lost.
        """
        lost = set(refused)
        with self._lock:
            for claim in claims:
                claim.state = "lost" if claim.receipt in lost or claim.queue in queues else "ended"
                self._claims.discard(claim)

    def record_answer(self, finished: Sequence[HeldClaim], received: Received, passed_over: set[str]) -> set[str]:
        """Ends the claims that a claim request has acknowledged; refused ones are lost. Logs queues with an error.

        Args:
            finished: The claims that the request acknowledged.
            received: The answer to the request.
            passed_over: Queues that were already logged.

        Returns:
            The queues that the request could not claim from.
        """
        self.end(finished, [r.receipt for r in received.refused], received.errors)
        for queue in received.errors.keys() - passed_over:
            log.warning("No messages are claimed from queue %s: %s", queue, received.errors[queue])
        return set(received.errors)

    def end_by_release(self, claims: Sequence[HeldClaim], delay: float = 0.0) -> None:
        """Ends claims that the caller releases. Keeps the delay, as :meth:`repeated_releases` may need it."""
        for claim in claims:
            claim.delay = delay
        self.end(claims)

    def repeated_releases(self, work: Work) -> list[Call[None]]:
        """Returns calls that repeat the release of claims that were released after ``next_work``."""
        return _release_calls(work.claims)

    def record_renewal(self, claim: HeldClaim, sent_at: float, ttl: float) -> None:
        """Extends a claim to ``ttl`` seconds after the request, unless it lasts longer already. Clears ``has_failed``.

        It is due again after half of that time, or of its own ttl if that is shorter.
        """
        with self._lock:
            claim.end = max(claim.end, sent_at + ttl)
            claim.due = sent_at + min(ttl, claim.ttl) / 2
            claim.has_failed = False

    def mark_cancelled(self, receipts: Collection[str]) -> None:
        with self._lock:
            for claim in self._claims:
                claim.cancelled = claim.cancelled or claim.receipt in receipts

    def seconds_until_due(self) -> float | None:
        """Returns the seconds until the next claim is due: 0 if one is due now, and None without claims."""
        with self._lock:
            due = min((claim.next_due for claim in self._claims), default=None)
        return None if due is None else max(0.0, due - self._clock())

    def next_work(self) -> Work | None:
        """Returns the requests for claims of one queue, ttl and state that are due now or soon, or None if none is due.

        Claims that have not begun in time come first: they end, and the work releases them. Groups of only claims with
        a failed request come last; otherwise, the claim that expires first decides.
        """
        now = self._clock()
        groups: dict[tuple[str, float, State], list[HeldClaim]] = {}
        with self._lock:
            late = [claim for claim in self._claims if claim.next_due <= now < claim.due]
            for claim in late:
                claim.state, claim.delay = "ended", 0.0
                self._claims.discard(claim)
            for claim in self._claims:
                if claim.due <= now + _BATCH_RATIO * claim.ttl:
                    groups.setdefault((claim.queue, claim.ttl, claim.state), []).append(claim)
            shortest = min((claim.ttl for claim in self._claims if not claim.has_failed), default=0.0)
        if late:  # The work sends no call, but then repeats releases that came meanwhile, of which these are some.
            return Work(tuple(late), is_acknowledgement=False, calls=(), timeout=2 * LEAVE_TIMEOUT)
        if not groups:
            return None
        (queue, ttl, state), claims = min(groups.items(), key=lambda group: _send_order(group[1]))
        receipts = [claim.receipt for claim in claims]
        done = state == "finished"
        calls = (
            acknowledge(queue, receipts, results_of(claims))
            if done
            else renew(queue, receipts, ttl, self.mark_cancelled)
        )
        timeout = min(_TIMEOUT_RATIO * min(ttl, max(shortest, _MIN_SHORTEST_TTL)), _MAX_RETRY_PAUSE)
        return Work(tuple(claims), done, tuple(calls), timeout)

    def record_success(self, work: Work, began: float, refused: Iterable[str]) -> None:
        """Records the success of requests that were sent at ``began``. Claims with a refused receipt are lost.

        Other acknowledged claims end; other renewed ones are extended if they are still held.
        """
        lost = set(refused)
        self.end([claim for claim in work.claims if work.is_acknowledgement or claim.receipt in lost], lost)
        for claim in work.claims:
            if claim.state == "held":
                self.record_renewal(claim, began, claim.ttl)

    def leave(self, claims: Iterable[HeldClaim]) -> tuple[Iterator[Call[None]], Iterator[Call[None]]]:
        """Ends claims. Returns the calls that acknowledge the finished ones, and the calls that release the others.

        Ignores claims that have ended or are lost.
        """
        open_ = [claim for claim in claims if claim in self._claims]
        finished = [claim for claim in open_ if claim.state == "finished"]
        held = [claim for claim in open_ if claim.state == "held"]
        self.end(finished)
        for claim in held:
            self.end_by_release([claim], claim.delay_if_left)
        return acknowledge_calls(finished), iter(_release_calls(held))

    def leave_all(self) -> list[Call[None]]:
        """Ends all claims. Returns the calls that acknowledge and release them. The released claims are lost."""
        with self._lock:
            claims = list(self._claims)
        held = [claim for claim in claims if claim.state == "held"]
        calls: list[Call[None]] = []
        for group in self.leave(claims):
            calls += group
        for claim in held:
            claim.state = "lost"
        return calls

    def end_refused(self, claims: Sequence[HeldClaim], error: Exception) -> bool:
        """Marks the claims that an error names as lost: another caller has them, or the queue was purged since.

        Returns:
            True if the error names any; the same call without them may succeed.
        """
        lost = _find_refused(claims, error)
        self.end(lost, [claim.receipt for claim in lost])
        return bool(lost)

    def record_failure(self, work: Work, error: Exception) -> None:
        """Records the failure of requests and schedules a retry.

        The claims of a deleted queue are lost at once, as are claims that the error of a single request names. Other
        permanent errors may come from a proxy, so they end a claim only when it has expired.
        """
        now, temporary = self._clock(), isinstance(error, ClientError) and error.temporary
        if len(work.calls) == 1:  # With several calls, it is not known which one failed.
            self.end_refused(work.claims, error)
        with self._lock:
            for claim in work.claims:
                claim.due, claim.has_failed = now + min(_RETRY_RATIO * claim.ttl, _MAX_RETRY_PAUSE), True
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


def acknowledge_calls(claims: Collection[HeldClaim]) -> Iterator[Call[None]]:
    return each_queue(acknowledge, receipts_by_queue(claims), results_of(claims))


def first_with_fitting_results(claims: Sequence[HeldClaim]) -> Sequence[HeldClaim]:
    return claims[: count_fitting(claim.result for claim in claims)]


def _send_order(claims: Sequence[HeldClaim]) -> tuple[bool, float]:
    return all(claim.has_failed for claim in claims), min(claim.end for claim in claims)


def _release_calls(claims: Iterable[HeldClaim]) -> list[Call[None]]:
    """Returns the releases of claims, by their terms. Omits claims without a ``delay``, which were not released."""
    receipts: dict[tuple[str, float, bool], list[str]] = {}
    for claim in claims:
        if claim.delay is not None:
            receipts.setdefault((claim.queue, claim.delay, claim.begun), []).append(claim.receipt)
    return [
        call for (queue, delay, begun), group in receipts.items() for call in release(queue, group, delay, begun=begun)
    ]


def _find_refused(claims: Sequence[HeldClaim], error: Exception) -> list[HeldClaim]:
    """Returns the claims that an error names, or all if it is about all receipts; none if it names other fields."""
    if isinstance(error, ClaimLost):
        receipts = {r.receipt for r in error.refused}
        return [claim for claim in claims if claim.receipt in receipts]
    fields = error.fields if isinstance(error, InvalidRequest) else {}
    matches = [_RECEIPT_FIELD.fullmatch(name) for name in fields]
    numbers = {m[1] for m in matches if m}
    return [claim for number, claim in enumerate(claims) if all(matches) and numbers & {None, str(number)}]
