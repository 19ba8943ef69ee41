"""What readers of a queue see now, and why."""

from __future__ import annotations

from typing import Annotated

from msgspec import Struct

from queuey.api.claims import Backlog, ClaimCounts
from queuey.api.progress import Offsets
from queuey.api.queues import PartitionInfo, QueueInfo
from queuey.api.values import Count
from queuey.titles import titled


class PartitionExplanation(PartitionInfo, frozen=True, kw_only=True):
    """The messages of a partition, and how much of them readers see now.

    Attributes:
        shown: The part that range reads show, as a clause.
        claimed: Messages that a worker has; null: the queue cannot be claimed from.
        waiting: Messages that were delivered before and wait for the next delivery; null likewise.
    """

    shown: Annotated[str, titled("reads show")]
    claimed: Count | None
    waiting: Annotated[Count | None, titled("to deliver again")]


class QueueExplanation(Struct, frozen=True, kw_only=True, tag_field="status", tag="ok"):
    """What decides over reads and claims of a queue, and what they see now.

    Example:
        >>> found = client.explain_queue("orders")
        >>> found.sentences[0], found.partitions[1].shown
        ('Queue orders of queuey: 1 partition, user.', 'all')

    Attributes:
        sentences: The explanation, for people.
        queue: Fields and counts of the queue.
        claims: Claimed and waiting messages; null: the queue cannot be claimed from.
        backlog: Messages by what they wait for; null likewise.
        claims_refused: Why the queue cannot be claimed from; null: it can.
        groups: Offsets and lag of the first consumer groups, by name.
        partitions: The messages of each partition.
    """

    sentences: tuple[str, ...]
    queue: QueueInfo
    claims: ClaimCounts | None
    backlog: Backlog | None
    claims_refused: str | None
    groups: tuple[Offsets, ...]
    partitions: dict[int, PartitionExplanation]
