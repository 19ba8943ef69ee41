"""Offsets of consumer groups in Cassandra.

The offsets of a group are one Cassandra partition. A call reads it, decides about each change, and writes the accepted
changes in one conditional batch on the partition's ``version``. If another call was faster, it starts again.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence

from queuey.model import ids
from queuey.model.errors import Conflict, GroupNotFound, StoreBusy
from queuey.model.groups import MemberCommit, Origin, OwnedOffset, OwnedOffsets
from queuey.model.ids import Position
from queuey.model.messages import Offset, OffsetChange, Queue
from queuey.storage import OffsetRecords, offset_changes
from queuey.storage.cassandra.cluster import Rows, Statement, StatementRequest
from queuey.storage.cassandra.cluster.store_loop import store_call
from queuey.storage.cassandra.protocol.requests import Call
from queuey.storage.cassandra.statements.lightweight_transactions import ChangeResult, make_unclear_error, new_number
from queuey.storage.cassandra.statements.message_codec import uuid_of
from queuey.storage.cassandra.tables.connected import StoreParts
from queuey.storage.offset_changes import MAX_READERS, READER_PREFIX, Decision, decide, find_disowned

_SELECT_OFFSETS = Statement(
    "SELECT version, deleted_epoch, partition, last_id, updated_at, owner, epoch, came, note FROM offsets "
    "WHERE uid = ? AND consumer_group = ?"
)
_HAS_OFFSETS = Statement("SELECT partition FROM offsets WHERE uid = ? AND consumer_group = ? LIMIT 1")
_SWAP_VERSION = Statement(
    "UPDATE offsets SET version = ? WHERE uid = ? AND consumer_group = ? IF version = ?", idempotent=False
)
_SET_OFFSET = Statement(
    "UPDATE offsets SET last_id = ?, updated_at = ? WHERE uid = ? AND consumer_group = ? AND partition = ?",
    idempotent=False,
)
_SET_NOTE = Statement(
    "UPDATE offsets SET note = ? WHERE uid = ? AND consumer_group = ? AND partition = ?", idempotent=False
)
_SET_OWNER = Statement(
    "UPDATE offsets SET owner = ?, epoch = ?, came = ? WHERE uid = ? AND consumer_group = ? AND partition = ?",
    idempotent=False,
)
_ORIGINS: tuple[Origin, ...] = "new", "given back", "lost"
"""Meanings of the values of ``came``, by index."""
_DELETE_OFFSET = Statement(
    "DELETE FROM offsets WHERE uid = ? AND consumer_group = ? AND partition = ?", idempotent=False
)
_SET_DELETED_EPOCH = Statement(
    "UPDATE offsets SET deleted_epoch = ? WHERE uid = ? AND consumer_group = ?", idempotent=False
)
_DELETE_GROUPS = Statement("DELETE FROM offset_groups WHERE uid = ?")
_ADD_GROUP = Statement("INSERT INTO offset_groups (uid, consumer_group) VALUES (?, ?)")
_SELECT_GROUPS_AND_READERS = Statement("SELECT consumer_group FROM offset_groups WHERE uid = ?")
_SELECT_GROUPS = Statement("SELECT consumer_group FROM offset_groups WHERE uid = ? AND consumer_group < ?")
_SELECT_READERS = Statement("SELECT consumer_group FROM offset_groups WHERE uid = ? AND consumer_group >= ? LIMIT ?")

_MAX_CACHED_GROUPS = 100_000


class CassandraOffsets(OffsetRecords):
    """Offsets on Cassandra.

    The offsets of a group in a queue change in one transaction, which is repeated while others change them, until it
    raises StoreBusy.
    """

    def __init__(self, parts: StoreParts) -> None:
        self._driver = parts.driver
        self._options = parts.options
        self._clock = parts.clock
        self._levels = parts.levels
        self._rows = parts.rows
        self._transactions = parts.transactions
        self._listed_groups: set[tuple[int, str]] = set()
        """Queue uid and name of groups that are certainly in ``offset_groups``."""

    @store_call()
    async def set_offsets(
        self,
        queue: Queue,
        group: str,
        changes: Sequence[OffsetChange],
        *,
        commit: MemberCommit | None = None,
        disown: int | None = None,
        is_admin: bool = True,
    ) -> list[Offset]:
        offset_changes.check_changes(queue, changes, commit)
        await self._rows.find_current(queue)
        uid = queue.uid
        until = self._clock.boottime() + self._options.catalogue_deadline
        compares = any(change.compare for change in changes)
        async with self._transactions.turn(("offsets", uid, group)):
            while True:
                recorded = await self._read_recorded(uid, group, self._levels.log_read_level() if commit else "")
                lost = find_disowned(recorded, disown) if commit is None else set()
                decision = decide(recorded.rows, changes, ids.ticks_to_seconds(self._clock.now()), commit, lost)
                if not decision.written:
                    return decision.result(changes)
                if not recorded.rows:
                    await self._check_group_count(queue, group, is_admin=is_admin)
                await self._add_group(uid, group)
                calls = _make_calls((uid, group), recorded.rows, decision)
                result = await self._change_offsets(uid, group, recorded.version, calls)
                if result.is_done:
                    return decision.result(changes)
                if result.is_unclear and compares:
                    raise make_unclear_error(f"group {group!r}")
                self._require_time_left(until)

    @store_call()
    async def group_offsets(self, queue: Queue, group: str) -> list[Offset]:
        await self._rows.find_current(queue)
        rows = (await self._read_recorded(queue.uid, group)).rows
        if not rows:
            raise GroupNotFound(group)
        return offset_changes.recorded_offsets(rows)

    @store_call()
    async def offsets_of_queues(self, queues: Sequence[Queue], group: str) -> list[dict[int, Position]]:
        reads = [
            StatementRequest(_SELECT_OFFSETS, (queue.uid, group), self._options.catalogue_read) for queue in queues
        ]
        recorded = [offset_changes.recorded_offsets(_decode(rows).rows) for rows in await self._driver.ask_all(reads)]
        return [{offset.partition: offset.position for offset in offsets} for offsets in recorded]

    @store_call()
    async def groups(self, queue: Queue) -> list[str]:
        await self._rows.find_current(queue)
        return await self._groups_with_offsets(queue.uid)

    @store_call()
    async def delete_group(self, queue: Queue, group: str, *, disown: int | None = None) -> None:
        await self._rows.find_current(queue)
        if not await self._forget_group(queue.uid, group, lambda recorded: find_disowned(recorded, disown)):
            raise GroupNotFound(group)

    @store_call()
    async def owned_offsets(self, queue: Queue, group: str, notes: Container[int] = ()) -> OwnedOffsets:
        recorded = await self._read_recorded(queue.uid, group, self._levels.log_read_level())
        return offset_changes.keep_notes(recorded, notes)

    @store_call()
    async def hand_over(self, queue: Queue, group: str, version: int | None, owners: Sequence[OwnedOffset]) -> bool:
        await self._rows.find_current(queue)
        key = queue.uid, group
        async with self._transactions.turn(("offsets", *key)):
            if key not in self._listed_groups:
                if not _has_rows(
                    await self._driver.ask(StatementRequest(_HAS_OFFSETS, key, self._options.catalogue_read))
                ):
                    await self._check_group_count(queue, group)
                await self._add_group(*key)
            calls = [_make_owner_call(key, row) for row in owners]
            result = await self._change_offsets(*key, version, calls)
        if result.is_unclear:
            raise make_unclear_error(f"group {group!r}")
        return result.is_done

    async def forget_offsets(self, uid: int) -> None:
        rows = await self._driver.ask(
            StatementRequest(_SELECT_GROUPS_AND_READERS, (uid,), self._options.catalogue_read)
        )
        for (name,) in rows:
            await self._forget_group(uid, name, lambda _: set())
        if rows:
            await self._driver.ask(StatementRequest(_DELETE_GROUPS, (uid,), self._options.catalogue_write))

    async def _read_recorded(self, uid: int, group: str, consistency: str = "") -> OwnedOffsets:
        return _decode(
            await self._driver.ask(
                StatementRequest(_SELECT_OFFSETS, (uid, group), consistency or self._options.catalogue_read)
            )
        )

    async def _check_group_count(self, queue: Queue, group: str, *, is_admin: bool = True) -> None:
        if group.startswith(READER_PREFIX):
            values = queue.uid, READER_PREFIX, MAX_READERS
            readers = await self._driver.ask(StatementRequest(_SELECT_READERS, values, self._options.catalogue_read))
            offset_changes.check_group_count(queue, len(readers), readers=True)
            return
        try:
            offset_changes.check_group_count(queue, len(await self._group_names(queue.uid)), is_admin=is_admin)
        except Conflict:  # Some of these groups may have been deleted.
            offset_changes.check_group_count(queue, len(await self._groups_with_offsets(queue.uid)), is_admin=is_admin)

    async def _add_group(self, uid: int, group: str) -> None:
        if (uid, group) in self._listed_groups:
            return
        await self._driver.ask(StatementRequest(_ADD_GROUP, (uid, group), self._options.catalogue_write))
        if len(self._listed_groups) >= _MAX_CACHED_GROUPS:
            self._listed_groups.clear()
        self._listed_groups.add((uid, group))

    async def _change_offsets(self, uid: int, group: str, version: int | None, calls: Sequence[Call]) -> ChangeResult:
        token = new_number()
        return await self._transactions.run(_SWAP_VERSION, (token, uid, group, version), token, further=calls)

    async def _groups_with_offsets(self, uid: int) -> list[str]:
        names = await self._group_names(uid)
        rows = await self._driver.ask_all(
            [StatementRequest(_HAS_OFFSETS, (uid, name), self._options.catalogue_read) for name in names]
        )
        return sorted(name for name, partitions in zip(names, rows, strict=True) if _has_rows(partitions))

    async def _forget_group(self, uid: int, group: str, check: Callable[[OwnedOffsets], object]) -> bool:
        """Removes a group's offsets, unless ``check`` raises. Returns whether it had any.

        Repeats this if they change meanwhile; raises StoreBusy if that takes too long.
        """
        until = self._clock.boottime() + self._options.catalogue_deadline
        doubted = False
        async with self._transactions.turn(("offsets", uid, group)):
            while True:
                recorded = await self._read_recorded(uid, group)
                if not recorded.rows:
                    return doubted  # A removal that was in doubt has been applied.
                check(recorded)
                calls: list[Call] = [(_DELETE_OFFSET, (uid, group, partition)) for partition in recorded.rows]
                if epoch := recorded.highest_epoch():
                    calls.append((_SET_DELETED_EPOCH, (epoch, uid, group)))
                result = await self._change_offsets(uid, group, recorded.version, calls)
                if result.is_done:
                    self._listed_groups.discard((uid, group))  # The next offset checks the number of groups again.
                    return True
                doubted = doubted or result.is_unclear
                self._require_time_left(until)

    async def _group_names(self, uid: int) -> list[str]:
        rows = await self._driver.ask(
            StatementRequest(_SELECT_GROUPS, (uid, READER_PREFIX), self._options.catalogue_read)
        )
        return [name for (name,) in rows]

    def _require_time_left(self, until: float) -> None:
        if self._clock.boottime() > until:
            raise StoreBusy("other callers keep changing the offsets of this group")


def _has_rows(partitions: Rows) -> bool:
    """Returns whether a group has offsets. A deleted group leaves a row with a version and an epoch only."""
    return bool(partitions) and partitions[0][0] is not None


def _decode(rows: Rows) -> OwnedOffsets:
    owned = {
        partition: OwnedOffset(
            partition,
            None if last_id is None else ids.parse_position(last_id.hex),
            updated or 0.0,
            owner or 0,
            epoch or 0,
            _ORIGINS[came or 0],
            note,
        )
        for _, _, partition, last_id, updated, owner, epoch, came, note in rows
        if partition is not None
    }
    version, deleted_epoch = rows[0][:2] if rows else (None, None)
    return OwnedOffsets(version, owned, deleted_epoch or 0)


def _make_calls(key: tuple[int, str], before: Mapping[int, OwnedOffset], decision: Decision) -> list[Call]:
    calls: list[Call] = []
    for row in decision.changed_rows():
        former = before.get(row.partition) or OwnedOffset(row.partition)
        if row.partition in decision.applied:
            last_id = None if row.position is None else uuid_of(row.position)
            calls.append((_SET_OFFSET, (last_id, row.updated, *key, row.partition)))
        if row.note != former.note:
            calls.append((_SET_NOTE, (row.note, *key, row.partition)))
        if row.owner != former.owner:
            calls.append(_make_owner_call(key, row))
    return calls


def _make_owner_call(key: tuple[int, str], row: OwnedOffset) -> Call:
    return _SET_OWNER, (row.owner, row.epoch, _ORIGINS.index(row.came), *key, row.partition)
