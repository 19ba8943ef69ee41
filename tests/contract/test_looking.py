"""What the console asks of a store: sessions that every process knows, and scans that meet each message once."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from queuey.errors import NotAuthenticated
from queuey.messages import NewMessage, QueueSpec
from queuey.service import Service
from queuey.service.browsing import Wanted
from queuey.service.sessions import Sessions
from queuey.storage import Store
from tests.backends import APP

PATIENCE = 60.0


def test_sessions_of_two_processes(store: Store, other: Store) -> None:
    """A session that one process begins another one finds, and ends for both."""
    token, session = Sessions(store).begin(b"d" * 32)
    assert Sessions(other).find(token) == session
    Sessions(other).end(token)
    for sessions in (Sessions(store), Sessions(other)):
        with pytest.raises(NotAuthenticated):
            sessions.find(token)
    Sessions(store).end(token)


def test_a_scan_meets_each_message_once(store: Store) -> None:
    """Steps of a scan over several partitions go from the newest message to the oldest, and find what is wanted."""
    queue, _ = store.create_queue(APP, "scanned", QueueSpec(partitions=3))
    bodies = [f"body {number}" for number in range(30)]
    for number, body in enumerate(bodies):
        store.append(queue, [NewMessage(body, number % 3 + 1, 600)])
    service = Service(store)
    access = service.enter(queue, lambda _queue: None)

    def scanned(wanted: Wanted) -> list[str | bytes]:
        found: list[str | bytes] = []
        since = ""
        while True:
            step = service.browsing.scan(access, wanted, partitions=None, since=since, limit=7)
            found += [message.body for message in step.messages]
            since = step.cursor
            if not since:
                return found

    eventually(lambda: scanned(Wanted()) == bodies[::-1])
    assert scanned(Wanted(text="BODY 2")) == [*reversed(bodies[20:]), "body 2"]
    assert service.browsing.sizes(access).count == len(bodies)


def eventually(holds: Callable[[], bool]) -> None:
    """Waits for something that comes soon: some stores show by time only what is certain."""
    until = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.05)
