"""Claims in the hands of this process, without I/O: which of them to renew or to acknowledge, and when.

A claim, from when it came until nothing has to be done about it any more::

    held ──worked on, and the loop goes on──▶ finished ──acknowledged──▶ settled
     ├─────acknowledged or released by the program─────────────────────▶ settled
     ├─────reported lost to the program, and released by the loop──────▶ settled
     └─────claimed by another caller, or refused until its time is over▶ lost

A held claim is renewed when half of its time is over. One that is finished is acknowledged together with others, and
at the latest after :data:`SOON`, also while its process works on the next. What fails comes after what works, and takes
no longer than a shorter claim can wait, unless that is a very short one.

A program that reads that its job is lost may stop in the middle of the work. So the loop never acknowledges this job,
also if a later renewal brings the claim back. Only the program may still acknowledge it.

A renewal that is under way when its claim is released may reach the service after the release, and the service then
keeps the claim. So the claim is released once more when the renewal has ended.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Any, Literal

import msgspec

from queuey.client.calls.call import Call
from queuey.client.calls.claim_calls import Receipts, ReleaseReason, acknowledge, each_queue, release, renew
from queuey.client.claims.results import Claimed
from queuey.client.errors import ClaimLost, ClientError, InvalidRequest, QueueNotFound
from queuey.client.results import Message

log = logging.getLogger("queuey.client")

State = Literal["held", "finished", "settled", "lost"]

SOON = 0.5
"""Seconds after which a finished claim is acknowledged whatever its process does."""
LEAVING = 5.0
"""Seconds for which a loop that is left tries to release its jobs, and a client that is closed."""
_AGAIN, _MOST_AGAIN = 0.1, 30.0
"""The part of a claim's time, and the most seconds, after which what failed is tried again."""
_TOGETHER = 0.125
"""The part of a claim's time by which renewals are early, to go out together with others."""
_WITHIN = 0.25
"""The part of a claim's time that sending its renewal may take, or that of a shorter claim, which has to wait."""
_SHORTEST = 10.0
"""Seconds: no renewal is hurried by a shorter claim than this."""
_POSTPONED = 0.4
"""The part of a claim's time that a loop has for an acknowledgement. A claim that waits takes a third."""
LATEST = 60.0
"""Seconds after which the job in hand is delivered again, at most, if the loop is left."""
_ABOUT_RECEIPTS = re.compile(r"(?:acknowledge|receipts)(?:\.(\d+))?")
"""Names of the fields of a refusal that are about receipts: about that of a number, or about all of them."""


class Hold(msgspec.Struct, eq=False):
    """How one claim stands.

    Attributes:
        queue: Whose message it is.
        receipt: Names the claim.
        ttl: Seconds for which each renewal keeps it.
        end: When the claim expires, in seconds of the client's clock.
        due: When something has to be done about it.
        state: See above.
        fails: What was sent about it last has failed.
        delay: Seconds until the message is delivered again, if the claim was released; None: it was not.
        told: The program has read that the job is lost.
        later: Seconds until the message is delivered again, if the loop is left; 0: the loop has not begun it.
    """

    queue: str
    receipt: str
    ttl: float
    end: float
    due: float
    state: State = "held"
    fails: bool = False
    delay: float | None = None
    told: bool = False
    later: float = 0.0


class Work(msgspec.Struct, frozen=True):
    """Something to send about some claims: renewals, or acknowledgements.

    Attributes:
        holds: The claims.
        ends: They are acknowledged.
        calls: What to send, one after another.
        within: Seconds that each call may take.
    """

    holds: tuple[Hold, ...]
    ends: bool
    calls: tuple[Call[None], ...]
    within: float

    @property
    def again_within(self) -> float:
        """Seconds that releasing once more may take, so that a claim that had to wait can still be renewed in time."""
        return self.within / 2


