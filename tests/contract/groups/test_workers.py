"""Members whose heartbeats wait at different workers of a service, which do not poll."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from queuey.api.groups import Heartbeat, HeartbeatAnswer, Partitions
from queuey.app.service import Service
from queuey.groups import local_group
from queuey.groups.rules.group_state import JoinRequest
from queuey.model.rights import Caller, MemberCredential
from queuey.runtime.waiters import Waiter
from queuey.runtime.workers import WorkerIdentity
from queuey.storage import Store
from tests.backends import APP
from tests.contract.groups.conftest import Make
from tests.contract.samples import eventually
from tests.replacing import replace_in, with_fields

LONG = 60.0
CREDENTIAL = MemberCredential(b"key", Caller(names=frozenset({f"app:{APP}"})))


class Poll(Waiter):
    """A heartbeat that waits."""

    def __init__(self, service: Service) -> None:
        super().__init__(service.reader.watchers)
        self.woken = threading.Event()

    def wake(self, qid: int | None = None) -> None:
        self.woken.set()


def end(service: Service) -> None:
    service.core.run(service.groups.end())


@pytest.fixture
def workers(store: Store, other: Store) -> Iterator[list[Service]]:
    """Two services that have joined as workers of one service, and do not poll."""
    identity = WorkerIdentity.of_service(2)
    with ExitStack() as stack:
        for name in (local_group.POLL_INTERVAL, local_group.QUICK_POLL_INTERVAL):
            stack.enter_context(replace_in(local_group, name, 10 * LONG))
        services = [Service(each) for each in (store, other)]
        for number, service in enumerate(services, 1):
            service.join(with_fields(identity, number=number))
            stack.callback(service.leave, LONG)
            stack.callback(end, service)
        first, second = services
        assert eventually(lambda: first.workers.is_up(2) and second.workers.is_up(1), LONG)
        yield services


def test_news_of_another_worker(workers: list[Service], make: Make) -> None:
    """A member is told to give back, and another to take, as soon as another worker has changed the plan."""
    first, second = workers
    queue = make(2)

    def beat(
        service: Service, member: str, owned: Partitions, poll: Poll | None = None, given_back: Partitions | None = None
    ) -> HeartbeatAnswer | None:
        content = Heartbeat(owned, given_back or {})
        return service.core.run(service.groups.heartbeat(APP, "news", member, CREDENTIAL, content, poll))

    def wait(service: Service, member: str, owned: Partitions, poll: Poll) -> HeartbeatAnswer:
        answer = None
        while answer is None:
            assert poll.woken.wait(LONG)
            poll.woken.clear()
            answer = beat(service, member, owned, poll)
        return answer

    def join(service: Service) -> str:
        wish = JoinRequest((queue,), (), CREDENTIAL, "", 300_000, 300_000, 0)
        return service.core.run(service.groups.join(APP, "news", wish)).member

    here = join(second)
    answer = beat(second, here, {})
    assert answer is not None
    owned: Partitions = {queue: {number: taken.epoch for number, taken in answer.take[queue].items()}}
    first_poll, second_poll = Poll(first), Poll(second)
    assert beat(second, here, owned, second_poll) is None
    there = join(first)
    beat(first, there, {})
    assert beat(first, there, {}, first_poll) is None
    [(number, asked)] = wait(second, here, owned, second_poll).give_back[queue].items()
    del owned[queue][number]
    first_poll.woken.clear()
    assert beat(first, there, {}, first_poll) is None
    beat(second, here, owned, given_back={queue: {number: asked.epoch}})
    assert wait(first, there, {}, first_poll).take[queue].keys() == {number}
