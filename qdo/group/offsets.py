"""Owned partitions: their states in the group, the consumer's positions, and the buffered messages.

A row is one ownership of a partition. Its states in the group are in :mod:`qdo.group.partition_table`. Its
states in the consumer are::

    fresh ──on_assign ended──► announced ──position known──► opened ◄──pause / resume──► paused

A partition that comes back later gets another row, which begins at the committed offset.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Literal

import msgspec

from qdo.errors import InvalidArgument
from qdo.group.records import CommittedOffset, SessionOffset
from qdo.partitions import Partition
from queuey.client import EARLIEST, Message, id_after, order_of

State = Literal["owned", "revoking", "releasing", "unsure", "lost"]


class PartitionOwnership:
    """One ownership of a partition in a session.

    Args:
        partition: The partition.
        held: The offset at the claim, or None if the claim is in doubt.

    Attributes:
        state: See :mod:`qdo.group.partition_table`.
        claimed: The recorded offset at the claim.
        held: The recorded offset with the version that the next commit needs.
        pending_offset: The offset to record, if any.
        pending_back: Whether ``pending_offset`` may be before the recorded one.
        waiting_commits: The commits that wait for the pending offset.
        note: The note to record with the offset.
        version_known: Whether the version is not in doubt.
        notified: Whether the listener was notified of the assignment, and not yet of the loss.
        calls: The calls to the listener for this row, except the call for its loss.
        released: Whether other members can claim the partition.
        end_notified: Whether the listener was notified of the end.
        recorded: The id of the recorded offset; None if nothing was recorded or the claim is in doubt.
        finished: Whether the row can be removed, because it is released and the listener was notified of the end.

    The consumer's part:

    Attributes:
        begun: Whether the consumer works on the partition.
        announced: Whether the user's on_assign was called.
        position: The id of the last message handed out, or the id after which reading begins; None means the beginning.
        seek_pending: Whether the position was moved since the last commit, so that the next one may go back.
        fetch_from: The position of the next read; None until the first position is known, and nothing is read before.
        opened: Whether the partition is being read.
        closed: Whether the state is no longer ``owned``, also while the partition is being revoked.
        paused: Whether the user has paused the partition.
        count: Number of buffered messages.
        size: Approximate bytes of their bodies.
        chunks: The buffered messages in the lists in which they were read, each with the mean bytes of a body.
        start: Index of the first buffered message in the first chunk.
        fetch_epoch: Raised by seek and revoke; messages read in an earlier epoch are not handed out.
        more: True if there certainly is more to read, False if there was none at the last read, None if unknown.
        pending_call: The read call that includes the partition.
        failures: Number of consecutive failed reads.
        rest_until: Time of the event loop before which the partition is not read.
    """

    def __init__(self, partition: Partition, held: SessionOffset | None) -> None:
        self.partition = partition
        self.state: State = "unsure" if held is None else "owned"
        self.held = held
        self.claimed = CommittedOffset() if held is None else held.offset
        self.pending_offset: str | None = None
        self.pending_back = False
        self.note = self.claimed.note
        self.version_known = True
        self.notified = self.released = False
        self.calls: list[asyncio.Task[bool]] = []
        self.end_notified = held is None
        self.waiting_commits: list[PendingCommit] = []
        self.begun = self.announced = self.opened = self.paused = self.seek_pending = False
        self.position = self.recorded
        self.fetch_from: str | None = None
        self.more: bool | None = None
        self.pending_call: object | None = None
        self.count = self.size = self.fetch_epoch = self.failures = 0
        self.rest_until = 0.0
        self.chunks: deque[tuple[list[Message], int]] = deque()
        self.start = 0

    @property
    def recorded(self) -> str | None:
        return None if self.held is None else self.held.offset.id

    @property
    def accepts_commits(self) -> bool:
        return self.state in {"owned", "revoking"}

    @property
    def finished(self) -> bool:
        return self.released and self.end_notified

    def make_commit_request(self) -> tuple[SessionOffset, str | None]:
        """Returns the arguments of a commit: the offset with the note, and the pending id or else the recorded one."""
        assert self.held is not None  # noqa: S101 - only for owned rows
        offset = msgspec.structs.replace(self.held.offset, note=self.note)
        identifier = self.recorded if self.pending_offset is None else self.pending_offset
        return msgspec.structs.replace(self.held, offset=offset), identifier

    def set_pending_offset(self, offset: str, *, back: bool = False) -> None:
        self.pending_offset = offset
        self.pending_back = self.pending_back or self.seek_pending or back
        self.seek_pending = False

    def complete_commits(self, waiting: int | None = None, *, recorded: bool) -> None:
        """Completes the first ``waiting`` commits; if it is None, completes all and clears the pending offset.

        If nothing was ``recorded``, the partition counts as lost for these commits.
        """
        answered = self.waiting_commits[:waiting]
        del self.waiting_commits[:waiting]
        if waiting is None:
            self.seek_pending = self.seek_pending or (self.pending_back and not recorded)
            self.pending_offset, self.pending_back = None, False
        for commit in answered:
            commit.record_result(self.partition, recorded=recorded)

    def fail_commits(self, error: Exception, *, due: float | None = None) -> None:
        failed = [commit for commit in self.waiting_commits if due is None or commit.deadline < due]
        self.waiting_commits = [commit for commit in self.waiting_commits if commit not in failed]
        for commit in failed:
            commit.fail(error)

    # The consumer's part

    @property
    def closed(self) -> bool:
        return self.state != "owned"

    @property
    def may_be_read(self) -> bool:
        return self.opened and not self.paused and self.state == "owned"

    @property
    def lowest_commit(self) -> str | None:
        """The pending offset, or else the recorded one. Without a seek, no commit may be before it."""
        return self.recorded if self.pending_offset is None else self.pending_offset

    def needs_recording(self, identifier: str, *, back: bool = False) -> bool:
        """Returns whether an id needs to be recorded: not if it is the recorded offset and no other is pending.

        Args:
            identifier: The id.
            back: Allows an id before the recorded offset.

        Raises:
            InvalidArgument: The id is not valid, was not handed out yet, or is before the recorded offset without a
                seek.
        """
        if self.recorded is not None and identifier == self.recorded == self.lowest_commit:
            return False
        try:
            order = order_of(identifier)
        except (TypeError, ValueError) as error:
            raise InvalidArgument(f"{self.partition}: {identifier!r} is not a message id") from error
        if self.position is None or order > order_of(self.position):
            raise InvalidArgument(f"{self.partition}: {identifier} was not returned by poll, so it cannot be committed")
        if self.would_go_back(order) and not back:
            raise InvalidArgument(f"{self.partition}: {identifier} is before {self.lowest_commit}, which was committed")
        return True

    def would_go_back(self, order: tuple[int, int]) -> bool:
        return self.lowest_commit is not None and not self.seek_pending and order < order_of(self.lowest_commit)

    def set_position(self, position: str | None) -> None:
        self.position = position
        self.fetch_from = EARLIEST if position in {None, EARLIEST} else id_after(str(position))

    def seek(self, position: str) -> None:
        """Moves the position, from which the partition is read at once. The next commit may go back.

        The caller must have dropped the fetched messages.
        """
        self.set_position(position)
        self.more = None
        self.rest_until = 0.0
        self.seek_pending = True


class PendingCommit:
    """A commit of several partitions, until each has its result.

    Args:
        count: The number of partitions.
        deadline: When retries end if the service does not answer, by the loop's clock.

    Attributes:
        end: Completed when all partitions have their results, with those for which nothing was recorded.
    """

    def __init__(self, count: int, deadline: float) -> None:
        self.deadline = deadline
        self.end: asyncio.Future[frozenset[Partition]] = asyncio.get_running_loop().create_future()
        self.end.add_done_callback(_mark_retrieved)
        self._left = count
        self._lost: set[Partition] = set()

    def record_result(self, partition: Partition, *, recorded: bool) -> None:
        self._left -= 1
        if not recorded:
            self._lost.add(partition)
        if not self._left and not self.end.done():
            self.end.set_result(frozenset(self._lost))

    def fail(self, error: Exception) -> None:
        if not self.end.done():
            self.end.set_exception(error)


def _mark_retrieved(end: asyncio.Future[frozenset[Partition]]) -> None:
    """Marks the error of a failed commit as retrieved, because no call may be waiting for it."""
    if not end.cancelled():
        end.exception()
