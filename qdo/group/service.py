"""Groups whose partitions the service assigns. They need no other service, and members may use any language.

``docs/architecture-groups.md`` has the rules that a member follows: consecutive heartbeats, and commits with epochs.

A session's timeout counts from the moment the last answered heartbeat was sent, on a clock that keeps running while the
machine sleeps. When it expires, the session is lost and owns nothing, even if an answer arrives later.

Each ownership of a partition has an epoch, and later ownerships have higher epochs. Messages about an earlier epoch do
not affect the present ownership.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from types import MappingProxyType
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from qdo import errors
from qdo.errors import (
    CoordinationError,
    CoordinationLost,
    CoordinationRefused,
    InvalidArgument,
    OffsetMoved,
    QdoError,
    SessionLost,
    StoreChanged,
)
from qdo.group.heartbeat import HeartbeatProcess
from qdo.group.records import (
    CommittedOffset,
    Event,
    GroupSnapshot,
    HandlingNote,
    Listen,
    Member,
    SessionOffset,
    TargetAssignment,
)
from qdo.group.vitals import now
from qdo.loops import cancel
from qdo.partitions import Partition, Queue, Subscription
from queuey.api.groups import GroupInfo, Heartbeat, HeartbeatAnswer, MemberInfo, OwnedPartition, PartitionCommit, Taken
from queuey.client import (
    EARLIEST,
    AsyncClient,
    AsyncGroupMember,
    ClientError,
    GroupActive,
    GroupElsewhere,
    GroupNotFound,
    GroupOffset,
    InvalidRequest,
    MemberGone,
    NotAllowed,
    NotAuthenticated,
    NotFound,
    NotOwner,
    OffsetConflict,
    QueueNotFound,
    RetryPolicy,
    order_of,
)
from queuey.client import InvalidArgument as RefusedName
from queuey.client.calls.progress_calls import group_segment

log = logging.getLogger(__name__)

CommitRequest = tuple[SessionOffset, str | None]
"""A partition with the note to record, and the id to record."""
MAX_CONFLICTS = 25
"""Max attempts at a commit whose expected offsets differ from the recorded ones."""
ANSWER_TIMEOUT = 2.0
"""Timeout for the answer to a heartbeat beyond its wait, in seconds."""
_BACKOFF = RetryPolicy(base=0.1, cap=1.0)
_decode_note = msgspec.json.Decoder(HandlingNote).decode
MAX_MEMBER_NAME = 100
"""Max characters of the name that a member gives for people."""
SESSION_TIMEOUT = 10.0
"""Default time without a heartbeat after which a member's partitions go to others, in seconds."""
MAX_EPOCH_LEAD_SECONDS = 2.0
"""Max seconds by which the first epoch of a group is ahead of the clock."""
NO_RIGHT = "Members of a group of the service need read and claim: give them, or use --coordination zookeeper://…"


