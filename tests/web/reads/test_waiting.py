"""Long polls: woken by messages, bounded in time, ended at shutdown. How many there may be: see the gateway's tests."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from queuey.service import Service
from queuey.storage import Store
from queuey.web import make_app
from queuey.web.credentials.application_keys import digest_of
from tests.web.caller import Caller, Reply

ALWAYS = 60.0
"""Seconds that no test may take; waiting that works ends long before."""


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    """Threads to wait in."""
    with ThreadPoolExecutor(8) as executor:
        yield executor


def waiting(app: Any) -> None:  # noqa: ANN401
    """Returns when a reader waits."""
    service: Service = app.registry.service
    deadline = time.monotonic() + ALWAYS
    while not len(service.reader.watchers):
        assert time.monotonic() < deadline
        threading.Event().wait(0.005)


def test_a_message_ends_the_wait(owner: Caller, app: Any, pool: ThreadPoolExecutor) -> None:  # noqa: ANN401
    """Whoever waits is answered with the message that comes."""
    owner.create("q", partitions=2)
    found: Future[Reply] = pool.submit(owner.get, "q", partitions="*", wait=20)
    waiting(app)
    owner.post("q", "news", X_Partition="2")
    assert found.result(ALWAYS).bodies == ["news"]


def test_there_is_no_wait_when_there_is_something(owner: Caller) -> None:
    """A read that finds messages answers at once, though it could wait."""
    owner.create("q")
    owner.post("q", "x")
    assert owner.get("q", wait=20).bodies == ["x"]


def test_the_wait_ends_without_messages(owner: Caller) -> None:
    """Nothing for so long is an ordinary empty answer."""
    owner.create("q")
    reply = owner.get("q", wait="0.05")
    assert (reply.status, reply.messages) == (200, [])


def test_a_delayed_message_ends_the_wait_when_due(owner: Caller) -> None:
    """A message that comes due without anybody writing is noticed."""
    owner.create("q")
    owner.post("q", "due", X_Delay="0.3")
    assert owner.get("q", wait=20).bodies == ["due"]


def test_a_message_outside_of_the_range_does_not_end_the_wait(owner: Caller) -> None:
    """Only messages that the read would give count."""
    owner.create("q", partitions=2)
    owner.post("q", "x", X_Partition="2")
    assert owner.get("q", wait="0.05", partitions="1").messages == []


def test_waiting_on_several_queues(owner: Caller, app: Any, pool: ThreadPoolExecutor) -> None:  # noqa: ANN401
    """A message in any of the queues ends the wait; an error in one of them prevents it."""
    for name in ("a", "b", "c"):
        owner.create(name)
    queues = [{"queue_name": name} for name in ("a", "b", "c")]
    content = {"queues": queues, "wait": 20}
    found: Future[Reply] = pool.submit(owner.send_json, "POST", "_read", content)
    waiting(app)
    owner.post("c", "news")
    responses = found.result(ALWAYS).json["queues"]
    assert [[m["body"] for m in queue["messages"]] for queue in responses] == [[], [], ["news"]]
    broken = {"queues": [*queues[:2], {"queue_name": "missing"}], "wait": 20}
    assert owner.send_json("POST", "_read", broken).json["queues"][-1]["status"] == "error"


def test_shutdown_answers_everybody(
    owner: Caller,
    app: Any,  # noqa: ANN401
    stopping: threading.Event,
    pool: ThreadPoolExecutor,
) -> None:
    """When the service ends, whoever waits is answered, and nobody waits any more."""
    owner.create("q")
    found = pool.submit(owner.get, "q", wait=20)
    waiting(app)
    stopping.set()
    assert found.result(ALWAYS).messages == []
    assert owner.get("q", wait=20).messages == []


def test_a_purge_does_not_strand_the_reader(
    owner: Caller,
    app: Any,  # noqa: ANN401
    other: Store,
    pool: ThreadPoolExecutor,
) -> None:
    """After a purge by another process the waiting reader sees what comes then."""
    owner.create("q")
    found: Future[Reply] = pool.submit(owner.get, "q", wait=20)
    waiting(app)
    other.purge_queue(other.queue("queuey", "q", fresh=True))
    owner.post("q", "new")
    assert found.result(ALWAYS).bodies == ["new"]


def test_deletion_ends_the_wait(owner: Caller, app: Any, pool: ThreadPoolExecutor) -> None:  # noqa: ANN401
    """Whoever waits on a queue that is deleted is told that it is gone."""
    owner.create("q")
    found: Future[Reply] = pool.submit(owner.get, "q", wait=20)
    waiting(app)
    owner("DELETE", "q")
    assert found.result(ALWAYS).status == 404


@pytest.mark.parametrize("path", ["q?wait=20", "_read"])
def test_a_key_that_ends_ends_the_wait(
    owner: Caller,
    store: Store,
    pool: ThreadPoolExecutor,
    path: str,
) -> None:
    """Who waits with a key that is revoked gets 401 once the key is looked at again, and no message that comes then."""
    now = [0.0]
    app = make_app(store, clock=lambda: now[0])
    owner.create("q")
    reader = Caller(app, "Application ending")
    key = store.add_key("queuey", digest_of("ending"))
    if path == "_read":
        content = {"queues": [{"queue_name": "q"}], "wait": 20}
        found = pool.submit(reader.send_json, "POST", path, content)
    else:
        found = pool.submit(reader.get, path)
    waiting(app)
    store.revoke_key("queuey", key.id)
    now[0] = 5.1
    assert found.result(ALWAYS).status == 401
