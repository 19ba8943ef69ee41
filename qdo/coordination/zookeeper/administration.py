"""What is asked about a group from outside, and what is changed from there.

Other clients' changes may reach a server later than ours reach theirs, so the server is asked to catch up first.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping

from qdo.coordination import Member, Offset, Target
from qdo.coordination.encoding import decode_member, decode_offset, encode_offset
from qdo.coordination.zookeeper import assignments
from qdo.coordination.zookeeper.changes import (
    NODE_LIMIT,
    Change,
    Check,
    Create,
    Delete,
    Done,
    Node,
    Refusal,
    Refused,
    Rounds,
    Set,
    join,
    size,
)
from qdo.coordination.zookeeper.driver import Link
from qdo.coordination.zookeeper.tree import Tree, decode, encode, parent, partition_of
from qdo.coordination.zookeeper.writing import apply_each, lacks_parent, make
from qdo.errors import CoordinationIncompatible, GroupActive, InvalidArgument, OffsetMoved
from qdo.partitions import Partition, Queue

LEVELS = 4
"""Of owners and offsets: service, application, queue, partition."""


async def members(link: Link, tree: Tree) -> dict[str, Member]:
    """Returns all live members by id."""
    await link.sync(tree.members)
    (names,) = await link.children([tree.members])
    paths = [f"{tree.members}/{name}" for name in sorted(names or ())]
    found = [decode_member(node.data) for node in await link.read(paths) if node is not None]
    return {member.id: member for member in sorted(found, key=lambda member: member.id)}


async def target(link: Link, tree: Tree) -> Target | None:
    """Returns the target."""
    await link.sync(tree.target)
    rounds = Rounds("the target")
    while rounds:
        (node,) = await link.read([tree.target])
        present = await assignments.read(link, tree, node)
        (after,) = await link.read([tree.target])
        if after == node:
            return present.target.target
    raise AssertionError  # rounds end by an error


async def owners(link: Link, tree: Tree) -> dict[Partition, str]:
    """Returns the owner of every owned partition."""
    await link.sync(tree.owners)
    found = await _read_all(link, tree.owners)
    try:
        return {partition: node.data.decode() for partition, node in found.items()}
    except UnicodeDecodeError as error:
        raise CoordinationIncompatible("there are owners of somebody else") from error


async def offsets(link: Link, tree: Tree, partitions: Iterable[Partition] | None) -> dict[Partition, Offset]:
    """Returns the offsets that are recorded."""
    await link.sync(tree.offsets)
    found = await (_read_all(link, tree.offsets) if partitions is None else _read_some(link, tree, partitions))
    decoded = {partition: decode_offset(node.data) for partition, node in found.items()}
    return {partition: offset for partition, offset in decoded.items() if offset.id is not None}


async def groups(link: Link, tree: Tree) -> list[str]:
    """Returns the names of all groups, sorted."""
    await link.sync(tree.groups)
    (names,) = await link.children([tree.groups])
    return sorted(map(decode, names or ()))


async def set_offsets(
    link: Link,
    tree: Tree,
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
    await link.sync(tree.offsets)
    await _find(link, tree, ids.keys() | expected.keys(), expected)
    queues: dict[Queue, dict[Partition, str | None]] = {}
    for partition in sorted(ids.keys() | expected.keys()):
        queues.setdefault(partition.queue, {})
        if partition in ids:
            queues[partition.queue][partition] = ids[partition]
    for queue, wanted in queues.items():
        checked = {partition: value for partition, value in expected.items() if partition.queue == queue}
        await _move(link, tree, wanted, checked)


async def _move(
    link: Link, tree: Tree, ids: Mapping[Partition, str | None], expected: Mapping[Partition, str | None]
) -> None:
    """Moves the offsets of one queue."""
    instant = time.time()
    rounds = Rounds("the offsets")
    while ids and rounds:
        found = await _find(link, tree, ids.keys() | expected.keys(), expected)
        changes = [
            _moving(tree, partition, found[partition], Offset(identifier, instant))
            for partition, identifier in ids.items()
        ]
        changes += [_unmoved(tree, partition, found[partition]) for partition in expected.keys() - ids.keys()]
        whole = join(changes)
        if size(whole) > NODE_LIMIT:
            raise InvalidArgument(
                f"{len(ids)} offsets of a queue are too many for one transaction; move some at a time"
            )
        (outcome,) = await link.apply([whole])
        if isinstance(outcome, Done):
            return
        await _explain(link, tree, whole, outcome)


def _moving(tree: Tree, partition: Partition, node: Node | None, offset: Offset) -> Change:
    """Returns what moves an offset, if nobody owns the partition: the owner's node can be made and removed then."""
    path = tree.owner(partition)
    data = encode_offset(offset)
    there = tree.offset(partition)
    return Create(path), Create(there, data) if node is None else Set(there, data, node.version), Delete(path)


