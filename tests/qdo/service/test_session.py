"""A session follows the service's answers; events of a former ownership do not affect the present one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from qdo.errors import CoordinationLost, SessionLost
from qdo.group.records import Event, Member
from qdo.group.service import ServiceCoordinator, ServiceSession
from qdo.partitions import Partition, Queue, subscribe
from queuey.client import AsyncClient, RetryPolicy
from tests.qdo.service.scripted import PATIENCE, SESSION, STORE, ScriptedService
from tests.waiting import MovedClock

QUEUE = Queue(STORE, "queuey", "orders")
ONE = Partition(QUEUE, 1)
IDS = [f"{number:012d}10008080808080808080" for number in range(4)]
"""Message ids, in order."""


def assignment_row(epoch: int, offset: str | None = None, came: str = "new") -> dict[str, object]:
    return {"epoch": epoch, "offset": offset, "from": came, "note": None}


class Joined:
    """A member of a scripted service.

    Attributes:
        events: The events of its session.
    """

    def __init__(
        self, service: ScriptedService, clock: MovedClock, session: ServiceSession, events: list[Event]
    ) -> None:
        self.service = service
        self.clock = clock
        self.session = session
        self.events = events

    async def until(self, reached: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not reached():  # noqa: ASYNC110 - the session has few events
                await asyncio.sleep(0)

    async def owns(self, *partitions: Partition) -> None:
        async with asyncio.timeout(PATIENCE):
            while await self.session.assignment() != set(partitions):  # noqa: ASYNC110 - as above
                await asyncio.sleep(0)

    async def take(self, epoch: int, offset: str | None = None) -> None:
        (await self.service.heartbeat()).beat(take={"orders": {1: assignment_row(epoch, offset)}})
        await self.owns(ONE)


@pytest.fixture
async def join() -> AsyncIterator[Callable[..., Any]]:
    """Joins a member of a scripted service, with a clock of its own; it leaves at the end."""
    async with AsyncExitStack() as opened:

        async def joined(*, static: bool = False) -> Joined:
            service, clock, events = ScriptedService(), MovedClock(), list[Event]()
            client = AsyncClient(
                "http://127.0.0.1:5000/v1/queuey/", key="a-key", transport=service, retry=RetryPolicy(deadline=0)
            )
            await opened.enter_async_context(client)
            coordinator = ServiceCoordinator(client, "readers", clock=clock)
            member = Member("anna", subscribe(["orders"], [], STORE, "queuey"), static=static)
            session = await coordinator.join(member, events.append)
            opened.push_async_callback(leave, session, service)
            return Joined(service, clock, session, events)

        yield joined


async def leave(session: ServiceSession, service: ScriptedService) -> None:
    """Leaves; the service answers if it is asked."""
    leaving = asyncio.create_task(session.leave())
    answering = asyncio.create_task(service.wait_for_leave())
    await asyncio.wait([leaving, answering], return_when=asyncio.FIRST_COMPLETED)
    if not leaving.done():
        (await answering).answer()
        await leaving
    answering.cancel()


async def test_a_session_counts_from_the_sending_of_its_heartbeat(join: Callable[..., Any]) -> None:
    """A session lasts from the sending of its heartbeat, however long the answer takes, and ends without a request."""
    member = await join()
    beat = await member.service.heartbeat()
    member.clock.now += 6
    beat.beat(take={"orders": {1: assignment_row(5)}})
    await member.owns(ONE)
    member.clock.now += SESSION - 6 - 0.01
    assert member.session.state == "connected"
    member.clock.now += 0.01
    assert member.session.state == "lost"
    with pytest.raises(SessionLost):
        await member.session.assignment()


async def test_an_answer_after_the_end_counts_as_none(join: Callable[..., Any]) -> None:
    """An answer that renews the session after the member gave it up is ignored: the session stays lost."""
    member = await join()
    beat = await member.service.heartbeat()
    member.clock.now += SESSION
    beat.beat(take={"orders": {1: assignment_row(5)}})
    await member.until(lambda: member.events == ["lost"])
    assert member.session.state == "lost"


async def test_what_was_given_back_is_given_back_again(join: Callable[..., Any]) -> None:
    """A take under the epoch of a partition that was given back is answered by a give-back; a later epoch is taken."""
    member = await join()
    await member.take(5)
    beat = await member.service.heartbeat()
    releasing = asyncio.create_task(member.session.release([ONE]))
    (await member.service.heartbeat()).beat()
    await releasing
    beat.beat(take={"orders": {1: assignment_row(5)}})
    beat = await member.service.heartbeat()
    assert (await member.session.assignment(), beat.body["owned"]) == (set(), {})
    assert (beat.body["given_back"], beat.body["wait"]) == ({"orders": {"1": 5}}, 0)
    beat.beat(take={"orders": {1: assignment_row(6)}})
    await member.owns(ONE)


async def test_a_request_for_what_was_given_back_is_answered_again(join: Callable[..., Any]) -> None:
    """A partition that was given back is given back again if a later heartbeat's answer still asks for it."""
    member = await join()
    await member.take(5)
    request = {"orders": {1: {"epoch": 5, "within": 30}}}
    beat = await member.service.heartbeat()
    releasing = asyncio.create_task(member.session.release([ONE]))
    (await member.service.heartbeat()).beat()
    await releasing
    beat.beat(give_back=request)  # It named the partition as owned.
    beat = await member.service.heartbeat()
    assert (beat.body["owned"], beat.body["given_back"]) == ({}, {})
    beat.beat(give_back=request)
    beat = await member.service.heartbeat()
    assert (beat.body["owned"], beat.body["given_back"], beat.body["wait"]) == ({}, {"orders": {"1": 5}}, 0)