class ServiceSession:
    """A member's session, until it leaves or is lost.

    Args:
        group_member: The client's group member, which has joined.
        member: The member's name and subscription.
        listen: Called with each event.
        sent: When the join request was sent, by ``clock``.
        keeper: The process that sends heartbeats while this program is blocked, if any.
        clock: Returns seconds; see :func:`qdo.group.vitals.now`.
    """

    def __init__(
        self,
        group_member: AsyncGroupMember,
        member: Member,
        listen: Listen,
        sent: float,
        keeper: HeartbeatProcess | None = None,
        clock: Callable[[], float] = now,
    ) -> None:
        self._group_member = group_member
        self._member = member
        self._listen = listen
        self._clock = clock
        self._keeper = keeper
        self._ends = sent + group_member.joined.session
        self._wait = group_member.joined.wait
        self._suspended = False
        """Whether the last heartbeat failed."""
        self._over = False
        """Whether the session was left or lost."""
        self._leaves_for_good = False
        """Whether a member that is not static has begun to leave: it gets no more partitions."""
        self._comes_back = False
        """Whether a static member has begun to leave: it keeps its partitions."""
        self._epochs: dict[Partition, int] = {}
        """The epoch of each partition that this member owns."""
        self._offsets: dict[Partition, SessionOffset] = {}
        """The recorded offset of each partition that this member owns."""
        self._to_give_back: set[Partition] = set()
        self._giving_back: dict[Partition, int] = {}
        """The epochs of partitions that are being given back, until the service confirms it."""
        self._given_back: dict[Partition, int] = {}
        """The highest epoch under which this member gave each partition back."""
        self._heartbeats = asyncio.create_task(self._send_heartbeats())

    leadership = None  # The service finds the queues and assigns the partitions.

    @property
    def state(self) -> Literal["connected", "suspended", "lost"]:
        if self._is_lost():
            return "lost"
        return "suspended" if self._suspended else "connected"

    def _is_lost(self) -> bool:
        return self._over or self._remaining() <= 0

    def _remaining(self) -> float:
        """Returns the seconds until the session ends. Counts the helper's heartbeats if this program's are late."""
        now, ends = self._clock(), self._ends
        if self._keeper is not None and ends - now < ANSWER_TIMEOUT:
            ends = max(ends, self._keeper.session_end)
        return ends - now

    # Heartbeats

    async def _send_heartbeats(self) -> None:
        """Sends heartbeats until the session is lost; it is suspended from a failure to the next success."""
        failures = 0
        try:
            # The first heartbeat confirms the join and returns the partitions.
            wait = 0.0
            while True:
                try:
                    await self._heartbeat(wait)
                    failures, wait = 0, 0.0 if self._giving_back else self._wait
                    self._set_suspended(suspended=False)
                except SessionLost:
                    raise
                except CoordinationError as error:
                    failures, wait = failures + 1, 0.0  # Only an answer renews the session: have the next one at once.
                    log.log(logging.DEBUG if failures > 1 else logging.WARNING, "no heartbeat: %s", error)
                    self._set_suspended(suspended=True)
                    await asyncio.sleep(min(_BACKOFF.pause(failures, 0.5), max(0.0, self._remaining())))
        except SessionLost:
            self._end_as_lost()

    async def _heartbeat(self, wait: float) -> None:
        """Sends the owned and returned partitions and applies the answer. Its timeout ends with the session.

        Raises:
            CoordinationLost, CoordinationRefused, SessionLost
        """
        sent = self._clock()
        if self._is_lost():
            raise SessionLost("the session is over")
        named, returned = dict(self._epochs), dict(self._giving_back)
        beat = Heartbeat(_group_by_queue(named), _group_by_queue(returned), self._leaves_for_good, wait)
        within = min(wait + ANSWER_TIMEOUT, self._remaining())
        try:
            answer = await self._group_member.heartbeat(beat, within=within)
        except (MemberGone, NotAuthenticated) as error:
            raise SessionLost(str(error)) from error
        except ClientError as error:
            raise as_coordination_error(error) from error
        if self._is_lost():
            raise SessionLost("the answer came after the end of the session")
        self._ends = max(self._ends, sent + answer.session)
        if self._keeper is not None:
            self._keeper.record_end(self._ends)
            await self._refresh_access(self._keeper)
        self._wait = answer.wait
        for partition, epoch in returned.items():
            if self._giving_back.get(partition) == epoch:
                del self._giving_back[partition]
        self._apply_answer(answer, named)

    async def _refresh_access(self, keeper: HeartbeatProcess) -> None:
        """Passes the present access settings to the helper process. Without a token it keeps the former ones."""
        try:
            access = await find_access_settings(self._group_member)
        except ClientError as error:
            log.warning("the heartbeat process keeps its former access settings: %s", error)
            return
        if access is not None:
            keeper.set_access(access)

    def _apply_answer(self, answer: HeartbeatAnswer, named: Mapping[Partition, int]) -> None:
        """Applies an answer: new partitions, requests to give partitions back, and lost ones; ignores earlier epochs.

        A loss counts only if the partition still has the epoch in ``named``, which the heartbeat sent. A partition that
        the service counts as owned, and that this member has given back or never had, is given back with the next
        heartbeat.
        """
        for partition, taken in self._iterate_partitions(answer.take):
            self._own(partition, taken)
        for partition, request in self._iterate_partitions(answer.give_back):
            if request.epoch == self._epochs.get(partition):
                self._to_give_back.add(partition)
            elif request.epoch != named.get(partition):  # Otherwise it has been given back since that heartbeat.
                self._give_back_unowned(partition, request.epoch)
        for queue, numbers in answer.lost.items():
            for number in numbers:
                partition = Partition(self._queue(queue), number)
                if partition in named and named[partition] == self._epochs.get(partition):
                    self._forget(partition)
        if answer.has_work:
            self._emit("changed")

    def _queue(self, name: str) -> Queue:
        return Queue(self._member.wants.service, self._member.wants.application, name)

    def _iterate_partitions(self, queues: Mapping[str, Mapping[int, Any]]) -> Iterator[tuple[Partition, Any]]:
        for name, partitions in queues.items():
            queue = self._queue(name)
            for number, row in partitions.items():
                yield Partition(queue, number), row

    def _own(self, partition: Partition, taken: Taken) -> None:
        """Owns a partition, unless it was given back under this epoch; it is then given back again."""
        if taken.epoch <= self._given_back.get(partition, 0):
            self._give_back_unowned(partition, taken.epoch)
        elif taken.epoch > self._epochs.get(partition, 0):
            self._forget(partition)
            self._epochs[partition] = taken.epoch
            self._offsets[partition] = SessionOffset(partition, _read_offset(taken), taken.epoch)

    def _give_back_unowned(self, partition: Partition, epoch: int) -> None:
        """Gives a partition back under an epoch under which this member does not own it; ignores earlier epochs."""
        if epoch > self._epochs.get(partition, 0) and epoch >= self._given_back.get(partition, 0):
            self._forget(partition)
            self._give_back(partition, epoch)

    def _give_back(self, partition: Partition, epoch: int) -> None:
        self._giving_back[partition] = self._given_back[partition] = epoch

    def _forget(self, partition: Partition) -> int | None:
        """Removes a partition. Returns its epoch, or None if it was not owned."""
        epoch = self._epochs.pop(partition, None)
        self._offsets.pop(partition, None)
        self._to_give_back.discard(partition)
        return epoch

    def _set_suspended(self, *, suspended: bool) -> None:
        if suspended != self._suspended:
            self._suspended = suspended
            self._emit("suspended" if suspended else "connected")

    def _end_as_lost(self) -> None:
        if not self._over:
            self._over = True
            self._listen("lost")

    def _emit(self, event: Event) -> None:
        if not self._over:
            self._listen(event)

    # Partitions

    async def assignment(self) -> frozenset[Partition]:
        if self._is_lost():
            raise SessionLost("the session is over")
        return frozenset(self._epochs.keys() - self._to_give_back)

    async def claim(self, partitions: Iterable[Partition]) -> dict[Partition, SessionOffset]:
        """Returns the offsets of the given partitions that the service has assigned to this session.

        Sends no request: answers to heartbeats bring partitions and offsets.
        """
        if self._is_lost():
            raise SessionLost("the session is over")
        return {p: self._offsets[p] for p in partitions if p in self._offsets}

    async def release(self, partitions: Iterable[Partition]) -> None:
        # A static member that is leaving sends no heartbeat, because it keeps its partitions.
        requested = set(partitions)
        for partition in requested:
            if (epoch := self._forget(partition)) is not None:
                self._give_back(partition, epoch)
        if requested & self._giving_back.keys() and not self._comes_back:
            await self._heartbeat(0.0)

    async def commit(
        self, offsets: Iterable[tuple[SessionOffset, str | None]]
    ) -> dict[Partition, SessionOffset | None]:
        # If a partition is repeated, its last offset wins.
        commits = {held.partition: (held, identifier) for held, identifier in offsets}
        queues: dict[Queue, list[CommitRequest]] = {}
        for partition, (held, identifier) in commits.items():
            if self._epochs.get(partition) == held.version:
                queues.setdefault(partition.queue, []).append((held, identifier))
        states: dict[Partition, SessionOffset | None] = dict.fromkeys(commits)
        results = await asyncio.gather(*(self._commit(*item) for item in queues.items()), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
            states |= result
        return states

    async def _commit(self, queue: Queue, offsets: list[CommitRequest]) -> dict[Partition, SessionOffset]:
        """Commits offsets of one queue with retries; returns the new states, without partitions that others own."""
        remaining = {held.partition.number: (held, identifier) for held, identifier in offsets}
        recorded = {number: held.offset.id for number, (held, _) in remaining.items()}
        states: dict[Partition, SessionOffset] = {}
        instant = time.time()
        for _ in range(MAX_CONFLICTS):
            commits = {number: _make_commit(*entry, recorded[number]) for number, entry in remaining.items()}
            refused, again = await self._send_commits(queue, commits, recorded)
            for number in remaining.keys() - again:
                held, identifier = remaining.pop(number)
                if number not in refused:
                    offset = CommittedOffset(identifier, instant, self._member.id, held=True, note=held.offset.note)
                    states[held.partition] = self._offsets[held.partition] = replace(held, offset=offset)
            if not remaining:
                return states
        raise CoordinationLost(f"too many concurrent changes of the offsets of {queue.name}; try again later")

    async def _send_commits(
        self, queue: Queue, commits: Mapping[int, PartitionCommit], recorded: dict[int, str | None]
    ) -> tuple[AbstractSet[int], AbstractSet[int]]:
        """Sends commits once; returns the partitions that are not owned any more, and the partitions to send again.

        Updates ``recorded`` for the partitions to send again.
        """
        if self._is_lost():
            raise SessionLost("the session is over")
        try:
            await self._group_member.commit(queue.name, commits, within=max(0.1, self._remaining()))
        except NotOwner as error:
            return frozenset(error.partitions), frozenset()
        except QueueNotFound:
            return commits.keys(), frozenset()
        except OffsetConflict as error:
            # Only this session commits for these partitions, so an earlier attempt of this commit was recorded.
            again = commits.keys() - error.applied
            recorded |= {number: error.current.get(number) for number in again}
            return frozenset(), again
        except (MemberGone, NotAuthenticated) as error:
            self._end_as_lost()
            raise SessionLost(str(error)) from error
        except ClientError as error:
            raise as_coordination_error(error) from error
        return frozenset(), frozenset()

    # Leaving

    def begin_to_leave(self) -> None:
        # A static member keeps its partitions until it leaves, and then for its return.
        self._comes_back = self._member.static
        self._leaves_for_good = not self._member.static

    async def retire(self) -> None:
        # A static member announces nothing, because it comes back.
        if not self._comes_back:
            await self._heartbeat(0.0)

    async def leave(self) -> None:
        was_over, self._over = self._over, True
        await cancel(self._heartbeats)
        if self._keeper is not None:
            self._keeper.close()
        if not was_over:
            with suppress(ClientError):
                await self._group_member.leave(returns=self._member.static, within=max(0.1, self._remaining()))


async def find_access_settings(member: AsyncGroupMember) -> dict[str, Any] | None:
    """Returns the access settings for :class:`HeartbeatProcess`; None if no other process can send the heartbeats."""
    if (access := await member.access()) is None:
        return None
    headers = {} if access.authorization is None else {"authorization": access.authorization}
    return {"urls": list(access.urls), "headers": headers, "ca": access.ca}


def as_coordination_error(error: ClientError) -> CoordinationError:
    """Returns a CoordinationRefused if the credential lacks a right, else a CoordinationLost."""
    if isinstance(error, NotAllowed):
        return CoordinationRefused(str(error))
    return CoordinationLost(str(error))


def _group_by_queue(epochs: Mapping[Partition, int]) -> dict[str, dict[int, int]]:
    queues: dict[str, dict[int, int]] = {}
    for partition, epoch in epochs.items():
        queues.setdefault(partition.queue.name, {})[partition.number] = epoch
    return queues


def _read_offset(taken: Taken) -> CommittedOffset:
    note = None
    if taken.note is not None:
        try:
            note = _decode_note(base64.b64decode(taken.note))
        except (msgspec.MsgspecError, binascii.Error):
            log.warning("ignored the note of a partition: Qdo did not write it")
    return CommittedOffset(taken.offset, held=taken.came == "lost", note=note)


def _make_commit(held: SessionOffset, identifier: str | None, recorded: str | None) -> PartitionCommit:
    """Returns a commit; None as an id commits the beginning.

    A commit that moves the offset back names the recorded offset as expected.
    """
    note = held.offset.note
    text = None if note is None else base64.b64encode(msgspec.json.encode(note)).decode()
    target = identifier or EARLIEST  # the service stores a note only with an offset
    expected: str | UnsetType | None = UNSET
    if recorded is not None and order_of(target) < order_of(recorded):
        expected = recorded
    return PartitionCommit(target, held.version, expected, text)


class ServiceCoordinator:
    """A group whose partitions the service assigns.

    Args:
        client: A client of the application that owns the queues. The caller closes it.
        group: The group's name.
        session_timeout: Seconds without a heartbeat after which a member's partitions go to others, from 3 to 300.
        revoke_timeout: Seconds that members have to give partitions back.
        grace: Seconds for which absent static members keep their partitions.
        clock: Returns seconds on a clock that keeps running while the machine sleeps.

    Attributes:
        outlast: Seconds for which members that join from now on stay members while the interpreter of this
            program is blocked: a helper process sends heartbeats meanwhile, unless the client's ``verify`` is neither
            True nor a path. 0 means no helper process.

    Raises:
        InvalidArgument: The group name is not valid in the service.
    """

    outlast: float = 0.0
    in_service = True

    def __init__(
        self,
        client: AsyncClient,
        group: str,
        *,
        session_timeout: float | None = None,
        revoke_timeout: float = 30.0,
        grace: float = 0.0,
        clock: Callable[[], float] = now,
    ) -> None:
        self.group = check_group_name(group)
        self.session_timeout = SESSION_TIMEOUT if session_timeout is None else session_timeout
        self._client = client
        self._groups = client.consumer_groups
        self._times = revoke_timeout, grace
        self._clock = clock
        self._service = ""
        self._sessions: set[ServiceSession] = set()

    async def open(self) -> None:
        await self._identify()

    async def _identify(self) -> str:
        """Returns the id of the service's store; raises StoreChanged if it has changed since the first call."""
        try:
            service = (await self._client.hello()).id
        except ClientError as error:
            raise as_coordination_error(error) from error
        if self._service not in {"", service}:
            raise StoreChanged(f"the service now has the store {service}, but this member began with {self._service}")
        self._service = service
        return service

    async def join(self, member: Member, listen: Listen, *, replace: bool = False) -> ServiceSession:  # noqa: ARG002 - an instance is always replaced
        """Adds a member. The id of a static member is its instance name.

        ``replace`` is ignored: a member with the same instance name and credential is always replaced.
        """
        await self._identify()
        sent, wants = self._clock(), member.wants
        revoke, grace = self._times
        try:
            group_member = await self._groups.join(
                self.group,
                sorted(wants.names),
                wants.patterns,
                instance=member.id if member.static else "",
                session=self.session_timeout,
                revoke=revoke,
                grace=grace if member.static else 0,
                name=member.id[:MAX_MEMBER_NAME],
            )
        except (GroupElsewhere, NotAuthenticated) as error:
            raise CoordinationRefused(str(error)) from error
        except NotAllowed as error:
            raise CoordinationRefused(f"{error} {NO_RIGHT}") from error
        except InvalidRequest as error:
            raise InvalidArgument(str(error)) from error
        except ClientError as error:
            raise _translate(error) from error
        try:
            keeper = await self._start_heartbeat_process(group_member)
        except BaseException:
            # Otherwise the service would assign partitions to a member that sends no heartbeats.
            with suppress(ClientError):
                await group_member.leave(returns=member.static, within=ANSWER_TIMEOUT)
            raise
        session = ServiceSession(group_member, member, listen, sent, keeper, self._clock)
        self._sessions = {s for s in self._sessions if s.state != "lost"} | {session}
        return session

    async def _start_heartbeat_process(self, member: AsyncGroupMember) -> HeartbeatProcess | None:
        """Starts the helper process that sends heartbeats while this program is blocked.

        Raises:
            CoordinationLost: The process cannot be started, or there is no token for it.
        """
        try:
            access = await find_access_settings(member) if self.outlast else None
            if access is None:
                return None
            return await asyncio.to_thread(HeartbeatProcess, self.outlast, member.joined.session, access)
        except (OSError, ClientError) as error:
            raise CoordinationLost(f"the process that keeps the session alive cannot be started: {error}") from error

    async def close(self) -> None:
        sessions, self._sessions = self._sessions, set()
        for session in sessions:
            await session.leave()

    # The state of the whole group

    async def snapshot(self) -> GroupSnapshot:
        """Returns the group's members, target, owners and offsets.

        A member's name is the one that it gave; a later member with the same name has its number behind it. The offsets
        are those of all assigned queues.
        ``member`` of an offset is set only if the present owner recorded it: the service does not store who recorded
        the others.
        """
        if (info := await self._read_group()) is None:
            return GroupSnapshot({}, None, {}, {})
        names: dict[int, str] = {}
        for m in info.members:
            names[m.number] = f"{m.name}#{m.number}" if m.name in names.values() else m.name
        owners: dict[Partition, str] = {}
        targets: dict[Partition, str] = {}
        offsets: dict[Partition, CommittedOffset] = {}
        for name, rows in info.queues.items():
            queue = self._queue(name)
            for number, row in rows.items():
                partition = Partition(queue, number)
                if row.owner in names:
                    owners[partition] = names[row.owner]
                if row.target in names:
                    targets[partition] = names[row.target]
            recorders = {
                number: names.get(row.owner or 0, "") for number, row in rows.items() if _was_recorded_by_owner(row)
            }
            offsets |= _make_offsets(queue, rows, recorders)
        absent = {names[m.number]: m.since for m in info.members if m.state == "absent"}
        static = frozenset(names[m.number] for m in info.members if m.instance)
        members = {names[m.number]: self._member(m, names[m.number]) for m in info.members if m.state != "absent"}
        return GroupSnapshot(members, TargetAssignment(targets, absent, static), owners, offsets)

    async def _read_group(self) -> GroupInfo | None:
        try:
            return await self._groups.show(self.group)
        except GroupNotFound:
            return None
        except ClientError as error:
            raise _translate(error) from error

    def _queue(self, name: str) -> Queue:
        return Queue(self._service, self._client.application, name)

    def _member(self, info: MemberInfo, name: str) -> Member:
        wants = Subscription(service=self._service, application=self._client.application)
        return Member(name, wants, bool(info.instance), info.since, leaving=info.state == "leaving")

    async def members(self) -> Mapping[str, Member]:
        return (await self.snapshot()).members

    async def offsets(self, partitions: Iterable[Partition] | None = None) -> Mapping[Partition, CommittedOffset]:
        """Returns the recorded offsets of all assigned queues or of some partitions; see :meth:`snapshot`.

        For given partitions, ``member`` of each offset is empty.
        """
        if partitions is None:
            return (await self.snapshot()).offsets
        chosen = set(partitions)
        offsets: dict[Partition, CommittedOffset] = {}
        for queue in {p.queue for p in chosen}:
            try:
                rows = (await self._client.offsets(queue.name, self.group)).partitions
            except (GroupNotFound, QueueNotFound):
                continue
            except ClientError as error:
                raise as_coordination_error(error) from error
            offsets |= _make_offsets(queue, rows)
        return {partition: offset for partition, offset in sorted(offsets.items()) if partition in chosen}

    async def set_offsets(
        self, offsets: Mapping[Partition, str | None], *, expected: Mapping[Partition, str | None] | None = None
    ) -> None:
        """Moves offsets while the whole group has no members. Ignores ``expected`` of partitions not in ``offsets``."""
        checked = expected or {}
        for queue in dict.fromkeys(p.queue for p in sorted(offsets)):
            ids = {p.number: identifier or EARLIEST for p, identifier in offsets.items() if p.queue == queue}
            checks = {p.number: identifier for p, identifier in checked.items() if p.queue == queue and p in offsets}
            try:
                await self._client.commit(queue.name, self.group, ids, expected=checks or None)
            except GroupActive as error:
                raise errors.GroupActive(str(error)) from error
            except OffsetConflict as error:
                raise OffsetMoved(str(error)) from error
            except ClientError as error:
                raise as_coordination_error(error) from error

    async def groups(self) -> list[str]:
        try:
            return sorted(await self._groups.names())
        except ClientError as error:
            raise _translate(error) from error

    async def services(self) -> set[str]:
        # The group can have offsets only for the store of its service.
        return {await self._identify()}

    async def forget(self, queues: Collection[Queue] | None = None) -> None:
        info = await self._read_group()
        named = [] if info is None else [self._queue(name) for name in info.queues]
        try:
            if queues is None and info is not None:
                await self._groups.forget(self.group)
            for queue in named if queues is None else queues:
                try:
                    await self._client.delete_group(queue.name, self.group)
                except (GroupNotFound, QueueNotFound):
                    continue
        except GroupActive as error:
            raise errors.GroupActive(str(error)) from error
        except ClientError as error:
            raise as_coordination_error(error) from error


def check_group_name(group: str) -> str:
    """Returns the group name.

    Raises:
        InvalidArgument: The group name is not valid in the service.
    """
    try:
        group_segment(group)
    except RefusedName as error:
        raise InvalidArgument(
            f"Group name {group!r} is not allowed by the service (1 to 100 of A-Z a-z 0-9 . _ : @ -). "
            "Use another name, or --coordination zookeeper://…"
        ) from error
    return group


def _translate(error: ClientError) -> QdoError:
    """Translates an error of a group request; a missing application, or a wrong address, is a refusal."""
    return CoordinationRefused(str(error)) if isinstance(error, NotFound) else as_coordination_error(error)


def _make_offsets(
    queue: Queue, rows: Mapping[int, GroupOffset | OwnedPartition], recorders: Mapping[int, str] = MappingProxyType({})
) -> dict[Partition, CommittedOffset]:
    return {
        Partition(queue, number): CommittedOffset(row.offset, row.updated or 0.0, recorders.get(number, ""))
        for number, row in rows.items()
        if row.offset is not None
    }


def _was_recorded_by_owner(row: OwnedPartition) -> bool:
    """Returns whether an offset was recorded since the present owner got the partition.

    If the partition had no owner before, up to ``MAX_EPOCH_LEAD_SECONDS`` earlier count, too.
    """
    if row.since is None or row.updated is None:
        return False
    ahead = MAX_EPOCH_LEAD_SECONDS if row.came == "new" else 0.0  # "new": the partition had no owner before.
    return row.updated >= row.since - ahead
