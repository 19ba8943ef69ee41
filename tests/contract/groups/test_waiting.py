"""Heartbeats that wait: which events wake them, and when they are answered."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from queuey.api.groups import Heartbeat, HeartbeatAnswer
from queuey.app.service import Service
from queuey.model.errors import InvalidRequest
from queuey.runtime.waiters import Waiter
from tests.backends import APP
from tests.contract.groups.group import SESSION, Group, Member, places_of

Make = Callable[[int], str]


class Waiting(Waiter):
    __slots__ = ("woken",)

    def __init__(self, service: Service) -> None:
        super().__init__(service.reader.watchers)
        self.woken = 0

    def wake(self, qid: int | None = None) -> None:
        self.woken += 1


def attempt(group: Group, member: Member, waiter: Waiter | None = None) -> HeartbeatAnswer | None:
    service = group.services[0]
    beat = Heartbeat({queue: {number: epoch} for (queue, number), epoch in member.owned.items()}, wait=100)
    call = service.groups.heartbeat(group.application, group.name, member.id, group.credential("key"), beat, waiter)
    answer: HeartbeatAnswer | None = service.core.run(call)
    return answer


def test_news_wakes(group: Group, make: Make) -> None:
    """A waiting heartbeat is answered when the member is to give a partition back, and not before."""
    queues = make(1), make(1)
    first = group.join(*queues)
    group.beat_until(lambda: len(first.owned) == len(queues), first)
    waiter = Waiting(group.services[0])
    assert attempt(group, first, waiter) is None
    group.pass_time(0.5)
    assert waiter.woken == 0
    group.join(*queues).send_heartbeat()
    while (answer := attempt(group, first, waiter)) is None:
        group.pass_time(0.5)
    assert waiter.woken > 0
    assert answer.give_back
    assert attempt(group, first, Waiting(group.services[0])) is None, "it was told already"
    repeated = attempt(group, first)
    assert repeated is not None
    assert repeated.give_back == answer.give_back


def test_within_a_third_of_the_session(group: Group, make: Make) -> None:
    """However long a heartbeat asks to wait, it is answered before the next one is due."""
    member = group.join(make(1))
    group.beat_until(lambda: member.owned, member)
    waiter = Waiting(group.services[0])
    assert attempt(group, member, waiter) is None
    group.pass_time(SESSION / 3 + 0.1)
    assert waiter.woken
    answer = attempt(group, member, waiter)
    assert answer is not None
    assert not answer.has_work
    assert answer.session > SESSION / 3


def test_bounds(group: Group, make: Make) -> None:
    """A heartbeat names a limited number of partitions."""
    member = group.join(make(1))
    names = {f"queue {number}": {1: 1} for number in range(10_001)}
    for field, beat in (("owned", Heartbeat(names)), ("given_back", Heartbeat({}, names))):
        service = group.services[0]
        call = service.groups.heartbeat(group.application, group.name, member.id, group.credential("key"), beat)
        with pytest.raises(InvalidRequest, match=field):
            service.core.run(call)


def test_a_group_that_is_shown_again_and_again(group: Group, make: Make) -> None:
    """Showing a group again and again, as a dashboard does, does not delay the end of a session."""
    queue = make(2)
    first, second = group.join(queue), group.join(queue)
    group.settle(places_of(queue, 2), first, second)
    for _ in range(int(SESSION + group.slack) + 4):
        for _ in range(4):
            group.pass_time(0.25)
            group.ask(lambda service: service.groups.show(APP, group.name, lambda _queue: True))
        second.beat_and_give_back()
    assert set(second.owned) == set(places_of(queue, 2))
