"""What is asked about a group, and changed in it, without being a member.

Other sessions' changes may reach a server later than ours reach theirs, so the server is asked to catch up first.
"""

from __future__ import annotations

import abc
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractAsyncContextManager

from qdo.coordination import stored_assignments
from qdo.coordination.changes import Rounds, apply_each, join, make, size
from qdo.coordination.encoding import decode_member, decode_offset, encode_offset, valid_name
from qdo.coordination.paths import GroupPaths, decode, partition_of
from qdo.coordination.records import CommittedOffset, Member, TargetAssignment
from qdo.coordination.tree import (
    NODE_LIMIT,
    Applied,
    Change,
    Check,
    Create,
    Delete,
    Link,
    NodeData,
    Outcome,
    Rejection,
    RejectionReason,
    SetData,
    parent,
)
from qdo.errors import CoordinationIncompatible, GroupActive, InvalidArgument, OffsetMoved
from qdo.partitions import Partition, Queue

LEVELS = 4
"""Of owners and offsets: service, application, queue, partition."""


class GroupAdministration(abc.ABC):
    """The part of a coordinator that needs no session of a member, over whatever connection there is.

    Args:
        group: The group's name.
        root: A path that everything is kept under; empty: none.
        clock: Returns seconds since 1970, for what is recorded.
    """

    def __init__(self, group: str, root: str, clock: Callable[[], float] = time.time) -> None:
        self.group = valid_name("group", group)
        self._paths = GroupPaths(root, group)
        self._clock = clock

    @abc.abstractmethod
    def _asking(self, path: str) -> AbstractAsyncContextManager[Link]:
        """Gives a connection to a server that has caught up with what others changed under a path.

        Raises:
            CoordinationLost: There is none, or it was lost in the body.
        """

    async def members(self) -> dict[str, Member]:
        """Returns all live members by id."""
        async with self._asking(self._paths.members) as link:
            (names,) = await link.children([self._paths.members])
            paths = [f"{self._paths.members}/{name}" for name in sorted(names or ())]
            found = [decode_member(node.data) for node in await link.read(paths) if node is not None]
        return {member.id: member for member in sorted(found, key=lambda member: member.id)}

    async def target(self) -> TargetAssignment | None:
        """Returns the target, None while there is none."""
        async with self._asking(self._paths.target) as link:
            rounds = Rounds("the target")
            while rounds:
                (node,) = await link.read([self._paths.target])
                present = await stored_assignments.read(link, self._paths, node)
                (after,) = await link.read([self._paths.target])
                if after == node:
                    return present.target.target
        raise AssertionError  # rounds end by an error

    async def owners(self) -> dict[Partition, str]:
        """Returns the present owner of every owned partition."""
        async with self._asking(self._paths.owners) as link:
            found = await _read(link, await _paths_below(link, self._paths.owners))
        try:
            return {partition: node.data.decode() for partition, node in found.items()}
        except UnicodeDecodeError as error:
            raise CoordinationIncompatible("there are owners of somebody else") from error

    async def offsets(self, partitions: Iterable[Partition] | None = None) -> dict[Partition, CommittedOffset]:
        """Returns the recorded offsets, of all partitions or of some; those without one are left out."""
        async with self._asking(self._paths.offsets) as link:
            if partitions is None:
                paths = await _paths_below(link, self._paths.offsets)
            else:
                paths = {partition: self._paths.offset(partition) for partition in partitions}
            found = await _read(link, paths)
        decoded = {partition: decode_offset(node.data) for partition, node in found.items()}
        return {partition: offset for partition, offset in decoded.items() if offset.id is not None}

    async def set_offsets(
        self,
        offsets: Mapping[Partition, str | None],
        *,
        expected: Mapping[Partition, str | None] | None = None,
    ) -> None:
        """Moves offsets from outside, those of one queue all or none; None removes what is recorded.

        Args:
            offsets: The new ids.
            expected: What must be recorded now, for any of them.

        Raises:
            GroupActive: One of the partitions has an owner.
            OffsetMoved: Something else is recorded than expected.
            InvalidArgument: A queue has too many partitions for one transaction.
            CoordinationLost: They were set or not.
        """
        # A node stays when its offset is removed, and with it the version: no taking may ever repeat an earlier one.
        # Nothing is changed for the queues after one that is refused.
        known = expected or {}
        async with self._asking(self._paths.offsets) as link:
            await _find(link, self._paths, offsets.keys() | known.keys(), known)
            queues: dict[Queue, dict[Partition, str | None]] = {}
            for partition in sorted(offsets):
                queues.setdefault(partition.queue, {})[partition] = offsets[partition]
            for queue, wanted in queues.items():
                checked = {partition: value for partition, value in known.items() if partition.queue == queue}
                await _move(link, self._paths, wanted, checked, self._clock())

    async def groups(self) -> list[str]:
        """Returns the names of all groups that the service knows, sorted."""
        async with self._asking(self._paths.groups) as link:
            (names,) = await link.children([self._paths.groups])
        return sorted(map(decode, names or ()))

    async def services(self) -> set[str]:
        """Returns the ids of the stores for which the group has recorded something. It need not read the offsets."""
        async with self._asking(self._paths.offsets) as link:
            (names,) = await link.children([self._paths.offsets])
        return set(map(decode, names or ()))

    async def forget(self, queues: Collection[Queue] | None = None) -> None:
        """Removes the group with its offsets, or only what is kept of some queues; what is not there is passed over.

        Raises:
            GroupActive: It has members.
            CoordinationLost: It is gone, in part, or not at all; forget it again.
        """
        # The node that holds the members goes first: it can be removed only when it is empty, and without it there are
        # no members.
        tops = [self._paths.top]
        if queues is not None:
            holders = (self._paths.owners_of, self._paths.offsets_of)
            tops = [top_of(queue) for queue in sorted(queues) for top_of in holders]
        async with self._asking(self._paths.top) as link:
            rounds = Rounds("the group")
            while rounds:
                (outcome,) = await link.apply([(Delete(self._paths.members),)])
                if _holds_others(outcome):
                    raise GroupActive(f"group {self.group!r} has members")
                if not any(map(_holds_others, (await _delete(link, await below(link, tops))).values())):
                    break
                await link.sync(self._paths.top)
            if queues is not None:
                # What held only these goes too: first the nodes of applications, then those of services.
                applications = dict.fromkeys(map(parent, tops))
                await _delete(link, applications)
                await _delete(link, dict.fromkeys(map(parent, applications)))


