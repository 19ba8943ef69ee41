"""Consumer groups in Cassandra.

The state of a group is one Cassandra partition, changed by one conditional batch on the head's ``version``. Sessions
are plain writes to another partition. Each has its time as write timestamp, so the latest session stays.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial

from msgspec.structs import astuple, replace

from queuey.model.errors import StoreBusy, StoreUnavailable
from queuey.model.groups import ClockSample, GroupChange, GroupHead, GroupRow, GroupSessions, StoredGroup
from queuey.model.ids import StoreClock
from queuey.storage.cassandra.cluster import Rows, Statement, StatementRequest
from queuey.storage.cassandra.cluster.store_loop import store_call, wait_for_callback
from queuey.storage.cassandra.statements.lightweight_transactions import make_unclear_error, new_number
from queuey.storage.cassandra.tables.connected import StoreParts
from queuey.storage.cassandra.time.clock import stamp_of, ticks
from queuey.storage.contracts.groups import SEARCH_ROW, SEARCH_TTL, GroupRecords, session_ttl, sessions_of

_WHERE_GROUP = "WHERE application = ? AND name = ?"
_FIELDS = GroupHead.__struct_fields__[1:]
_SELECT_HEAD = Statement(f"SELECT {', '.join(_FIELDS)}, version FROM groups {_WHERE_GROUP} LIMIT 1")
_SELECT_ROWS = Statement(f"SELECT version, kind, key, body FROM groups {_WHERE_GROUP}")
_UPDATE_HEAD = Statement(
    f"UPDATE groups SET {' = ?, '.join(_FIELDS)} = ?, version = ? {_WHERE_GROUP} IF version = ?", idempotent=False
)
_SET_ROW = Statement(f"UPDATE groups SET body = ? {_WHERE_GROUP} AND kind = ? AND key = ?", idempotent=False)
REMOVE_HEAD = Statement(
    f"DELETE {', '.join(_FIELDS)}, version FROM groups {_WHERE_GROUP} IF version = ?", idempotent=False
)
_DELETE_ROWS = Statement(f"DELETE FROM groups {_WHERE_GROUP} AND kind >= 0", idempotent=False)
_INSERT_NAME = Statement("INSERT INTO group_index (application, name) VALUES (?, ?) USING TIMESTAMP ?")
_DELETE_NAME = Statement(f"DELETE FROM group_index USING TIMESTAMP ? {_WHERE_GROUP}")
_SELECT_NAMES = Statement("SELECT name FROM group_index WHERE application = ? AND name >= ? LIMIT ?")
_RECORD_SESSION = Statement(
    "INSERT INTO group_sessions (application, name, member, uid, seen) VALUES (?, ?, ?, ?, ?) "
    "USING TIMESTAMP ? AND TTL ?"
)
_SELECT_SESSIONS = Statement(f"SELECT member, uid, seen FROM group_sessions {_WHERE_GROUP}")
_MAX_READS = 5
"""Max attempts to read a state that changes during the read."""


class CassandraGroups(GroupRecords):
    """Consumer groups on Cassandra.

    Names are in a table of their own, and are written before a group is created, so names without a group are left out.
    """

    def __init__(self, parts: StoreParts, clock: StoreClock) -> None:
        self._driver = parts.driver
        self._options = parts.options
        self._clock = parts.clock
        self._levels = parts.levels
        self._timing = parts.timing
        self._transactions = parts.transactions
        self._watch = parts.watch
        self._now_ms = clock.now_ms
        self._centre = ""

    @property
    def centre(self) -> str:
        # Cached, because the driver has no nodes while the connection is lost.
        self._centre = self._centre or self._options.local_dc or next((host.dc for host in self._driver.hosts()), "")
        return self._centre

    def groups_refusal(self) -> str | None:
        return self._levels.groups_refusal()

    @store_call()
    async def group_head(self, application: str, name: str, *, serial: bool = False) -> GroupHead | None:
        level = self._options.catalogue_serial if serial else self._levels.log_read_level()
        return _decode_head(await self._driver.ask(StatementRequest(_SELECT_HEAD, (application, name), level)))

    @store_call()
    async def group_state(self, application: str, name: str) -> StoredGroup | None:
        reads = [
            StatementRequest(statement, (application, name), self._levels.log_read_level())
            for statement in (_SELECT_HEAD, _SELECT_ROWS)
        ]
        for _ in range(_MAX_READS):
            heads, rows = await self._driver.ask_all(reads)
            head = _decode_head(heads)
            # Pages are read one after the other, and the group may change in between.
            if {row[0] for row in rows} <= {head and head.version}:
                stored = (GroupRow(kind, key, body) for _, kind, key, body in rows if kind is not None)
                return None if head is None else StoredGroup(head, tuple(stored))
        raise StoreBusy(f"group {name!r} changes faster than it can be read")

    @store_call()
    async def change_group(self, application: str, name: str, version: int, change: GroupChange) -> GroupHead | None:
        group = application, name
        head = replace(change.head, version=new_number())
        if not version:
            values = *group, stamp_of(self._clock.now())
            await self._driver.ask(StatementRequest(_INSERT_NAME, values, self._options.catalogue_write))
        rows = [(_SET_ROW, (row.body, *group, row.kind, row.key)) for row in change.rows]
        values = *astuple(head)[1:], head.version, *group, version or None
        async with self._transactions.turn(("group", *group)):
            result = await self._transactions.run(_UPDATE_HEAD, values, head.version, further=rows)
        if result.is_unclear:
            raise make_unclear_error(f"group {name!r}")
        return head if result.is_done else None

    @store_call()
    async def remove_group(self, application: str, name: str, version: int) -> bool:
        group = application, name
        began = self._clock.now()
        async with self._transactions.turn(("group", *group)):
            result = await self._transactions.run(
                REMOVE_HEAD,
                (*group, version or -1),
                further=[(_DELETE_ROWS, group)],
                read_back=StatementRequest(_SELECT_HEAD, group, self._options.catalogue_serial),
            )
        if result.is_unclear:
            raise make_unclear_error(f"group {name!r}")
        if result.is_done:
            # A caller that creates the group again records its name later, by a clock at most S behind this one.
            until = stamp_of(began - ticks(self._timing.stored.assumed.clock_difference))
            with suppress(StoreUnavailable):  # The group is gone; its name does not count.
                await self._driver.ask(StatementRequest(_DELETE_NAME, (until, *group), self._options.catalogue_write))
        return result.is_done

    @store_call()
    async def group_names(
        self, application: str, *, start: str = "", limit: int = 100, creator: bytes | None = None
    ) -> list[str]:
        existing: list[str] = []
        while len(existing) < limit:
            values = application, start, limit
            names = [
                name
                for (name,) in await self._driver.ask(
                    StatementRequest(_SELECT_NAMES, values, self._options.catalogue_read)
                )
            ]
            reads = [
                StatementRequest(_SELECT_HEAD, (application, name), self._levels.log_read_level()) for name in names
            ]
            heads = map(_decode_head, await self._driver.ask_all(reads))
            existing += [n for n, h in zip(names, heads, strict=True) if h is not None and creator in {None, h.creator}]
            if len(names) < limit:
                break
            start = names[-1] + "\0"
        return existing[:limit]

    def sample_clock(self) -> ClockSample:
        since_boot = self._clock.boottime()
        return ClockSample(self._now_ms(), since_boot)

    @store_call()
    async def renew_session(self, application: str, name: str, member: int, session: int) -> int:
        await self._watch.require_sound()
        seen = self._now_ms()
        await self._write_session(application, name, member, 0, seen, session_ttl(session))
        return seen

    @store_call()
    async def confirm_clock(self, sample: ClockSample) -> None:
        await wait_for_callback(lambda done: self._watch.confirm_soon(partial(done, None)))
        if not self._watch.is_timed_correctly_since(sample.since_boot):
            raise StoreUnavailable("the clock was wrong and has been corrected; try again")

    @store_call()
    async def group_sessions(self, application: str, name: str) -> GroupSessions:
        await self._watch.require_sound()
        clock = self._now_ms()
        rows = await self._driver.ask(
            StatementRequest(_SELECT_SESSIONS, (application, name), self._options.catalogue_read)
        )
        return sessions_of(clock, rows)

    @store_call()
    async def ask_member(self, application: str, name: str, member: int, uid: int, session: int) -> None:
        await self._write_session(application, name, member, uid, self._now_ms(), session)

    @store_call()
    async def record_search(self, application: str, name: str, when: int) -> None:
        await self._write_session(application, name, *SEARCH_ROW, when, SEARCH_TTL)

    async def _write_session(self, application: str, name: str, member: int, uid: int, when: int, ttl: int) -> None:
        values = application, name, member, uid, when, 1000 * when, -(-ttl // 1000)
        await self._driver.ask(StatementRequest(_RECORD_SESSION, values, self._options.catalogue_write))


def _decode_head(rows: Rows) -> GroupHead | None:
    if not rows or rows[0][-1] is None:
        return None
    *fields, version = rows[0]
    return GroupHead(version, *fields)
