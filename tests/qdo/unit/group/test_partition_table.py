"""The states of one partition of a session: each transition, and what is recorded and reported meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from qdo.consumer.owned_partition import OwnedPartition, State
from qdo.consumer.rebalance.partition_table import PartitionTable
from qdo.consumer.rebalance.session_events import SessionEvents, SessionOptions
from qdo.coordination import HandlingNote, Member, Session
from qdo.coordination.tree import Delete
from qdo.errors import CoordinationLost, InvalidArgument, NotOwner, SessionLost
from qdo.partitions import Partition
from qdo.tasks import CANCEL_GRACE
from tests.qdo.unit.group.conftest import FIRST, LATER, ONE, OTHER_MEMBER, TWO
from tests.qdo.unit.group.faulty import Fault, SimulatedGroup
from tests.qdo.unit.group.owners import RecordingListener, freeze_time, until


class TableSetup(SimulatedGroup):
    """A partition table of a session on the tree, and its owner."""

    table: PartitionTable

    def __init__(self) -> None:
        super().__init__()
        self.owner = RecordingListener()
        self.events = SessionEvents(lambda event: self.table.close() if event == "lost" else None)
        self.faults, self.held_up = self.coordinator.faults, self.coordinator.held_up

    async def begin(self) -> None:
        await self.coordinator.open()
        self.session = await self.coordinator.join(Member("a"), self.events)
        self.renew()

    def renew(self, **options: float) -> None:
        settings = {"revoke_timeout": 20.0, "patience": 20.0, "draw": lambda: 0.0, "commit_listeners": [self.owner]}
        settings |= options
        self.table = PartitionTable(self.session, self.owner, SessionOptions(**settings), self.events)  # type: ignore[arg-type]

    async def take(self, partition: Partition) -> Session:
        other = await self.join(OTHER_MEMBER)
        assert await other.claim([partition])
        return other

    async def put_out(self, partition: Partition) -> None:
        """Removes the owner's node of a partition behind the session's back, and lets another member own it."""
        self.service.tree.apply(0, (Delete(self._paths.owner(partition)),))
        await self.take(partition)

    def state(self, partition: Partition = ONE) -> State | None:
        return self.table.states.get(partition)

    async def until(self, state: State | None, partition: Partition = ONE) -> None:
        await until(lambda: self.state(partition) == state)

    def version_of(self, partition: Partition) -> int:
        return self.service.tree.nodes[self._paths.offset(partition)].version

    @property
    def notifications(self) -> list[str]:
        return [what for what, _ in self.owner.notified]

    async def claim_in_doubt(self, *partitions: Partition) -> None:
        self.faults["claim"] = "in doubt"
        with pytest.raises(CoordinationLost):
            await self.table.claim(partitions)

    async def give_up(self, partition: Partition = ONE) -> None:
        """Gives a partition up and waits until it has no row and no owner."""
        self.table.give_up([partition])
        await self.until(None, partition)
        assert self.is_free(partition)


@pytest.fixture
async def setup() -> AsyncIterator[TableSetup]:
    setup = TableSetup()
    await setup.begin()
    yield setup
    await setup.coordinator.close()


async def test_none_to_owned(setup: TableSetup) -> None:
    """A claimed partition is owned, and its owner is notified; a partition of another member has no row."""
    await setup.take(TWO)
    await setup.table.claim([ONE, TWO])
    assert (setup.state(ONE), setup.state(TWO)) == ("owned", None)
    await until(lambda: setup.owner.have == {ONE})


async def test_none_to_unsure_and_back(setup: TableSetup) -> None:
    """While a claim is in doubt the owner is not notified; a second claim settles it either way."""
    await setup.take(TWO)
    await setup.claim_in_doubt(ONE, TWO)
    assert (setup.state(ONE), setup.state(TWO)) == ("unsure", "unsure")
    assert setup.owner.notified == []
    await setup.table.claim([ONE, TWO])
    assert (setup.state(ONE), setup.state(TWO)) == ("owned", None)


async def test_unsure_to_releasing(setup: TableSetup) -> None:
    """An unsure partition is released without notifying the owner."""
    await setup.claim_in_doubt(ONE)
    setup.table.give_up([ONE])
    assert setup.state() == "releasing"
    await setup.until(None)
    assert setup.is_free(ONE)
    assert setup.owner.notified == []


async def test_unsure_while_it_is_taken_is_given_up_later(setup: TableSetup) -> None:
    """An unsure partition that is being claimed is released only later, because the order of the two is unknown."""
    await setup.claim_in_doubt(ONE)
    answer = setup.held_up["claim"] = asyncio.Event()
    taking = asyncio.create_task(setup.table.claim([ONE]))
    await setup.wait_for_calls("claim", 2)
    answer.set()
    await until(lambda: setup.version_of(ONE) == 1)
    setup.table.give_up([ONE])
    await taking
    for _ in range(10):
        await asyncio.sleep(0)
    assert (setup.state(), setup.owner_of(ONE)) == ("owned", setup.session.link.session)
    await setup.give_up()


async def test_an_owner_that_never_takes_notice_keeps_no_row(setup: TableSetup) -> None:
    """A partition can be claimed anew after it was given up, even if its first notification never ended."""
    setup.renew(revoke_timeout=0.01)
    setup.owner.assigning = asyncio.Event()
    await setup.table.claim([ONE])
    await until(lambda: setup.owner.have == {ONE})
    await setup.give_up()


async def test_owned_to_revoking_to_releasing_to_none(setup: TableSetup) -> None:
    """At a revocation the owner stops at once, may commit until it is done, and not afterwards."""
    setup.owner.slow[ONE] = asyncio.Event()
    release = setup.held_up["release"] = asyncio.Event()
    await setup.table.claim([ONE])
    setup.table.give_up([ONE])
    assert setup.state() == "revoking"
    assert {row.partition for row in setup.owner.is_stopped} == {ONE}
    assert await setup.table.record({ONE: FIRST}) == frozenset()
    setup.owner.hurry()
    await setup.until("releasing")
    assert await setup.table.record({ONE: LATER}) == {ONE}
    release.set()
    await setup.until(None)
    assert setup.is_free(ONE)
    assert setup.read_recorded(ONE) == FIRST
    assert setup.notifications == ["assigned", "revoke"]


async def test_revoking_to_releasing_when_the_time_is_over(setup: TableSetup) -> None:
    """When the time is over the partition is released at once; its row stays until on_lost has returned."""
    setup.owner.slow[ONE] = asyncio.Event()
    with freeze_time() as skip:
        await setup.table.claim([ONE])
        setup.table.give_up([ONE])
        await until(lambda: setup.notifications == ["assigned", "revoke"])
        skip(20.0)
        await until(lambda: setup.is_free(ONE))
        await setup.until(None)
    assert setup.notifications == ["assigned", "revoke", "lost"]
    assert setup.owner.cancelled == ["revoke"]


async def test_owned_to_releasing_when_it_is_found_to_be_anothers(setup: TableSetup) -> None:
    """A commit that finds another owner fails, notifies the owner, and does not touch the other's partition."""
    await setup.table.claim([ONE])
    await setup.put_out(ONE)
    assert await setup.table.record({ONE: FIRST}) == {ONE}
    assert setup.state() == "releasing"
    await setup.until(None)
    assert setup.notifications == ["assigned", "lost"]
    assert setup.owner_of(ONE) == setup.others["b"].link.session


