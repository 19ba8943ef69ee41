"""A member's session in a group of the service: one heartbeat after the other, and commits that carry epochs.

A session lasts as long as the last answer said, counted from the moment at which its request was sent, by a clock that
goes on while the machine sleeps. Then it is lost: it has no partitions, whatever a late answer says.

What belongs to a former ownership does nothing to the present one: each ownership has an epoch, and a later one of the
same partition has a higher one.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from qdo.coordination.records import CommittedOffset, Event, HandlingNote, Listen, Member, OwnedOffset
from qdo.errors import CoordinationError, CoordinationLost, CoordinationRefused, SessionLost
from qdo.keepalive.heartbeat import HeartbeatProcess
from qdo.keepalive.vitals import now
from qdo.partitions import Partition, Queue
from qdo.tasks import cancel
from queuey.api.groups import Heartbeat, HeartbeatAnswer, PartitionCommit, Taken
from queuey.client import (
    EARLIEST,
    AsyncGroupMember,
    ClientError,
    MemberGone,
    NotAllowed,
    NotAuthenticated,
    NotOwner,
    OffsetConflict,
    QueueNotFound,
    RetryPolicy,
    order_of,
)

log = logging.getLogger(__name__)

Wanted = tuple[OwnedOffset, str | None]
"""A partition, with the note to record, and the id."""
MAX_CONFLICTS = 25
"""Max attempts at a commit whose offsets are not what they were."""
PATIENCE = 2.0
"""Max seconds for the answer to a heartbeat, beyond its wait."""
_BACKOFF = RetryPolicy(base=0.1, cap=1.0)
_note_of = msgspec.json.Decoder(HandlingNote).decode


class ServiceSession:
    """A member's session, until it leaves or is lost.

    Args:
        joined: The member, as the service knows it.
        member: Name and wishes of the member.
        listen: Called with events.
        sent: When the join was sent, by ``clock``.
        keeper: Sends heartbeats while this program cannot; None: nothing does.
        clock: Seconds; see :func:`qdo.keepalive.vitals.now`.
    """

    def __init__(
        self,
        joined: AsyncGroupMember,
        member: Member,
        listen: Listen,
        sent: float,
        keeper: HeartbeatProcess | None = None,
        clock: Callable[[], float] = now,
    ) -> None:
        self._joined = joined
        self._member = member
        self._listen = listen
        self._clock = clock
        self._keeper = keeper
        self._ends = sent + joined.joined.session
        self._wait = joined.joined.wait
        self._suspended = self._over = self._leaving = self._comes_back = False
        self._epochs: dict[Partition, int] = {}
        """The epoch of each partition that this member owns."""
        self._offsets: dict[Partition, OwnedOffset] = {}
        """The recorded offset of each of them."""
        self._to_give_back: set[Partition] = set()
        self._giving_back: dict[Partition, int] = {}
        """The epochs of partitions that are being given back, until the service has answered."""
        self._former: dict[Partition, int] = {}
        """The highest epoch of each partition that this member has owned before."""
        self._heartbeats = asyncio.create_task(self._send_heartbeats())

    @property
    def state(self) -> Literal["connected", "suspended", "lost"]:
        """See :mod:`qdo.coordination`. A session that has left is lost."""
        if self._is_lost():
            return "lost"
        return "suspended" if self._suspended else "connected"

    def _is_lost(self) -> bool:
        return self._over or self._remaining() <= 0

    def _remaining(self) -> float:
        """Returns the seconds until the session ends; asks the helper process if this program's heartbeats are late."""
        now, ends = self._clock(), self._ends
        if self._keeper is not None and ends - now < PATIENCE:
            ends = max(ends, self._keeper.session_end)
        return ends - now

    # Heartbeats

    async def _send_heartbeats(self) -> None:
        failures = 0
        try:
            # The first heartbeat shows the service that the member has its answer, and brings the partitions.
            wait = 0.0
            while True:
                try:
                    await self._heartbeat(wait)
                    failures, wait = 0, 0.0 if self._giving_back else self._wait
                    self._report(suspended=False)
                except SessionLost:
                    raise
                except CoordinationError as error:
                    failures += 1
                    log.log(logging.DEBUG if failures > 1 else logging.WARNING, "no heartbeat: %s", error)
                    self._report(suspended=True)
                    await asyncio.sleep(min(_BACKOFF.pause(failures, 0.5), max(0.0, self._remaining())))
        except SessionLost:
            self._finish()

    async def _heartbeat(self, wait: float) -> None:
        """Sends what the member owns and gives back, and applies the answer; waits no longer than the session lasts.

        Raises:
            CoordinationLost, CoordinationRefused, SessionLost
        """
        sent = self._clock()
        if self._is_lost():
            raise SessionLost("the session is over")
        named, returned = dict(self._epochs), dict(self._giving_back)
        beat = Heartbeat(_by_queue(named), _by_queue(returned), self._leaving, wait)
        within = min(wait + PATIENCE, self._remaining())
        try:
            answer = await self._joined.heartbeat(beat, within=within)
        except (MemberGone, NotAuthenticated) as error:
            raise SessionLost(str(error)) from error
        except ClientError as error:
            raise as_coordination_error(error) from error
        if self._is_lost():
            raise SessionLost("the answer came after the end of the session")
        self._ends = max(self._ends, sent + answer.session)
        if self._keeper is not None:
            self._keeper.record_end(self._ends)
            if (access := await access_of(self._joined)) is not None:
                self._keeper.use(access)
        self._wait = answer.wait
        for partition, epoch in returned.items():
            if self._giving_back.get(partition) == epoch:
                del self._giving_back[partition]
        self._apply(answer, named)

    def _apply(self, answer: HeartbeatAnswer, named: Mapping[Partition, int]) -> None:
        for partition, taken in self._partitions(answer.take):
            if taken.epoch > max(self._former.get(partition, 0), self._epochs.get(partition, 0)):
                self._forget(partition)
                self._epochs[partition] = taken.epoch
                self._offsets[partition] = OwnedOffset(partition, _recorded(taken), taken.epoch)
        for partition, request in self._partitions(answer.give_back):
            if request.epoch == self._epochs.get(partition):
                self._to_give_back.add(partition)
            elif request.epoch > max(self._former.get(partition, 0), self._epochs.get(partition, 0)):
                self._forget(partition)  # The answer that gave it to this member was lost.
                self._giving_back[partition] = self._former[partition] = request.epoch
        for queue, numbers in answer.lost.items():
            for number in numbers:
                partition = Partition(self._queue(queue), number)
                if partition in named and named[partition] == self._epochs.get(partition):
                    self._forget(partition)
        if answer.has_work:
            self._emit("changed")

    def _queue(self, name: str) -> Queue:
        return Queue(self._member.wants.service, self._member.wants.application, name)

    def _partitions(self, queues: Mapping[str, Mapping[int, Any]]) -> Iterator[tuple[Partition, Any]]:
        for name, partitions in queues.items():
            queue = self._queue(name)
            for number, each in partitions.items():
                yield Partition(queue, number), each

    def _forget(self, partition: Partition) -> int | None:
        """Ends an ownership; returns its epoch."""
        epoch = self._epochs.pop(partition, None)
        if epoch is not None:
            self._former[partition] = epoch
        self._offsets.pop(partition, None)
        self._to_give_back.discard(partition)
        return epoch

    def _report(self, *, suspended: bool) -> None:
        if suspended != self._suspended:
            self._suspended = suspended
            self._emit("suspended" if suspended else "connected")

    def _finish(self) -> None:
        if not self._over:
            self._over = True
            self._listen("lost")

    def _emit(self, event: Event) -> None:
        if not self._over:
            self._listen(event)

    # Partitions

    async def assignment(self) -> frozenset[Partition]:
        """Returns the partitions that this member is to own. A ``changed`` event follows the next change."""
        if self._is_lost():
            raise SessionLost("the session is over")
        return frozenset(self._epochs.keys() - self._to_give_back)

    async def claim(self, partitions: Iterable[Partition]) -> dict[Partition, OwnedOffset]:
        """Returns those of some partitions that this session owns: the service has given them to it."""
        if self._is_lost():
            raise SessionLost("the session is over")
        return {each: self._offsets[each] for each in partitions if each in self._offsets}

    async def release(self, partitions: Iterable[Partition]) -> None:
        """Gives partitions back; partitions of others are passed over.

        Raises:
            CoordinationLost: They were given back or not; do it again.
            SessionLost
        """
        mine = set(partitions)
        for partition in mine:
            if (epoch := self._forget(partition)) is not None:
                self._giving_back[partition] = epoch
        if mine & self._giving_back.keys() and not self._comes_back:
            await self._heartbeat(0.0)

    async def commit(self, offsets: Iterable[tuple[OwnedOffset, str | None]]) -> dict[Partition, OwnedOffset | None]:
        """Records the id of the last processed message of each partition, with the note in its ``offset``.

        Returns:
            For each partition its new state, or None if this session no longer owns it and nothing was recorded.

        Raises:
            CoordinationLost: Each was recorded or not.
            SessionLost
        """
        # Of each partition the last one counts.
        commits = {held.partition: (held, identifier) for held, identifier in offsets}
        queues: dict[Queue, list[Wanted]] = {}
        for partition, (held, identifier) in commits.items():
            if self._epochs.get(partition) == held.version:
                queues.setdefault(partition.queue, []).append((held, identifier))
        now: dict[Partition, OwnedOffset | None] = dict.fromkeys(commits)
        results = await asyncio.gather(*(self._commit(*each) for each in queues.items()), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
            now |= result
        return now

    async def _commit(self, queue: Queue, offsets: list[Wanted]) -> dict[Partition, OwnedOffset]:
        """Records offsets of one queue; returns those that were recorded."""
        remaining = {held.partition.number: (held, identifier) for held, identifier in offsets}
        recorded = {number: held.offset.id for number, (held, _) in remaining.items()}
        done: dict[Partition, OwnedOffset] = {}
        instant = time.time()
        for _ in range(MAX_CONFLICTS):
            commits = {number: _change(*each, recorded[number]) for number, each in remaining.items()}
            refused, again = await self._try(queue, commits, recorded)
            for number in remaining.keys() - again:
                held, identifier = remaining.pop(number)
                if number not in refused:
                    offset = CommittedOffset(identifier, instant, self._member.id, held=True, note=held.offset.note)
                    done[held.partition] = self._offsets[held.partition] = replace(held, offset=offset)
            if not remaining:
                return done
        raise CoordinationLost(f"offsets of {queue.name} were changed by others again and again")

    async def _try(
        self, queue: Queue, commits: Mapping[int, PartitionCommit], recorded: dict[int, str | None]
    ) -> tuple[AbstractSet[int], AbstractSet[int]]:
        """Sends commits once; returns the partitions of other owners, and those to send again.

        ``recorded`` is updated for those to send again.
        """
        if self._is_lost():
            raise SessionLost("the session is over")
        try:
            await self._joined.commit(queue.name, commits, within=max(0.1, self._remaining()))
        except NotOwner as error:
            return frozenset(error.partitions), frozenset()
        except QueueNotFound:
            return commits.keys(), frozenset()
        except OffsetConflict as error:
            # Only this session commits for these partitions, so an earlier attempt of its own was recorded.
            again = commits.keys() - error.applied
            recorded |= {number: error.current.get(number) for number in again}
            return frozenset(), again
        except (MemberGone, NotAuthenticated) as error:
            self._finish()
            raise SessionLost(str(error)) from error
        except ClientError as error:
            raise as_coordination_error(error) from error
        return frozenset(), frozenset()

    # The end

    def begin_to_leave(self) -> None:
        """From now on the service gives this member no partitions.

        A static member keeps its partitions until it leaves, and then for its return.
        """
        self._comes_back = self._member.static
        self._leaving = not self._member.static

    async def retire(self) -> None:
        """Tells the service that this member is leaving; it keeps each partition until it gives it back."""
        if not self._comes_back:
            await self._heartbeat(0.0)

    async def leave(self) -> None:
        """Gives back whatever it holds and leaves the group. Never raises; idempotent.

        No event follows; the other methods raise ``SessionLost`` from then on.
        """
        was_over, self._over = self._over, True
        await cancel(self._heartbeats)
        if self._keeper is not None:
            self._keeper.close()
        if not was_over:
            with suppress(ClientError):
                await self._joined.leave(returns=self._member.static, within=max(0.1, self._remaining()))


async def access_of(member: AsyncGroupMember) -> dict[str, Any] | None:
    """Returns how another process sends heartbeats of a member, for :class:`HeartbeatProcess`; None: it cannot."""
    if (access := await member.access()) is None:
        return None
    headers = {} if access.authorization is None else {"authorization": access.authorization}
    return {"urls": list(access.urls), "headers": headers, "ca": access.ca}


def as_coordination_error(error: ClientError) -> CoordinationError:
    """Returns what an error of the client means to a member."""
    if isinstance(error, NotAllowed):
        return CoordinationRefused(str(error))
    return CoordinationLost(str(error))


def _by_queue(epochs: Mapping[Partition, int]) -> dict[str, dict[int, int]]:
    queues: dict[str, dict[int, int]] = {}
    for partition, epoch in epochs.items():
        queues.setdefault(partition.queue.name, {})[partition.number] = epoch
    return queues


def _recorded(taken: Taken) -> CommittedOffset:
    """Returns the offset that the former owner recorded."""
    note = None
    if taken.note is not None:
        try:
            note = _note_of(base64.b64decode(taken.note))
        except (msgspec.MsgspecError, binascii.Error):
            log.warning("the note of a partition is not one of Qdo's, and is ignored")
    return CommittedOffset(taken.offset, held=taken.came == "lost", note=note)


def _change(held: OwnedOffset, identifier: str | None, recorded: str | None) -> PartitionCommit:
    """Returns a commit; one that goes back compares what is recorded. A note needs an offset beside it."""
    note = held.offset.note
    text = None if note is None else base64.b64encode(msgspec.json.encode(note)).decode()
    target = identifier or EARLIEST
    expected: str | UnsetType | None = UNSET
    if recorded is not None and order_of(target) < order_of(recorded):
        expected = recorded
    return PartitionCommit(target, held.version, expected, text)
