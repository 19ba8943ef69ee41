"""The states of a session: suspended while the service cannot be reached, lost when its time is over."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import pytest

from qdo.errors import CoordinationLost, SessionLost
from qdo.group.records import Member, TargetAssignment
from tests.qdo.contract.backends import RESPONSIVE_SESSION_SECONDS, Service
from tests.qdo.contract.conftest import Join, Open
from tests.qdo.contract.events import RecordedEvents, eventually
from tests.qdo.contract.samples import PARTITION


async def test_a_short_cut_suspends(join: Join, service: Service) -> None:
    """A short cut suspends members, then resumes them; they keep what they held."""
    session, heard = await join("a", session_timeout=RESPONSIVE_SESSION_SECONDS)
    held = (await session.claim([PARTITION]))[PARTITION]
    await service.cut()
    await heard.next("suspended")
    states = [session.state]
    await service.heal()
    await heard.next("connected")
    assert [*states, session.state] == ["suspended", "connected"]
    assert (await session.commit([(held, "1")]))[PARTITION]
    assert "lost" not in heard.events


async def test_nothing_works_during_a_cut(join: Join, open_one: Open, service: Service) -> None:
    """During a cut every method raises; afterwards all work again."""
    session, heard = await join("a", session_timeout=RESPONSIVE_SESSION_SECONDS)
    coordinator = await open_one(session_timeout=RESPONSIVE_SESSION_SECONDS)
    held = (await session.claim([PARTITION]))[PARTITION]
    await service.cut()
    calls: list[Awaitable[object]] = [
        session.members(),
        session.target(),
        session.set_target(TargetAssignment(), -1),
        session.assignment(),
        session.lead(),
        session.claim([PARTITION]),
        session.commit([(held, "1")]),
        session.release([PARTITION]),
        coordinator.join(Member("b"), RecordedEvents()),
        coordinator.members(),
        coordinator.target(),
        coordinator.owners(),
        coordinator.offsets(),
        coordinator.set_offsets({PARTITION: "1"}),
        coordinator.groups(),
        coordinator.services(),
        coordinator.forget(),
    ]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(answer) for answer in answers] == [CoordinationLost] * len(calls)
    await heard.next("suspended")
    await service.heal()
    await heard.next("connected")
    assert (await session.claim([PARTITION]))[PARTITION].offset.id is None
    assert set(await coordinator.members()) == {"a"}


async def test_a_long_cut_ends_the_session(join: Join, service: Service) -> None:
    """A long cut ends the session for good; a new session under its name can follow."""
    session, heard = await join("a", session_timeout=RESPONSIVE_SESSION_SECONDS)
    held = (await session.claim([PARTITION]))[PARTITION]
    await service.cut()
    await heard.next("suspended")
    await heard.next("lost")
    assert session.state == "lost"
    await service.heal()
    with pytest.raises(SessionLost):
        await session.commit([(held, "1")])
    await session.leave()
    other, others_heard = await join("b")
    await eventually(others_heard, other.members, lambda members: "a" not in members)
    again, _ = await join("a")
    assert (await again.claim([PARTITION]))[PARTITION].offset.id is None
    assert heard.events[-1] == "lost"


async def test_a_session_that_was_ended_is_lost(join: Join, service: Service) -> None:
    """A member whose session was ended is notified without a request, and receives no event afterwards."""
    session, heard = await join("a", session_timeout=RESPONSIVE_SESSION_SECONDS)
    other, _ = await join("b")
    await session.target()
    await service.expire(session)
    await heard.next("lost")
    assert session.state == "lost"
    with pytest.raises(SessionLost):
        await session.claim([PARTITION])
    await other.set_target(TargetAssignment(), -1)
    await session.leave()
    assert heard.events[-1] == "lost"
    assert heard.events.count("lost") == 1