async def test_revoking_to_releasing_when_it_is_found_to_be_anothers(setup: TableSetup) -> None:
    """An owner that was asked to stop does so, and gets no further notification."""
    setup.owner.slow[ONE] = asyncio.Event()
    await setup.table.claim([ONE])
    setup.table.give_up([ONE])
    await setup.put_out(ONE)
    assert await setup.table.record({ONE: FIRST}) == {ONE}
    assert setup.state() == "releasing"
    setup.owner.hurry()
    await setup.until(None)
    assert setup.notifications == ["assigned", "revoke"]


@pytest.mark.parametrize("state", ["owned", "revoking", "releasing", "unsure"])
async def test_every_state_to_lost(setup: TableSetup, state: State) -> None:
    """After a lost session nothing is held; each owner that was notified of an assignment is notified of the loss."""
    if state == "unsure":
        await setup.claim_in_doubt(ONE)
    else:
        await setup.table.claim([ONE])
        await until(lambda: setup.owner.have == {ONE})
    if state in {"revoking", "releasing"}:
        setup.owner.slow = {ONE: asyncio.Event()} if state == "revoking" else {}
        setup.held_up["release"] = asyncio.Event()
        setup.table.give_up([ONE])
        await until(lambda: "revoke" in setup.notifications and setup.state() == state)
    rows = list(setup.table.held.values())
    setup.session.link.end(SessionLost("enough"))
    assert setup.table.held == {}
    assert setup.table.states == {}
    assert all(row.state == "lost" for row in rows)
    assert setup.owner.is_stopped.issuperset(row for row in rows if row.notified)
    with pytest.raises(SessionLost):
        await setup.table.record({ONE: FIRST})
    await setup.table.abandon()
    notified = {"owned": ["assigned", "lost"], "revoking": ["assigned", "revoke", "lost"], "unsure": []}
    assert setup.notifications == notified.get(state, ["assigned", "revoke"])