class Holding:
    """The claims that are held. Its methods may be called from any thread.

    Args:
        clock: Monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.forget_all()

    def forget_all(self) -> None:
        """Holds nothing; in a child, whose parent goes on with what it holds."""
        self._holds: set[Hold] = set()
        self._lock = Lock()

    def add(self, queue: str, receipt: str, ttl: float, asked: float) -> Hold:
        """Holds a claim from now on, whose time begins no earlier than it was asked for.

        One that came too late is left to the loop, which releases it: a renewal would keep it from other callers.
        """
        now, end = self._clock(), asked + ttl
        hold = Hold(queue, receipt, ttl, end, asked + ttl / 2 if now < end else now + _POSTPONED * ttl)
        with self._lock:
            self._holds.add(hold)
        return hold

    def expired(self, hold: Hold, holds: Iterable[Hold]) -> list[Hold]:
        """Returns the claims whose time is over, if that of the next one is. None of them may begin."""
        now = self._clock()
        if hold.state != "held" or now < hold.end:
            return []
        return [each for each in holds if each.state == "held" and now >= each.end]

    def lost(self, hold: Hold) -> bool:
        """Returns whether another caller may have the message. After True it is always True."""
        with self._lock:
            over = hold.state == "held" and self._clock() >= hold.end
            hold.told = hold.told or over or hold.state == "lost"
        return hold.told

    def end(self, hold: Hold) -> list[Hold]:
        """Finishes a claim that was worked on; returns it instead if the program has read that it is lost."""
        with self._lock:
            hold.later = 0.0
            if hold.state == "held" and not hold.told:
                hold.state, hold.due = "finished", self._clock() + SOON
        return [hold] if hold.state == "held" else []

    def finish(self, hold: Hold) -> None:
        """Has a claim acknowledged soon, also one that was lost."""
        with self._lock:
            if hold.state in {"held", "lost"}:
                hold.state, hold.due = "finished", self._clock() + SOON
                self._holds.add(hold)

    def finished(self, queues: Collection[str]) -> list[Hold]:
        """Returns the claims of some queues that are worked on and not acknowledged yet."""
        with self._lock:
            return [hold for hold in self._holds if hold.state == "finished" and hold.queue in queues]

    def resume(self, hold: Hold) -> None:
        """Holds a claim again whose release was refused."""
        with self._lock:
            if hold.state == "settled":
                hold.state, hold.delay = "held", None
                self._holds.add(hold)

    def postpone(self, holds: Iterable[Hold]) -> None:
        """Notes that a thread is about to acknowledge claims, so that no other one does it for a while."""
        now = self._clock()
        with self._lock:
            for hold in holds:
                hold.due = now + _POSTPONED * hold.ttl

    def settle(self, holds: Iterable[Hold], refused: Iterable[str] = ()) -> None:
        """Notes that claims have ended; those with a refused receipt are lost."""
        lost = set(refused)
        with self._lock:
            for hold in holds:
                hold.state = "lost" if hold.receipt in lost else "settled"
                self._holds.discard(hold)

    def release(self, holds: Sequence[Hold], delay: float = 0.0) -> None:
        """Notes that claims are about to be released, and for how many seconds."""
        for hold in holds:
            hold.delay = delay
        self.settle(holds)

    def released_again(self, work: Work) -> list[Call[None]]:
        """Returns the calls that release once more what was released since a renewal began."""
        return _releases(work.holds)

    def renewed(self, hold: Hold, asked: float, ttl: float) -> None:
        """Notes that a claim was renewed: for how many seconds, and when that was asked for."""
        with self._lock:
            hold.end = max(hold.end, asked + ttl)
            hold.due = asked + min(ttl, hold.ttl) / 2
            hold.fails = False

    def pause(self) -> float | None:
        """Returns the seconds until something is due, 0 if it is; None: nothing is held."""
        with self._lock:
            due = min((hold.due for hold in self._holds), default=None)
        return None if due is None else max(0.0, due - self._clock())

    def work(self) -> Work | None:
        """Returns what is to be sent first; None: nothing is due. What is due soon goes along."""
        now = self._clock()
        groups: dict[tuple[str, float, State], list[Hold]] = {}
        with self._lock:
            for hold in self._holds:
                if hold.due <= now + _TOGETHER * hold.ttl:
                    groups.setdefault((hold.queue, hold.ttl, hold.state), []).append(hold)
            shortest = min((hold.ttl for hold in self._holds if not hold.fails), default=0.0)
        if not groups:
            return None
        (queue, ttl, state), holds = min(groups.items(), key=lambda group: _urgency(group[1]))
        return _work(queue, ttl, state, holds, _WITHIN * min(ttl, max(shortest, _SHORTEST)))

    def done(self, work: Work, asked: float, refused: Iterable[str]) -> None:
        """Notes that work was done, when it was begun, and which receipts were refused."""
        lost = set(refused)
        self.settle([hold for hold in work.holds if work.ends or hold.receipt in lost], lost)
        for hold in work.holds:
            if hold.state == "held":
                self.renewed(hold, asked, hold.ttl)

    def leave(self, holds: Iterable[Hold]) -> tuple[Iterator[Call[None]], Iterator[Call[None]]]:
        """Ends the keeping of claims; returns the calls that acknowledge and that release what is left of them."""
        open_ = [hold for hold in holds if hold in self._holds]
        finished = [hold for hold in open_ if hold.state == "finished"]
        held = [hold for hold in open_ if hold.state == "held"]
        self.settle(finished)
        for hold in held:
            self.release([hold], hold.later)
        return each_queue(acknowledge, receipts_by_queue(finished)), iter(_releases(held))

    def leave_all(self) -> list[Call[None]]:
        """Ends the keeping of all claims; returns the calls that acknowledge and release them. Those are lost then."""
        with self._lock:
            holds = list(self._holds)
        held = [hold for hold in holds if hold.state == "held"]
        calls: list[Call[None]] = []
        for some in self.leave(holds):
            calls += some
        for hold in held:
            hold.state = "lost"
        return calls

    def refused(self, holds: Sequence[Hold], error: Exception) -> bool:
        """Notes which claims are lost by an error: another caller has them, or their receipts are of before a purge.

        Returns:
            Whether there are any; without them the same call may succeed.
        """
        lost = _refused_by(holds, error)
        self.settle(lost, [hold.receipt for hold in lost])
        return bool(lost)

    def failed(self, work: Work, error: Exception) -> None:
        """Notes that work failed: it is tried again soon, unless that would be of no use.

        What will not pass may be the answer of something between, so only the queue's own end is taken at its word.
        """
        now, temporary = self._clock(), isinstance(error, ClientError) and error.temporary
        if len(work.calls) == 1:  # Of several calls it is not known which one failed.
            self.refused(work.holds, error)
        with self._lock:
            for hold in work.holds:
                hold.due, hold.fails = now + min(_AGAIN * hold.ttl, _MOST_AGAIN), True
                if isinstance(error, QueueNotFound) or (not temporary and now >= hold.end):
                    self._holds.discard(hold)
                    if hold.state == "held":
                        hold.state = "lost"


def receipts_by_queue(holds: Iterable[Hold]) -> Receipts:
    """Returns the receipts of some claims."""
    receipts: Receipts = {}
    for hold in holds:
        receipts.setdefault(hold.queue, []).append(hold.receipt)
    return receipts


def _urgency(holds: Sequence[Hold]) -> tuple[bool, float]:
    """Returns what sorts claims: first those that have not failed, and of these those that end first."""
    return all(hold.fails for hold in holds), min(hold.end for hold in holds)


def _releases(holds: Iterable[Hold]) -> list[Call[None]]:
    """Returns the calls that release those of some claims that were released, each with its delay."""
    receipts: dict[tuple[str, float], list[str]] = {}
    for hold in holds:
        if hold.delay is not None:
            receipts.setdefault((hold.queue, hold.delay), []).append(hold.receipt)
    return [call for (queue, delay), some in receipts.items() for call in release(queue, some, delay)]


def _work(queue: str, ttl: float, state: State, holds: list[Hold], within: float) -> Work:
    receipts, ends = [hold.receipt for hold in holds], state == "finished"
    calls = acknowledge(queue, receipts) if ends else renew(queue, receipts, ttl)
    return Work(tuple(holds), ends, tuple(calls), within)


def _refused_by(holds: Sequence[Hold], error: Exception) -> list[Hold]:
    """Returns the claims whose receipts an error names; none if it is about anything else, too."""
    if isinstance(error, ClaimLost):
        receipts = {each.receipt for each in error.refused}
        return [hold for hold in holds if hold.receipt in receipts]
    fields = error.fields if isinstance(error, InvalidRequest) else {}
    found = [_ABOUT_RECEIPTS.fullmatch(name) for name in fields]
    numbers = {each[1] for each in found if each}
    return [hold for at, hold in enumerate(holds) if all(found) and numbers & {None, str(at)}]


class HeldJob:
    """A message that is claimed by this process, and renewed until its work is done.

    Args:
        claimed: What the server said.
        hold: How the claim stands.
        holding: Where that is kept.
        clock: Monotonic seconds.
    """

    def __init__(self, claimed: Claimed, hold: Hold, holding: Holding, clock: Callable[[], float]) -> None:
        self._claimed = claimed
        self.hold = hold
        self._holding = holding
        self._clock = clock
        hold.later = min(2.0 ** min(claimed.deliveries - 1, 9), LATEST)

    @property
    def claimed(self) -> Claimed:
        """The claim, as the service has told it."""
        return self._claimed

    @property
    def message(self) -> Message:
        """The message."""
        return self._claimed.message

    @property
    def queue(self) -> str:
        """The name of the queue that it is from."""
        return self.hold.queue

    @property
    def body(self) -> Any:  # noqa: ANN401 - any JSON value
        """The message's body: ``str``, ``bytes``, or the value of one that was sent as JSON."""
        return self._claimed.message.body

    @property
    def receipt(self) -> str:
        """Names this claim."""
        return self._claimed.receipt

    @property
    def deliveries(self) -> int:
        """Number of deliveries of the message, including this one."""
        return self._claimed.deliveries

    @contextmanager
    def _acknowledging(self) -> Iterator[None]:
        """Notes the end of an acknowledgement; what failed for now is left to the loop."""
        try:
            yield
        except ClientError as error:
            if error.temporary:
                self._holding.finish(self.hold)
            raise
        self._holding.settle([self.hold])

    @contextmanager
    def _releasing(self, delay: float | None, reason: ReleaseReason | None) -> Iterator[None]:
        """Leaves a claim alone that is released, unless the service refuses that. The loop must not acknowledge it."""
        by_backoff = delay is None and reason is not None
        self._holding.release([self.hold], self.hold.later if by_backoff else delay or 0.0)
        try:
            yield
        except ClientError as error:
            if not error.temporary:
                self._holding.resume(self.hold)
            raise

    @property
    def held(self) -> bool:
        """Whether it is neither acknowledged nor released yet."""
        return self.hold.state == "held"

    @contextmanager
    def failing(self, error: Exception) -> Iterator[None]:
        """Is for the release of a job whose handler has failed: what the service does not take now is only logged."""
        log.warning("Handling %r failed, delivery %d: %r", self, self.deliveries, error, exc_info=error)
        try:
            yield
        except ClientError as failure:
            if not (failure.temporary or self.lost):
                raise
            log.warning("%r could not be released, so its claim has to expire first: %s", self, failure)

    @property
    def lost(self) -> bool:
        """Whether another caller may have the message, because the claim could not be renewed in time.

        Once it was true it stays so, and the loop releases the message instead of acknowledging it.
        """
        return self._holding.lost(self.hold)

    def __repr__(self) -> str:
        """Names queue and message, and says how the claim stands."""
        message = self.message
        return f"<{type(self).__name__} {self.hold.queue} {message.partition}:{message.id} {self.hold.state}>"
