"""Deliveries of messages, and the receipts that identify them."""

from __future__ import annotations

import enum
import re
from functools import lru_cache
from zlib import crc32

import msgspec

from queuey.model import ids
from queuey.model.ids import Position
from queuey.model.messages import Queue

SECRET_BITS = 56
"""Number of bits of the secret in a receipt: 14 hex digits."""
MAX_UNCOUNTED = 10
"""Max deliveries of a message that do not count as attempts, because their callers gave it back before they began."""
_RECEIPT_PATTERN = re.compile(
    r"([1-9][0-9]{0,2})-([0-9a-f]{8})([0-9a-f]{4})1([0-9a-f]{3})([89ab][0-9a-f]{15})"
    r"-(0|[1-9][0-9]{0,17})(?:-([0-9a-f]{14}))?-([0-9a-f]{6})",
    re.ASCII,
)


class ClaimReceipt(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Identifies one delivery of a message.

    Attributes:
        number: Number of the log entry that delivered it; 0 stands for any delivery.
        secret: A random number of that entry and caller; 0 if the receipt has no secret.
    """

    partition: int
    ticks: int
    low: int
    number: int = 0
    secret: int = 0

    @property
    def position(self) -> Position:
        return self.ticks, self.low


class InvalidReceipt(ValueError):
    """Text is not a receipt of a claim in the queue. Its text follows the receipt in a sentence."""


class ReceiptOfAnotherQueue(InvalidReceipt):
    pass


def format_receipt(receipt: ClaimReceipt, queue_id: int) -> str:
    secret = b"-%014x" % receipt.secret if receipt.secret else b""
    low_digits = ids.last_digits(receipt.ticks >> 32, receipt.low)
    values = receipt.partition, receipt.ticks & 0xFFFFFFFF, low_digits, receipt.number, secret
    return (b"%d-%08x%b-%d%b-" % values).decode() + _format_queue(queue_id)


def parse_receipt(text: str, queue: Queue) -> ClaimReceipt:
    """Parses a receipt of a claim in the queue.

    Raises:
        ReceiptOfAnotherQueue: The receipt is of another queue, or from before a purge.
        InvalidReceipt: The text is not a receipt, or is from a claim that holds no messages.
    """
    match = _RECEIPT_PATTERN.fullmatch(text)
    if match is None:
        raise InvalidReceipt("is not a receipt")
    partition, last, middle, first, low, number, secret, digits = match.groups("0")
    if number == "0":
        raise InvalidReceipt("is from a claim with ttl=0, which only shows messages")
    if digits != _format_queue(queue.qid) or int(partition) > queue.partitions:
        raise ReceiptOfAnotherQueue("is from another queue, or from before this one was purged")
    ticks = int(first + middle + last, 16)
    return ClaimReceipt(int(partition), ticks, _parse_low(low), int(number), int(secret, 16))


@lru_cache(1024)
def _format_queue(queue_id: int) -> str:
    return f"{crc32(b'%d' % queue_id) & 0xFFFFFF:06x}"


_parse_low = lru_cache(1024)(ids.parse_low)


class LastDelivery(msgspec.Struct, gc=False):
    """The last delivery of a message that is not done.

    Attributes:
        number: Number of the entry that delivered it; 0 if a move gave the message back, or it was claimed by its id
            alone.
        deliveries: Number of this attempt: the deliveries so far, less ``uncounted``.
        expires: Expiry of the claim (milliseconds since 1970); 0 if the claim was ended.
        secret: Secret of the receipt.
        worker: The caller's name for itself; may be blank.
        key: Digest of the message's key; 0 if the message has no key or the queue does not keep keys.
        renewed: When the claim was last made or renewed (milliseconds since 1970, by the writer's clock). 0 after the
            state was read from a snapshot, which does not include it.
        uncounted: Number of earlier deliveries that were given back before they began.
        begun: False if this delivery was given back before it began, so that it does not count.
        suspected: A claim of the message has expired: perhaps the message ended its worker. So it is delivered alone,
            that it ends only its own attempts.
    """

    number: int
    deliveries: int
    expires: int
    secret: int = 0
    worker: str = ""
    key: int = 0
    renewed: int = 0
    uncounted: int = 0
    begun: bool = True
    suspected: bool = False

    @property
    def attempts(self) -> int:
        return self.deliveries if self.begun else self.deliveries - 1

    @property
    def handed_out(self) -> int:
        return self.deliveries + self.uncounted

    @property
    def may_go_uncounted(self) -> bool:
        return self.deliveries > 0 and self.uncounted < MAX_UNCOUNTED


class ReceiptStatus(enum.Enum):
    """Result of a request for one receipt.

    ``ACCEPTED``: the request is carried out. With all other results nothing is changed. ``SUPERSEDED``: the message was
    delivered again since, or a newer value has taken its name. ``FINAL``: the message was acknowledged before or is
    gone. ``REFUSED``: the partition has its max number of claims or of remembered messages.
    """

    ACCEPTED = "done"
    SUPERSEDED = "superseded"
    FINAL = "final"
    REFUSED = "refused"


class ReceiptOutcome(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Result of a request for one receipt.

    Attributes:
        expires: New expiry of the claim (seconds since 1970), or 0 if there is no claim now.
        cancelled: The worker is asked to stop.
    """

    receipt: ClaimReceipt
    status: ReceiptStatus
    expires: float = 0.0
    cancelled: bool = False
