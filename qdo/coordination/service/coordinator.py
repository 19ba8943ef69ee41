"""A group of the service, as the coordination of consumers sees it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType

from qdo import errors
from qdo.coordination.records import CommittedOffset, GroupSnapshot, Listen, Member, TargetAssignment
from qdo.coordination.service import former_file
from qdo.coordination.service.session import ServiceSession, access_of, as_coordination_error
from qdo.errors import (
    CoordinationLost,
    CoordinationRefused,
    InvalidArgument,
    MemberExists,
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
    ApplicationNotFound,
    AsyncClient,
    AsyncGroupMember,
    ClientError,
    GroupActive,
    GroupElsewhere,
    GroupNotFound,
    GroupOffset,
    InstanceTaken,
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
MAX_AHEAD = 2.0
"""Max seconds by which the first epoch of a group is ahead of the clock."""
OLD_SERVICE = "This service has no groups (0.2 or later). Use --coordination zookeeper://…"
NO_RIGHT = "Members of a group of the service need read and claim: give them, or use --coordination zookeeper://…"


class ServiceCoordinator:
    """A group whose partitions the service divides.

    Args:
        client: A client of the application that owns the queues; its maker closes it.
        group: The group's name.
        session_timeout: Seconds without a heartbeat after which a member's partitions go to others, from 3 to 300.
        revoke_timeout: Seconds in which members give partitions back.
        grace: Seconds for which static members that are away keep their partitions.
        former: A file in which groups of one machine met before; see :mod:`qdo.coordination.service.former_file`.
        clock: Seconds, on a clock that goes on while the machine sleeps.

    Attributes:
        outlast: Seconds for which members that join from now on stay members while something holds the interpreter of
            this program: a helper process sends heartbeats then, unless the client's network is not an ordinary one.
            0: there is no such process.

    Raises:
        InvalidArgument: The service allows no group of this name.
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
        former: Path | None = None,
        clock: Callable[[], float] = now,
    ) -> None:
        self.group = checked_name(group)
        self.session_timeout = SESSION_TIMEOUT if session_timeout is None else session_timeout
        self._client = client
        self._groups = client.consumer_groups
        self._times = revoke_timeout, grace
        self._clock = clock
        self._former = former
        self._service = ""
        self._sessions: set[ServiceSession] = set()

    async def open(self) -> None:
        """Asks for the id of the service's store. Idempotent.

        Raises:
            CoordinationLost: The service does not answer.
        """
        await self._identify()

    async def _identify(self) -> str:
        try:
            service = (await self._client.hello()).id
        except ClientError as error:
            raise as_coordination_error(error) from error
        if self._service not in {"", service}:
            raise StoreChanged(f"the service has the store {service} now, and this member began with {self._service}")
        self._service = service
        return service

    async def join(self, member: Member, listen: Listen, *, replace: bool = False) -> ServiceSession:  # noqa: ARG002 - an instance is always replaced
        """Adds a member with its own session.

        Args:
            member: The member that joins; a static one by its id.
            listen: Called with events, in the loop of the caller; must not raise. ``lost`` is the last event.
            replace: A member with the same instance name and credential is replaced in any case.

        Raises:
            MemberExists: A member with another credential has this instance name.
            CoordinationRefused: The service serves the group in another data centre, or a right is missing.
            InvalidArgument: The service has no groups, or something is not acceptable to it.
            CoordinationLost
        """
        store = await self._identify()
        await self._take_over(store)
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
        except InstanceTaken as error:
            raise MemberExists(str(error)) from error
        except (GroupElsewhere, NotAuthenticated) as error:
            raise CoordinationRefused(str(error)) from error
        except NotAllowed as error:
            raise CoordinationRefused(f"{error} {NO_RIGHT}") from error
        except InvalidRequest as error:
            raise InvalidArgument(str(error)) from error
        except ClientError as error:
            raise _translated(error) from error
        session = ServiceSession(joined, member, listen, sent, await self._keeper_of(joined), self._clock)
        self._sessions = {each for each in self._sessions if each.state != "lost"} | {session}
        return session

    async def _keeper_of(self, member: AsyncGroupMember) -> HeartbeatProcess | None:
        """Starts what sends heartbeats while this program cannot.

        Raises:
            CoordinationLost: It cannot be started.
        """
        access = await access_of(member) if self.outlast else None
        if access is None:
            return None
        start = partial(HeartbeatProcess, self.outlast, member.joined.session, access)
        try:
            return await asyncio.to_thread(start)
        except OSError as error:
            raise CoordinationLost(f"a process that keeps the session alive cannot be started: {error}") from error

    async def _take_over(self, store: str) -> None:
        """Begins with the offsets of a former file, if it has any, once."""
        former, self._former = self._former, None
        if former is None:
            return
        try:
            await former_file.take_over(self._client, store, former, self.group, self.group)
        except GroupActive:
            return  # A member has begun with them.
        except ClientError as error:
            self._former = former
            raise as_coordination_error(error) from error
        except BaseException:
            self._former = former
            raise

    async def close(self) -> None:
        """Leaves with all sessions. Idempotent, never raises."""
        sessions, self._sessions = self._sessions, set()
        for session in sessions:
            await session.leave()

    # The group, as it is for everybody.

    async def snapshot(self) -> GroupSnapshot:
        """Returns the members by name (of the instance, or ``#`` and the number), the plan, the owners and the offsets.

        The offsets are those of the queues in the plan. Those that the present owners have recorded name them; of
        others the service does not know who did.
        """
        if (info := await self._show()) is None:
            return GroupSnapshot({}, None, {}, {})
        names = {each.number: name_of(each) for each in info.members}
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
            recorders = {number: names.get(row.owner or 0, "") for number, row in rows.items() if _is_of_owner(row)}
            offsets |= _committed(queue, rows, recorders)
        absent = {name_of(each): each.since for each in info.members if each.state == "absent"}
        static = frozenset(each.instance for each in info.members if each.instance)
        members = {name_of(each): self._member(each) for each in info.members if each.state != "absent"}
        return GroupSnapshot(members, TargetAssignment(targets, absent, static), owners, offsets)

    async def _show(self) -> GroupInfo | None:
        try:
            return await self._groups.show(self.group)
        except GroupNotFound:
            return None
        except ClientError as error:
            raise _translated(error) from error

    def _queue(self, name: str) -> Queue:
        return Queue(self._service, self._client.application, name)

    def _member(self, info: MemberInfo) -> Member:
        wants = Subscription(service=self._service, application=self._client.application)
        return Member(name_of(info), wants, bool(info.instance), info.since, leaving=info.state == "leaving")

    async def members(self) -> Mapping[str, Member]:
        """Returns all members by name."""
        return (await self.snapshot()).members

    async def offsets(self, partitions: Iterable[Partition] | None = None) -> Mapping[Partition, CommittedOffset]:
        """Returns the recorded offsets, of all queues of the plan or of some partitions; see :meth:`snapshot`.

        Partitions without an offset are left out. Of some partitions it is not known who has recorded the offset.
        """
        if partitions is None:
            return (await self.snapshot()).offsets
        chosen = set(partitions)
        offsets: dict[Partition, CommittedOffset] = {}
        for queue in {each.queue for each in chosen}:
            try:
                rows = (await self._client.offsets(queue.name, self.group)).partitions
            except (GroupNotFound, QueueNotFound):
                continue
            except ClientError as error:
                raise as_coordination_error(error) from error
            offsets |= _committed(queue, rows)
        return {partition: offset for partition, offset in sorted(offsets.items()) if partition in chosen}

    async def set_offsets(
        self,
        offsets: Mapping[Partition, str | None],
        *,
        expected: Mapping[Partition, str | None] | None = None,
    ) -> None:
        """Moves offsets from outside, None to before all messages.

        Args:
            offsets: The new ids.
            expected: What must be recorded now, for any of them.

        Raises:
            GroupActive: The group has members.
            OffsetMoved: Something else is recorded than expected.
            CoordinationLost: They were set or not.
        """
        checked = expected or {}
        for queue in dict.fromkeys(each.queue for each in sorted(offsets)):
            mine = {each.number: to or EARLIEST for each, to in offsets.items() if each.queue == queue}
            checks = {each.number: at for each, at in checked.items() if each.queue == queue and each in offsets}
            try:
                await self._client.commit(queue.name, self.group, mine, expected=checks or None)
            except GroupActive as error:
                raise errors.GroupActive(str(error)) from error
            except OffsetConflict as error:
                raise OffsetMoved(str(error)) from error
            except ClientError as error:
                raise as_coordination_error(error) from error

    async def groups(self) -> list[str]:
        """Returns the names of all groups that have, or had, members, sorted."""
        try:
            return sorted(await self._groups.names())
        except ClientError as error:
            raise _translated(error) from error

    async def services(self) -> set[str]:
        """Returns the id of the service's store, for which alone it records anything."""
        return {await self._identify()}

    async def forget(self, queues: Collection[Queue] | None = None) -> None:
        """Removes the group with its offsets, or the offsets of some queues; what is not there is passed over.

        Raises:
            GroupActive: It has members.
            CoordinationLost: It is gone, in part, or not at all; forget it again.
        """
        info = await self._show()
        named = [] if info is None else [self._queue(each) for each in info.queues]
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


