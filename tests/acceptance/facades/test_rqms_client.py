"""The client of RQMS on the service's facade: in this process, with a network that fails, and over a socket."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from queuey.app.service import App
from queuey.client import ClientError, Conflict, InvalidAnswer, InvalidArgument, Timing
from queuey.client.rqms import FETCH_INTERVAL, Item, Queue
from queuey.facades.settings import Facades, RqmsFacade
from queuey.storage import bridge
from queuey.storage.sqlite import open_store
from tests.facades.serving import facade_app
from tests.in_process import InProcess

URL = "http://rqms/rqms/tasks"
LONG = 3600.0


class Network(httpx2.BaseTransport):
    """A transport to the service in this process that loses the answers of chosen requests, after their effect."""

    def __init__(self, app: App) -> None:
        self._transport = InProcess(app)
        self.requests: list[httpx2.Request] = []
        self.lost: set[int] = set()

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        self.requests.append(request)
        response = self._transport.handle_request(request)
        if len(self.requests) in self.lost:
            raise httpx2.ReadError("reset", request=request)
        return response

    def end(self) -> None:
        self._transport.close()


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Network]:
    with contextlib.closing(open_store(tmp_path)) as store:
        bridge.run(store.applications.create_application("queuey"))
        network = Network(facade_app(store, Facades(rqms=RqmsFacade(prefix="/rqms"))))
        yield network
        network.end()


@pytest.fixture
def pauses() -> list[float]:
    return []


@pytest.fixture
def timing(pauses: list[float]) -> Timing:
    """A clock that advances only by waits."""
    return Timing(clock=lambda: sum(pauses), sleep=pauses.append, draw=lambda: 0.0)


@pytest.fixture
def queue(network: Network, timing: Timing) -> Iterator[Queue]:
    with Queue(URL, LONG, transport=network, timing=timing) as opened:
        yield opened


@pytest.mark.parametrize("value", [None, True, 7, 1.5, "", "text", [1, [2]], {}, {"a": {"b": None}}], ids=repr)
def test_any_json(queue: Queue, value: object) -> None:
    """Every JSON value can be a task; the fields of an object are in the task as well."""
    queue.put(value)
    item = queue.get()
    assert (item.value, dict(item)) == (value, value if isinstance(value, dict) else {})
    queue.task_done(item)


def test_ids(queue: Queue, network: Network) -> None:
    """Tasks get ids that differ and sort in the order of the calls."""
    for number in range(3):
        queue.put(number)
    names = [request.url.params["id"] for request in network.requests]
    assert [re.fullmatch(r"item-00000000([012])-[A-Za-z0-9_-]{22}", name)[1] for name in names] == list("012")  # type: ignore[index]
    assert len({name[-22:] for name in names}) == 3


def test_batches(network: Network, timing: Timing, pauses: list[float]) -> None:
    """One request fetches several tasks; one that has waited here for too long may already belong to another worker."""
    with Queue(URL, LONG, 3, transport=network, timing=timing) as queue:
        for number in range(4):
            queue.put(number)
        before = len(network.requests)
        assert [queue.get().value for _ in range(2)] == [0, 1]
        assert len(network.requests) == before + 1
        pauses.append(LONG)
        assert queue.get().value == 3


def test_waiting(queue: Queue, network: Network, pauses: list[float]) -> None:
    """While there are no tasks, it polls with pauses."""

    def come(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            queue.put("late")

    with Queue(URL, transport=network, timing=Timing(sleep=come)) as reader:
        assert reader.get().value == "late"
    assert pauses == [FETCH_INTERVAL] * 3


def test_set(queue: Queue, network: Network) -> None:
    """A named task has its newest value; a worker that did an older one is told, unless that does not matter."""
    queue.set("state & more", 1)
    old = queue.get()
    queue.set("state & more", 2)
    with pytest.raises(Conflict, match="409"):
        queue.task_done(old)
    with Queue(URL, LONG, multiple_ok=True, transport=network) as relaxed:
        relaxed.task_done(old)
        new = relaxed.get()
        assert new.value == 2
        relaxed.task_done(new)


def test_lost_answers(queue: Queue, network: Network) -> None:
    """A call whose answer is lost is sent again: a task is stored once, and done once without a complaint."""
    network.lost = {1, 4}
    queue.put("one")
    queue.set("two", 2)
    assert [queue.get().value] == [2]  # the answer with the other item was lost
    network.lost = {len(network.requests) + 1}
    queue.put("three")
    item = queue.get()
    assert item.value == "three"
    network.lost = {len(network.requests) + 1}
    queue.task_done(item)


def test_foreach_that_goes_on(queue: Queue, caplog: pytest.LogCaptureFixture) -> None:
    """As a decorator it begins at once; it goes on after errors if it is to, and not after an interruption."""
    for number in range(3):
        queue.put(number)
    handled: list[object] = []
    with pytest.raises(KeyboardInterrupt):

        @queue.foreach(catch_errors=True)
        def work(item: Item) -> None:
            handled.append(item.value)
            if item.value == 0:
                raise KeyError("nought")
            if item.value == 2:
                raise KeyboardInterrupt

    assert handled == [0, 1, 2]
    assert "nought" in caplog.text

    queue.put("again")
    with pytest.raises(RuntimeError, match="again"):

        @queue.foreach
        def fail(item: Item) -> None:
            raise RuntimeError(item.value)


@pytest.mark.parametrize(
    "url", ["http://rqms.example", "http://rqms/", "rqms.example/tasks", "http://rqms/t?x=1", "ftp://x/t"]
)
def test_addresses_that_are_none(url: str) -> None:
    """An address without a server or a queue is refused before anything is sent."""
    with pytest.raises(InvalidArgument):
        Queue(url)


def test_arguments_that_cannot_be(queue: Queue, network: Network) -> None:
    """What cannot be sent is refused before anything is sent."""
    for name in ("", "a/b", ".."):
        with pytest.raises(InvalidArgument):
            queue.set(name, 1)
    for value in (object(), float("nan"), {1: object()}):
        with pytest.raises(InvalidArgument, match="JSON"):
            queue.put(value)
    for options in ({"time": 0}, {"batch_size": 0}):
        with pytest.raises(InvalidArgument, match="above 0"):
            Queue(URL, **options)  # type: ignore[arg-type]
    assert network.requests == []


def test_refusals_and_other_servers(network: Network) -> None:
    """A refusal has a reason; an answer that is not of RQMS is an error, not a task."""
    with Queue("http://rqms/rqms/_private", transport=network) as queue, pytest.raises(ClientError, match="begin"):
        queue.put(1)
    other = httpx2.MockTransport(lambda _: httpx2.Response(200, text="<html>"))
    with Queue(URL, transport=other) as queue, pytest.raises(InvalidAnswer):
        queue.get()
