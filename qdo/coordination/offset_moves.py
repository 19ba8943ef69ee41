"""Offsets that are moved from outside: those of one queue in one transaction, while its partitions have no owner."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from qdo.coordination.changes import attempts, join, make, size
from qdo.coordination.encoding import decode_offset, encode_offset
from qdo.coordination.paths import GroupPaths
from qdo.coordination.records import CommittedOffset
from qdo.coordination.tree import (
    NODE_LIMIT,
    Applied,
    Change,
    Check,
    Create,
    Delete,
    Link,
    NodeData,
    RejectionReason,
    SetData,
    parent,
)
from qdo.errors import GroupActive, InvalidArgument, OffsetMoved
from qdo.partitions import Partition


async def move_offsets(
    link: Link,
    group_paths: GroupPaths,
    ids: Mapping[Partition, str | None],
    expected: Mapping[Partition, str | None],
    instant: float,
) -> None:
    """Moves the offsets of one queue.

    A node stays when its offset is removed, and with it the version: no taking may ever repeat an earlier one.
    """
    owner_paths = {group_paths.owner(partition): partition for partition in ids}
    tries = attempts("the offsets")
    while ids:
        next(tries)
        found = await find_offsets(link, group_paths, ids.keys() | expected.keys(), expected)
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
        owned = owner_paths.get(whole[outcome.at].path)
        if outcome.why is RejectionReason.NODE_EXISTS and owned is not None:
            raise GroupActive(f"{owned} has an owner")
        if outcome.why is RejectionReason.NO_NODE:
            await make(link, {parent(operation.path) for operation in whole})


def _moving(group_paths: GroupPaths, partition: Partition, node: NodeData | None, offset: CommittedOffset) -> Change:
    """Moves an offset if the partition has no owner: only then the owner's node can be made and removed."""
    path = group_paths.owner(partition)
    data = encode_offset(offset)
    there = group_paths.offset(partition)
    return Create(path), Create(there, data) if node is None else SetData(there, data, node.version), Delete(path)


def _unmoved(group_paths: GroupPaths, partition: Partition, node: NodeData | None) -> Change:
    """Checks that an offset stays the same while other offsets move."""
    path = group_paths.offset(partition)
    if node is None:
        return Create(path), Delete(path)
    return (Check(path, version=node.version),)


async def find_offsets(
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
