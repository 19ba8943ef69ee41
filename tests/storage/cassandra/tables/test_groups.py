"""Groups on a simulated cluster: suspended machines, states that change while they are read, and expiry."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from functools import partial
from typing import Any

import pytest

from queuey.model.errors import StoreBusy, StoreUnavailable
from queuey.model.groups import GroupChange, GroupHead, GroupRow, StoredGroup
from queuey.storage.cassandra import CassandraOptions, CassandraStore
from queuey.storage.cassandra.cluster import Driver, Rows, Statement, StatementRequest
from queuey.storage.cassandra.tables import groups
from queuey.storage.cassandra.tables.groups import CassandraGroups
from queuey.storage.cassandra.time.clock import SteadyClock
from queuey.storage.contracts.groups import SEARCH_TTL, session_ttl
from tests.replacing import replace, replace_in
from tests.storage.cassandra.simulated import FaultlessDriver

GROUP = "acme", "group"
CHANGE = GroupChange(GroupHead(epoch=1), (GroupRow(1, 0, b"member"),))


class Opened:
    """A store on a cluster, in a process whose wall clock is ahead by some seconds."""

    def __init__(self, calm: FaultlessDriver, ahead: float = 0.0) -> None:
        self.calm = calm
        clock = SteadyClock(
            calm.clock().raw_boottime_ns, wall=lambda: round((calm.world.now + calm.ahead + ahead) * 1e9)
        )
        options = CassandraOptions(heartbeat=1e9)
        self.store = CassandraStore("cassandra://a/b", options, clock, driver=lambda *_, **__: calm)
        self.watch = self.store._watch
        calm.run_to_end(self.watch.require_sound())

    def begin(self, call: Any, *arguments: object, **named: object) -> Coroutine[Any, Any, Any]:  # noqa: ANN401
        coroutine: Coroutine[Any, Any, Any] = call.__wrapped__(self.store.groups, *arguments, **named)
        return coroutine

    def run_call(self, call: Any, *arguments: object, **named: object) -> Any:  # noqa: ANN401
        return self.calm.run_to_end(self.begin(call, *arguments, **named))


@pytest.fixture
def opened() -> Opened:
    return Opened(FaultlessDriver())


def test_a_machine_that_stood_still(opened: Opened) -> None:
    """A stamp is used only if the clock was right when it was made, even if a round has set it right since."""
    store, calm = opened.store, opened.calm
    confirm = partial(opened.run_call, CassandraGroups.confirm_clock)
    for _ in range(2):
        assert calm.run_to_end(opened.watch.check())
    before = store.groups.sample_clock()
    confirm(before)
    for node in calm.cluster.nodes:
        node.offset += 3.0
    with pytest.raises(StoreUnavailable):
        confirm(before)
    with pytest.raises(StoreUnavailable):
        store.groups.sample_clock()
    calm.ahead = 3.0
    for _ in range(3):
        calm.advance(0.1)
        calm.run_to_end(opened.watch.check())
    after = store.groups.sample_clock()
    assert after.now >= before.now + 3000
    with pytest.raises(StoreUnavailable):
        confirm(before)
    confirm(after)


def test_a_state_is_of_one_transaction(opened: Opened) -> None:
    """A state that is changed while it is read is read again, until head and rows have one token."""
    real, changes = Driver.ask_all, 1
    head = opened.run_call(CassandraGroups.change_group, *GROUP, 0, CHANGE)

    async def meddled(driver: Driver, requests: Sequence[StatementRequest]) -> list[Rows]:
        nonlocal changes, head
        first = await real(driver, requests[:1])
        if changes:
            changes -= 1
            rows = (GroupRow(1, 0, b"changed"),)
            head = await opened.begin(
                CassandraGroups.change_group, *GROUP, head.version, GroupChange(GroupHead(epoch=2), rows)
            )
        return first + await real(driver, requests[1:])

    with replace(Driver.ask_all, meddled):
        state = opened.run_call(CassandraGroups.group_state, *GROUP)
        assert state == StoredGroup(head, (GroupRow(1, 0, b"changed"),))
        changes = 99
        with pytest.raises(StoreBusy):
            opened.run_call(CassandraGroups.group_state, *GROUP)


def test_sessions_expire(opened: Opened) -> None:
    """Sessions, and the queues that members are asked about, expire without deletes."""
    seen = opened.run_call(CassandraGroups.renew_session, *GROUP, 1, 3000)
    opened.run_call(CassandraGroups.ask_member, *GROUP, 1, 7, 3000)
    with replace_in(groups, SEARCH_TTL, session_ttl(3000)):
        opened.run_call(CassandraGroups.record_search, *GROUP, seen)
    sessions = opened.run_call(CassandraGroups.group_sessions, *GROUP)
    assert (sessions.members[1].seen, sessions.members[1].asked, sessions.searched) == (seen, {7}, seen)
    opened.calm.advance(5)
    assert opened.run_call(CassandraGroups.group_sessions, *GROUP).members[1].asked == set()
    opened.calm.world.now += session_ttl(3000) / 1000
    sessions = opened.run_call(CassandraGroups.group_sessions, *GROUP)
    assert (sessions.members, sessions.searched) == ({}, 0)


def test_made_again_by_a_clock_that_is_behind(opened: Opened) -> None:
    """A group that is made again stays listed, even if its name is recorded by a clock that is behind."""
    ahead, behind = (Opened(opened.calm, ahead=seconds) for seconds in (0.07, -0.07))
    head = ahead.run_call(CassandraGroups.change_group, *GROUP, 0, CHANGE)
    opened.calm.advance(1)
    assert ahead.run_call(CassandraGroups.remove_group, *GROUP, head.version)
    names = StatementRequest(Statement("SELECT name FROM group_index WHERE application = ?"), ("acme",))
    assert opened.calm.run_to_end(opened.calm.ask(names)) == []
    behind.run_call(CassandraGroups.change_group, *GROUP, 0, CHANGE)
    assert opened.run_call(CassandraGroups.group_names, "acme") == ["group"]