async def test_what_it_never_heard_of_is_given_back_at_once(join: Callable[..., Any]) -> None:
    """A partition whose assignment never arrived is given back at once when another member is to have it."""
    member = await join()
    (await member.service.heartbeat()).beat(give_back={"orders": {2: {"epoch": 7, "within": 30}}})
    beat = await member.service.heartbeat()
    assert (beat.body["given_back"], beat.body["wait"]) == ({"orders": {"2": 7}}, 0)
    beat.beat()
    beat = await member.service.heartbeat()
    assert (beat.body["given_back"], beat.body["wait"]) == ({}, 5)


async def test_a_release_whose_answer_is_lost_is_repeated(join: Callable[..., Any]) -> None:
    """A release without an answer raises "in doubt", and later heartbeats repeat it until one is answered."""
    member = await join()
    await member.take(5)
    waiting = await member.service.heartbeat()
    releasing = asyncio.create_task(member.session.release([ONE]))
    (await member.service.heartbeat()).drop()
    with pytest.raises(CoordinationLost):
        await releasing
    waiting.beat()
    beat = await member.service.heartbeat()
    assert (beat.body["owned"], beat.body["given_back"]) == ({}, {"orders": {"1": 5}})
    beat.beat()
    assert (await member.service.heartbeat()).body["given_back"] == {}


async def test_a_commit_in_doubt_and_one_that_goes_back(join: Callable[..., Any]) -> None:
    """A commit that goes forward is unconditional, so repeating it is harmless; one that goes back is conditional."""
    member = await join()
    await member.take(5, IDS[1])
    held = (await member.session.claim([ONE]))[ONE]
    committing = asyncio.create_task(member.session.commit([(held, IDS[2])]))
    commit = await member.service.commit()
    assert commit.body["commits"] == {"1": {"offset": IDS[2], "epoch": 5, "note": None}}
    commit.drop()
    with pytest.raises(CoordinationLost):
        await committing
    # It was recorded, which the session does not know: going back to the first id compares with a former one.
    committing = asyncio.create_task(member.session.commit([(held, IDS[0])]))
    commit = await member.service.commit()
    assert commit.body["commits"]["1"]["expected"] == IDS[1]
    commit.refuse(409, "OffsetConflict", partitions={"1": {"offset": IDS[2], "applied": False}})
    commit = await member.service.commit()
    assert commit.body["commits"]["1"]["expected"] == IDS[2]
    commit.answer(group="readers", partitions={"1": {"offset": IDS[0], "updated": 1.0}})
    held = (await committing)[ONE]
    assert (held.offset.id, held.version) == (IDS[0], 5)


async def test_silence_suspends_and_an_answer_resumes(join: Callable[..., Any]) -> None:
    """A heartbeat without an answer suspends, the next one, which does not wait, resumes; the end is the last event."""
    member = await join()
    (await member.service.heartbeat()).beat()
    (await member.service.heartbeat()).drop()
    await member.until(lambda: member.events == ["suspended"])
    beat = await member.service.heartbeat()
    assert beat.body["wait"] == 0
    beat.beat()
    await member.until(lambda: member.events == ["suspended", "connected"])
    (await member.service.heartbeat()).refuse(404, "MemberGone")
    await member.until(lambda: member.events == ["suspended", "connected", "lost"])


@pytest.mark.parametrize("static", [True, False])
async def test_a_static_member_returns(join: Callable[..., Any], static: bool) -> None:  # noqa: FBT001 - drawn
    """A static member keeps its partitions for its instance: it gives none back, and says that it will return."""
    member = await join(static=static)
    await member.take(5)
    waiting = await member.service.heartbeat()
    member.session.begin_to_leave()
    releasing = asyncio.create_task(member.session.release([ONE]))
    if not static:
        beat = await member.service.heartbeat()
        assert (beat.body["leaving"], beat.body["given_back"]) == (True, {"orders": {"1": 5}})
        beat.beat()
    await releasing
    leaving = asyncio.create_task(member.session.leave())
    leave_request = await member.service.wait_for_leave()
    assert leave_request.returns == ("1" if static else None)
    leave_request.answer()
    await leaving
    assert waiting.body["leaving"] is False
    assert "lost" not in member.events