def _unmoved(tree: Tree, partition: Partition, node: Node | None) -> Change:
    """Returns what makes sure that an offset that is only looked at stays while the others move."""
    path = tree.offset(partition)
    if node is None:
        return Create(path), Delete(path)
    return (Check(path, version=node.version),)


async def _explain(link: Link, tree: Tree, change: Change, refusal: Refusal) -> None:
    """Prepares another try, if the reason was none.

    Raises:
        GroupActive
    """
    path = change[refusal.at].path
    if refusal.why is Refused.NODE_EXISTS and path.startswith(f"{tree.owners}/"):
        raise GroupActive(f"{partition_of(tuple(path.split('/')[-LEVELS:]))} has an owner")
    if refusal.why is Refused.NO_NODE:
        await make(link, {parent(operation.path) for operation in change})


async def _find(
    link: Link, tree: Tree, partitions: Iterable[Partition], expected: Mapping[Partition, str | None]
) -> dict[Partition, Node | None]:
    """Returns the nodes of offsets.

    Raises:
        OffsetMoved: They are not as expected.
    """
    wanted = sorted(partitions)
    found = dict(zip(wanted, await link.read(map(tree.offset, wanted)), strict=True))
    for partition, value in expected.items():
        node = found[partition]
        recorded = None if node is None else decode_offset(node.data).id
        if recorded != value:
            raise OffsetMoved(f"{partition} is at {recorded}, not at {value}")
    return found


async def services(link: Link, tree: Tree) -> set[str]:
    """Returns under which names of services there are nodes of offsets."""
    await link.sync(tree.offsets)
    (names,) = await link.children([tree.offsets])
    return set(map(decode, names or ()))


async def copy_offsets(link: Link, tree: Tree, former: str, service: str) -> int:
    """Makes the nodes of offsets that there are under one name of a service under another, as they are.

    Raises:
        CoordinationLost
    """
    await link.sync(tree.offsets)
    found = await _read_all(link, f"{tree.offsets}/{encode(former)}", LEVELS - 1)
    wanted = {
        partition._replace(queue=partition.queue._replace(service=service)): node.data
        for partition, node in found.items()
    }
    copied = 0
    rounds = Rounds("the offsets")
    while rounds:
        there = await _read_some(link, tree, wanted)
        missing = {each: (Create(tree.offset(each), data),) for each, data in wanted.items() if each not in there}
        outcomes = await apply_each(link, missing)
        copied += sum(isinstance(outcome, Done) for outcome in outcomes.values())
        orphans = {tree.offsets_of(each.queue) for each, outcome in outcomes.items() if lacks_parent(outcome)}
        if not orphans:
            return copied
        await make(link, sorted(orphans))
    raise AssertionError  # rounds end by an error


async def forget(link: Link, tree: Tree, queues: Collection[Queue] | None) -> None:
    """Removes the group, or what is kept of some queues.

    The node that holds the members goes first: it goes only when it is empty, and without it nobody is a member.

    Raises:
        GroupActive: It has members.
        CoordinationLost: It is gone, in part, or not at all.
    """
    rounds = Rounds("the group")
    while rounds:
        await link.sync(tree.top)
        (outcome,) = await link.apply([(Delete(tree.members),)])
        if isinstance(outcome, Refusal) and outcome.why is Refused.NOT_EMPTY:
            raise GroupActive(f"group {tree.group!r} has members")
        if queues is None:
            tops = [tree.top]
        else:
            tops = [top for queue in sorted(queues) for top in (tree.owners_of(queue), tree.offsets_of(queue))]
        paths = await _below(link, tops)
        outcomes = await apply_each(link, {path: (Delete(path),) for path in paths})
        if not any(isinstance(each, Refusal) and each.why is Refused.NOT_EMPTY for each in outcomes.values()):
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


async def _read_all(link: Link, top: str, levels: int = LEVELS) -> dict[Partition, Node]:
    """Returns the nodes of all partitions that lie so many levels below a node, sorted."""
    level = [top]
    for _ in range(levels):
        found = await link.children(level)
        level = [f"{path}/{name}" for path, names in zip(level, found, strict=True) for name in names or ()]
    partitions = {partition_of(tuple(path.split("/")[-LEVELS:])): path for path in level}
    return await _read(link, dict(sorted(partitions.items())))


async def _read_some(link: Link, tree: Tree, partitions: Iterable[Partition]) -> dict[Partition, Node]:
    return await _read(link, {partition: tree.offset(partition) for partition in partitions})


async def _read(link: Link, paths: Mapping[Partition, str]) -> dict[Partition, Node]:
    nodes = await link.read(paths.values())
    return {partition: node for partition, node in zip(paths, nodes, strict=True) if node is not None}
