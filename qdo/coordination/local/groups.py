"""Groups in the file: their targets, their offsets, and the counters that say when to look again."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple
from urllib.parse import quote, unquote

import msgspec

from qdo.coordination import CommittedOffset, HandlingNote, TargetAssignment, Versioned
from qdo.coordination.encoding import decode_target, encode_target
from qdo.coordination.local.database import FileTransaction
from qdo.errors import GroupActive, OffsetMoved
from qdo.partitions import Partition, Queue


class GroupCounters(NamedTuple):
    """The counters of a group; each goes up with what it counts."""

    members: int
    freed: int
    version: int


@functools.lru_cache(maxsize=10_000)
def key(queue: Queue) -> str:
    """Returns how a queue is written in the file; what people are shown may change, this may not."""
    return "/".join(quote(part, safe="") for part in queue)


def find(tx: FileTransaction, name: str) -> int | None:
    """Returns a group's key, None when nobody knows it."""
    row = tx.one("SELECT id FROM groups WHERE name = ?", name)
    return row[0] if row else None


def ensure(tx: FileTransaction, name: str) -> int:
    """Returns a group's key; nobody needs to know it before."""
    tx.execute("INSERT INTO groups (name) VALUES (?) ON CONFLICT DO NOTHING", (name,))
    (where,) = tx.one("SELECT id FROM groups WHERE name = ?", name)
    return int(where)


def names(tx: FileTransaction) -> list[str]:
    """Returns the names of all groups, in the order of their code points."""
    return sorted(name for (name,) in tx.rows("SELECT name FROM groups"))


def look(tx: FileTransaction, where: int) -> GroupCounters:
    """Returns a group's counters."""
    return GroupCounters(*tx.one("SELECT members, freed, version FROM groups WHERE id = ?", where) or (-1, -1, -1))


def count(tx: FileTransaction, where: int, what: Literal["members", "freed"]) -> None:
    """Counts a change that members want to know of."""
    tx.execute(f"UPDATE groups SET {what} = {what} + 1 WHERE id = ?", (where,))  # noqa: S608 - a constant
    tx.told = where


def target(tx: FileTransaction, where: int | None) -> Versioned:
    """Returns a group's target.

    Raises:
        CoordinationIncompatible: It is newer than this program.
    """
    row = tx.one("SELECT target, version FROM groups WHERE id = ?", where)
    if row is None or row[0] is None:
        return Versioned(None, -1)
    return Versioned(decode_target(row[0]), row[1])


def set_target(tx: FileTransaction, where: int, target: TargetAssignment, version: int) -> bool:
    """Replaces a group's target if it still has the version; returns whether it did."""
    change = "UPDATE groups SET target = ?, version = version + 1 WHERE id = ? AND version = ?"
    tx.execute(change, (encode_target(target), where, version))
    if not tx.changes():
        return False
    tx.told = where
    return True


def owners(tx: FileTransaction, where: int | None, live: str) -> dict[Partition, str]:
    """Returns the owner of every owned partition.

    Args:
        tx: The transaction.
        where: The group.
        live: What is true of a session that has not ended.
    """
    query = f"""SELECT queue, number, sessions.member FROM partitions JOIN sessions ON sessions.id = owner_session
        WHERE partitions.group_id = :group_id AND {live} ORDER BY queue, number"""  # noqa: S608 - a constant
    rows = tx.named(query, group_id=where, now=tx.now)
    queues: dict[str, Queue] = {}
    return {_partition(queues, queue, number): member for queue, number, member in rows}


def offsets(
    tx: FileTransaction, where: int | None, partitions: Iterable[Partition] | None
) -> dict[Partition, CommittedOffset]:
    """Returns what is recorded: for some partitions, or (None) for all."""
    known = "offset, updated_at, member, held OR owner_session IS NOT NULL, note"
    query = f"SELECT queue, number, {known} FROM partitions WHERE group_id = ? AND offset IS NOT NULL"  # noqa: S608 - constants
    if partitions is None:
        queues: dict[str, Queue] = {}
        rows = tx.rows(f"{query} ORDER BY queue, number", where)
        return {_partition(queues, queue, number): offset(*rest) for queue, number, *rest in rows}
    found = {}
    for partition in partitions:
        if row := tx.one(f"{query} AND queue = ? AND number = ?", where, key(partition.queue), partition.number):
            found[partition] = offset(*row[2:])
    return found


