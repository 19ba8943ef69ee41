"""The states of one partition of a session: each transition, and what is recorded and told meanwhile."""

from __future__ import annotations

import asyncio

import pytest

from qdo.consumer.owned_partition import State
from qdo.consumer.rebalance.partition_table import LAST_WORD, PartitionTable, SessionEvents, SessionOptions
from qdo.coordination import Member
from qdo.errors import CoordinationLost, SessionLost
from qdo.partitions import Partition
from tests.qdo.unit.group.scene import FIRST, LATER, ONE, TWO
from tests.qdo.unit.group.scripted import Diary, Scripted, ScriptedSession, standing_time, until


class Site:
    """A table on a scripted session, and who works on its partitions."""

    def __init__(self, service: Scripted, owner: Diary, **options: float) -> None:
        self.service = service
        self.owner = owner
        self.events = SessionEvents(lambda event: self.table.close() if event == "lost" else None)
        self.session = ScriptedSession(service, Member("a"), self.events)
        service.sessions.append(self.session)
        settings = {"revoke_timeout": 20.0, "patience": 20.0, "draw": lambda: 0.0} | options
        self.table = PartitionTable(self.session, owner, SessionOptions(**settings), self.events)  # type: ignore[arg-type]

    def state(self, partition: Partition = ONE) -> State | None:
        """Returns the state of a partition; None: it has no row."""
        return self.table.states.get(partition)

    async def until(self, state: State | None, partition: Partition = ONE) -> None:
        """Waits until a partition has a state."""
        await until(lambda: self.state(partition) == state)

    def recorded(self, partition: Partition = ONE) -> str | None:
        """Returns the offset that is recorded."""
        return self.service.recorded[partition][0]


@pytest.fixture
def site(service: Scripted, owner: Diary) -> Site:
    """A table without rows."""
    return Site(service, owner)


async def test_none_to_owned(site: Site) -> None:
    """What is taken is owned, and its owner is told; what is another's has no row."""
    site.service.owned[TWO] = "somebody"
    await site.table.claim([ONE, TWO])
    assert (site.state(ONE), site.state(TWO)) == ("owned", None)
    await until(lambda: site.owner.have == {ONE})


async def test_none_to_unsure_and_back(site: Site) -> None:
    """When the end of a taking is not known nobody is told; taking again settles it either way."""
    site.service.owned[TWO] = "somebody"
    site.service.faults["take"] = "in doubt"
    with pytest.raises(CoordinationLost):
        await site.table.claim([ONE, TWO])
    assert (site.state(ONE), site.state(TWO)) == ("unsure", "unsure")
    assert site.owner.notified == []
    await site.table.claim([ONE, TWO])
    assert (site.state(ONE), site.state(TWO)) == ("owned", None)


async def test_unsure_to_releasing(site: Site) -> None:
    """It is released without a word to the owner."""
    site.service.faults["take"] = "in doubt"
    with pytest.raises(CoordinationLost):
        await site.table.claim([ONE])
    site.table.give_up([ONE])
    assert site.state() == "releasing"
    await site.until(None)
    assert site.service.owned == {}
    assert site.owner.notified == []


async def test_unsure_while_it_is_taken_is_given_up_later(site: Site) -> None:
    """Nobody knows which would come first, so that it might be believed to be owned and be anybody's."""
    site.service.faults["take"] = "in doubt"
    with pytest.raises(CoordinationLost):
        await site.table.claim([ONE])
    answer = site.service.held_up["take"] = asyncio.Event()
    taking = asyncio.create_task(site.table.claim([ONE]))
    await until(lambda: site.service.calls.count("take") == 2)
    answer.set()
    await until(lambda: site.service.recorded[ONE][1] == 2)
    site.table.give_up([ONE])
    await taking
    for _ in range(10):
        await asyncio.sleep(0)
    assert (site.state(), site.service.owned) == ("owned", {ONE: site.session})
    site.table.give_up([ONE])
    await site.until(None)
    assert site.service.owned == {}


