"""Every kind of queue, each way to become a dead letter, and each way back: the message comes back unchanged."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import httpx2
import msgspec
import pytest

from queuey.client import AsyncClient, Client, InvalidRequest, Message, Outgoing, RawMessage
from queuey.client.calls.call import error_from_fields
from queuey.client.deadletters import Cause, DeadLetterFilter, Redriven, bury, redrive
from queuey.ids import parse_id
from queuey.web.parts import App
from tests.console.acting import act, follow_redirect
from tests.console.browser import Browser
from tests.in_process import InProcess
from tests.waiting import until
from tests.web.conftest import KEY

URL = "http://127.0.0.1"
BODY = b'{"task": "resize", "price": 1.50, "n":  1e2}'
SENT: dict[str, Any] = {"json": msgspec.Raw(BODY), "headers": {"trace": "t 1"}, "content_type": "application/x+json"}


class Clients(NamedTuple):
    """A client of the application, and its transport for others."""

    client: Client
    transport: InProcess

    def run(self, work: Callable[[AsyncClient], Any]) -> Any:  # noqa: ANN401 - whatever it returns
        async def run() -> Any:  # noqa: ANN401 - as above
            transport = InThread(self.transport)
            async with AsyncClient(URL, key=KEY, application="queuey", transport=transport) as client:
                return await work(client)

        return asyncio.run(run())


class InThread(httpx2.AsyncBaseTransport):
    """A transport from a coroutine to an application in this process."""

    def __init__(self, transport: InProcess) -> None:
        self._transport = transport

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        await request.aread()
        return await asyncio.to_thread(self._transport.handle_request, request)


@pytest.fixture
def clients(app: App) -> Iterator[Clients]:
    transport = InProcess(app)
    with Client(URL, key=KEY, application="queuey", transport=transport) as client:
        yield Clients(client, transport)


KINDS: dict[str, dict[str, Any]] = {
    "plain": {"partitions": 2},
    "limited by key": {"max_claimed_per_key": 1, "partitions": 2},
    "ordered": {"kind": "ordered", "partitions": 2},
    "dedup": {"kind": "dedup", "partitions": 2},
    "named": {},
    "scheduled": {},
}
KEYED = {"limited by key", "ordered"}
TARGETS = {"delivered too often": "q.dead", "released for good": "q.dead", "redrive policy": "lost", "buried": "q.dead"}


def store_message(client: Client, kind: str) -> None:
    client.create_queue("q", **KINDS[kind])
    if kind == "named":
        client.named("q").create("name", **SENT)
    elif kind == "scheduled":
        client.schedules.put("daily", queue="q", every=86_400, message=Outgoing(**SENT))
        client.schedules.run("daily")
    else:
        client.send("q", **SENT, key="k" if kind in KEYED else None)


def make_dead_letter(clients: Clients, death: str) -> None:
    client = clients.client
    if death == "buried":
        [message] = client.read_all("q", partitions="*", delay=False)
        cause = Cause(attempts=5, error="E", at=time.time())
        clients.run(lambda other: bury(other, "q", message, cause))
        client.delete("q", message)
        return
    if death == "redrive policy":
        client.create_queue("lost", partitions=2)
        client.update_queue("q", dead_letter="lost")
    if death != "released for good":
        client.update_queue("q", max_deliveries=1)
    jobs = client.job_queue("q")
    jobs.release(jobs.receive(1), 0.0, "no", retry=death != "released for good")
    assert jobs.receive(1) == []


def read_stored(client: Client, queue: str) -> list[Message]:
    return list(client.read_all(queue, partitions="*", delay=False))


def last_raw_message(client: Client, queue: str) -> RawMessage:
    return client.get_raw(queue, max(read_stored(client, queue), key=lambda one: parse_id(one.id)))


def send_back_by_client(clients: Clients, target: str, _browser: Browser) -> None:
    selection = DeadLetterFilter(queues=("q",), dead_queue=target)
    assert clients.run(lambda client: redrive(client, selection)) == Redriven({"q": 1})


def send_back_by_console(_clients: Clients, target: str, browser: Browser) -> None:
    assert "Sent back 1 to q." in follow_redirect(browser, act(browser, f"/console/a/queuey/{target}/acts/redrive"))


def send_back_by_move(clients: Clients, target: str, _browser: Browser) -> None:
    assert clients.client.move(target, "q").wait(60).moved == 1


WAYS = (send_back_by_client, send_back_by_console, send_back_by_move)


def journeys() -> Iterator[Any]:
    """Yields each kind with each death and each way back; a subset that covers every pair is not slow."""
    for (row, kind), (column, death), (number, way) in product(enumerate(KINDS), enumerate(TARGETS), enumerate(WAYS)):
        paired = number == (row + column) % len(WAYS)
        name = f"{kind}-{death}-{way.__name__}"
        yield pytest.param(kind, death, way, id=name, marks=() if paired else pytest.mark.slow)


@pytest.mark.parametrize(("kind", "death", "way"), list(journeys()))
def test_the_message_comes_back(
    clients: Clients, browser: Browser, kind: str, death: str, way: Callable[[Clients, str, Browser], None]
) -> None:
    """Body, type and headers are the same byte by byte while it is dead and when it is back, and it can be claimed."""
    client, target = clients.client, TARGETS[death]
    store_message(client, kind)
    before = last_raw_message(client, "q")
    make_dead_letter(clients, death)
    until(lambda: {one.name for one in client.queues()} >= {target} and read_stored(client, target))
    dead = last_raw_message(client, target)
    own = {name: value for name, value in dead.headers.items() if not name.startswith("queuey-dead-")}
    assert (dead.body, dead.content_type, own) == (before.body, before.content_type, before.headers)
    assert read_stored(client, target)[0].body == {"task": "resize", "price": 1.5, "n": 100}
    if kind in KEYED and way is send_back_by_move:
        with pytest.raises(InvalidRequest, match="no messages can be moved"):
            client.move(target, "q")
        return
    way(clients, target, browser)
    back = last_raw_message(client, "q")
    assert parse_id(back.id) > parse_id(before.id)
    assert (back.body, back.content_type, back.headers) == (before.body, before.content_type, before.headers)
    assert read_stored(client, target) == []
    [job] = client.job_queue("q").receive(1)
    assert (job.message.id, job.message.body) == (back.id, {"task": "resize", "price": 1.5, "n": 100})
    if kind in KEYED:
        assert job.message.key == "k"


def test_a_queue_that_takes_none_does_not_keep_others(clients: Clients) -> None:
    """Dead letters that a queue refuses stay, with the reason; those of others go back."""
    client = clients.client
    cause = Cause(attempts=1, error="E", at=1)
    for name in ("a", "b"):
        client.create_queue(name)
        client.send(name, "x")
        clients.run(partial(bury, queue=name, message=read_stored(client, name)[0], cause=cause))
    selection = DeadLetterFilter(queues=("a", "b"))

    async def refusing(other: AsyncClient) -> Redriven:
        send_many = other.send_many

        async def send(queue: str, messages: Any) -> Any:  # noqa: ANN401 - as it is called
            if queue == "a":
                raise error_from_fields({"0.body": "Longer than maximum length"})
            return await send_many(queue, messages)

        other.send_many = send  # type: ignore[method-assign, assignment]
        return await redrive(other, selection)

    done = clients.run(refusing)
    assert (done.sent, sum(done.left.values())) == ({"b": 1}, 1)
    assert [len(read_stored(client, f"{name}.dead")) for name in ("a", "b")] == [1, 0]
