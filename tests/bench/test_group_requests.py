"""A group's requests to its coordination service: no step costs the square of members."""

from __future__ import annotations

from bench.measures.qdo.group_requests import MAX_LINEAR_GROWTH, count_all_steps, count_steps, growth, run_skipping
from qdo.consumer.rebalance.group_member import GroupSession
from qdo.coordination import Session
from tests.replacing import replace

MEMBERS, QUEUES = 16, 64
"""Sizes of the smaller of two groups."""


def test_requests_and_bytes_grow_no_faster_than_members_and_queues() -> None:
    """Twice the members and queues: each step takes about twice the requests and bytes at most."""
    small, large = count_all_steps(MEMBERS, QUEUES), count_all_steps(2 * MEMBERS, 2 * QUEUES)
    grown = {name: growth(small[name], large[name]) for name in small}
    assert all(times < MAX_LINEAR_GROWTH for each in grown.values() for times in each.values()), grown


def test_members_that_all_read_the_group_would_be_noticed() -> None:
    """When each member reads all members at each change, a change of the leader grows with their square."""
    check = GroupSession._check_once

    async def reading_all(session: GroupSession) -> float | None:
        assert isinstance(session._session, Session)
        session._session._watching.forget()
        await session._session.members()
        return await check(session)

    with replace(GroupSession._check_once, reading_all):
        small, large = (run_skipping(count_steps(count, QUEUES)) for count in (MEMBERS, 2 * MEMBERS))
    assert growth(small["the leader leaves"], large["the leader leaves"])["requests"] > MAX_LINEAR_GROWTH