async def test_a_late_end_never_meets_a_new_beginning(setup: TableSetup) -> None:
    """An owner that does not stop is notified of the loss before the next assignment."""
    stuck = asyncio.Event()

    async def swallow(_: frozenset[Partition]) -> None:
        while not stuck.is_set():
            try:
                await stuck.wait()
            except asyncio.CancelledError:
                continue

    await setup.table.claim([ONE])
    setup.owner.on_revoke = swallow
    with freeze_time() as skip:
        setup.table.give_up([ONE])
        await until(lambda: setup.notifications == ["assigned", "revoke"])
        skip(20.0)
        await until(lambda: setup.is_free(ONE))
        assert setup.state() == "releasing"
        skip(CANCEL_GRACE)
        assert setup.notifications == ["assigned", "revoke"]
        skip(20.0)
        await setup.until(None)
        await setup.table.claim([ONE])
        await until(lambda: len(setup.owner.notified) == 4)
        assert setup.notifications == ["assigned", "revoke", "lost", "assigned"]
        stuck.set()
        await until(lambda: not setup.table._calls)
        assert setup.state() == "owned"


@pytest.mark.parametrize("fault", ["refused", "in doubt"])
async def test_an_older_commit_is_not_repeated_after_a_newer_one(setup: TableSetup, fault: Fault) -> None:
    """When the connection breaks only the latest requested offset is recorded, and both callers are notified."""
    await setup.table.claim([ONE])
    setup.faults["commit"] = fault
    older = asyncio.create_task(setup.table.record({ONE: LATER}))
    await setup.wait_for_calls("commit")
    newer = asyncio.create_task(setup.table.record({ONE: FIRST}))
    assert await older == await newer == frozenset()
    assert setup.read_recorded(ONE) == FIRST
    assert setup.coordinator.calls.count("commit") == 2


async def test_a_commit_that_nobody_waits_for_any_more_is_replaced_as_well(setup: TableSetup) -> None:
    """A commit in doubt whose caller has its answer is replaced by a later one, which is recorded in the end."""
    setup.renew(patience=0.0)
    await setup.table.claim([ONE])
    setup.faults["commit"] = "refused"
    setup.held_up["claim"] = asyncio.Event()
    with pytest.raises(CoordinationLost):
        await setup.table.record({ONE: FIRST})
    newer = asyncio.create_task(setup.table.record({ONE: LATER}))
    setup.held_up.pop("claim").set()
    assert await newer == frozenset()
    assert setup.read_recorded(ONE) == LATER


async def test_a_commit_goes_before_the_release(setup: TableSetup) -> None:
    """A commit requested while the owner gave up is recorded before the release, however late the service answers."""
    commit = setup.held_up["commit"] = asyncio.Event()
    await setup.table.claim([ONE])
    recording = asyncio.create_task(setup.table.record({ONE: FIRST}))
    await setup.wait_for_calls("commit")
    setup.table.give_up([ONE])
    await setup.until("releasing")
    commit.set()
    assert await recording == frozenset()
    await setup.until(None)
    assert setup.read_recorded(ONE) == FIRST
    assert setup.coordinator.calls[-2:] == ["commit", "release"]


async def test_whoever_does_not_release_is_waited_for_no_longer(setup: TableSetup) -> None:
    """A commit that fails while its partition is being released is given up, and the partition is released."""
    setup.faults["commit"] = "refused"
    await setup.table.claim([ONE])
    commit = setup.held_up["commit"] = asyncio.Event()
    recording = asyncio.create_task(setup.table.record({ONE: FIRST}))
    await setup.wait_for_calls("commit")
    setup.table.give_up([ONE])
    await setup.until("releasing")
    commit.set()
    with pytest.raises(CoordinationLost):
        await recording
    await setup.until(None)
    assert setup.is_free(ONE)


