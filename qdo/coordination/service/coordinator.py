"""Coordination of a consumer group by the service itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from types import MappingProxyType

from qdo import errors
from qdo.coordination.records import CommittedOffset, GroupSnapshot, Listen, Member, TargetAssignment
from qdo.coordination.service.session import ServiceSession, as_coordination_error, find_access_settings
from qdo.errors import (
    CoordinationLost,
    CoordinationRefused,
    InvalidArgument,
    OffsetMoved,
    QdoError,
    StoreChanged,
)
from qdo.keepalive.heartbeat import HeartbeatProcess
from qdo.keepalive.vitals import now
from qdo.partitions import Partition, Queue, Subscription
from queuey.api.groups import GroupInfo, MemberInfo, OwnedPartition
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
    NotAllowed,
    NotAuthenticated,
    NotFound,
    OffsetConflict,
    QueueNotFound,
)
from queuey.client import InvalidArgument as RefusedName
from queuey.client.calls.progress_calls import group_segment

SESSION_TIMEOUT = 10.0
"""Default time without a heartbeat after which a member's partitions go to others, in seconds."""
MAX_EPOCH_LEAD_SECONDS = 2.0
"""Max seconds by which the first epoch of a group is ahead of the clock."""
NO_RIGHT = "Members of a group of the service need read and claim: give them, or use --coordination zookeeper://…"


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
        """Requests the id of the service's store. Idempotent.

        Raises:
            CoordinationLost: The service does not answer.
        """
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
        """Adds a member with its own session.

        Args:
            member: The member that joins. The id of a static member is its instance name.
            listen: Called with each event on the caller's event loop; must not raise. ``lost`` is the last event.
            replace: Ignored: a member with the same instance name and credential is always replaced.

        Raises:
            CoordinationRefused: The service serves the group in another data centre, or a right is missing.
            InvalidArgument: The service refuses an argument.
            CoordinationLost
        """
        await self._identify()
        sent, wants = self._clock(), member.wants
        revoke, grace = self._times
        try:
            joined = await self._groups.join(
                self.group,
                sorted(wants.names),
                wants.patterns,
                instance=member.id if member.static else "",
                session=self.session_timeout,
                revoke=revoke,
                grace=grace if member.static else 0,
            )
        except (GroupElsewhere, NotAuthenticated) as error:
            raise CoordinationRefused(str(error)) from error
        except NotAllowed as error:
            raise CoordinationRefused(f"{error} {NO_RIGHT}") from error
        except InvalidRequest as error:
            raise InvalidArgument(str(error)) from error
        except ClientError as error:
            raise _translate(error) from error
        session = ServiceSession(joined, member, listen, sent, await self._start_heartbeat_process(joined), self._clock)
        self._sessions = {s for s in self._sessions if s.state != "lost"} | {session}
        return session

    async def _start_heartbeat_process(self, member: AsyncGroupMember) -> HeartbeatProcess | None:
        """Starts the helper process that sends heartbeats while this program is blocked.

        Raises:
            CoordinationLost: The process cannot be started.
        """
        access = await find_access_settings(member) if self.outlast else None
        if access is None:
            return None
        start = partial(HeartbeatProcess, self.outlast, member.joined.session, access)
        try:
            return await asyncio.to_thread(start)
        except OSError as error:
            raise CoordinationLost(f"the process that keeps the session alive cannot be started: {error}") from error

    async def close(self) -> None:
        sessions, self._sessions = self._sessions, set()
        for session in sessions:
            await session.leave()

    # The state of the whole group

    async def snapshot(self) -> GroupSnapshot:
        """Returns the group's members, target, owners and offsets.

        A member's name is its instance name, or ``#`` and its number. The offsets are those of all assigned queues.
        ``member`` of an offset is set only if the present owner recorded it: the service does not store who recorded
        the others.
        """
        if (info := await self._read_group()) is None:
            return GroupSnapshot({}, None, {}, {})
        names = {m.number: make_member_name(m) for m in info.members}
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
        absent = {make_member_name(m): m.since for m in info.members if m.state == "absent"}
        static = frozenset(m.instance for m in info.members if m.instance)
        members = {make_member_name(m): self._member(m) for m in info.members if m.state != "absent"}
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

    def _member(self, info: MemberInfo) -> Member:
        wants = Subscription(service=self._service, application=self._client.application)
        return Member(make_member_name(info), wants, bool(info.instance), info.since, leaving=info.state == "leaving")

    async def members(self) -> Mapping[str, Member]:
        return (await self.snapshot()).members

    async def offsets(self, partitions: Iterable[Partition] | None = None) -> Mapping[Partition, CommittedOffset]:
        """Returns the recorded offsets of all assigned queues or of some partitions; see :meth:`snapshot`.

        Partitions without an offset are left out. For given partitions, ``member`` of each offset is empty.
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
        self,
        offsets: Mapping[Partition, str | None],
        *,
        expected: Mapping[Partition, str | None] | None = None,
    ) -> None:
        """Moves offsets from outside the group. None as an id moves the offset before all messages.

        Queues are changed one after the other; the first refusal ends the call and undoes nothing.

        Args:
            offsets: The new ids.
            expected: The ids that must be recorded now. Only entries for partitions in ``offsets`` are checked.

        Raises:
            GroupActive: The group has members.
            OffsetMoved: A recorded id differs from the expected one.
            CoordinationLost: The offsets may or may not have been set.
        """
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
        """Returns the id of the service's store, the only store that the group can have offsets for."""
        return {await self._identify()}

    async def forget(self, queues: Collection[Queue] | None = None) -> None:
        """Deletes the group with its offsets, or the offsets of some queues. Missing ones are not an error.

        Raises:
            GroupActive: The group has members.
            CoordinationLost: All, part or nothing of it was deleted. Call again.
        """
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


def make_member_name(member: MemberInfo) -> str:
    return member.instance or f"#{member.number}"
