"""What is asked about a group from outside, and what is changed from there.

Other clients' changes may reach a server later than ours reach theirs, so the server is asked to catch up first.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping

from qdo.coordination import CommittedOffset, Member, TargetAssignment
from qdo.coordination.encoding import decode_member, decode_offset, encode_offset
from qdo.coordination.zookeeper import stored_assignments
from qdo.coordination.zookeeper.batching import apply_each, lacks_parent, make
from qdo.coordination.zookeeper.driver import Link
from qdo.coordination.zookeeper.paths import GroupPaths, decode, encode, parent, partition_of
from qdo.coordination.zookeeper.transactions import (
    NODE_LIMIT,
    Applied,
    Change,
    Check,
    Create,
    Delete,
    NodeData,
    Rejection,
    RejectionReason,
    Rounds,
    SetData,
    join,
    size,
)
from qdo.errors import CoordinationIncompatible, GroupActive, InvalidArgument, OffsetMoved
from qdo.partitions import Partition, Queue

LEVELS = 4
"""Of owners and offsets: service, application, queue, partition."""


async def members(link: Link, group_paths: GroupPaths) -> dict[str, Member]:
    """Returns all live members by id."""
    await link.sync(group_paths.members)
    (names,) = await link.children([group_paths.members])
    paths = [f"{group_paths.members}/{name}" for name in sorted(names or ())]
    found = [decode_member(node.data) for node in await link.read(paths) if node is not None]
    return {member.id: member for member in sorted(found, key=lambda member: member.id)}


async def target(link: Link, group_paths: GroupPaths) -> TargetAssignment | None:
    """Returns the target."""
    await link.sync(group_paths.target)
    rounds = Rounds("the target")
    while rounds:
        (node,) = await link.read([group_paths.target])
        present = await stored_assignments.read(link, group_paths, node)
        (after,) = await link.read([group_paths.target])
        if after == node:
            return present.target.target
    raise AssertionError  # rounds end by an error


async def owners(link: Link, group_paths: GroupPaths) -> dict[Partition, str]:
    """Returns the owner of every owned partition."""
    await link.sync(group_paths.owners)
    found = await _read_all(link, group_paths.owners)
    try:
        return {partition: node.data.decode() for partition, node in found.items()}
    except UnicodeDecodeError as error:
        raise CoordinationIncompatible("there are owners of somebody else") from error


async def offsets(
    link: Link, group_paths: GroupPaths, partitions: Iterable[Partition] | None
) -> dict[Partition, CommittedOffset]:
    """Returns the offsets that are recorded."""
    await link.sync(group_paths.offsets)
    found = await (
        _read_all(link, group_paths.offsets) if partitions is None else _read_some(link, group_paths, partitions)
    )
    decoded = {partition: decode_offset(node.data) for partition, node in found.items()}
    return {partition: offset for partition, offset in decoded.items() if offset.id is not None}


async def groups(link: Link, group_paths: GroupPaths) -> list[str]:
    """Returns the names of all groups, sorted."""
    await link.sync(group_paths.groups)
    (names,) = await link.children([group_paths.groups])
    return sorted(map(decode, names or ()))


async def set_offsets(
    link: Link,
    group_paths: GroupPaths,
    ids: Mapping[Partition, str | None],
    expected: Mapping[Partition, str | None],
) -> None:
    """Moves offsets, those of one queue all or none.

    A node stays when its offset is removed, and with it the version: no taking may ever repeat an earlier one.

    Raises:
        GroupActive, OffsetMoved: Nothing was changed for the queue, and nothing for those after it.
        InvalidArgument: A queue has too many partitions for one transaction.
        CoordinationLost
    """
    await link.sync(group_paths.offsets)
    await _find(link, group_paths, ids.keys() | expected.keys(), expected)
    queues: dict[Queue, dict[Partition, str | None]] = {}
    for partition in sorted(ids.keys() | expected.keys()):
        queues.setdefault(partition.queue, {})
        if partition in ids:
            queues[partition.queue][partition] = ids[partition]
    for queue, wanted in queues.items():
        checked = {partition: value for partition, value in expected.items() if partition.queue == queue}
        await _move(link, group_paths, wanted, checked)


async def _move(
    link: Link, group_paths: GroupPaths, ids: Mapping[Partition, str | None], expected: Mapping[Partition, str | None]
) -> None:
    """Moves the offsets of one queue."""
    instant = time.time()
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
    """Returns what moves an offset, if nobody owns the partition: the owner's node can be made and removed then."""
    path = group_paths.owner(partition)
    data = encode_offset(offset)
    there = group_paths.offset(partition)
    return Create(path), Create(there, data) if node is None else SetData(there, data, node.version), Delete(path)


