"""Failed deliveries of messages and the states of jobs: worker, error, and progress.

They stand in the store's ledger, outside the claim log, which every claim reads. Only failures are written, and states
that workers set. They are for people: deliveries do not depend on them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from hashlib import blake2b

import msgspec
from msgspec.structs import replace

from queuey.claims.state import LastDelivery
from queuey.deadletters import Attempt
from queuey.ids import Position
from queuey.messages import Queue
from queuey.storage import Ledger, exchange

KEPT = 10
"""Max attempts of a message that are remembered, the last ones."""
EXPIRED = "ClaimExpired"
"""The class of error of a claim that was neither acknowledged, renewed nor released."""
_TRIES = 5


class JobState(msgspec.Struct, frozen=True, array_like=True):
    """A worker's note on a message in hand.

    Attributes:
        number: The log entry of the delivery.
        at: Seconds since 1970.
        json: The state, as JSON.
    """

    number: int
    at: float
    json: bytes


class Known(msgspec.Struct, frozen=True, array_like=True):
    """Record of one message's deliveries.

    Two messages may share a piece of the ledger, and the later one has it; so it names its message.

    Attributes:
        attempts: The last failed ones, oldest first.
        state: The last one that was set; None: there is none.
    """

    partition: int
    position: Position
    attempts: list[Attempt] = []
    state: JobState | None = None


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Known).decode


class Attempts:
    """Attempts of all queues' messages, in a ledger. Its methods raise as the ledger does."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def note(self, queue: Queue, partition: int, position: Position, attempt: Attempt) -> None:
        """Adds an attempt. If the delivery has one already, the worker's own error is kept rather than a lapse."""

        def added(known: Known) -> Known:
            others = [one for one in known.attempts if one.number != attempt.number]
            if attempt.error == EXPIRED and len(others) < len(known.attempts):
                return known
            last = sorted([*others, attempt], key=lambda one: one.number)[-KEPT:]
            return replace(known, attempts=last)

        await self._change(queue, partition, position, added)

    async def set_state(self, queue: Queue, partition: int, position: Position, state: JobState) -> None:
        """Sets the state of a message, unless a later delivery has one."""

        def changed(known: Known) -> Known:
            is_late = known.state is not None and known.state.number > state.number
            return known if is_late else replace(known, state=state)

        await self._change(queue, partition, position, changed)

    async def _change(self, queue: Queue, partition: int, position: Position, change: Callable[[Known], Known]) -> None:
        work, piece = _place(queue, partition, position)
        for _ in range(_TRIES):
            before = await self._ledger.entry(work, piece)
            after = _encode(change(_read(before, partition, position)))
            if await exchange(self._ledger, work, piece, after, expected=before) == after:
                return

    async def of(self, queue: Queue, partition: int, positions: Iterable[Position]) -> dict[Position, Known]:
        """Returns the records of messages that have one; most have none."""
        found = {position: await self.last(queue, partition, position) for position in positions}
        return {position: known for position, known in found.items() if known.attempts or known.state is not None}

    async def last(self, queue: Queue, partition: int, position: Position) -> Known:
        """Returns the record of a message, empty if the message has no record."""
        return _read(await self._ledger.entry(*_place(queue, partition, position)), partition, position)

    async def last_state(self, queue: Queue, partition: int, position: Position) -> JobState | None:
        """Returns the state of a message that was set last, whichever delivery's worker has set it."""
        return (await self.last(queue, partition, position)).state


async def note_lapsed(ledger: Ledger, queue: Queue, partition: int, claims: Mapping[Position, LastDelivery]) -> None:
    attempts = Attempts(ledger)
    for position, claim in claims.items():
        at, text = claim.expires / 1000, "neither acknowledged, renewed nor released in time"
        lapse = Attempt(number=claim.number, at=at, worker=claim.worker, error=EXPIRED, text=text)
        await attempts.note(queue, partition, position, lapse)


def piece_of(partition: int, position: Position) -> int:
    """Returns the piece of the ledger in which a message's record stands."""
    named = f"{partition} {position[0]} {position[1]}".encode()
    return int.from_bytes(blake2b(named, digest_size=8).digest()) >> 1


def _place(queue: Queue, partition: int, position: Position) -> tuple[str, int]:
    return f"attempts {queue.qid:x}", piece_of(partition, position)


def _read(value: bytes | None, partition: int, position: Position) -> Known:
    nothing = Known(partition, position)
    if value is None:
        return nothing
    known = _decode(value)
    return known if (known.partition, known.position) == (partition, position) else nothing