async def _move(
    link: Link,
    group_paths: GroupPaths,
    ids: Mapping[Partition, str | None],
    expected: Mapping[Partition, str | None],
    instant: float,
) -> None:
    """Moves the offsets of one queue."""
    rounds = Rounds("the offsets")
    while ids and rounds:
        found = await _find(link, group_paths, ids.keys() | expected.keys(), expected)
        changes = [
            _moving(group_paths, partition, found[partition], CommittedOffset(identifier, instant))
            for partition, identifier in ids.items()
        ]
        changes += [_unmoved(group_paths, partition, found[partition]) for partition in expected.keys() - ids.keys()]
        whole = join(changes)
        if size(whole) > NODE_LIMIT:
            raise InvalidArgument(
                f"{len(ids)} offsets of a queue are too many for one transaction; move some at a time"
            )
        (outcome,) = await link.apply([whole])
        if isinstance(outcome, Applied):
            return
        await _explain(link, group_paths, whole, outcome)


def _moving(group_paths: GroupPaths, partition: Partition, node: NodeData | None, offset: CommittedOffset) -> Change:
    """Returns what moves an offset if the partition has no owner: the owner's node can be made and removed then."""
    path = group_paths.owner(partition)
    data = encode_offset(offset)
    there = group_paths.offset(partition)
    return Create(path), Create(there, data) if node is None else SetData(there, data, node.version), Delete(path)


def _unmoved(group_paths: GroupPaths, partition: Partition, node: NodeData | None) -> Change:
    """Returns the check that an offset that is only read stays the same while other offsets move."""
    path = group_paths.offset(partition)
    if node is None:
        return Create(path), Delete(path)
    return (Check(path, version=node.version),)


async def _explain(link: Link, group_paths: GroupPaths, change: Change, refusal: Rejection) -> None:
    """Prepares another try, if the reason was none.

    Raises:
        GroupActive
    """
    path = change[refusal.at].path
    if refusal.why is RejectionReason.NODE_EXISTS and path.startswith(f"{group_paths.owners}/"):
        raise GroupActive(f"{partition_of(tuple(path.split('/')[-LEVELS:]))} has an owner")
    if refusal.why is RejectionReason.NO_NODE:
        await make(link, {parent(operation.path) for operation in change})


async def _find(
    link: Link, group_paths: GroupPaths, partitions: Iterable[Partition], expected: Mapping[Partition, str | None]
) -> dict[Partition, NodeData | None]:
    """Returns the nodes of offsets.

    Raises:
        OffsetMoved: They are not as expected.
    """
    wanted = sorted(partitions)
    found = dict(zip(wanted, await link.read(map(group_paths.offset, wanted)), strict=True))
    for partition, value in expected.items():
        node = found[partition]
        recorded = None if node is None else decode_offset(node.data).id
        if recorded != value:
            raise OffsetMoved(f"{partition} is at {recorded}, not at {value}")
    return found


def _holds_others(outcome: Outcome) -> bool:
    return isinstance(outcome, Rejection) and outcome.why is RejectionReason.NOT_EMPTY


async def _delete(link: Link, paths: Iterable[str]) -> dict[str, Outcome]:
    return await apply_each(link, {path: (Delete(path),) for path in paths})


async def below(link: Link, tops: Iterable[str]) -> list[str]:
    """Returns nodes and all that are in them, the lowest first."""
    levels, level = [], list(tops)
    while level:
        levels.append(level)
        found = await link.children(level)
        level = [f"{path}/{name}" for path, names in zip(level, found, strict=True) for name in names or ()]
    return [path for level in reversed(levels) for path in level]


async def _paths_below(link: Link, top: str) -> dict[Partition, str]:
    """Returns the paths of the nodes of all partitions in owners or offsets, sorted."""
    level = [top]
    for _ in range(LEVELS):
        found = await link.children(level)
        level = [f"{path}/{name}" for path, names in zip(level, found, strict=True) for name in names or ()]
    return dict(sorted((partition_of(tuple(path.split("/")[-LEVELS:])), path) for path in level))


async def _read(link: Link, paths: Mapping[Partition, str]) -> dict[Partition, NodeData]:
    nodes = await link.read(paths.values())
    return {partition: node for partition, node in zip(paths, nodes, strict=True) if node is not None}
