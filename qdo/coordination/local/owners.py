"""Taking partitions, giving them up, and recording how far each was processed.

Each partition's row has its owner's session and a version that goes up with every taking and every commit. A commit
changes the row only where both are still what the session knows.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

import msgspec

from qdo.coordination import Held, Offset
from qdo.coordination.local import groups, sessions
from qdo.coordination.local.database import Transaction
from qdo.partitions import Partition

TAKE = """INSERT INTO partitions (grp, queue, number, session, version) VALUES (:grp, :queue, :number, :session, 1)
    ON CONFLICT DO UPDATE SET session = :session, version = version + 1 WHERE session IS NULL OR session = :session
    RETURNING version, offset, at, member, held, note"""

RELEASE = """UPDATE partitions SET session = NULL, held = 0
    WHERE grp = :grp AND queue = :queue AND number = :number AND session = :session"""

COMMIT = """UPDATE partitions
    SET offset = :offset, at = :at, member = :member, note = :note, version = version + 1
    WHERE grp = :grp AND queue = :queue AND number = :number AND session = :session AND version = :version
    RETURNING version"""


def take(tx: Transaction, session: int, where: int, partitions: Iterable[Partition]) -> dict[Partition, Held]:
    """Takes what is free; returns what the session owns of it.

    Raises:
        SessionLost
    """
    sessions.alive(tx, session)
    sessions.reap(tx, where)
    held = {}
    for partition in partitions:
        taken = tx.named(TAKE, grp=where, queue=groups.key(partition.queue), number=partition.number, session=session)
        for version, *offset in taken:
            held[partition] = Held(partition, groups.offset(*offset), version)
    return held


def release(tx: Transaction, session: int, where: int, partitions: Iterable[Partition]) -> None:
    """Gives up what the session owns of these.

    Raises:
        SessionLost
    """
    sessions.alive(tx, session)
    freed = 0
    for partition in partitions:
        tx.named(RELEASE, grp=where, queue=groups.key(partition.queue), number=partition.number, session=session)
        freed += tx.changes()
    if freed:
        groups.count(tx, where, "freed")


def commit(
    tx: Transaction, session: int, where: int, member: str, offsets: Iterable[tuple[Held, str | None]]
) -> dict[Partition, Held | None]:
    """Records ids for what the session still holds.

    Raises:
        SessionLost: Nothing was recorded.
    """
    sessions.alive(tx, session)
    instant = time.time()
    held: dict[Partition, Held | None] = {}
    for (partition, before, version), identifier in offsets:
        raised = tx.named(
            COMMIT,
            grp=where,
            queue=groups.key(partition.queue),
            number=partition.number,
            session=session,
            version=version,
            offset=identifier,
            at=instant,
            member=member,
            note=before.note and msgspec.json.encode(before.note),
        )
        offset = Offset(identifier, instant, member, held=True, note=before.note)
        held[partition] = Held(partition, offset, raised[0][0]) if raised else None
    return held
