"""A group stored in a tree of nodes, as in ZooKeeper.

Every member has its own link and session, because its session must end when it dies. Requests for the whole group use
an existing link: the spare link that ``open`` made until the first member takes it over, then a member's link. So a
worker has one connection and one session.

``set_offsets`` moves the offsets of one queue in one transaction, and only while none of their partitions has an owner.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from contextlib import asynccontextmanager

import msgspec

from qdo.errors import (
    CoordinationIncompatible,
    CoordinationLost,
    GroupActive,
    InvalidArgument,
    OffsetMoved,
    SessionLost,
)
from qdo.group.records import (
    CommittedOffset,
    GroupSnapshot,
    Listen,
    Member,
    TargetAssignment,
    check_name,
    decode_member,
    decode_offset,
    encode_offset,
)
from qdo.group.zookeeper import stored_assignments
from qdo.group.zookeeper.paths import GroupPaths, decode, parse_partition
from qdo.group.zookeeper.session import ZooKeeperSession
from qdo.group.zookeeper.stored_assignments import MakeMark, new_mark
from qdo.group.zookeeper.tree import (
    MAX_NODE_BYTES,
    Applied,
    Change,
    Check,
    Connect,
    Create,
    Delete,
    Link,
    NodeData,
    Outcome,
    Rejection,
    RejectionReason,
    SetData,
    estimate_bytes,
    join_changes,
    make_nodes,
    parent_path,
    yield_attempts,
)
from qdo.partitions import Partition, Queue

PARTITION_PATH_LEVELS = 4
"""Number of names in the path of an owner or an offset: service, application, queue, partition."""


class ZooKeeperCoordinator:
    """The connection of a group to its coordination service. Many members of one process may share it.

    Every method except ``open`` and ``close`` raises ``CoordinationLost`` while the service cannot be reached, before
    ``open`` and after ``close``.

    Example:
        >>> from qdo import ZooKeeperCoordinator, open_coordinator
        >>> isinstance(open_coordinator("zookeeper://localhost:2181", "billing"), ZooKeeperCoordinator)
        True

    Args:
        group: The group's name.
        connect: Makes a link to the service.
        session_timeout: See the attribute.
        root: The path of the node that contains everything, or empty for the root of the tree.
        clock: Returns seconds since 1970, for recorded times.
        new_mark: Returns a unique text at each call.

    Attributes:
        group: The group's name.
        session_timeout: Seconds without a heartbeat after which the service ends a member's session. ZooKeeper servers
            limit it: after the first connection this is the granted timeout.
        outlast: Seconds for which members that join from now on stay members while the interpreter of this
            program is blocked: a helper process sends the heartbeats meanwhile. The helper does not keep the session of
            a program that has ended or that a signal has stopped. 0 means no helper process.

    Raises:
        InvalidArgument: The group name is not valid.
    """

    outlast: float = 0.0
    in_service = False

    def __init__(
        self,
        group: str,
        connect: Connect,
        session_timeout: float,
        root: str = "",
        *,
        clock: Callable[[], float] = time.time,
        new_mark: MakeMark = new_mark,
    ) -> None:
        self.group = check_name("group", group)
        self.session_timeout = session_timeout
        self._paths = GroupPaths(root, group)
        self._connect = connect
        self._clock = clock
        self._new_mark = new_mark
        self._opened = False
        self._spare: Link | None = None
        self._opening: asyncio.Task[Link] | None = None
        self._sessions: set[ZooKeeperSession] = set()
        self._links: set[Link] = set()

    async def open(self) -> None:
        self._opened = True
        try:
            await self._any_link()
        except BaseException:
            self._opened = False
            raise

    async def join(self, member: Member, listen: Listen, *, replace: bool = False) -> ZooKeeperSession:
        """Adds a member with its own session.

        Args:
            member: The member that joins. This method sets its ``since``.
            listen: Called with each event on the caller's event loop; must not raise. ``lost`` is the last event.
            replace: Removes a live member with this id from the group. The removed session is lost. It cannot commit
                once the new session claims its partitions, which is possible at once.

        Raises:
            MemberExists: A live member has this id, and ``replace`` is not set.
            InvalidArgument: The member id is not a valid name.
            CoordinationLost
        """
        check_name("member", member.id)
        self._require_open()
        link = await self._take_member_link()
        member = msgspec.structs.replace(member, since=self._clock())
        session = ZooKeeperSession(link, self._paths, member, listen, clock=self._clock, new_mark=self._new_mark)
        try:
            await session.join(replace=replace)
            self._require_open()
        except SessionLost as error:
            await link.close()
            raise CoordinationLost("the session ended before the member was registered") from error
        except BaseException:
            await link.close()
            raise
        self._sessions.add(session)
        return session

    async def close(self) -> None:
        """Ends all sessions and the connection. Idempotent; never raises.

        Sessions that have not left receive the event ``lost``.
        """
        self._opened = False
        for session in list(self._sessions):
            session.link.end(SessionLost("the coordinator was closed"))
        self._sessions.clear()
        self._spare = None
        if self._opening is not None:
            self._opening.cancel()
        links, self._links = self._links, set()
        await asyncio.gather(*(link.abandon() for link in links))

    # The state of the whole group

    async def snapshot(self) -> GroupSnapshot:
        return GroupSnapshot(await self.members(), await self.target(), await self.owners(), await self.offsets())

    async def members(self) -> dict[str, Member]:
        async with self._open_synced(self._paths.members) as link:
            (names,) = await link.children([self._paths.members])
            paths = [f"{self._paths.members}/{name}" for name in sorted(names or ())]
            members = [decode_member(node.data) for node in await link.read(paths) if node is not None]
        return {member.id: member for member in sorted(members, key=lambda member: member.id)}

    async def target(self) -> TargetAssignment | None:
        async with self._open_synced(self._paths.target) as link:
            tries = yield_attempts("the target")
            while True:
                next(tries)
                (node,) = await link.read([self._paths.target])
                stored = await stored_assignments.read_stored_target(link, self._paths, node)
                (after,) = await link.read([self._paths.target])
                if after == node:
                    return stored.target.target

    async def owners(self) -> dict[Partition, str]:
        async with self._open_synced(self._paths.owners) as link:
            nodes = await _read_existing(link, await _find_partition_paths(link, self._paths.owners))
        try:
            return {partition: node.data.decode() for partition, node in nodes.items()}
        except UnicodeDecodeError as error:
            raise CoordinationIncompatible("the owners were written by another program") from error

    async def offsets(self, partitions: Iterable[Partition] | None = None) -> dict[Partition, CommittedOffset]:
        async with self._open_synced(self._paths.offsets) as link:
            if partitions is None:
                paths = await _find_partition_paths(link, self._paths.offsets)
            else:
                paths = {partition: self._paths.offset(partition) for partition in partitions}
            nodes = await _read_existing(link, paths)
        decoded = {partition: decode_offset(node.data) for partition, node in nodes.items()}
        return {partition: offset for partition, offset in decoded.items() if offset.id is not None}

    async def set_offsets(
        self, offsets: Mapping[Partition, str | None], *, expected: Mapping[Partition, str | None] | None = None
    ) -> None:
        """Moves offsets from outside the group, all offsets of a queue or none. None as an id removes the offset.

        Queues are changed one after the other; the first refusal ends the call and undoes nothing.

        Args:
            offsets: The new ids.
            expected: The ids that must be recorded now, for any partitions.

        Raises:
            GroupActive: One of the partitions has an owner.
            OffsetMoved: A recorded id differs from the expected one.
            InvalidArgument: A queue has too many partitions for one transaction.
            CoordinationLost: The offsets may or may not have been set.
        """
        expectations = expected or {}
        async with self._open_synced(self._paths.offsets) as link:
            await find_offsets(link, self._paths, offsets.keys() | expectations.keys(), expectations)
            queues: dict[Queue, dict[Partition, str | None]] = {}
            for partition in sorted(offsets):
                queues.setdefault(partition.queue, {})[partition] = offsets[partition]
            for queue, ids in queues.items():
                checked = {partition: value for partition, value in expectations.items() if partition.queue == queue}
                await move_offsets(link, self._paths, ids, checked, self._clock())

    async def groups(self) -> list[str]:
        async with self._open_synced(self._paths.groups) as link:
            (names,) = await link.children([self._paths.groups])
        return sorted(map(decode, names or ()))

    async def services(self) -> set[str]:
        async with self._open_synced(self._paths.offsets) as link:
            (names,) = await link.children([self._paths.offsets])
        return set(map(decode, names or ()))

    async def forget(self, queues: Collection[Queue] | None = None) -> None:
        # Deletes the parent of the members first: that works only if it is empty, and nobody can join without it.
        tops = [self._paths.top]
        if queues is not None:
            holders = (self._paths.owners_of, self._paths.offsets_of)
            tops = [top_of(queue) for queue in sorted(queues) for top_of in holders]
        async with self._open_synced(self._paths.top) as link:
            for _ in yield_attempts("the group"):
                (outcome,) = await link.apply([(Delete(self._paths.members),)])
                if _is_not_empty(outcome):
                    raise GroupActive(f"group {self.group!r} has members")
                if not any(map(_is_not_empty, await _delete_nodes(link, await list_with_descendants(link, tops)))):
                    break
                await link.sync(self._paths.top)
            if queues is not None:
                # Then the nodes of applications and of services, if they are empty now.
                applications = dict.fromkeys(map(parent_path, tops))
                await _delete_nodes(link, applications)
                await _delete_nodes(link, dict.fromkeys(map(parent_path, applications)))

    # Links

    def _require_open(self) -> None:
        if not self._opened:
            raise CoordinationLost("the coordinator is not open")

    @asynccontextmanager
    async def _open_synced(self, path: str) -> AsyncIterator[Link]:
        self._require_open()
        try:
            link = await self._any_link()
            await link.sync(path)
            yield link
        except SessionLost as error:
            raise CoordinationLost("the connection to the coordination service was lost during the request") from error

    async def _any_link(self) -> Link:
        links = [self._spare] if self._spare is not None else []
        links += [session.link for session in self._sessions]
        for link in links:
            if link.state == "connected":
                return link
        for link in links:
            if link.state == "suspended":
                return await _reconnect(link)
        if self._opening is None:
            self._opening = asyncio.create_task(self._open_spare())
        # Concurrent calls wait for the same connection and share its error.
        return await asyncio.shield(self._opening)

    async def _open_spare(self) -> Link:
        try:
            self._spare = await self._open_link()
            return self._spare
        finally:
            self._opening = None

    async def _take_member_link(self) -> Link:
        """Returns the spare link for a member, once it is connected, or a new one if none fits.

        If the spare link cannot connect now, it stays the spare one, and CoordinationLost is raised.
        """
        if self._spare is None or self._spare.state == "lost" or self._spare.max_blocked_seconds != self.outlast:
            return await self._open_link()
        link, self._spare = self._spare, None
        try:
            return await _reconnect(link)
        except CoordinationLost:
            self._spare = link
            raise

    async def _open_link(self) -> Link:
        self._links = {link for link in self._links if not link.finished}
        self._sessions = {session for session in self._sessions if session.state != "lost"}
        link = self._connect(self.outlast)
        self._links.add(link)
        await link.open()
        self.session_timeout = link.timeout
        return link


async def _reconnect(link: Link) -> Link:
    if link.state == "connected" or await link.wait() == "connected":
        return link
    raise CoordinationLost("the coordination service cannot be reached now")


def _is_not_empty(outcome: Outcome) -> bool:
    return isinstance(outcome, Rejection) and outcome.why is RejectionReason.NOT_EMPTY


async def _delete_nodes(link: Link, paths: Iterable[str]) -> Iterable[Outcome]:
    return await link.apply_each((Delete(path),) for path in paths)


async def list_with_descendants(link: Link, tops: Iterable[str]) -> list[str]:
    levels, level = [], list(tops)
    while level:
        levels.append(level)
        level = await _list_level_below(link, level)
    return [path for level in reversed(levels) for path in level]


async def _list_level_below(link: Link, level: list[str]) -> list[str]:
    children = await link.children(level)
    return [f"{path}/{name}" for path, names in zip(level, children, strict=True) for name in names or ()]


async def _find_partition_paths(link: Link, top: str) -> dict[Partition, str]:
    level = [top]
    for _ in range(PARTITION_PATH_LEVELS):
        level = await _list_level_below(link, level)
    return dict(sorted((parse_partition(tuple(path.split("/")[-PARTITION_PATH_LEVELS:])), path) for path in level))


async def _read_existing(link: Link, paths: Mapping[Partition, str]) -> dict[Partition, NodeData]:
    nodes = await link.read(paths.values())
    return {partition: node for partition, node in zip(paths, nodes, strict=True) if node is not None}


async def move_offsets(
    link: Link,
    group_paths: GroupPaths,
    ids: Mapping[Partition, str | None],
    expected: Mapping[Partition, str | None],
    instant: float,
) -> None:
    """Moves the offsets of one queue in one transaction; raises GroupActive if a partition has an owner.

    Removing an offset keeps its node, and so its version: no claim may ever get the version of an earlier one.
    """
    owner_paths = {group_paths.owner(partition): partition for partition in ids}
    tries = yield_attempts("the offsets")
    while ids:
        next(tries)
        nodes = await find_offsets(link, group_paths, ids.keys() | expected.keys(), expected)
        changes = [
            _make_move(group_paths, partition, nodes[partition], CommittedOffset(identifier, instant))
            for partition, identifier in ids.items()
        ]
        changes += [_make_check(group_paths, partition, nodes[partition]) for partition in expected.keys() - ids.keys()]
        whole = join_changes(changes)
        if estimate_bytes(whole) > MAX_NODE_BYTES:
            raise InvalidArgument(
                f"{len(ids)} offsets of one queue are too many for one transaction; move fewer at a time"
            )
        (outcome,) = await link.apply([whole])
        if isinstance(outcome, Applied):
            return
        owned = owner_paths.get(whole[outcome.at].path)
        if outcome.why is RejectionReason.NODE_EXISTS and owned is not None:
            raise GroupActive(f"{owned} has an owner")
        if outcome.why is RejectionReason.NO_NODE:
            await make_nodes(link, {parent_path(operation.path) for operation in whole})


def _make_move(group_paths: GroupPaths, partition: Partition, node: NodeData | None, offset: CommittedOffset) -> Change:
    """Returns a change that moves an offset; it fails if the partition has an owner.

    It creates the owner's node, which fails if there is one, and deletes it again.
    """
    owner = group_paths.owner(partition)
    data = encode_offset(offset)
    path = group_paths.offset(partition)
    return Create(owner), Create(path, data) if node is None else SetData(path, data, node.version), Delete(owner)


def _make_check(group_paths: GroupPaths, partition: Partition, node: NodeData | None) -> Change:
    path = group_paths.offset(partition)
    if node is None:
        return Create(path), Delete(path)
    return (Check(path, version=node.version),)


async def find_offsets(
    link: Link, group_paths: GroupPaths, partitions: Iterable[Partition], expected: Mapping[Partition, str | None]
) -> dict[Partition, NodeData | None]:
    """Returns the offset nodes of partitions, None for missing ones.

    Raises:
        OffsetMoved: A recorded id differs from the expected one.
    """
    ordered = sorted(partitions)
    nodes = dict(zip(ordered, await link.read(map(group_paths.offset, ordered)), strict=True))
    for partition, value in expected.items():
        node = nodes[partition]
        recorded = None if node is None else decode_offset(node.data).id
        if recorded != value:
            raise OffsetMoved(f"the offset of {partition} is {recorded}, expected {value}")
    return nodes
