"""Tests of the stored state and sessions of groups."""

from __future__ import annotations

import pytest

from queuey.model.groups import GroupChange, GroupHead, GroupRow, StoredGroup
from queuey.storage import Store, bridge
from tests.backends import APP, Clock
from tests.contract.samples import call_concurrently, fresh_name

ROWS = (GroupRow(0, 0, b"wishes"), GroupRow(1, 0, b"member"), GroupRow(1, 999, b"another"), GroupRow(2, 63, b"plan"))
HEAD = GroupHead(0, 7, 5, 9, 1, 2, 3, 4, "centre", 6, b"creator")


@pytest.fixture
def group() -> str:
    """Returns a group name that no test has used before, because sessions stay."""
    return fresh_name()


def create_group(store: Store, name: str, application: str = APP) -> GroupHead:
    head = bridge.run(store.groups.change_group(application, name, 0, GroupChange(HEAD, ROWS)))
    assert head is not None
    return head


def test_state_is_what_was_written(store: Store, other: Store, group: str) -> None:
    """Head and rows are those of the last change; rows that it does not name stay."""
    assert bridge.run(store.groups.group_head(APP, group)) is None
    assert bridge.run(store.groups.group_state(APP, group)) is None
    head = create_group(store, group)
    assert head == GroupHead(head.version, *[getattr(HEAD, name) for name in GroupHead.__struct_fields__[1:]])
    assert head.version
    assert bridge.run(other.groups.group_state(APP, group)) == StoredGroup(head, ROWS)
    change = GroupChange(GroupHead(epoch=8, born=5), (GroupRow(1, 0, b""), GroupRow(1, 1, b"third")))
    after = bridge.run(other.groups.change_group(APP, group, head.version, change))
    assert after is not None
    rows = (ROWS[0], *change.rows, ROWS[2], ROWS[3])
    assert bridge.run(store.groups.group_state(APP, group)) == StoredGroup(after, rows)
    for serial in (False, True):
        assert bridge.run(store.groups.group_head(APP, group, serial=serial)) == after == GroupHead(after.version, 8, 5)


def test_one_of_several_changes(store: Store, other: Store, group: str) -> None:
    """A change is applied only to the state that it was decided by; otherwise nothing is written."""
    head = create_group(store, group)
    for version in (0, head.version + 1):
        assert (
            bridge.run(other.groups.change_group(APP, group, version, GroupChange(HEAD, (GroupRow(1, 5, b"late"),))))
            is None
        )
        assert not bridge.run(other.groups.remove_group(APP, group, version))
    assert bridge.run(other.groups.group_state(APP, group)) == StoredGroup(head, ROWS)

    def change(number: int) -> GroupHead | None:
        change = GroupChange(GroupHead(epoch=number), (GroupRow(1, number, b""),))
        return bridge.run((store, other)[number % 2].groups.change_group(APP, group, head.version, change))

    done = [each for each in call_concurrently(change, range(1, 4)) if each is not None]
    [applied] = done
    state = bridge.run(store.groups.group_state(APP, group))
    assert state is not None
    assert state.head == applied
    assert [row.key for row in state.rows if row not in ROWS] == [applied.epoch]


def test_large_state(store: Store, group: str) -> None:
    """A group of 1,000 members with a plan of 1 MiB is read as one transaction left it."""
    members = [GroupRow(1, key, b"m" * 200) for key in range(1000)]
    chunks = [GroupRow(2, key, b"c" * (16 << 10)) for key in range(64)]
    head = bridge.run(store.groups.change_group(APP, group, 0, GroupChange(HEAD, (*members, *chunks))))
    state = bridge.run(store.groups.group_state(APP, group))
    assert state is not None
    assert (state.head, list(state.rows)) == (head, members + chunks)


def test_removed_and_made_again(store: Store, other: Store, group: str) -> None:
    """A removed group leaves no rows to the next one of its name, and no version repeats."""
    head = create_group(store, group)
    assert bridge.run(other.groups.remove_group(APP, group, head.version))
    assert bridge.run(store.groups.group_head(APP, group)) is None
    assert bridge.run(store.groups.group_state(APP, group)) is None
    assert bridge.run(store.groups.change_group(APP, group, head.version, GroupChange(HEAD, ()))) is None
    again = bridge.run(store.groups.change_group(APP, group, 0, GroupChange(HEAD, ())))
    assert again is not None
    assert again.version != head.version
    assert bridge.run(other.groups.group_state(APP, group)) == StoredGroup(again)
    assert bridge.run(other.groups.group_names(APP)) == [group]