def offset(identifier: str | None, at: float, member: str, held: int, note: bytes | None) -> CommittedOffset:
    """Returns an offset as it is stored."""
    return CommittedOffset(
        identifier, at, member, bool(held), None if note is None else msgspec.json.decode(note, type=HandlingNote)
    )


def set_offsets(
    tx: FileTransaction,
    where: int,
    ids: Mapping[Partition, str | None],
    expected: Mapping[Partition, str | None],
) -> None:
    """Moves offsets from outside.

    The row stays when an offset is removed, and with it the version: no taking may ever repeat an earlier one.

    Raises:
        GroupActive: One of the partitions has an owner. Those that are gone must have been removed before.
        OffsetMoved: Something else is recorded than expected.
    """
    row = "SELECT owner_session, offset FROM partitions WHERE group_id = ? AND queue = ? AND number = ?"
    for partition in ids.keys() | expected.keys():
        place = where, key(partition.queue), partition.number
        session, recorded = tx.one(row, *place) or (None, None)
        if session is not None and partition in ids:
            raise GroupActive(f"{partition} has an owner")
        if recorded != expected.get(partition, recorded):
            raise OffsetMoved(f"{partition} is at {recorded}, not at {expected[partition]}")
    change = """INSERT INTO partitions (group_id, queue, number, version, offset, updated_at) VALUES (?, ?, ?, 0, ?, ?)
        ON CONFLICT DO UPDATE SET version = version + 1, offset = excluded.offset, updated_at = excluded.updated_at,
        member = '', held = 0, note = NULL"""
    instant = time.time()
    for partition, identifier in ids.items():
        tx.execute(change, (where, key(partition.queue), partition.number, identifier, instant))


def services(tx: FileTransaction, where: int | None) -> set[str]:
    """Returns under which names of services something is recorded."""
    query = "SELECT DISTINCT substr(queue, 1, instr(queue, '/') - 1) FROM partitions WHERE group_id = ?"
    return {unquote(name) for (name,) in tx.rows(query, where)}


def copy_offsets(tx: FileTransaction, where: int, former: str, service: str) -> int:
    """Copies offsets from one name of a service to another, where there is no row yet; returns how many."""
    copy = """INSERT INTO partitions (group_id, queue, number, version, offset, updated_at, member, held, note)
        SELECT group_id, :new || substr(queue, length(:old) + 1), number, 0, offset, updated_at, member,
            held OR owner_session IS NOT NULL, note FROM partitions
        WHERE group_id = :group_id AND substr(queue, 1, length(:old)) = :old AND offset IS NOT NULL
        ON CONFLICT DO NOTHING"""
    tx.named(copy, group_id=where, old=f"{quote(former, safe='')}/", new=f"{quote(service, safe='')}/")
    return tx.changes()


def forget(tx: FileTransaction, where: int, queues: Iterable[Queue] | None) -> None:
    """Removes a group, or what is kept of some queues. Sessions that have ended must have been removed before.

    Raises:
        GroupActive: It has members.
    """
    if tx.one("SELECT 1 FROM sessions WHERE group_id = ?", where):
        raise GroupActive("the group has members")
    for queue in queues or ():
        tx.execute("DELETE FROM partitions WHERE group_id = ? AND queue = ?", (where, key(queue)))
    if queues is None:
        tx.execute("DELETE FROM partitions WHERE group_id = ?", (where,))
        tx.execute("DELETE FROM groups WHERE id = ?", (where,))


def _partition(queues: dict[str, Queue], queue: str, number: int) -> Partition:
    """Returns a partition, having read each queue's text once."""
    found = queues.get(queue)
    if found is None:
        found = queues[queue] = Queue.parse(queue)
    return Partition(found, number)
