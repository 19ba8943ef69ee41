"""Ends of jobs: the result of the acknowledged attempt, or why a job ended otherwise.

A row is kept in the store's ledger, beside the attempts and states, and names the log entry of its delivery. Only
queues that keep results have rows. Rows are written around the log's entries, so that only true ones are shown:

* A result is written before the entry that acknowledges its delivery, and after the log has shown, since the request
  arrived, that this delivery is the last one.
* When a message is delivered again, its row becomes void before the new receipt leaves the service. So an attempt that
  was acknowledged without a result never shows that of an earlier one.
* Before a message is removed, its row gets a mark, beside the attempt's result: the log decides which of them counts.
* Each end without an acknowledgement that the log has decided has a row that no attempt replaces.

Rows of earlier deliveries never replace those of later ones, and the first result of a delivery is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec
from msgspec.structs import replace

from queuey.claims.attempts import choose_ledger_piece
from queuey.claims.rules.receipts import ClaimReceipt
from queuey.model.deadletters import decode_dead_letter
from queuey.model.errors import StoreBusy
from queuey.model.ids import Position
from queuey.model.messages import NewMessage, Queue
from queuey.storage import LEDGER_TTL, Ledger, exchange

ROW_GRACE_SECONDS = 60.0
"""Number of seconds for which a row is kept after it is last shown: a void row outlives the row that it voids."""
UNACKNOWLEDGED_NUMBER = 1 << 62
"""Number in rows of jobs that ended without an acknowledgement; above the number of any entry."""
EXPIRED_ERROR = "Expired"
"""Error class of dead letters whose messages have expired."""
_MAX_WRITE_ATTEMPTS = 5

UnacknowledgedEnd = Literal["failed", "expired", "removed", "superseded"]
"""How a job ended without an acknowledgement; ``failed``: it became a dead letter."""
JobResult = bytes | int
"""A result as JSON, or the size in bytes of a result that is too large to keep."""


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

    It names its message, because two messages may share a piece of the ledger, which then has the later one's row.

    Attributes:
        number: Log entry of the delivery; 0 if there is only a mark.
        status: ``void``: the delivery has no result, and earlier ones do not count.
        time: Seconds since 1970; for a result, a time at which its delivery was the last one.
        json: The result as JSON; None if there is no result or it is too large.
        size: Bytes of a result that is too large to keep.
        error, text: Class and text of a failed job's error.
        leaving: Set before the message is removed.
    """

    partition: int
    position: Position
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
        """Whether the log has decided that the job ended without an acknowledgement."""
        return self.number == UNACKNOWLEDGED_NUMBER


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(JobEnd).decode


