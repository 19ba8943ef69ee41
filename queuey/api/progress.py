"""Progress of consumer groups in queues, and of moves between them."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType, field

from queuey.api.values import Count, Id, Seconds, text_choice
from queuey.model.titles import age_of_lag, format_estimate, instant, titled


class NewOffset(Struct, frozen=True):
    """An offset to record.

    Attributes:
        expected: The offset that must be recorded now; null if no offset may be. If absent, any offset is replaced.
    """

    offset: str
    expected: str | UnsetType | None = UNSET


class NewOffsets(Struct, frozen=True):
    """Offsets to record, by partition."""

    partitions: dict[str, NewOffset]


class RecordedOffset(Struct, frozen=True):
    """The offset that is recorded now."""

    offset: Id


class RecordedOffsets(Struct, frozen=True, tag_field="status", tag="ok"):
    """The offsets that were recorded."""

    group: str
    partitions: dict[int, RecordedOffset]


class GroupOffset(Struct, frozen=True, kw_only=True):
    """The offset and the lag of a consumer group in one partition.

    Example:
        >>> last = client.read("orders", limit=1).messages[0].id
        >>> committed = client.commit("orders", "billing", {1: last})
        >>> client.offsets("orders", "billing").partitions[1].lag
        1

    Attributes:
        offset: The id of the last message handled; None if no offset is recorded.
        updated: When the offset was recorded, in seconds since 1970.
        lag: Number of messages after the offset.
        lag_exact: If false, the lag is estimated.
        lag_seconds: Age of the oldest message after the offset.
    """

    offset: Id | None
    updated: Annotated[float | None, titled("recorded", instant)]
    lag: Annotated[Count, titled("behind", format_estimate("lag_exact"))]
    lag_exact: bool
    lag_seconds: Annotated[float, titled("oldest of them", age_of_lag)]


class Offsets(Struct, frozen=True, tag_field="status", tag="ok"):
    """The offsets of a consumer group in a queue. ``lag`` is the sum over the partitions.

    Example:
        >>> last = client.read("orders").messages[-1].id
        >>> committed = client.commit("orders", "billing", {1: last})
        >>> offsets = client.offsets("orders", "billing")
        >>> offsets.group, offsets.lag
        ('billing', 0)
    """

    group: str
    partitions: dict[int, GroupOffset]
    lag: Count


class Cursors(Struct, frozen=True):
    """Ids of the last processed messages by partition; null if no message was processed."""

    partitions: dict[str, str | None]


class LagState(Struct, frozen=True):
    """The messages behind a cursor in one partition."""

    lag: Count
    lag_exact: bool
    lag_seconds: float


class LagRead(Struct, frozen=True, tag_field="status", tag="ok"):
    """The lag behind cursors, by partition and in total."""

    partitions: dict[int, LagState]
    lag: Count


class GroupList(Struct, frozen=True, tag_field="status", tag="ok"):
    """Consumer groups, sorted."""

    groups: tuple[str, ...]


class NewMove(Struct, frozen=True):
    """The queues of a move."""

    source: str = field(name="from")
    target: str = field(name="to")


class Move(Struct, frozen=True):
    """A move of messages from one queue to another.

    Example:
        >>> _ = client.create_queue("old-orders")
        >>> move = client.move("orders", "old-orders").wait()
        >>> move.state, move.moved, move.left
        ('done', 2, 0)

    Attributes:
        id: Id of the move.
        source, target: Names of the queues.
        state: ``running``, ``cancelling``, ``done``, ``cancelled`` or ``failed``.
        moved: Messages that have been moved.
        total: Approximate number of messages at the start; None if not known yet.
        left: Messages that stay because they are claimed.
        began: Seconds since 1970.
        updated: When a message was last moved, or None.
        ended: When the move ended, or None.
        error: Why the move failed, or None.
    """

    id: Annotated[str, Meta(pattern="^[0-9a-f]{16}$")] = field(name="move")
    source: str = field(name="from")
    target: str = field(name="to")
    state: Annotated[str, text_choice("running", "cancelling", "done", "cancelled", "failed")]
    moved: Count
    total: Annotated[Count | None, titled("of about")]
    left: Count
    began: Seconds
    updated: Seconds | None
    ended: Seconds | None
    error: str | None


class MoveState(Move, frozen=True, tag_field="status", tag="ok"):
    """The state of a move."""


class MoveList(Struct, frozen=True, tag_field="status", tag="ok"):
    """Running moves and the last finished ones, the newest first."""

    moves: tuple[Move, ...]
