"""What is done inside a transaction on the file: groups, sessions, and the owners and offsets of partitions.

**Groups** have a target, offsets, and counters that say when to read again.

**Sessions** say which members there are, and how long each lives without a sign of life. A session ends at an instant
of a clock that all processes of the machine share and that starts again with the machine. Every transaction of a
session asks first whether it has ended (:func:`alive`). Only one process writes at a time, and it reads the clock after
it has the lock. So whatever is recorded for a session was recorded before another could take its partitions.

**Partitions**: each one's row has its owner's session and a version that goes up with every taking and every commit. A
commit changes the row only where both are still what the session knows.
"""

from __future__ import annotations

import functools
import secrets
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple
from urllib.parse import quote, unquote

import msgspec

from qdo.coordination import CommittedOffset, HandlingNote, Member, OwnedOffset, TargetAssignment, Versioned
from qdo.coordination.encoding import decode_member, decode_target, encode_member, encode_target
from qdo.coordination.local.database import FileTransaction
from qdo.errors import GroupActive, MemberExists, OffsetMoved, SessionLost
from qdo.partitions import Partition, Queue

_decode_note = msgspec.json.Decoder(HandlingNote).decode

LIVE = "expires > :now AND expires <= :now + timeout"
"""An end further off than the timeout is from before the machine was last started."""

CLAIM = """INSERT INTO partitions (group_id, queue, number, owner_session, version)
    VALUES (:group_id, :queue, :number, :session, 1)
    ON CONFLICT DO UPDATE SET owner_session = :session, version = version + 1
    WHERE owner_session IS NULL OR owner_session = :session
    RETURNING version, offset, updated_at, member, held, note"""

RELEASE = """UPDATE partitions SET owner_session = NULL, held = 0
    WHERE group_id = :group_id AND queue = :queue AND number = :number AND owner_session = :session"""

COMMIT = """UPDATE partitions
    SET offset = :offset, updated_at = :at, member = :member, note = :note, version = version + 1
    WHERE group_id = :group_id AND queue = :queue AND number = :number AND owner_session = :session
        AND version = :version
    RETURNING version"""


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
    """Returns a group's key, None if the group is unknown."""
    row = tx.one("SELECT id FROM groups WHERE name = ?", name)
    return row[0] if row else None


def ensure(tx: FileTransaction, name: str) -> int:
    """Returns a group's key; adds the group if it is missing."""
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


def owners(tx: FileTransaction, where: int | None) -> dict[Partition, str]:
    """Returns the owner of every owned partition."""
    query = f"""SELECT queue, number, sessions.member FROM partitions JOIN sessions ON sessions.id = owner_session
        WHERE partitions.group_id = :group_id AND {LIVE} ORDER BY queue, number"""  # noqa: S608 - a constant
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
    return CommittedOffset(identifier, at, member, bool(held), None if note is None else _decode_note(note))


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
    """Returns the ids of the stores for which something is recorded."""
    query = "SELECT DISTINCT substr(queue, 1, instr(queue, '/') - 1) FROM partitions WHERE group_id = ?"
    return {unquote(name) for (name,) in tx.rows(query, where)}


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


@dataclass(frozen=True)
class HeartbeatResult:
    """What was found when a process gave its sign of life.

    Attributes:
        until: For each of its sessions that are alive, until when.
        others: The other processes with members in the group.
        earliest: When the first session of another process ends; None: there is none.
        seen: What the group's counters say.
    """

    until: dict[int, float]
    others: list[str]
    earliest: float | None
    seen: GroupCounters


def join(
    tx: FileTransaction, group: str, member: Member, process: str, timeout: float, *, replace: bool
) -> tuple[int, int]:
    """Adds a session, in the place of another one if it is to; returns it and its group.

    Raises:
        MemberExists: A live one has this id.
    """
    where = ensure(tx, group)
    reap(tx, where)
    if found := tx.one("SELECT id FROM sessions WHERE group_id = ? AND member = ?", where, member.id):
        if replace:
            remove(tx, where, [found[0]])
        else:
            raise MemberExists(f"group {group!r} has a live member {member.id!r}")
    session = secrets.randbits(62)
    added = (
        "INSERT INTO sessions (id, group_id, member, member_data, process, timeout, expires) VALUES (?, ?, ?, ?, "
        "?, ?, ?)"
    )
    tx.execute(added, (session, where, member.id, encode_member(member), process, timeout, tx.now + timeout))
    count(tx, where, "members")
    return session, where


def alive(tx: FileTransaction, session: int) -> None:
    """Does nothing.

    Raises:
        SessionLost: The session has ended.
    """
    query = f"SELECT 1 FROM sessions WHERE id = :id AND {LIVE}"  # noqa: S608 - a constant
    if not tx.named(query, id=session, now=tx.now):
        raise SessionLost("the session has ended: its partitions may be somebody else's by now")