def test_names(store: Store, other: Store) -> None:
    """Groups are listed by name from a start name, without removed groups and those of other applications."""
    for name in ("b", "a", "c", "d"):
        create_group(store, name)
    create_group(store, "e", "globex")
    head = bridge.run(store.groups.group_head(APP, "c"))
    assert head is not None
    assert bridge.run(store.groups.remove_group(APP, "c", head.version))
    assert bridge.run(other.groups.group_names(APP)) == ["a", "b", "d"]
    assert bridge.run(other.groups.group_names(APP, start="b")) == ["b", "d"]
    assert bridge.run(other.groups.group_names(APP, start="a", limit=2)) == ["a", "b"]
    assert bridge.run(other.groups.group_names(APP, start="x")) == []
    head = bridge.run(store.groups.group_head(APP, "b"))
    assert head is not None
    bridge.run(store.groups.change_group(APP, "b", head.version, GroupChange(GroupHead(creator=b"another"), ())))
    assert bridge.run(other.groups.group_names(APP, creator=b"creator")) == ["a", "d"]
    assert bridge.run(other.groups.group_names(APP, creator=b"creator", start="b", limit=1)) == ["d"]
    assert bridge.run(other.groups.group_names(APP, creator=b"nobody")) == []


def test_sessions(store: Store, other: Store, group: str) -> None:
    """A member is seen at the time of the call by the clock of claims, and later readers see that."""
    before = store.clock.now_ms()
    seen = bridge.run(store.groups.renew_session(APP, group, 1, 3000))
    later = bridge.run(other.groups.renew_session(APP, group, 2, 3000))
    sessions = bridge.run(other.groups.group_sessions(APP, group))
    slack = 2000 * store.clock_difference
    assert before <= seen <= later + slack <= sessions.clock + 2 * slack
    assert {number: member.seen for number, member in sessions.members.items()} == {1: seen, 2: later}
    assert sessions.searched == 0
    assert bridge.run(store.groups.group_sessions(APP, "another")).members == {}


def test_asked(store: Store, other: Store, group: str) -> None:
    """The queues that a member is asked about are beside its session, or without one; the search has its own time."""
    bridge.run(store.groups.ask_member(APP, group, 1, 70, 60_000))
    seen = bridge.run(store.groups.renew_session(APP, group, 1, 60_000))
    bridge.run(other.groups.ask_member(APP, group, 1, 71, 60_000))
    bridge.run(other.groups.ask_member(APP, group, 2, 70, 60_000))
    now = store.clock.now_ms()
    for when in (now - 4, now, now - 2):
        bridge.run(other.groups.record_search(APP, group, when))
    sessions = bridge.run(store.groups.group_sessions(APP, group))
    assert {n: (member.seen, set(member.asked)) for n, member in sessions.members.items()} == {
        1: (seen, {70, 71}),
        2: (0, {70}),
    }
    assert sessions.searched == now


def test_clock_is_confirmed(store: Store) -> None:
    """With a sound clock an answer may be given, and members may join."""
    sample = store.groups.sample_clock()
    assert 0 <= store.clock.now_ms() - sample.now < 60_000
    bridge.run(store.groups.confirm_clock(sample))
    assert store.groups.groups_refusal() is None


@pytest.mark.needs("clock")
def test_the_highest_time_stays(store: Store, other: Store, clock: Clock, group: str) -> None:
    """A slow process, or one whose clock is behind, does not lower the time at which a member was seen."""
    seen = bridge.run(store.groups.renew_session(APP, group, 1, 3000))
    clock.advance(-1)
    assert bridge.run(other.groups.renew_session(APP, group, 1, 3000)) == seen - 1000
    assert bridge.run(store.groups.group_sessions(APP, group)).members[1].seen == seen
    clock.advance(2)
    assert bridge.run(other.groups.renew_session(APP, group, 1, 3000)) == seen + 1000
    assert bridge.run(store.groups.group_sessions(APP, group)).members[1].seen == seen + 1000
