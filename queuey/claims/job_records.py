"""Records of jobs: failed attempts, the state that the worker set, and the end of the job.

A job has one entry in the store's ledger, not in the claim log, which every claim reads. Deliveries do not depend on
it. An entry is written when an attempt fails, a worker sets a state, or a job of a queue that keeps results ends.

Ends are written around the log's entries, so that only true ones are shown:

* A result is written before the entry that acknowledges its delivery, and after the log has shown, since the request
  arrived, that this delivery is the last one.
* When a message is delivered again, its end becomes void before the new receipt leaves the service. So an attempt that
  was acknowledged without a result never shows that of an earlier one.
* Before a message is removed, its end gets a mark, beside the attempt's result: the log decides which of them counts.
* Each end without an acknowledgement that the log has decided is recorded, and no attempt replaces it.

Ends of earlier deliveries never replace those of later ones, and the first result of a delivery is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from hashlib import blake2b
from typing import Literal

import msgspec
from msgspec.structs import replace

from queuey.claims.rules.receipts import ClaimReceipt, LastDelivery
from queuey.model.deadletters import Attempt, decode_dead_letter
from queuey.model.errors import StoreBusy
from queuey.model.ids import Position
from queuey.model.messages import NewMessage, Queue
from queuey.storage import LEDGER_TTL, Entry, Ledger

MAX_KEPT_ATTEMPTS = 10
"""Max attempts remembered per message, the latest ones."""
CLAIM_EXPIRED_ERROR = "ClaimExpired"
"""Error class of a claim that was not acknowledged, renewed or released in time."""
RESULT_GRACE_SECONDS = 60.0
"""Number of seconds for which a result is kept after it is last shown: a void end outlives the result that it voids."""
UNACKNOWLEDGED_NUMBER = 1 << 62
"""Number in ends of jobs without an acknowledgement; above the number of any log entry."""
EXPIRED_ERROR = "Expired"
"""Error class of dead letters whose messages have expired."""

UnacknowledgedEnd = Literal["failed", "expired", "removed", "superseded"]
"""How a job ended without an acknowledgement; ``failed``: it became a dead letter."""
JobResult = bytes | int
"""A result as JSON, or the size in bytes of a result that is too large to keep."""


class JobState(msgspec.Struct, frozen=True, array_like=True):
    """State of a job, as its worker set it.

    Attributes:
        number: Number of the delivery's log entry.
        at: Seconds since 1970.
        json: The state, as JSON.
    """

    number: int
    at: float
    json: bytes


class Leaving(msgspec.Struct, frozen=True, array_like=True):
    """The mark of a message that is about to be removed. Its last delivery may still be acknowledged.

    Attributes:
        status: How the job ends unless it is acknowledged.
        time: Seconds since 1970.
        was_delivered: The message was delivered before, so if the log has it as done, it was acknowledged.
    """

    status: Literal["removed", "superseded"]
    time: float
    was_delivered: bool


class JobEnd(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """The end of a job, unless its log says that it goes on.

    Attributes:
        number: Log entry of the delivery; 0 if there is only a mark.
        status: ``void``: the delivery has no result, and earlier ones do not count.
        time: Seconds since 1970; for a result, a time at which its delivery was the last one.
        json: The result as JSON; None if there is no result or it is too large.
        size: Bytes of a result that is too large to keep.
        error, text: Class and text of a failed job's error.
        leaving: Set before the message is removed.
    """

    number: int
    status: Literal["void", "done"] | UnacknowledgedEnd
    time: float
    json: bytes | None = None
    size: int = 0
    error: str = ""
    text: str = ""
    leaving: Leaving | None = None

    @property
    def is_decided(self) -> bool:
        return self.number == UNACKNOWLEDGED_NUMBER

    @property
    def is_of_attempt(self) -> bool:
        return self.leaving is None and not self.is_decided


class JobRecord(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """Record of one job.

    It names its message, because two messages may share a piece of the ledger, which then has the later one's record.

    Attributes:
        attempts: The last failed attempts, oldest first.
        state: The last state that was set; None if no worker has set one.
        end: None if the job is not known to have ended, or its queue keeps no results.
    """

    partition: int
    position: Position
    attempts: list[Attempt] = []
    state: JobState | None = None
    end: JobEnd | None = None

    def find_shown_end(self, queue: Queue, now: float) -> JobEnd | None:
        """Returns the end, or None if it is not to be shown at ``now`` (seconds since 1970)."""
        end = self.end
        if end is None or not queue.result_ttl:
            return None
        seconds = queue.result_ttl if end.is_of_attempt else LEDGER_TTL - RESULT_GRACE_SECONDS
        return end if now <= end.time + seconds else None


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(JobRecord).decode


class JobRecords:
    """Records of all queues' jobs, in a ledger. Its methods raise as the ledger does.

    Writes also raise ``StoreBusy`` if others keep changing a record. Results are shown for the queue's ``result_ttl``,
    and everything else for as long as the ledger keeps it. Queues without ``result_ttl`` keep no ends.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def read(self, queue: Queue, partition: int, position: Position) -> JobRecord:
        value = await self._ledger.entry(*_ledger_place(queue, partition, position))
        return _decode_record(value, partition, position)

    async def add_attempt(self, queue: Queue, partition: int, position: Position, attempt: Attempt) -> None:
        """Adds an attempt, or replaces that of the same delivery; an expired claim replaces none.

        Only the last ``MAX_KEPT_ATTEMPTS`` are kept. The attempt is lost if the record changes too fast.
        """

        def added(record: JobRecord) -> JobRecord:
            others = [other for other in record.attempts if other.number != attempt.number]
            if attempt.error == CLAIM_EXPIRED_ERROR and len(others) < len(record.attempts):
                return record
            latest = sorted([*others, attempt], key=lambda attempt: attempt.number)[-MAX_KEPT_ATTEMPTS:]
            return replace(record, attempts=latest)

        with suppress(StoreBusy):
            await self._change(queue, partition, position, added)

    async def add_expired_claims(self, queue: Queue, partition: int, claims: Mapping[Position, LastDelivery]) -> None:
        """Adds a failed attempt with the error ``CLAIM_EXPIRED_ERROR`` for each claim, unless its delivery has one."""
        text = "neither acknowledged, renewed nor released in time"
        for position, claim in claims.items():
            expired_at, worker = claim.expires / 1000, claim.worker
            lapse = Attempt(number=claim.number, at=expired_at, worker=worker, error=CLAIM_EXPIRED_ERROR, text=text)
            await self.add_attempt(queue, partition, position, lapse)

    async def set_state(self, queue: Queue, partition: int, position: Position, state: JobState) -> None:
        """Sets the state of a job, unless a later delivery has one."""

        def changed(record: JobRecord) -> JobRecord:
            is_late = record.state is not None and record.state.number > state.number
            return record if is_late else replace(record, state=state)

        await self._change(queue, partition, position, changed)

    async def write_result(self, queue: Queue, receipt: ClaimReceipt, result: JobResult, time: float) -> None:
        """Writes the result of a delivery that is about to be acknowledged, and was the last one at ``time``.

        Does nothing if this delivery has a result already, or a later one has an end.
        """
        json, size = (result, 0) if isinstance(result, bytes) else (None, result)
        new = JobEnd(receipt.number, "done", time, json=json, size=size)

        def changed(end: JobEnd) -> JobEnd:
            is_new = end.number < new.number or (end.number == new.number and end.status == "void")
            return replace(new, leaving=end.leaving) if is_new else end

        await self._change_end(queue, receipt.partition, receipt.position, new, changed)

    async def void_result(self, queue: Queue, receipt: ClaimReceipt, time: float) -> None:
        """Voids the result of earlier deliveries of a message, if it has one or gets one later."""
        new = JobEnd(receipt.number, "void", time)

        def changed(end: JobEnd) -> JobEnd:
            return replace(new, leaving=end.leaving) if end.number < new.number else end

        await self._change_end(queue, receipt.partition, receipt.position, new, changed)

    async def record_end(
        self, queue: Queue, partition: int, position: Position, status: UnacknowledgedEnd, time: float, *why: str
    ) -> None:
        """Records that a job has ended without an acknowledgement; ``why`` is the class and text of its error.

        A message that was removed and expires afterwards counts as removed.
        """
        error, text = why or ("", "")
        new = JobEnd(UNACKNOWLEDGED_NUMBER, status, time, error=error, text=text)

        def changed(end: JobEnd) -> JobEnd:
            if status != "expired":
                return new
            if end.is_decided:
                return end if end.status in {"removed", "superseded"} else new
            mark = end.leaving
            return new if mark is None else replace(new, status=mark.status, time=mark.time, error="", text="")

        await self._change_end(queue, partition, position, new, changed)

    async def record_dead_letter(
        self, queue: Queue, partition: int, position: Position, letter: NewMessage, time: float
    ) -> None:
        """Records that a job became a dead letter, with the letter's error.

        The status is ``expired`` if that error is ``EXPIRED_ERROR``, else ``failed``.
        """
        headers = dict(letter.meta.headers) if letter.meta else {}
        dead = decode_dead_letter(headers, "", lies=("", partition, ""), content_type=None)
        error, text = ("", "") if dead is None else (dead.cause.error, dead.cause.text)
        status: UnacknowledgedEnd = "expired" if error == EXPIRED_ERROR else "failed"
        await self.record_end(queue, partition, position, status, time, error, text)

    async def mark_leaving(self, queue: Queue, partition: int, position: Position, mark: Leaving) -> None:
        """Marks an unfinished message that is about to be removed. The first mark counts, and a result stays."""

        def changed(end: JobEnd) -> JobEnd:
            if end.is_decided or (end.leaving is not None and end.leaving.was_delivered >= mark.was_delivered):
                return end
            first = end.leaving or mark
            return replace(end, leaving=replace(first, was_delivered=mark.was_delivered))

        await self._change_end(queue, partition, position, JobEnd(0, "void", mark.time, leaving=mark), changed)

    async def _change_end(
        self, queue: Queue, partition: int, position: Position, new: JobEnd, change: Callable[[JobEnd], JobEnd]
    ) -> None:
        """Records the end ``new`` if the job has none, else what ``change`` makes of its end."""

        def changed(record: JobRecord) -> JobRecord:
            end = new if record.end is None else change(record.end)
            return record if end is record.end else replace(record, end=end)

        if queue.result_ttl:
            await self._change(queue, partition, position, changed)

    async def _change(
        self, queue: Queue, partition: int, position: Position, change: Callable[[JobRecord], JobRecord]
    ) -> None:
        def decide(value: bytes | None) -> Entry | None:
            before = _decode_record(value, partition, position)
            after = change(before)
            return None if after is before else Entry(_encode(after), _kept_seconds(queue, after))

        await self._ledger.change(*_ledger_place(queue, partition, position), decide, expects_none=True)


def _kept_seconds(queue: Queue, record: JobRecord) -> float:
    has_more = record.attempts or record.state or record.end is None or not record.end.is_of_attempt
    return LEDGER_TTL if has_more else queue.result_ttl + RESULT_GRACE_SECONDS


def _ledger_place(queue: Queue, partition: int, position: Position) -> tuple[str, int]:
    """Returns the work and the piece of a job's entry, a 63-bit hash. Two messages may share a piece."""
    key = f"{partition} {position[0]} {position[1]}".encode()
    return f"jobs {queue.qid:x}", int.from_bytes(blake2b(key, digest_size=8).digest()) >> 1


def _decode_record(value: bytes | None, partition: int, position: Position) -> JobRecord:
    """Returns the record, or an empty one if the value is missing or another message's."""
    if value is not None:
        record = _decode(value)
        if (record.partition, record.position) == (partition, position):
            return record
    return JobRecord(partition, position)
