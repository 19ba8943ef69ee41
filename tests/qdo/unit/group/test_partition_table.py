"""The states of one partition of a session: each transition, and what is recorded and told meanwhile."""

from __future__ import annotations

import asyncio

import pytest

from qdo.consumer.owned_partition import State
from qdo.consumer.rebalance.partition_table import CANCEL_GRACE, PartitionTable, SessionEvents, SessionOptions
from qdo.coordination import Member
from qdo.errors import CoordinationLost, SessionLost
from qdo.partitions import Partition
from tests.qdo.unit.group.group_samples import FIRST, LATER, ONE, TWO
from tests.qdo.unit.group.scripted import Diary, Scripted, ScriptedSession, standing_time, until


class TableSetup:
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
def setup(service: Scripted, owner: Diary) -> TableSetup:
    """A table without rows."""
    return TableSetup(service, owner)


async def test_none_to_owned(setup: TableSetup) -> None:
    """What is taken is owned, and its owner is told; what is another's has no row."""
    setup.service.owned[TWO] = "somebody"
    await setup.table.claim([ONE, TWO])
    assert (setup.state(ONE), setup.state(TWO)) == ("owned", None)
    await until(lambda: setup.owner.have == {ONE})


async def test_none_to_unsure_and_back(setup: TableSetup) -> None:
    """When the end of a taking is not known nobody is told; taking again settles it either way."""
    setup.service.owned[TWO] = "somebody"
    setup.service.faults["take"] = "in doubt"
    with pytest.raises(CoordinationLost):
        await setup.table.claim([ONE, TWO])
    assert (setup.state(ONE), setup.state(TWO)) == ("unsure", "unsure")
    assert setup.owner.notified == []
    await setup.table.claim([ONE, TWO])
    assert (setup.state(ONE), setup.state(TWO)) == ("owned", None)


async def test_unsure_to_releasing(setup: TableSetup) -> None:
    """It is released without a word to the owner."""
    setup.service.faults["take"] = "in doubt"
    with pytest.raises(CoordinationLost):
        await setup.table.claim([ONE])
    setup.table.give_up([ONE])
    assert setup.state() == "releasing"
    await setup.until(None)
    assert setup.service.owned == {}
    assert setup.owner.notified == []


async def test_unsure_while_it_is_taken_is_given_up_later(setup: TableSetup) -> None:
    """Nobody knows which would come first, so that it might be believed to be owned and be anybody's."""
    setup.service.faults["take"] = "in doubt"
    with pytest.raises(CoordinationLost):
        await setup.table.claim([ONE])
    answer = setup.service.held_up["take"] = asyncio.Event()
    taking = asyncio.create_task(setup.table.claim([ONE]))
    await until(lambda: setup.service.calls.count("take") == 2)
    answer.set()
    await until(lambda: setup.service.recorded[ONE][1] == 2)
    setup.table.give_up([ONE])
    await taking
    for _ in range(10):
        await asyncio.sleep(0)
    assert (setup.state(), setup.service.owned) == ("owned", {ONE: setup.session})
    setup.table.give_up([ONE])
    await setup.until(None)
    assert setup.service.owned == {}


async def test_an_owner_that_never_takes_notice_keeps_no_row(setup: TableSetup) -> None:
    """The partition can be taken anew after it was given up, though the first word of it was never heard out."""
    setup = TableSetup(setup.service, setup.owner, revoke_timeout=0.01)
    setup.owner.assigning = asyncio.Event()
    await setup.table.claim([ONE])
    await until(lambda: setup.owner.have == {ONE})
    setup.table.give_up([ONE])
    await setup.until(None)
    assert setup.service.owned == {}


