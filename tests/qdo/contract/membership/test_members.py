"""Members join, are visible to others, and leave."""

from __future__ import annotations

import contextlib
import time

import pytest

from qdo.errors import CoordinationIncompatible, CoordinationLost, InvalidArgument, MemberExists, SessionLost
from qdo.group.records import Member, TargetAssignment, Visibility
from qdo.group.zookeeper.session import ZooKeeperSession
from qdo.partitions import Partition, Queue, Subscription
from tests.qdo.contract.backends import Service, once
from tests.qdo.contract.conftest import Join, Open
from tests.qdo.contract.events import RecordedEvents, eventually
from tests.qdo.contract.samples import NAMES, PARTITION, first_partitions


async def test_a_member_is_seen_by_all_as_it_joined(join: Join, open_one: Open) -> None:
    """All members and observers see a member's subscription, its kind and the time of its join."""
    wants = Subscription(frozenset({"orders", "bills"}), ("log-*", "a?"), "other", "acme")
    before = time.time()
    mine, _ = await join("a", wants=wants, static=True)
    other, _ = await join("b")
    seen = (await other.members())["a"]
    assert before - 60 < seen.since < time.time() + 60
    assert seen == Member("a", wants, static=True, since=seen.since)
    assert await mine.members() == await other.members() == await (await open_one()).members()
    assert set(await mine.members()) == {"a", "b"}


@once
@pytest.mark.parametrize("static", [False, True])
async def test_a_live_members_name_is_taken(join: Join, *, static: bool) -> None:
    """Joining under the name of a live member is refused, and does not harm that member."""
    first, _ = await join("a", static=static)
    held = await first.claim([PARTITION])
    with pytest.raises(MemberExists):
        await join("a", static=static)
    assert (await first.commit([(held[PARTITION], "1")]))[PARTITION]


async def test_a_member_is_replaced_by_one_that_says_so(join: Join, open_one: Open) -> None:
    """The earlier session is lost, its partitions can be claimed at once, and then it commits nothing."""
    first, heard = await join("a", static=True)
    held = await first.claim([PARTITION])
    assert (await first.commit([(held[PARTITION], "1")]))[PARTITION]
    await first.assignment()
    again = await (await open_one()).join(Member("a", static=True), RecordedEvents(), replace=True)
    claimed = await again.claim([PARTITION])
    assert claimed[PARTITION].offset.id == "1"
    with contextlib.suppress(SessionLost):
        assert await first.commit([(held[PARTITION], "2")]) == {PARTITION: None}
    with contextlib.suppress(SessionLost):
        await eventually(heard, first.assignment, lambda _: False)
    await heard.next("lost")
    assert (await again.commit([(claimed[PARTITION], "3")]))[PARTITION]
    assert list(await again.members()) == ["a"]


@pytest.mark.parametrize("name", NAMES, ids=ascii)
async def test_any_text_is_a_name(join: Join, open_one: Open, name: str) -> None:
    """Names of groups, members and parts of queues may be any text, and are read back unchanged."""
    partition = Partition(Queue(name, name, name), 255)
    wants = Subscription(frozenset({name}), (name,), name, name)
    session, _ = await join(name, name, wants=wants)
    held = await session.claim([partition])
    await session.commit([(held[partition], "1")])
    assert await session.set_target(TargetAssignment({partition: name}, {name: 1.5}, frozenset({name})), -1)
    looking = await open_one(name)
    assert (await looking.members())[name].wants == wants
    assert await looking.owners() == {partition: name}
    assert (await looking.offsets())[partition].member == name
    assert await looking.target() == TargetAssignment({partition: name}, {name: 1.5}, frozenset({name}))
    assert await looking.snapshot() == (
        await looking.members(),
        await looking.target(),
        await looking.owners(),
        await looking.offsets(),
    )
    assert await looking.groups() == [name]


@once
@pytest.mark.parametrize("name", ["", "x" * 1001, "\ud800"], ids=ascii)
async def test_what_is_no_name_is_refused(service: Service, open_one: Open, name: str) -> None:
    """Names that cannot be stored are refused before anything is stored."""
    with pytest.raises(InvalidArgument):
        service.coordinator(name)
    with pytest.raises(InvalidArgument):
        await (await open_one()).join(Member(name), RecordedEvents())