class Results:
    """Ends of all queues' jobs, in a ledger. Its methods raise as the ledger does.

    Writes also raise ``StoreBusy`` if others come first five times. Results are shown for the queue's ``result_ttl``,
    ends without an acknowledgement for as long as the ledger keeps them.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def write_result(self, queue: Queue, receipt: ClaimReceipt, result: JobResult, time: float) -> None:
        """Writes the result of a delivery that is about to be acknowledged, and was the last one at ``time``.

        Does nothing if this delivery has a result already, or a later one has a row.
        """
        is_kept = isinstance(result, bytes)
        end = JobEnd(
            receipt.partition,
            receipt.position,
            receipt.number,
            "done",
            time,
            json=result if isinstance(result, bytes) else None,
            size=0 if is_kept else int(result),
        )

        def is_new(row: JobEnd) -> bool:
            return row.number < end.number or (row.number == end.number and row.status == "void")

        await self._write(queue, end, lambda row: replace(end, leaving=row.leaving) if is_new(row) else row)

    async def void_result(self, queue: Queue, receipt: ClaimReceipt, time: float) -> None:
        """Voids the result of earlier deliveries of a message, if it has one or gets one later."""
        end = JobEnd(receipt.partition, receipt.position, receipt.number, "void", time)
        await self._write(queue, end, lambda row: replace(end, leaving=row.leaving) if row.number < end.number else row)

    async def record_end(
        self, queue: Queue, partition: int, position: Position, status: UnacknowledgedEnd, time: float, *why: str
    ) -> None:
        """Records that a job has ended without an acknowledgement; ``why`` is the class and text of its error.

        A message that was removed and expires afterwards counts as removed.
        """
        error, text = why or ("", "")
        end = JobEnd(partition, position, UNACKNOWLEDGED_NUMBER, status, time, error=error, text=text)

        def changed(row: JobEnd) -> JobEnd:
            if status != "expired":
                return end
            if row.is_decided:
                return row if row.status in {"removed", "superseded"} else end
            mark = row.leaving
            return end if mark is None else replace(end, status=mark.status, time=mark.time, error="", text="")

        await self._write(queue, end, changed)

    async def record_dead_letter(
        self, queue: Queue, partition: int, position: Position, letter: NewMessage, time: float
    ) -> None:
        """Records that a job became a dead letter, with the letter's error.

        The status is ``expired`` if that error is ``EXPIRED_ERROR``, else ``failed``.
        """
        headers = dict(letter.meta.headers) if letter.meta else {}
        dead = decode_dead_letter(headers, "", lies=("", partition, ""), content_type=None)
        error, text = ("", "") if dead is None else (dead.cause.error, dead.cause.text)
        await self.record_end(
            queue, partition, position, "expired" if error == EXPIRED_ERROR else "failed", time, error, text
        )

    async def mark_leaving(self, queue: Queue, partition: int, position: Position, mark: Leaving) -> None:
        """Marks an unfinished message that is about to be removed. The first mark counts, and a result stays."""
        end = JobEnd(partition, position, 0, "void", mark.time, leaving=mark)

        def changed(row: JobEnd) -> JobEnd:
            if row.is_decided or (row.leaving is not None and row.leaving.was_delivered >= mark.was_delivered):
                return row
            first = row.leaving or mark
            return replace(row, leaving=replace(first, was_delivered=mark.was_delivered))

        await self._write(queue, end, changed)

    async def read(self, queue: Queue, partition: int, position: Position, now: float) -> JobEnd | None:
        """Returns the row of a message, or None if it is not to be shown at ``now`` (seconds since 1970)."""
        row = _decode_row(await self._ledger.entry(*_ledger_place(queue, partition, position)), partition, position)
        if row is None or now > row.time + _shown_seconds(queue, row):
            return None
        return row

    async def _write(self, queue: Queue, end: JobEnd, change: Callable[[JobEnd], JobEnd]) -> None:
        """Writes an end if there is no row, else what ``change`` makes of the row.

        Tries again if another process was first, and raises ``StoreBusy`` after five attempts.
        """
        work, piece = _ledger_place(queue, end.partition, end.position)
        before, after = None, end
        for _ in range(_MAX_WRITE_ATTEMPTS):
            value = _encode(after)
            kept = _shown_seconds(queue, after) + ROW_GRACE_SECONDS
            present = await exchange(self._ledger, work, piece, value, expected=before, kept=kept)
            if present == value:
                return
            before, row = present, _decode_row(present, end.partition, end.position)
            after = end if row is None else change(row)
            if after is row:
                return
        raise StoreBusy("Too many processes write the end of one job. Try again.")


def _shown_seconds(queue: Queue, end: JobEnd) -> float:
    is_of_attempt = end.leaving is None and not end.is_decided
    return queue.result_ttl if is_of_attempt else LEDGER_TTL - ROW_GRACE_SECONDS


def _ledger_place(queue: Queue, partition: int, position: Position) -> tuple[str, int]:
    return f"results {queue.qid:x}", choose_ledger_piece(partition, position)


def _decode_row(value: bytes | None, partition: int, position: Position) -> JobEnd | None:
    row = None if value is None else _decode(value)
    return row if row is not None and (row.partition, row.position) == (partition, position) else None