def beat(tx: FileTransaction, where: int, process: str) -> HeartbeatResult:
    """Gives a process's sign of life, and removes the sessions that have ended."""
    until = renew(tx, process)
    reap(tx, where)
    rows = tx.rows(
        "SELECT process, min(expires) FROM sessions WHERE group_id = ? AND process != ? GROUP BY 1", where, process
    )
    earliest = min((expires for _, expires in rows), default=None)
    return HeartbeatResult(until, [other for other, _ in rows], earliest, look(tx, where))


def renew(tx: FileTransaction, process: str) -> dict[int, float]:
    """Gives a process's sign of life; returns its sessions that are alive, with the instants of their ends."""
    change = f"UPDATE sessions SET expires = :now + timeout WHERE process = :process AND {LIVE} RETURNING id, expires"  # noqa: S608 - a constant
    return dict(tx.named(change, process=process, now=tx.now))


def reap(tx: FileTransaction, where: int) -> None:
    """Removes the sessions of a group that have ended, with all that they held."""
    query = f"SELECT id FROM sessions WHERE group_id = :group_id AND NOT ({LIVE})"  # noqa: S608 - a constant
    remove(tx, where, [session for (session,) in tx.named(query, group_id=where, now=tx.now)])


def bury(tx: FileTransaction, where: int, process: str) -> None:
    """Removes the sessions of a process that is no more."""
    remove(tx, where, [session for (session,) in tx.rows("SELECT id FROM sessions WHERE process = ?", process)])


def remove(tx: FileTransaction, where: int, sessions: list[int]) -> None:
    """Removes sessions of a group, with all that they held."""
    freed = 0
    for session in sessions:
        tx.execute("UPDATE partitions SET owner_session = NULL, held = 1 WHERE owner_session = ?", (session,))
        freed += tx.changes()
        tx.execute("DELETE FROM sessions WHERE id = ?", (session,))
    if sessions:
        count(tx, where, "members")
    if freed:
        count(tx, where, "freed")


def update(tx: FileTransaction, session: int, where: int, member: Member) -> None:
    """Changes what a session reports about its member."""
    tx.execute("UPDATE sessions SET member_data = ? WHERE id = ?", (encode_member(member), session))
    count(tx, where, "members")


def members(tx: FileTransaction, where: int | None) -> dict[str, Member]:
    """Returns the live members of a group by id.

    Raises:
        CoordinationIncompatible: One of them is newer than this program.
    """
    query = f"SELECT member_data FROM sessions WHERE group_id = :group_id AND {LIVE} ORDER BY member"  # noqa: S608 - a constant
    found = [decode_member(value) for (value,) in tx.named(query, group_id=where, now=tx.now)]
    return {member.id: member for member in found}


def others(tx: FileTransaction, where: int, process: str) -> list[str]:
    """Returns the other processes with members in a group."""
    query = "SELECT DISTINCT process FROM sessions WHERE group_id = ? AND process != ?"
    return [other for (other,) in tx.rows(query, where, process)]


def claim(
    tx: FileTransaction, session: int, where: int, partitions: Iterable[Partition]
) -> dict[Partition, OwnedOffset]:
    """Takes what is free; returns what the session owns of it."""
    reap(tx, where)
    held = {}
    for partition in partitions:
        claimed = tx.named(CLAIM, group_id=where, queue=key(partition.queue), number=partition.number, session=session)
        for version, *stored in claimed:
            held[partition] = OwnedOffset(partition, offset(*stored), version)
    return held


def release(tx: FileTransaction, session: int, where: int, partitions: Iterable[Partition]) -> None:
    """Gives up what the session owns of these."""
    freed = 0
    for partition in partitions:
        tx.named(RELEASE, group_id=where, queue=key(partition.queue), number=partition.number, session=session)
        freed += tx.changes()
    if freed:
        count(tx, where, "freed")


def record_offsets(
    tx: FileTransaction, session: int, where: int, member: str, offsets: Iterable[tuple[OwnedOffset, str | None]]
) -> dict[Partition, OwnedOffset | None]:
    """Records ids for what the session still holds."""
    instant = time.time()
    held: dict[Partition, OwnedOffset | None] = {}
    for (partition, before, version), identifier in offsets:
        raised = tx.named(
            COMMIT,
            group_id=where,
            queue=key(partition.queue),
            number=partition.number,
            session=session,
            version=version,
            offset=identifier,
            at=instant,
            member=member,
            note=before.note and msgspec.json.encode(before.note),
        )
        recorded = CommittedOffset(identifier, instant, member, held=True, note=before.note)
        held[partition] = OwnedOffset(partition, recorded, raised[0][0]) if raised else None
    return held