async def expect_lost(session: ZooKeeperSession) -> None:
    assert session.state == "lost"
    for call in (
        session.members,
        session.target,
        lambda: session.set_target(TargetAssignment(), -1),
        session.assignment,
        session.lead,
        lambda: session.claim([PARTITION]),
        lambda: session.release([PARTITION]),
        lambda: session.commit([]),
    ):
        with pytest.raises(SessionLost):
            await call()  # type: ignore[no-untyped-call, unused-ignore]


async def test_leaving_ends_everything(join: Join, open_one: Open) -> None:
    """Leaving frees everything held, methods refuse, leaving again does nothing, and no event follows."""
    mine, heard = await join("a")
    other, others_heard = await join("b")
    await mine.claim(first_partitions(3))
    assert await other.claim([PARTITION]) == {}
    await mine.leave()
    heard.forget()
    told = len(heard.events)
    await expect_lost(mine)
    await mine.leave()
    await others_heard.next("changed")
    assert set(await other.claim(first_partitions(3))) == set(first_partitions(3))
    assert set(await other.members()) == {"b"}
    assert len(heard.events) == told
    assert "lost" not in heard.events


async def test_closing_ends_the_sessions(open_one: Open) -> None:
    """Closing notifies the members of their loss, frees what they held, and may be repeated."""
    coordinator, looking = await open_one(), await open_one()
    heard = RecordedEvents()
    session = await coordinator.join(Member("a"), heard)
    await session.claim([PARTITION])
    await coordinator.close()
    await heard.next("lost")
    assert heard.events[-1] == "lost"
    await expect_lost(session)
    await session.leave()
    await coordinator.close()
    assert await looking.members() == {}
    assert await looking.owners() == {}


async def test_only_an_open_coordinator_works(service: Service, open_one: Open) -> None:
    """Before it is opened and after it is closed every method refuses; opening twice is harmless."""
    fresh, closed = service.coordinator(), await open_one()
    await closed.open()
    await closed.close()
    for coordinator in (fresh, closed):
        for call in (
            lambda coordinator=coordinator: coordinator.join(Member("a"), RecordedEvents()),
            coordinator.members,
            coordinator.target,
            coordinator.owners,
            coordinator.offsets,
            lambda coordinator=coordinator: coordinator.set_offsets({PARTITION: "1"}),
            coordinator.groups,
            coordinator.forget,
        ):
            with pytest.raises(CoordinationLost):
                await call()
    await fresh.close()


@once
async def test_a_member_of_a_newer_program_is_not_guessed_at(join: Join, service: Service) -> None:
    """Data written by a newer program is refused rather than misread."""
    mine, _ = await join("a")
    await join("b")
    await service.write_member("group", "b", b"qdo9=?")
    with pytest.raises(CoordinationIncompatible):
        await mine.members()


async def test_everybody_hears_of_what_the_leader_may_see(join: Join) -> None:
    """Members know the current leader, and the leader knows them; a retired member no longer leads."""
    sight = Visibility(("orders", "log-*"), {})
    first, mine = await join("a", sight=sight)
    assert await first.lead()
    second, heard = await join("b")
    leader = await eventually(heard, second.leader, lambda found: found is not None)
    assert leader is not None
    assert (leader.id, leader.sight) == ("a", sight)
    assert await second.members()
    assert not await second.lead()
    more = Visibility(("*",))
    await first.set_sight(more)
    await eventually(heard, second.leader, lambda found: found is not None and found.sight == more)
    await first.members()
    others = Visibility(("bills",), {f"bills-{number}": number for number in range(1, 200)})
    await second.set_sight(others)
    seen = await eventually(mine, first.members, lambda found: found["b"].sight == others)
    assert seen["a"].sight == more
    await first.retire()
    assert await eventually(heard, second.lead, bool)
    assert (await second.members())["a"].sight == more