async def test_a_cancelled_commit_leaves_no_doubt(setup: TableSetup) -> None:
    """A cancelled commit is carried out, and the next one has the right version."""
    await setup.table.claim([ONE])
    setup.held_up["commit"] = asyncio.Event()
    commit = asyncio.create_task(setup.table.record({ONE: FIRST}))
    await setup.wait_for_calls("commit")
    commit.cancel()
    later = asyncio.create_task(setup.table.record({ONE: LATER}))
    setup.held_up.pop("commit").set()
    assert await later == frozenset()
    assert setup.read_recorded(ONE) == LATER
    assert setup.coordinator.calls[-2:] == ["commit", "commit"]


async def begin(setup: TableSetup, *partitions: Partition) -> list[OwnedPartition]:
    await setup.table.claim(partitions)
    rows = [setup.table.held[each] for each in partitions]
    for row in rows:
        row.position = LATER
    return rows


@pytest.mark.parametrize("threshold", ["messages", "seconds", "a caller"])
async def test_added_offsets_are_written_together(setup: TableSetup, threshold: str) -> None:
    """Added offsets are written in one call: after enough messages, enough time, or when a caller waits for one."""
    setup.renew(commit_messages=5, commit_seconds=3.0)
    first, second = await begin(setup, ONE, TWO)
    with freeze_time() as skip:
        setup.table.schedule_commit(first, FIRST, 2)
        setup.table.schedule_commit(second, FIRST, 2)
        setup.table.schedule_commit(first, LATER, 0)
        await asyncio.sleep(0)
        assert "commit" not in setup.coordinator.calls
        if threshold == "messages":
            setup.table.schedule_commit(second, LATER, 1)
        elif threshold == "seconds":
            skip(3.0)
        else:
            assert await setup.table.flush([first]) == frozenset()
        await until(lambda: bool(setup.owner.recorded_offsets))
    assert setup.read_recorded(ONE) == LATER
    assert setup.read_recorded(TWO) == (LATER if threshold == "messages" else FIRST)
    assert setup.coordinator.calls.count("commit") == 1
    assert [set(offsets) for offsets in setup.owner.recorded_offsets] == [{ONE, TWO}]


async def test_an_offset_that_cannot_be_committed_takes_no_other_with_it(setup: TableSetup) -> None:
    """An offset that cannot be committed is refused alone; those added beside it and later are not."""
    setup.renew(commit_messages=100, commit_seconds=60.0)
    first, second = await begin(setup, ONE, TWO)
    setup.table.schedule_commit(first, "f" * 32, 1)
    assert [type(error) for error in setup.owner.commit_failures] == [InvalidArgument]
    setup.table.schedule_commit(second, FIRST, 1)
    setup.table.schedule_commit(first, FIRST, 1)
    assert await setup.table.flush([first, second]) == frozenset()
    assert (setup.read_recorded(ONE), setup.read_recorded(TWO)) == (FIRST, FIRST)


async def test_an_added_offset_is_written_before_the_release(setup: TableSetup) -> None:
    """An added offset is written before the release, though neither threshold is reached."""
    setup.renew(commit_messages=100, commit_seconds=60.0)
    (row,) = await begin(setup, ONE)
    setup.table.schedule_commit(row, FIRST, 1)
    await setup.give_up()
    assert setup.read_recorded(ONE) == FIRST


async def test_what_is_added_for_a_former_ownership_is_not_written(setup: TableSetup) -> None:
    """Offsets added under a former ownership are not written after the partition has come back."""
    (former,) = await begin(setup, ONE)
    await setup.give_up()
    (present,) = await begin(setup, ONE)
    setup.table.schedule_commit(former, LATER, 1)
    for _ in range(10):
        await asyncio.sleep(0)
    assert "commit" not in setup.coordinator.calls
    assert await setup.table.flush([former]) == {ONE}
    with pytest.raises(NotOwner):
        await setup.table.record_note(former, HandlingNote(LATER, 1))
    setup.table.schedule_commit(present, FIRST, 1)
    await until(lambda: setup.read_recorded(ONE) == FIRST)
    assert (present.note, setup.table.held[ONE]) == (None, present)


async def test_an_added_offset_is_tried_until_the_service_answers(setup: TableSetup) -> None:
    """An added offset is retried though nobody waits for it; the listener is notified of the failures."""
    setup.renew(patience=0.0)
    (row,) = await begin(setup, ONE)
    setup.faults["commit"] = "refused"
    setup.table.schedule_commit(row, FIRST, 1)
    await until(lambda: setup.read_recorded(ONE) == FIRST)
    assert [type(error) for error in setup.owner.commit_failures] == [CoordinationLost]
