"""One partition that a consumer owns: where it stands, and what of it is held ready.

::

    fresh ──on_assign over──► announced ──place known──► opened ◄──pause / resume──► paused

``since`` is None until it is known where to begin; nothing is read before. Whether the partition is this member's says
its row (:mod:`qdo.consumer.rebalance.partition_table`); one that comes back later is another row with another fetch
state, which begins at the committed offset.
"""

from __future__ import annotations

from collections import deque

from qdo.consumer.rebalance.partition_table import OwnedPartition
from qdo.errors import InvalidArgument
from queuey.client import EARLIEST, Message, id_after, order_of


class FetchState:
    """Where one partition stands.

    Args:
        row: The partition, as the group has it.

    Attributes:
        partition: The partition.
        position: The last message handed out, or the point after which the next one lies; None: the beginning.
        settled: The position up to which everything counts as processed without being asked.
        since: From where to read on.
        count: Messages held.
        size: Bytes of their bodies, about.
        more: There certainly is more to be read (True), none when last looked (False), not known (None).
        pending_call: The request that it is part of.
        failures: Reads in a row that failed.
        rest_until: Instant (of the loop) before which it is not read.
        sought: It was moved since the last commit, so that this one may go back.
        announced: The user was told of it.
        opened: It is read.
        paused: Nothing of it is handed out for now.
        turn: Rises whenever what was read before is not to be handed out any more.
    """

    def __init__(self, row: OwnedPartition) -> None:
        self.partition = row.partition
        self._row = row
        self.position = row.recorded
        self.settled = row.recorded
        self.since: str | None = None
        self.count = 0
        self.size = 0
        self.more: bool | None = None
        self.pending_call: object | None = None
        self.failures = 0
        self.rest_until = 0.0
        self.sought = False
        self.turn = 0
        self.opened = False
        self.paused = False
        self.announced = False
        self._chunks: deque[tuple[list[Message], int]] = deque()
        self._start = 0

    @property
    def closed(self) -> bool:
        """Whether it is not this member's any more, or is being given up."""
        return self._row.state != "owned"

    @property
    def committed(self) -> str | None:
        """What is recorded."""
        return self._row.recorded

    @property
    def lowest_commit(self) -> str | None:
        """What is to be recorded, or else was; no commit goes below it unless somebody went back."""
        return self.committed if self._row.wish is None else self._row.wish

    @property
    def live(self) -> bool:
        """Whether what it holds may be handed out."""
        return self.opened and not (self.paused or self.closed)

    def place(self, position: str | None) -> None:
        """Says where to begin: after a position, None: at the beginning."""
        self.position = self.settled = position
        self.since = EARLIEST if position in {None, EARLIEST} else id_after(str(position))

    def seek(self, position: str) -> None:
        """Goes on after another position. What was read must have been dropped."""
        self.place(position)
        self.more = None
        self.rest_until = 0.0
        self.sought = True

    def clear(self) -> None:
        """Drops what is held, and whatever is under way."""
        self._chunks.clear()
        self._start = self.count = self.size = 0
        self.pending_call = None
        self.turn += 1

    def push(self, messages: list[Message], size: int) -> None:
        """Takes messages that come after those it holds, with the bytes of their bodies."""
        each = -(-size // len(messages))
        self._chunks.append((messages, each))
        self.count += len(messages)
        self.size += each * len(messages)

    def take(self, most: int) -> list[Message]:
        """Gives up to so many of the messages that it holds; at least one. A whole chunk is given as it is."""
        taken: list[Message] = []
        while most > 0 and self._chunks:
            messages, each = self._chunks[0]
            end = min(self._start + most, len(messages))
            part = messages[self._start : end] if self._start or end < len(messages) else messages
            if end == len(messages):
                self._chunks.popleft()
                self._start = 0
            else:
                self._start = end
            most -= len(part)
            self.count -= len(part)
            self.size -= each * len(part)
            taken = taken + part if taken else part
        return taken

    def put_back(self, messages: list[Message], size: int) -> None:
        """Takes back what it gave last."""
        if self._start:
            rest, each = self._chunks.popleft()
            self._chunks.appendleft((rest[self._start :], each))
            self._start = 0
        each = -(-size // len(messages))
        self._chunks.appendleft((messages, each))
        self.count += len(messages)
        self.size += each * len(messages)


def check_commit(fetch_state: FetchState, identifier: str, *, back: bool = False) -> bool:
    """Tells whether an id is worth recording as the offset of a partition: whether it differs from what is recorded.

    Args:
        fetch_state: Where the partition stands.
        identifier: The id.
        back: It may lie before what was recorded.

    Raises:
        InvalidArgument: It is no id, was not handed out yet, or lies before what was recorded and nobody went back.
    """
    if fetch_state.committed is not None and identifier == fetch_state.committed == fetch_state.lowest_commit:
        return False
    try:
        order = order_of(identifier)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"{fetch_state.partition}: {identifier!r} is not a message id") from error
    if fetch_state.position is None or order > order_of(fetch_state.position):
        raise InvalidArgument(
            f"{fetch_state.partition}: {identifier} was not returned by poll, so it cannot be committed"
        )
    if _behind(fetch_state, order) and not back:
        raise InvalidArgument(
            f"{fetch_state.partition}: {identifier} lies before {fetch_state.lowest_commit}, which was committed"
        )
    return True


def is_behind(fetch_state: FetchState, identifier: str) -> bool:
    """Tells whether more than this was committed already, and nobody went back since."""
    return _behind(fetch_state, order_of(identifier))


def _behind(fetch_state: FetchState, order: tuple[int, int]) -> bool:
    return (
        fetch_state.lowest_commit is not None and not fetch_state.sought and order < order_of(fetch_state.lowest_commit)
    )