async def test_owned_to_revoking_to_releasing_to_none(setup: TableSetup) -> None:
    """The owner stops at once, may commit until it is done, and no more from then on."""
    setup.owner.slow[ONE] = asyncio.Event()
    release = setup.service.held_up["release"] = asyncio.Event()
    await setup.table.claim([ONE])
    setup.table.give_up([ONE])
    assert setup.state() == "revoking"
    assert {row.partition for row in setup.owner.stopped} == {ONE}
    assert await setup.table.record({ONE: FIRST}) == frozenset()
    setup.owner.hurry()
    await setup.until("releasing")
    assert await setup.table.record({ONE: LATER}) == {ONE}
    release.set()
    await setup.until(None)
    assert setup.service.owned == {}
    assert setup.recorded() == FIRST
    assert [what for what, _ in setup.owner.notified] == ["assigned", "revoke"]


async def test_revoking_to_releasing_when_the_time_is_over(setup: TableSetup) -> None:
    """It is released at once; the owner is told that it is lost, and the row stays until it was."""
    setup.owner.slow[ONE] = asyncio.Event()
    with standing_time() as skip:
        await setup.table.claim([ONE])
        setup.table.give_up([ONE])
        await until(lambda: [what for what, _ in setup.owner.notified] == ["assigned", "revoke"])
        skip(20.0)
        await until(lambda: setup.service.owned == {})
        await setup.until(None)
    assert [what for what, _ in setup.owner.notified] == ["assigned", "revoke", "lost"]
    assert setup.owner.cancelled == ["revoke"]


async def test_owned_to_releasing_when_it_is_found_to_be_anothers(setup: TableSetup) -> None:
    """The commit says so, the owner is told, and what is another's is not touched."""
    await setup.table.claim([ONE])
    setup.service.owned[ONE] = "somebody"
    assert await setup.table.record({ONE: FIRST}) == {ONE}
    assert setup.state() == "releasing"
    await setup.until(None)
    assert [what for what, _ in setup.owner.notified] == ["assigned", "lost"]
    assert setup.service.owned == {ONE: "somebody"}


async def test_revoking_to_releasing_when_it_is_found_to_be_anothers(setup: TableSetup) -> None:
    """The owner that was asked to stop does so, and is told nothing else."""
    setup.owner.slow[ONE] = asyncio.Event()
    await setup.table.claim([ONE])
    setup.table.give_up([ONE])
    setup.service.owned[ONE] = "somebody"
    assert await setup.table.record({ONE: FIRST}) == {ONE}
    assert setup.state() == "releasing"
    setup.owner.hurry()
    await setup.until(None)
    assert [what for what, _ in setup.owner.notified] == ["assigned", "revoke"]


@pytest.mark.parametrize("state", ["owned", "revoking", "releasing", "unsure"])
async def test_every_state_to_lost(setup: TableSetup, state: State) -> None:
    """Nothing is held from that instant on; who was told that it has the partition is told that it has not."""
    if state == "unsure":
        setup.service.faults["take"] = "in doubt"
        with pytest.raises(CoordinationLost):
            await setup.table.claim([ONE])
    else:
        await setup.table.claim([ONE])
        await until(lambda: setup.owner.have == {ONE})
    if state in {"revoking", "releasing"}:
        setup.owner.slow = {ONE: asyncio.Event()} if state == "revoking" else {}
        setup.service.held_up["release"] = asyncio.Event()
        setup.table.give_up([ONE])
        await until(lambda: "revoke" in [what for what, _ in setup.owner.notified] and setup.state() == state)
    rows = list(setup.table.held.values())
    setup.service.expire(setup.session)
    assert setup.table.held == {}
    assert setup.table.states == {}
    assert all(row.state == "lost" for row in rows)
    with pytest.raises(SessionLost):
        await setup.table.record({ONE: FIRST})
    await setup.table.abandon()
    notified = {"owned": ["assigned", "lost"], "revoking": ["assigned", "revoke", "lost"], "unsure": []}
    assert [what for what, _ in setup.owner.notified] == notified.get(state, ["assigned", "revoke"])


