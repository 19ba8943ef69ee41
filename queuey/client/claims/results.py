"""Results of calls about claims."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from queuey.api.claims import Backlog, ClaimCounts, PartitionClaims, QueueSize
from queuey.client.errors import ClientError
from queuey.client.results import Message

__all__ = [
    "Backlog",
    "ClaimCounts",
    "Claimed",
    "OutstandingJob",
    "PartitionClaims",
    "QueueSize",
    "Received",
    "Refused",
]


class Claimed(msgspec.Struct, frozen=True):
    """A message that is claimed by this caller alone, until ``expires``.

    Example:
        >>> (claimed,) = client.job_queue("orders").receive(1)
        >>> claimed.message.body, claimed.deliveries
        ('one apple', 1)

    Attributes:
        message: The message.
        receipt: Identifies this claim; acknowledge, renew or release the message with it.
        deliveries: Number of deliveries of the message, including this one.
        expires: Seconds since 1970, by the server's clock. Then another caller may get the message.
        queue: The message's queue.
    """

    message: Message
    receipt: str
    deliveries: int
    expires: float
    queue: str = ""


class Refused(msgspec.Struct, frozen=True):
    """A receipt that a call refused.

    Example:
        >>> jobs = client.job_queue("orders")
        >>> (first,) = jobs.receive(1)
        >>> released = jobs.release(first)
        >>> again = jobs.receive(10)
        >>> [refused.status for refused in jobs.ack(first)]
        ['superseded']

    Attributes:
        receipt: The receipt.
        status: The reason: ``superseded``, the claim had expired and the message was delivered to another caller,
            became a dead letter or was moved, or a newer message has its name.
    """

    receipt: str
    status: str


class Received(list[Claimed]):
    """Claimed messages, as a list.

    Example:
        >>> jobs = client.job_queue("orders")
        >>> first = jobs.receive(1)
        >>> second = jobs.receive(1, acknowledge=first)
        >>> second[0].message.body, second.refused
        ('two eggs', [])

    Attributes:
        refused: The receipts that were to be acknowledged and were refused.
        errors: The error of each queue that cannot be claimed from, in a claim of several.
    """

    def __init__(self, claimed: Iterable[Claimed] = (), refused: Iterable[Refused] = ()) -> None:
        super().__init__(claimed)
        self.refused = list(refused)
        self.errors: dict[str, ClientError] = {}


class OutstandingJob(msgspec.Struct, frozen=True):
    """A message that was delivered and is not acknowledged.

    Example:
        >>> jobs = client.job_queue("orders")
        >>> claimed = jobs.receive(1)
        >>> [one.deliveries for one in jobs.outstanding()]
        [1]

    Attributes:
        worker: The name of the worker that has it, or had it last.
        expires: When its claim ends, in seconds since 1970; None: it has ended.
        state: The state that this worker has set; None: none, or it was not asked for.
        state_at: When it was set, in seconds since 1970.
    """

    message_id: str
    partition: int
    deliveries: int
    worker: str
    expires: float | None
    state: Any = None
    state_at: float | None = None