def checked_name(group: str) -> str:
    """Returns the name of a group, if the service allows it.

    Raises:
        InvalidArgument: It does not.
    """
    try:
        group_segment(group)
    except RefusedName as error:
        raise InvalidArgument(
            f"Group name {group!r} is not allowed by the service (1 to 100 of A-Z a-z 0-9 . _ : @ -). "
            "Use zookeeper://…, or qdo offsets import --as NAME"
        ) from error
    return group


def _translated(error: ClientError) -> QdoError:
    """Returns what an error of a call below ``_groups`` means: a service that does not have these pages is too old."""
    if isinstance(error, ApplicationNotFound):
        return CoordinationRefused(str(error))
    return InvalidArgument(OLD_SERVICE) if isinstance(error, NotFound) else as_coordination_error(error)


def _committed(
    queue: Queue, rows: Mapping[int, GroupOffset | OwnedPartition], recorders: Mapping[int, str] = MappingProxyType({})
) -> dict[Partition, CommittedOffset]:
    """Returns what is recorded of a queue, with the names of the members that are known to have recorded it."""
    return {
        Partition(queue, number): CommittedOffset(row.offset, row.updated or 0.0, recorders.get(number, ""))
        for number, row in rows.items()
        if row.offset is not None
    }


def _is_of_owner(row: OwnedPartition) -> bool:
    """Returns whether the present owner of a partition has recorded its offset."""
    if row.since is None or row.updated is None:
        return False
    ahead = MAX_AHEAD if row.came == "new" else 0.0  # Then there was no owner before.
    return row.updated >= row.since - ahead


def name_of(member: MemberInfo) -> str:
    """Returns the name under which a member is shown: of its instance, or its number."""
    return member.instance or f"#{member.number}"
