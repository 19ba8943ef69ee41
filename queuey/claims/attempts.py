"""Failed deliveries of messages and the states of jobs: worker, error, and progress.

They are kept in the store's ledger, not in the claim log, which every claim reads. Only failures are written, and
states that workers set. They are informational: deliveries do not depend on them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from hashlib import blake2b

import msgspec
from msgspec.structs import replace

from queuey.claims.rules.receipts import LastDelivery
from queuey.model.deadletters import Attempt
from queuey.model.errors import StoreBusy
from queuey.model.ids import Position
from queuey.model.messages import Queue
from queuey.storage import Ledger, exchange

MAX_KEPT_ATTEMPTS = 10
"""Max attempts remembered per message, the latest ones."""
CLAIM_EXPIRED_ERROR = "ClaimExpired"
"""Error class of a claim that was not acknowledged, renewed or released in time."""
_MAX_WRITE_ATTEMPTS = 5


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


class DeliveryRecord(msgspec.Struct, frozen=True, array_like=True):
    """Record of one message's deliveries.

    It names its message, because two messages may share a piece of the ledger, which then has the later one's record.

    Attributes:
        attempts: The last failed attempts, oldest first.
        state: The last state that was set; None if no worker has set one.
    """

    partition: int
    position: Position
    attempts: list[Attempt] = []
    state: JobState | None = None


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(DeliveryRecord).decode


class AttemptRecords:
    """Records of all queues' messages, in a ledger. Its methods raise as the ledger does."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def add(self, queue: Queue, partition: int, position: Position, attempt: Attempt) -> None:
        """Adds an attempt, or replaces that of the same delivery; an expired claim replaces none.

        Only the last ``MAX_KEPT_ATTEMPTS`` are kept. The attempt is lost if other changes come first five times.
        """

        def added(record: DeliveryRecord) -> DeliveryRecord:
            others = [other for other in record.attempts if other.number != attempt.number]
            if attempt.error == CLAIM_EXPIRED_ERROR and len(others) < len(record.attempts):
                return record
            latest = sorted([*others, attempt], key=lambda attempt: attempt.number)[-MAX_KEPT_ATTEMPTS:]
            return replace(record, attempts=latest)

        await self._change(queue, partition, position, added)

    async def set_state(self, queue: Queue, partition: int, position: Position, state: JobState) -> None:
        """Sets the state of a job, unless a later delivery has one.

        Raises:
            StoreBusy: Other changes came first five times, so the state is not set.
        """

        def changed(record: DeliveryRecord) -> DeliveryRecord:
            is_late = record.state is not None and record.state.number > state.number
            return record if is_late else replace(record, state=state)

        if not await self._change(queue, partition, position, changed):
            raise StoreBusy("The record of the job changes too fast. Try again.")

    async def _change(
        self, queue: Queue, partition: int, position: Position, change: Callable[[DeliveryRecord], DeliveryRecord]
    ) -> bool:
        """Changes a message's record. Returns False if other processes changed it first five times."""
        work, piece = _ledger_place(queue, partition, position)
        for _ in range(_MAX_WRITE_ATTEMPTS):
            before = await self._ledger.entry(work, piece)
            after = _encode(change(_decode_record(before, partition, position)))
            if await exchange(self._ledger, work, piece, after, expected=before) == after:
                return True
        return False

    async def read_records(
        self, queue: Queue, partition: int, positions: Iterable[Position]
    ) -> dict[Position, DeliveryRecord]:
        records = {position: await self.read_record(queue, partition, position) for position in positions}
        return {position: record for position, record in records.items() if record.attempts or record.state is not None}

    async def read_record(self, queue: Queue, partition: int, position: Position) -> DeliveryRecord:
        return _decode_record(await self._ledger.entry(*_ledger_place(queue, partition, position)), partition, position)

    async def read_last_state(self, queue: Queue, partition: int, position: Position) -> JobState | None:
        return (await self.read_record(queue, partition, position)).state


async def record_expired_claims(
    ledger: Ledger, queue: Queue, partition: int, claims: Mapping[Position, LastDelivery]
) -> None:
    """Adds a failed attempt with the error ``CLAIM_EXPIRED_ERROR`` for each claim, unless its delivery has one."""
    attempts = AttemptRecords(ledger)
    for position, claim in claims.items():
        expired_at, text = claim.expires / 1000, "neither acknowledged, renewed nor released in time"
        lapse = Attempt(number=claim.number, at=expired_at, worker=claim.worker, error=CLAIM_EXPIRED_ERROR, text=text)
        await attempts.add(queue, partition, position, lapse)


def choose_ledger_piece(partition: int, position: Position) -> int:
    """Returns a 63-bit hash of a message's location. Two messages may share a piece."""
    key = f"{partition} {position[0]} {position[1]}".encode()
    return int.from_bytes(blake2b(key, digest_size=8).digest()) >> 1


def _ledger_place(queue: Queue, partition: int, position: Position) -> tuple[str, int]:
    return f"attempts {queue.qid:x}", choose_ledger_piece(partition, position)


def _decode_record(value: bytes | None, partition: int, position: Position) -> DeliveryRecord:
    """Returns the record, or an empty one if the value is missing or another message's."""
    empty = DeliveryRecord(partition, position)
    if value is None:
        return empty
    record = _decode(value)
    return record if (record.partition, record.position) == (partition, position) else empty
