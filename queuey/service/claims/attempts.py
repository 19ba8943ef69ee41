"""What became of a message's deliveries: who had it, and why it was not acknowledged.

A message's last attempts stand in the store's ledger, outside the claim log, which every claim reads. Only failures are
written. They are for people: what is delivered to whom does not depend on them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import blake2b

import msgspec

from queuey.claims import LastDelivery
from queuey.deadletters import Attempt
from queuey.errors import Conflict
from queuey.ids import Position
from queuey.messages import Queue
from queuey.storage import Ledger

KEPT = 10
"""Attempts of a message that are remembered: the last ones."""
EXPIRED = "ClaimExpired"
"""The class of error of a claim that was neither acknowledged, renewed nor released."""
_TRIES = 5


class _Record(msgspec.Struct, frozen=True, array_like=True):
    """The attempts at one message, which it names: two may share a piece of the ledger, and the later one has it."""

    partition: int
    position: Position
    attempts: list[Attempt]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Record).decode


class Attempts:
    """The attempts at messages of all queues. Its methods block.

    Args:
        ledger: Where they stand.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def note(self, queue: Queue, partition: int, position: Position, attempt: Attempt) -> None:
        """Adds an attempt; noted again, it is there once."""
        work, piece = _place(queue, partition, position)
        for _ in range(_TRIES):
            before = self._ledger.entry(work, piece)
            known = [one for one in _read(before, partition, position) if one.number != attempt.number]
            last = sorted([*known, attempt], key=lambda one: one.number)[-KEPT:]
            after = _encode(_Record(partition, position, last))
            try:
                if self._ledger.enter(work, piece, after, expected=before) == after:
                    return
            except Conflict:  # What stood there has expired.
                continue

    def of(self, queue: Queue, partition: int, positions: Iterable[Position]) -> dict[Position, list[Attempt]]:
        """Returns what is remembered of messages of a partition, oldest first; of most messages nothing is."""
        found = {
            position: _read(self._ledger.entry(*_place(queue, partition, position)), partition, position)
            for position in positions
        }
        return {position: attempts for position, attempts in found.items() if attempts}


def note_lapsed(ledger: Ledger, queue: Queue, partition: int, claims: Mapping[Position, LastDelivery]) -> None:
    """Notes claims that have expired."""
    attempts = Attempts(ledger)
    for position, claim in claims.items():
        at, text = claim.expires / 1000, "neither acknowledged, renewed nor released in time"
        lapse = Attempt(number=claim.number, at=at, worker=claim.worker, error=EXPIRED, text=text)
        attempts.note(queue, partition, position, lapse)


def _place(queue: Queue, partition: int, position: Position) -> tuple[str, int]:
    named = f"{partition} {position[0]} {position[1]}".encode()
    return f"attempts {queue.qid:x}", int.from_bytes(blake2b(named, digest_size=8).digest()) >> 1


def _read(value: bytes | None, partition: int, position: Position) -> list[Attempt]:
    if value is None:
        return []
    record = _decode(value)
    return record.attempts if (record.partition, record.position) == (partition, position) else []