def _unmoved(group_paths: GroupPaths, partition: Partition, node: NodeData | None) -> Change:
    """Returns what makes sure that an offset that is only looked at stays while the others move."""
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


async def services(link: Link, group_paths: GroupPaths) -> set[str]:
    """Returns under which names of services there are nodes of offsets."""
    await link.sync(group_paths.offsets)
    (names,) = await link.children([group_paths.offsets])
    return set(map(decode, names or ()))


async def copy_offsets(link: Link, group_paths: GroupPaths, former: str, service: str) -> int:
    """Makes the nodes of offsets that there are under one name of a service under another, as they are.

    Raises:
        CoordinationLost
    """
    await link.sync(group_paths.offsets)
    found = await _read_all(link, f"{group_paths.offsets}/{encode(former)}", LEVELS - 1)
    wanted = {
        partition._replace(queue=partition.queue._replace(service=service)): node.data
        for partition, node in found.items()
    }
    copied = 0
    rounds = Rounds("the offsets")
    while rounds:
        there = await _read_some(link, group_paths, wanted)
        missing = {
            each: (Create(group_paths.offset(each), data),) for each, data in wanted.items() if each not in there
        }
        outcomes = await apply_each(link, missing)
        copied += sum(isinstance(outcome, Applied) for outcome in outcomes.values())
        orphans = {group_paths.offsets_of(each.queue) for each, outcome in outcomes.items() if lacks_parent(outcome)}
        if not orphans:
            return copied
        await make(link, sorted(orphans))
    raise AssertionError  # rounds end by an error


async def forget(link: Link, group_paths: GroupPaths, queues: Collection[Queue] | None) -> None:
    """Removes the group, or what is kept of some queues.

    The node that holds the members goes first: it goes only when it is empty, and without it nobody is a member.

    Raises:
        GroupActive: It has members.
        CoordinationLost: It is gone, in part, or not at all.
    """
    rounds = Rounds("the group")
    while rounds:
        await link.sync(group_paths.top)
        (outcome,) = await link.apply([(Delete(group_paths.members),)])
        if isinstance(outcome, Rejection) and outcome.why is RejectionReason.NOT_EMPTY:
            raise GroupActive(f"group {group_paths.group!r} has members")
        if queues is None:
            tops = [group_paths.top]
        else:
            tops = [
                top for queue in sorted(queues) for top in (group_paths.owners_of(queue), group_paths.offsets_of(queue))
            ]
        paths = await _below(link, tops)
        outcomes = await apply_each(link, {path: (Delete(path),) for path in paths})
        if not any(isinstance(each, Rejection) and each.why is RejectionReason.NOT_EMPTY for each in outcomes.values()):
            break
    if queues is not None:
        # What held only these goes too: first the nodes of applications, then those of services.
        holders = dict.fromkeys(map(parent, tops))
        for level in (holders, dict.fromkeys(map(parent, holders))):
            await apply_each(link, {path: (Delete(path),) for path in level})


async def _below(link: Link, tops: Iterable[str]) -> list[str]:
    """Returns nodes and all that are in them, the lowest first."""
    levels, level = [], list(tops)
    while level:
        levels.append(level)
        found = await link.children(level)
        level = [f"{path}/{name}" for path, names in zip(level, found, strict=True) for name in names or ()]
    return [path for level in reversed(levels) for path in level]


async def _read_all(link: Link, top: str, levels: int = LEVELS) -> dict[Partition, NodeData]:
    """Returns the nodes of all partitions that lie so many levels below a node, sorted."""
    level = [top]
    for _ in range(levels):
        found = await link.children(level)
        level = [f"{path}/{name}" for path, names in zip(level, found, strict=True) for name in names or ()]
    partitions = {partition_of(tuple(path.split("/")[-LEVELS:])): path for path in level}
    return await _read(link, dict(sorted(partitions.items())))


async def _read_some(link: Link, group_paths: GroupPaths, partitions: Iterable[Partition]) -> dict[Partition, NodeData]:
    return await _read(link, {partition: group_paths.offset(partition) for partition in partitions})


async def _read(link: Link, paths: Mapping[Partition, str]) -> dict[Partition, NodeData]:
    nodes = await link.read(paths.values())
    return {partition: node for partition, node in zip(paths, nodes, strict=True) if node is not None}