async def test_an_owner_that_never_takes_notice_keeps_no_row(site: Site) -> None:
    """The partition can be taken anew after it was given up, though the first word of it was never heard out."""
    site = Site(site.service, site.owner, revoke_timeout=0.01)
    site.owner.assigning = asyncio.Event()
    await site.table.claim([ONE])
    await until(lambda: site.owner.have == {ONE})
    site.table.give_up([ONE])
    await site.until(None)
    assert site.service.owned == {}


async def test_owned_to_revoking_to_releasing_to_none(site: Site) -> None:
    """The owner stops at once, may commit until it is done, and no more from then on."""
    site.owner.slow[ONE] = asyncio.Event()
    release = site.service.held_up["release"] = asyncio.Event()
    await site.table.claim([ONE])
    site.table.give_up([ONE])
    assert site.state() == "revoking"
    assert {row.partition for row in site.owner.stopped} == {ONE}
    assert await site.table.record({ONE: FIRST}) == frozenset()
    site.owner.hurry()
    await site.until("releasing")
    assert await site.table.record({ONE: LATER}) == {ONE}
    release.set()
    await site.until(None)
    assert site.service.owned == {}
    assert site.recorded() == FIRST
    assert [what for what, _ in site.owner.notified] == ["assigned", "revoke"]


async def test_revoking_to_releasing_when_the_time_is_over(site: Site) -> None:
    """It is released at once; the owner is told that it is lost, and the row stays until it was."""
    site.owner.slow[ONE] = asyncio.Event()
    with standing_time() as skip:
        await site.table.claim([ONE])
        site.table.give_up([ONE])
        await until(lambda: [what for what, _ in site.owner.notified] == ["assigned", "revoke"])
        skip(20.0)
        await until(lambda: site.service.owned == {})
        await site.until(None)
    assert [what for what, _ in site.owner.notified] == ["assigned", "revoke", "lost"]
    assert site.owner.cancelled == ["revoke"]


async def test_owned_to_releasing_when_it_is_found_to_be_anothers(site: Site) -> None:
    """The commit says so, the owner is told, and what is another's is not touched."""
    await site.table.claim([ONE])
    site.service.owned[ONE] = "somebody"
    assert await site.table.record({ONE: FIRST}) == {ONE}
    assert site.state() == "releasing"
    await site.until(None)
    assert [what for what, _ in site.owner.notified] == ["assigned", "lost"]
    assert site.service.owned == {ONE: "somebody"}


async def test_revoking_to_releasing_when_it_is_found_to_be_anothers(site: Site) -> None:
    """The owner that was asked to stop does so, and is told nothing else."""
    site.owner.slow[ONE] = asyncio.Event()
    await site.table.claim([ONE])
    site.table.give_up([ONE])
    site.service.owned[ONE] = "somebody"
    assert await site.table.record({ONE: FIRST}) == {ONE}
    assert site.state() == "releasing"
    site.owner.hurry()
    await site.until(None)
    assert [what for what, _ in site.owner.notified] == ["assigned", "revoke"]


@pytest.mark.parametrize("state", ["owned", "revoking", "releasing", "unsure"])
async def test_every_state_to_lost(site: Site, state: State) -> None:
    """Nothing is held from that instant on; who was told that it has the partition is told that it has not."""
    if state == "unsure":
        site.service.faults["take"] = "in doubt"
        with pytest.raises(CoordinationLost):
            await site.table.claim([ONE])
    else:
        await site.table.claim([ONE])
        await until(lambda: site.owner.have == {ONE})
    if state in {"revoking", "releasing"}:
        site.owner.slow = {ONE: asyncio.Event()} if state == "revoking" else {}
        site.service.held_up["release"] = asyncio.Event()
        site.table.give_up([ONE])
        await until(lambda: "revoke" in [what for what, _ in site.owner.notified] and site.state() == state)
    rows = list(site.table.held.values())
    site.service.expire(site.session)
    assert site.table.held == {}
    assert site.table.states == {}
    assert all(row.state == "lost" for row in rows)
    with pytest.raises(SessionLost):
        await site.table.record({ONE: FIRST})
    await site.table.abandon()
    notified = {"owned": ["assigned", "lost"], "revoking": ["assigned", "revoke", "lost"], "unsure": []}
    assert [what for what, _ in site.owner.notified] == notified.get(state, ["assigned", "revoke"])