async def test_a_late_end_never_meets_a_new_beginning(setup: TableSetup) -> None:
    """An owner that does not stop is told that the partition is lost before it is told that it has it again."""
    stuck = asyncio.Event()

    async def swallow(_: frozenset[Partition]) -> None:
        while not stuck.is_set():
            try:
                await stuck.wait()
            except asyncio.CancelledError:
                continue

    await setup.table.claim([ONE])
    setup.owner.on_revoke = swallow
    with standing_time() as skip:
        setup.table.give_up([ONE])
        await until(lambda: [what for what, _ in setup.owner.notified] == ["assigned", "revoke"])
        skip(20.0)
        await until(lambda: setup.service.owned == {})
        assert setup.state() == "releasing"
        skip(CANCEL_GRACE)
        await setup.until(None)
    await setup.table.claim([ONE])
    await until(lambda: len(setup.owner.notified) == 4)
    assert [what for what, _ in setup.owner.notified] == ["assigned", "revoke", "lost", "assigned"]
    stuck.set()
    await until(lambda: not setup.table._calls)
    assert setup.state() == "owned"


@pytest.mark.parametrize("fault", ["refused", "in doubt"])
async def test_an_older_commit_is_not_repeated_after_a_newer_one(setup: TableSetup, fault: str) -> None:
    """When the connection breaks only the offset that was asked for last is recorded, and both callers are told."""
    await setup.table.claim([ONE])
    setup.service.faults["commit"] = fault  # type: ignore[assignment] # both are faults
    older = asyncio.create_task(setup.table.record({ONE: LATER}))
    await until(lambda: "commit" in setup.service.calls)
    newer = asyncio.create_task(setup.table.record({ONE: FIRST}))
    assert await older == await newer == frozenset()
    assert setup.recorded() == FIRST
    assert setup.service.calls.count("commit") == 2


async def test_a_commit_that_nobody_waits_for_any_more_is_replaced_as_well(setup: TableSetup) -> None:
    """Its caller was told that it may have been recorded; what is recorded in the end was asked for last."""
    setup = TableSetup(setup.service, setup.owner, patience=0.0)
    await setup.table.claim([ONE])
    setup.service.faults["commit"] = "refused"
    setup.service.held_up["take"] = asyncio.Event()
    with pytest.raises(CoordinationLost):
        await setup.table.record({ONE: FIRST})
    newer = asyncio.create_task(setup.table.record({ONE: LATER}))
    setup.service.held_up.pop("take").set()
    assert await newer == frozenset()
    assert setup.recorded() == LATER


async def test_a_commit_goes_before_the_release(setup: TableSetup) -> None:
    """One that was asked for while the owner gave up is recorded, however late the service answers."""
    commit = setup.service.held_up["commit"] = asyncio.Event()
    await setup.table.claim([ONE])
    recording = asyncio.create_task(setup.table.record({ONE: FIRST}))
    await until(lambda: "commit" in setup.service.calls)
    setup.table.give_up([ONE])
    await setup.until("releasing")
    commit.set()
    assert await recording == frozenset()
    await setup.until(None)
    assert setup.recorded() == FIRST
    assert setup.service.calls[-2:] == ["commit", "release"]


async def test_whoever_does_not_release_is_waited_for_no_longer(setup: TableSetup) -> None:
    """A commit that fails when its partition is being released is given up, and the partition goes."""
    setup.service.faults["commit"] = "refused"
    await setup.table.claim([ONE])
    commit = setup.service.held_up["commit"] = asyncio.Event()
    recording = asyncio.create_task(setup.table.record({ONE: FIRST}))
    await until(lambda: "commit" in setup.service.calls)
    setup.table.give_up([ONE])
    await setup.until("releasing")
    commit.set()
    with pytest.raises(CoordinationLost):
        await recording
    await setup.until(None)
    assert setup.service.owned == {}


async def test_a_release_is_tried_until_it_is_done(setup: TableSetup) -> None:
    """Whatever is not answered is asked again; meanwhile the partition is not taken anew."""
    setup.service.faults["release"] = "refused"
    await setup.table.claim([ONE])
    setup.table.give_up([ONE])
    await setup.until(None)
    assert setup.service.calls.count("release") == 2
