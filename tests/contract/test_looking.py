"""Store calls of the console: sessions, scans, an audit log, and dead letters that are sent back once."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from queuey.access.issued_credentials import Sessions
from queuey.access.queue_access import QueueAccess
from queuey.app.service import Service
from queuey.model import ids
from queuey.model.deadletters import Cause, DeadLetter, Redriven, make_headers
from queuey.model.errors import NotAuthenticated, QueueChanged
from queuey.model.messages import Meta, NewMessage, Queue, QueueSpec
from queuey.operations.message_search import MessageFilter as Sought
from queuey.operations.redrive import RedriveFilter
from queuey.storage import KeyedPosts, Store, bridge
from tests.backends import APP
from tests.contract.samples import eventually
from tests.interposed_store import InterposedStore

USED = "This link was used before, or has expired."


def test_sessions_of_two_processes(store: Store, other: Store) -> None:
    """A session that one process begins is found, and ended, by another."""
    token, session = bridge.run(Sessions(store).begin(b"d" * 32))
    assert bridge.run(Sessions(other).find(token)) == session
    bridge.run(Sessions(other).end(token))
    for sessions in (Sessions(store), Sessions(other)):
        with pytest.raises(NotAuthenticated):
            bridge.run(sessions.find(token))
    bridge.run(Sessions(store).end(token))


def test_a_link_of_two_processes(store: Store, other: Store) -> None:
    """When two processes get the same link at the same moment, one of them logs in."""
    first, second = Sessions(store), Sessions(other)
    token = bridge.run(first.make_link(b"d" * 32))
    with ThreadPoolExecutor(2) as pool:
        results = [pool.submit(bridge.run, sessions.redeem(token)) for sessions in (first, second)]
    assert sorted(str(result.exception()) for result in results) == ["None", USED]
    for sessions in (first, second):
        with pytest.raises(NotAuthenticated, match="used before"):
            bridge.run(sessions.redeem(token))


def test_a_scan_meets_each_message_once(store: Store) -> None:
    """Steps of a scan over several partitions go from the newest message to the oldest, and find the matching ones."""
    queue, _ = bridge.run(store.catalogue.create_queue(APP, "scanned", QueueSpec(partitions=3)))
    bodies = [f"body {number}" for number in range(30)]
    for number, body in enumerate(bodies):
        bridge.run(store.messages.append(queue, [NewMessage(body, number % 3 + 1, 600)]))
    service = Service(store)
    access = service.queues.access_unchecked(queue)

    def scanned(wanted: Sought) -> list[str | bytes]:
        read_bodies: list[str | bytes] = []
        since = ""
        while True:
            step = bridge.run(service.browsing.scan(access, wanted, partitions=None, since=since, limit=7))
            read_bodies += [message.body for message in step.messages]
            since = step.cursor
            if not since:
                return read_bodies

    assert eventually(lambda: scanned(Sought()) == bodies[::-1])
    assert scanned(Sought(text="BODY 2")) == [*reversed(bodies[20:]), "body 2"]
    assert bridge.run(service.browsing.sample_sizes(access)).count == len(bodies)


def test_audit_logs_of_two_processes(store: Store, other: Store) -> None:
    """An audit entry of one process is found by another at once, and a form that both get is recorded once."""
    services = [Service(each) for each in (store, other)]
    logs = [service.audit for service in services]
    about: Any = {"content": b"c", "act": "purge", "who": "me", "queue": "q", "details": {"a": "b"}}
    assert bridge.run(logs[0].find_form(APP, "form")) is None
    (entry, sent, is_first), (_, same, is_first_there) = (
        service.core.run(service.audit.begin(APP, "form", **about)) for service in services
    )
    assert (sent, is_first, is_first_there) == (same, True, False)
    assert bridge.run(logs[1].find_form(APP, "form")) == sent
    assert bridge.run(logs[1].find(APP, sent.entry)) == entry
    bridge.run(logs[0].end(APP, sent.entry, entry, "done", "Purged."))
    ended = bridge.run(logs[1].find(APP, sent.entry))
    assert ended is not None
    assert (ended.outcome, ended.text, ended.details) == ("done", "Purged.", {"a": "b"})
    assert eventually(lambda: [each for _, each in bridge.run(logs[1].read_page(APP, "", bool)).entries] == [ended])
    assert bridge.run(logs[1].read_page("nobody", "", bool)).entries == []


def make_dead_letters(store: Store, count: int) -> Queue:
    """Creates queue "q" and its dead-letter queue with a number of dead letters; returns the dead-letter queue."""
    bridge.run(store.catalogue.create_queue(APP, "q", QueueSpec(partitions=2)))
    dead, _ = bridge.run(store.catalogue.create_queue(APP, "q.dead", QueueSpec(partitions=2)))
    for number in range(count):
        place = "q", number % 2 + 1, "0" * 32
        headers = make_headers(place, None, {"n": str(number)}, Cause(attempts=1, error="E", at=1.0))
        bridge.run(
            store.messages.append(
                dead, [NewMessage(f"{number}", number % 2 + 1, 600, Meta(None, tuple(headers.items())))]
            )
        )
    return dead


async def enter(service: Service, name: str) -> QueueAccess:
    return service.queues.access_unchecked(await service.find(APP, name))


def find_letters(service: Service) -> list[DeadLetter]:
    access = bridge.run(enter(service, "q.dead"))
    return bridge.run(service.redriving.find(access, RedriveFilter(reason=("q", "E", "")))).letters


def send_back(service: Service, letters: list[DeadLetter]) -> Redriven:
    access = bridge.run(enter(service, "q.dead"))
    return service.core.run(service.redriving.send_back(access, letters, partial(enter, service)))


def test_dead_letters_go_back_once(store: Store, other: Store) -> None:
    """When two processes send the same dead letters back, each stores those that the other has not."""
    dead = make_dead_letters(store, 6)
    services = [Service(store), Service(other)]
    assert eventually(lambda: len(find_letters(services[0])) == 6)
    letters = find_letters(services[0])
    first, second = (send_back(service, some) for service, some in zip(services, (letters[:4], letters), strict=True))
    assert (first.sent, first.already_sent, second.sent, second.already_sent) == ({"q": 4}, 0, {"q": 2}, 4)
    assert eventually(lambda: bridge.run(services[1].queues.count(bridge.run(services[1].find(APP, "q")))) == 6)
    assert services[1].core.run(services[1].queues.count(dead)) == 0


def test_dead_letters_go_back_while_their_queue_changes(store: Store, other: Store) -> None:
    """Letters that were sent before a change of their queue count as sent by this call, which sends the others, too."""
    dead = make_dead_letters(store, 6)
    between = InterposedStore(store)
    service = Service(between.store)
    assert eventually(lambda: len(find_letters(service)) == 6)
    calls: list[Queue] = []
    posted: list[Any] = []
    half = asyncio.Event()

    async def post(queue: Queue, *given: Any, **named: Any) -> Any:  # noqa: ANN401 - of append_once
        calls.append(queue)
        number = len(calls)
        if number == 4:
            await half.wait()
            await other.catalogue.update_queue(queue, QueueSpec(ttl=99))
        if 4 <= number <= 6:
            raise QueueChanged(queue.name)
        result = await store.keyed_posts.append_once(queue, *given, **named)
        posted.append(result)
        if len(posted) == 3:
            half.set()
        return result

    between.instead(KeyedPosts.append_once, post)
    result = send_back(service, find_letters(service))
    assert (result.sent, result.already_sent, result.left, result.error) == ({"q": 6}, 0, {}, None)
    assert [queue.ttl for queue in calls[6:]] == [99, 99, 99]
    assert eventually(lambda: service.core.run(service.queues.count(service.core.run(service.find(APP, "q")))) == 6)
    assert service.core.run(service.queues.count(dead)) == 0


@pytest.mark.parametrize("partitions", [1, 3, 20])
def test_messages_that_are_not_due(store: Store, partitions: int) -> None:
    """Messages that are not due are shown separately, the next one first, each once, over any partitions and steps."""
    queue, _ = bridge.run(store.catalogue.create_queue(APP, "delayed", QueueSpec(partitions=partitions)))
    due = [f"in {number:02} h" for number in range(1, 41)]
    for number, body in reversed(list(enumerate(due))):
        bridge.run(
            store.messages.append(
                queue, [NewMessage(body, number * 7 % partitions + 1, 600, delay=3600.0 * (number + 1))]
            )
        )
    bridge.run(store.messages.append(queue, [NewMessage("due", 1, 600)]))
    browsing = Service(store).browsing
    access = Service(store).queues.access_unchecked(queue)
    for limit in (1, 7, 100):
        read_bodies: list[str | bytes] = []
        since = ""
        while True:
            step = bridge.run(browsing.scan(access, Sought(), partitions=None, since=since, limit=limit, upcoming=True))
            read_bodies += [message.body for message in step.messages]
            since = step.cursor
            assert len(since) <= 35
            if not since:
                break
        assert read_bodies == due
    step = bridge.run(browsing.scan(access, Sought(text="7"), partitions=(1,), since="", limit=100, upcoming=True))
    assert [message.body for message in step.messages] == [
        body for number, body in enumerate(due) if number * 7 % partitions == 0 and "7" in body
    ]


def test_neighbours(store: Store) -> None:
    """A message's neighbours are those of its partition, due or not; at the ends they are missing."""
    queue, _ = bridge.run(store.catalogue.create_queue(APP, "neighbours", QueueSpec(partitions=2)))
    sent = [
        ids.to_hex(bridge.run(store.messages.append(queue, [NewMessage("x", 2, 600, delay=delay)]))[0])
        for delay in (0.0, 0.0, 0.0, 600.0)
    ]
    bridge.run(store.messages.append(queue, [NewMessage("elsewhere", 1, 600)]))
    service = Service(store)
    access = service.queues.access_unchecked(queue)

    def neighbours(index: int) -> tuple[str | None, str | None]:
        return bridge.run(service.browsing.find_neighbours(access, 2, ids.parse_position(sent[index])))

    assert eventually(lambda: neighbours(1) == (sent[0], sent[2]))
    assert neighbours(0) == (None, sent[1])
    assert neighbours(2) == (sent[1], sent[3])
    assert neighbours(3) == (sent[2], None)