async def test_a_late_end_never_meets_a_new_beginning(site: Site) -> None:
    """An owner that does not stop is told that the partition is lost before it is told that it has it again."""
    stuck = asyncio.Event()

    async def swallow(_: frozenset[Partition]) -> None:
        while not stuck.is_set():
            try:
                await stuck.wait()
            except asyncio.CancelledError:
                continue

    await site.table.claim([ONE])
    site.owner.on_revoke = swallow
    with standing_time() as skip:
        site.table.give_up([ONE])
        await until(lambda: [what for what, _ in site.owner.notified] == ["assigned", "revoke"])
        skip(20.0)
        await until(lambda: site.service.owned == {})
        assert site.state() == "releasing"
        skip(LAST_WORD)
        await site.until(None)
    await site.table.claim([ONE])
    await until(lambda: len(site.owner.notified) == 4)
    assert [what for what, _ in site.owner.notified] == ["assigned", "revoke", "lost", "assigned"]
    stuck.set()
    await until(lambda: not site.table._calls)
    assert site.state() == "owned"


@pytest.mark.parametrize("fault", ["refused", "in doubt"])
async def test_an_older_commit_is_not_repeated_after_a_newer_one(site: Site, fault: str) -> None:
    """When the connection breaks only the offset that was asked for last is recorded, and both callers are told."""
    await site.table.claim([ONE])
    site.service.faults["commit"] = fault  # type: ignore[assignment] # both are faults
    older = asyncio.create_task(site.table.record({ONE: LATER}))
    await until(lambda: "commit" in site.service.calls)
    newer = asyncio.create_task(site.table.record({ONE: FIRST}))
    assert await older == await newer == frozenset()
    assert site.recorded() == FIRST
    assert site.service.calls.count("commit") == 2


async def test_a_commit_that_nobody_waits_for_any_more_is_replaced_as_well(site: Site) -> None:
    """Its caller was told that it may have been recorded; what is recorded in the end was asked for last."""
    site = Site(site.service, site.owner, patience=0.0)
    await site.table.claim([ONE])
    site.service.faults["commit"] = "refused"
    site.service.held_up["take"] = asyncio.Event()
    with pytest.raises(CoordinationLost):
        await site.table.record({ONE: FIRST})
    newer = asyncio.create_task(site.table.record({ONE: LATER}))
    site.service.held_up.pop("take").set()
    assert await newer == frozenset()
    assert site.recorded() == LATER


async def test_a_commit_goes_before_the_release(site: Site) -> None:
    """One that was asked for while the owner gave up is recorded, however late the service answers."""
    commit = site.service.held_up["commit"] = asyncio.Event()
    await site.table.claim([ONE])
    recording = asyncio.create_task(site.table.record({ONE: FIRST}))
    await until(lambda: "commit" in site.service.calls)
    site.table.give_up([ONE])
    await site.until("releasing")
    commit.set()
    assert await recording == frozenset()
    await site.until(None)
    assert site.recorded() == FIRST
    assert site.service.calls[-2:] == ["commit", "release"]


async def test_whoever_does_not_release_is_waited_for_no_longer(site: Site) -> None:
    """A commit that fails when its partition is being released is given up, and the partition goes."""
    site.service.faults["commit"] = "refused"
    await site.table.claim([ONE])
    commit = site.service.held_up["commit"] = asyncio.Event()
    recording = asyncio.create_task(site.table.record({ONE: FIRST}))
    await until(lambda: "commit" in site.service.calls)
    site.table.give_up([ONE])
    await site.until("releasing")
    commit.set()
    with pytest.raises(CoordinationLost):
        await recording
    await site.until(None)
    assert site.service.owned == {}


async def test_a_release_is_tried_until_it_is_done(site: Site) -> None:
    """Whatever is not answered is asked again; meanwhile the partition is not taken anew."""
    site.service.faults["release"] = "refused"
    await site.table.claim([ONE])
    site.table.give_up([ONE])
    await site.until(None)
    assert site.service.calls.count("release") == 2
