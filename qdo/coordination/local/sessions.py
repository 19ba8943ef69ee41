"""Sessions in the file: who is a member, and for how long without a sign of life.

A session ends at an instant of a clock that all processes of the machine share and that starts again with the
machine. Every transaction of a session asks first whether it has ended (:func:`alive`). Because only one process
writes at a time, and looks at the clock after the others cannot, whatever is recorded for a session was recorded
before anybody could take its partitions.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from qdo.coordination import Member
from qdo.coordination.encoding import decode_member, encode_member
from qdo.coordination.local import groups
from qdo.coordination.local.database import FileTransaction
from qdo.errors import MemberExists, SessionLost

LIVE = "expires > :now AND expires <= :now + timeout"
"""An end further off than the timeout is from before the machine was last started."""


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
    seen: groups.GroupCounters


def join(
    tx: FileTransaction, group: str, member: Member, process: str, timeout: float, *, replace: bool
) -> tuple[int, int]:
    """Adds a session, in the place of another one if it is to; returns it and its group.

    Raises:
        MemberExists: A live one has this id.
    """
    where = groups.ensure(tx, group)
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
    groups.count(tx, where, "members")
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
    return HeartbeatResult(until, [other for other, _ in rows], earliest, groups.look(tx, where))


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
        groups.count(tx, where, "members")
    if freed:
        groups.count(tx, where, "freed")


def update(tx: FileTransaction, session: int, where: int, member: Member) -> None:
    """Changes what a session tells of itself."""
    tx.execute("UPDATE sessions SET member_data = ? WHERE id = ?", (encode_member(member), session))
    groups.count(tx, where, "members")


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
