"""Receipts: which delivery of which message a caller speaks of."""

from __future__ import annotations

import re

import msgspec

from queuey import ids
from queuey.ids import Position

_TEXT = re.compile(
    r"([1-9][0-9]{0,2})-([0-9a-f]{8})([0-9a-f]{4})1([0-9a-f]{3})([89ab][0-9a-f]{15})-(0|[1-9][0-9]{0,17})", re.ASCII
)


class ClaimReceipt(msgspec.Struct, frozen=True, gc=False):
    """Names one delivery of a message.

    Attributes:
        partition: Of the queue.
        ticks, low: The message's position.
        number: The log entry that delivered it; 0: whichever it was.
    """

    partition: int
    ticks: int
    low: int
    number: int = 0

    @property
    def position(self) -> Position:
        """The message's position."""
        return self.ticks, self.low

    def __str__(self) -> str:
        """Returns the form that callers get; :func:`parse_receipt` reads it."""
        return f"{self.partition}-{ids.to_hex((self.ticks, self.low))}-{self.number}"


def parse_receipt(text: str) -> ClaimReceipt:
    """Reads a receipt.

    Raises:
        ValueError: ``text`` is none.
    """
    match = _TEXT.fullmatch(text)
    if match is None:
        raise ValueError(f"{text[:80]!r} is not a receipt")
    partition, last, middle, first, low, number = match.groups()
    return ClaimReceipt(int(partition), int(first + middle + last, 16), ids.parse_low(low), int(number))
