"""Taking partitions, giving them up, and recording how far each was processed.

Each partition's row has its owner's session and a version that goes up with every taking and every commit. A commit
changes the row only where both are still what the session knows. That the session is alive is for the caller to ask, in
the same transaction.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

import msgspec

from qdo.coordination import CommittedOffset, OwnedOffset
from qdo.coordination.local import groups, sessions
from qdo.coordination.local.database import FileTransaction
from qdo.partitions import Partition

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


def claim(
    tx: FileTransaction, session: int, where: int, partitions: Iterable[Partition]
) -> dict[Partition, OwnedOffset]:
    """Takes what is free; returns what the session owns of it."""
    sessions.reap(tx, where)
    held = {}
    for partition in partitions:
        claimed = tx.named(
            CLAIM, group_id=where, queue=groups.key(partition.queue), number=partition.number, session=session
        )
        for version, *offset in claimed:
            held[partition] = OwnedOffset(partition, groups.offset(*offset), version)
    return held


def release(tx: FileTransaction, session: int, where: int, partitions: Iterable[Partition]) -> None:
    """Gives up what the session owns of these."""
    freed = 0
    for partition in partitions:
        tx.named(RELEASE, group_id=where, queue=groups.key(partition.queue), number=partition.number, session=session)
        freed += tx.changes()
    if freed:
        groups.count(tx, where, "freed")


def commit(
    tx: FileTransaction, session: int, where: int, member: str, offsets: Iterable[tuple[OwnedOffset, str | None]]
) -> dict[Partition, OwnedOffset | None]:
    """Records ids for what the session still holds."""
    instant = time.time()
    held: dict[Partition, OwnedOffset | None] = {}
    for (partition, before, version), identifier in offsets:
        raised = tx.named(
            COMMIT,
            group_id=where,
            queue=groups.key(partition.queue),
            number=partition.number,
            session=session,
            version=version,
            offset=identifier,
            at=instant,
            member=member,
            note=before.note and msgspec.json.encode(before.note),
        )
        offset = CommittedOffset(identifier, instant, member, held=True, note=before.note)
        held[partition] = OwnedOffset(partition, offset, raised[0][0]) if raised else None
    return held
