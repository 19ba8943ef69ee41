"""Streams over HTTP: their events, who may read them, and how they end."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import pytest

from queuey.access.authorization import Authenticator
from queuey.access.credentials.readers import Identity
from queuey.app.application import make_app
from queuey.app.asgi import answer
from queuey.app.service import App, Service
from queuey.model.messages import QueueSpec
from queuey.model.rights import Grant, Verb
from queuey.storage import Store, bridge
from queuey.web.admission.event_streams import NOTICE_INTERVAL
from queuey.web.gateway import Gateway
from queuey.web.responses import EVENT_HEADERS
from tests.contract.samples import new_message
from tests.tenants import GUEST_KEY, KEY
from tests.web.caller import Caller, Tokens
from tests.web.gateway_calls import Request, Run, make_runner, until

READ: frozenset[Verb] = frozenset({"read"})


class Event(NamedTuple):
    kind: str
    id: str
    data: Any

    @property
    def body(self) -> Any:  # noqa: ANN401 - of a message
        return self.data["body"]


def events_of(text: str) -> list[Event]:
    """Parses the events that the service writes; comments and the reconnection time are left out."""
    events = []
    for block in text.split("\n\n")[:-1]:
        fields: dict[str, str] = {}
        for line in block.split("\n"):
            name, _, value = line.partition(": ")
            fields[name] = value
        if "data" in fields or "id" in fields:
            data = json.loads(fields["data"]) if "data" in fields else None
            events.append(Event(fields.get("event", "message"), fields.get("id", ""), data))
    return events


class Reader(Request):
    """A reader of a stream, which disconnects when told to, and may stop taking parts."""

    def __init__(self, path: str = "q", query: str = "", *, last: str = "", key: str | None = KEY) -> None:
        accepts = [] if path == "_stream" else [("accept", "text/event-stream")]
        came = [("last-event-id", last)] if last else []
        super().__init__("GET", f"/v1/queuey/{path}", headers=[*accepts, *came], query=query, key=key)
        self.leaves = asyncio.Event()
        self.takes = asyncio.Event()
        self.takes.set()

    async def receive(self) -> dict[str, Any]:
        if self.pieces:
            self.pieces.clear()
            return {"type": "http.request", "body": b"", "more_body": False}
        await asyncio.wait_for(self.leaves.wait(), 600)
        return {"type": "http.disconnect"}

    async def send(self, message: dict[str, Any]) -> None:
        await asyncio.wait_for(self.takes.wait(), 600)
        await super().send(message)

    @property
    def events(self) -> list[Event]:
        return events_of(self.response.decode())

    @property
    def bodies(self) -> list[Any]:
        return [event.body for event in self.events if event.kind == "message" and event.data]

    def kinds(self) -> list[str]:
        return [event.kind for event in self.events if event.kind != "message"]


@asynccontextmanager
async def reading(gateway: Gateway, reader: Reader) -> AsyncIterator[Reader]:
    """Starts a reader, and waits for the begin of its stream. Disconnects it after the block, and waits for the end."""
    task = asyncio.create_task(answer(gateway, reader.scope, reader.receive, reader.send))
    await until(lambda: bool(reader.response) or task.done())
    yield reader
    reader.leaves.set()
    await task


@pytest.fixture
def run(app: App) -> Run:
    return make_runner(app, waiters=50)


def test_messages_come_as_they_are_stored(owner: Caller, run: Run, store: Store) -> None:
    """Stored messages come first, then new ones, each with the position from which another stream can resume."""
    owner.create("q")
    owner.batch("q", {"body": "a"}, {"body": {"b": [1]}}, {"body": "ü\n\r\n!"})
    queue = bridge.run(store.catalogue.queue("queuey", "q"))

    async def work(gateway: Gateway) -> None:
        async with reading(gateway, Reader()) as reader:
            await until(lambda: len(reader.bodies) == 3)
            await store.messages.append(queue, [new_message("d"), new_message("e")])
            await until(lambda: len(reader.bodies) == 5)
        assert reader.bodies == ["a", {"b": [1]}, "ü\n\r\n!", "d", "e"]
        headers = {name: value for name, value in reader.answer_headers if name in map(str.lower, EVENT_HEADERS)}
        assert headers == {name.lower(): value for name, value in EVENT_HEADERS.items()}
        assert "no-transform" in headers["cache-control"]
        assert reader.response.startswith(b"retry: ")
        for number, event in enumerate(reader.events):
            async with reading(gateway, Reader(last=event.id)) as again:
                await until(lambda again=again, left=5 - number: len(again.bodies) == left)  # type: ignore[misc]
                assert again.bodies == reader.bodies[number:]
        since = reader.events[3].id
        assert (await Request("GET", query=f"since={since}").to(gateway)).bodies == ["d", "e"]

    run(work)


def test_a_stream_of_many_queues(owner: Caller, run: Run, store: Store) -> None:
    """Messages have the names of their queues. A deleted queue is reported; the stream goes on with the rest."""
    for name in "abc":
        owner.create(name, partitions=3 if name == "b" else 1)

    async def work(gateway: Gateway) -> None:
        async with reading(gateway, Reader("_stream", "queues=a,b")) as reader:
            for name in "abc":
                await store.messages.append(await store.catalogue.queue("queuey", name), [new_message(name)])
            await until(lambda: sorted(reader.bodies) == ["a", "b"])
            assert {event.data["queue_name"] for event in reader.events if event.data} == {"a", "b"}
            await store.catalogue.delete_queue(await store.catalogue.queue("queuey", "a"))
            await until(lambda: reader.kinds() == ["gone"])
            deleted = reader.events[-1]
            assert deleted.data["queue_name"] == "a"
            await store.messages.append(await store.catalogue.queue("queuey", "b"), [new_message("more", partition=2)])
            await until(lambda: reader.bodies[-1] == "more")
            [same] = gateway.polls.waiting.values()
            for poll in same.polls:
                poll.wake()  # The rights of the reader may have changed.
            await store.messages.append(await store.catalogue.queue("queuey", "b"), [new_message("last", partition=2)])
            await until(lambda: reader.bodies[-1] == "last")
            assert reader.kinds() == ["gone"]
        async with reading(gateway, Reader("_stream", "queues=b", last=deleted.id)) as again:
            await until(lambda: again.bodies == ["more", "last"])

    run(work)


@pytest.mark.parametrize(
    ("path", "query", "status"),
    [
        ("q", "since=yesterday", 400),
        ("q", "partitions=x&limit=0", 400),
        ("q", "order=descending&strict=1", 400),
        ("_stream", "queues=q,none", 404),
        ("_stream", "queues=" + ",".join(map(str, range(1001))), 400),
    ],
)
def test_what_is_asked_wrongly_is_refused(owner: Caller, run: Run, path: str, query: str, status: int) -> None:
    """An invalid request for a stream is refused before the stream begins, with the error of any other request."""
    owner.create("q")

    async def work(gateway: Gateway) -> None:
        async with reading(gateway, Reader(path, query)) as reader:
            await until(lambda: reader.answered)
        assert (reader.status, json.loads(reader.response)["status"]) == (status, "error")

    run(work)


@pytest.mark.parametrize("what", ["stops", "rights", "deleted"])
def test_the_end_of_a_stream(
    owner: Caller, run: Run, app: App, store: Store, stopping: threading.Event, what: str
) -> None:
    """When the service, the right or the queue ends, the reader is told why, and nothing is left."""
    owner.create("q", type="public")
    service: Service = app.service

    async def work(gateway: Gateway) -> None:
        async with reading(gateway, Reader(key=GUEST_KEY)) as reader:
            await until(lambda: len(service.reader.watchers) == 1)
            queue = await store.catalogue.queue("queuey", "q")
            if what == "stops":
                stopping.set()
            elif what == "rights":
                await store.catalogue.update_queue(queue, QueueSpec(type="user"))
            else:
                await store.catalogue.delete_queue(queue)
            await until(lambda: reader.answered)
        assert reader.kinds() == ["bye"]
        expected = {"stops": "The service ends", "rights": "403", "deleted": "404"}[what]
        assert expected in json.dumps(reader.events[-1].data)
        quotas = gateway.polls.places, gateway.polls.attempt_quota, gateway.shares.memory
        assert len(service.reader.watchers) == 0
        assert [quota.free for quota in quotas] == [quota.total for quota in quotas]

    run(work)


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_all_queues_of_nobody(owner: Caller, app: App, method: str) -> None:
    """Without a credential a stream has to name its queues: otherwise it would say nothing, and never end."""
    owner.create("q", type="public")
    reply = Caller(app, None).send(method, "/v1/queuey/_stream")
    assert (reply.status, "This needs a credential" in reply.text) == (401, True)


def test_silence_is_broken(owner: Caller, app: App) -> None:
    """An idle stream sends a comment now and then."""
    owner.create("q")

    async def work(gateway: Gateway) -> None:
        async with reading(gateway, Reader()) as reader:
            await until(lambda: reader.response.count(b"\n:\n\n") == 3)

    make_runner(app, beat=0.02)(work)


def test_a_reader_that_takes_nothing_holds_nothing_up(owner: Caller, app: App, store: Store) -> None:
    """It is given up, and can go on from the last that it has got; nothing is read for it meanwhile."""
    owner.create("q")
    queue = bridge.run(store.catalogue.queue("queuey", "q"))

    async def work(gateway: Gateway) -> None:
        async with reading(gateway, Reader()) as slow, reading(gateway, Reader()) as other:
            await until(lambda: len(slow.events) == 1)
            slow.takes.clear()
            for number in range(20):
                await store.messages.append(queue, [new_message(str(number))])
                await until(lambda count=number + 1: len(other.bodies) == count)  # type: ignore[misc]
            await until(lambda: gateway.polls.places.total - gateway.polls.places.free == 1)
            assert not slow.answered
            last = slow.events[-1].id
        async with reading(gateway, Reader(last=last)) as again:
            await until(lambda: len(again.bodies) == 20)

    make_runner(app, waiters=50, stall=0.3)(work)


def test_a_stream_of_many_queues_takes_several_places(owner: Caller, app: App) -> None:
    """A stream takes one place for each sixteen queues, so few streams cannot make the service watch everything."""
    names = ",".join(owner.create(f"q{number}") for number in range(40))

    async def work(gateway: Gateway) -> None:
        places = gateway.polls.places
        async with reading(gateway, Reader("_stream", f"queues={names}")) as reader:
            await until(lambda: reader.status == 200)
            assert places.total - places.free == 3
            async with reading(gateway, Reader("_stream", f"queues={names}")) as another:
                await until(lambda: another.answered)
            assert another.status == 503
        assert places.free == places.total

    make_runner(app, waiters=4)(work)


@pytest.fixture
def with_users(store: Store, tokens: Tokens) -> App:
    bridge.run(store.applications.create_application("queuey"))
    return make_app(store, readers=[tokens])


def user(tokens: Tokens, name: str, *queues: str, ends: float | None = None) -> Callable[..., Reader]:
    """Makes a user with these queues known, and returns a function that makes readers with the user's token."""
    grants = tuple(Grant("queuey", READ, queue) for queue in queues)
    tokens.known[name] = Identity(frozenset({f"queuey {name}"}), grants, "users of queuey", ends)

    def make(*args: str, **more: str) -> Reader:
        reader = Reader(*args, key=None, **more)
        reader.headers.insert(0, ("authorization", f"Token {name}"))
        return reader

    return make


def test_a_user_has_some_streams(with_users: Any, tokens: Tokens, store: Store) -> None:  # noqa: ANN401
    """Those of one do not hinder another. Queues that are not there yet are read once they are."""
    ann, bob = user(tokens, "ann", "inbox-ann", "later"), user(tokens, "bob", "inbox-bob")
    for name in ("inbox-ann", "inbox-bob"):
        bridge.run(store.catalogue.create_queue("queuey", name, QueueSpec()))

    async def work(gateway: Gateway) -> None:
        async with (
            reading(gateway, ann("_stream")) as first,
            reading(gateway, ann("inbox-ann")) as second,
            reading(gateway, ann("_stream")) as three,
            reading(gateway, bob("_stream")) as other,
        ):
            await until(lambda: three.answered)
            assert b"This user has 2 streams" in three.response
            await store.messages.append(await store.catalogue.queue("queuey", "inbox-ann"), [new_message("for Ann")])
            await until(lambda: first.bodies == second.bodies == ["for Ann"])
            queue, _ = await store.catalogue.create_queue("queuey", "later", QueueSpec())
            await store.messages.append(queue, [new_message("later")])
            await until(lambda: first.bodies == ["for Ann", "later"])
            assert other.bodies == []
        async with reading(gateway, ann("_stream")) as again:
            await until(lambda: again.status == 200)
        assert not gateway.polls.streams

    make_runner(with_users, waiters=50, beat=0.05, user_streams=2)(work)


def test_the_end_of_a_token_is_told(with_users: Any, tokens: Tokens, store: Store) -> None:  # noqa: ANN401
    """It is announced shortly before, so that a reader can reconnect with a new one; at its end the stream ends."""
    ends = time.time() + NOTICE_INTERVAL + 0.5
    ann = user(tokens, "ann", "inbox-ann", ends=ends)
    bridge.run(store.catalogue.create_queue("queuey", "inbox-ann", QueueSpec()))
    authenticate: Authenticator = with_users.authenticate

    async def work(gateway: Gateway) -> None:
        async with reading(gateway, ann("inbox-ann")) as reader:
            await until(lambda: len(reader.events) == 1)
            assert reader.kinds() == []
            await until(lambda: reader.kinds() == ["expiring"])
            assert reader.events[-1].data == {"expires": ends}
            del tokens.known["ann"]
            authenticate._cache.clear()
            authenticate._keys_by_caller.clear()
            await until(lambda: reader.answered)
        assert reader.kinds() == ["expiring", "bye"]
        assert reader.events[-1].data["status"] == 401

    make_runner(with_users)(work)


def test_who_am_i(with_users: Any, tokens: Tokens, store: Store) -> None:  # noqa: ANN401
    """A caller learns its name, its rights and when its credential ends; of other applications it learns nothing."""
    tokens.known["ann"] = Identity(
        frozenset({"queuey ann", "other ann"}),
        (Grant("queuey", READ, "inbox-ann"), Grant("other", READ, "x"), Grant("queuey", READ, ("a-*",))),
        "users of queuey",
        123.5,
    )
    bridge.run(store.applications.create_application("other"))
    with pytest.raises(AssertionError):  # its token has expired
        assert Caller(with_users, "Token ann").get("_me").status == 200
    tokens.known["ann"] = Identity(tokens.known["ann"].names, tokens.known["ann"].grants, "users of queuey", 9e9)
    assert Caller(with_users, "Token ann").get("_me").json == {
        "status": "ok",
        "names": ["ann"],
        "expires": 9e9,
        "rights": [{"allow": ["read"], "queues": ["inbox-ann"]}, {"allow": ["read"], "patterns": ["a-*"]}],
    }
    assert Caller(with_users).get("_me").json == {"status": "ok", "names": [], "expires": None, "rights": []}


def test_who_is_the_owner(owner: Caller) -> None:
    """A key without limits may do everything."""
    owner_info = owner.get("_me").json
    assert (owner_info["names"], owner_info["rights"][0]["patterns"]) == (["app:queuey"], ["*"])
    assert owner_info["rights"][0]["allow"] == ["send", "read", "delete", "claim", "admin", "measure"]


class Losing:
    """Queues that a reader loses, and may read again.

    Args:
        owner: Creates the queues.
        store: The store.
        loss: ``deleted``, or ``rights``: then the reader is a guest.
    """

    def __init__(self, owner: Caller, store: Store, loss: str) -> None:
        self.owner, self.store, self.loss = owner, store, loss
        self.key = KEY if loss == "deleted" else GUEST_KEY

    async def change(self, name: str, *, lose: bool) -> None:
        if self.loss == "rights":
            queue = await self.store.catalogue.queue("queuey", name)
            await self.store.catalogue.update_queue(queue, QueueSpec(type="user" if lose else "public"))
        elif lose:
            await self.store.catalogue.delete_queue(await self.store.catalogue.queue("queuey", name))
        else:
            await asyncio.to_thread(self.owner.create, name, type="public")

    async def read(self, gateway: Gateway, query: str) -> list[str]:
        """Reads ``q``, and maybe ``p``, while ``q`` is lost and comes back. Returns the kinds of its events."""
        async with reading(gateway, Reader("_stream", query, key=self.key)) as reader:
            await self.change("q", lose=True)
            await until(lambda: "gone" in reader.kinds())
            await self.change("q", lose=False)
            # A message that is stored before the queue is followed again is not passed over.
            for number, name in enumerate(("q", "p", "q")):
                await self.store.messages.append(
                    await self.store.catalogue.queue("queuey", name), [new_message(f"{number}")]
                )
                if "queues=q&" not in query or name == "q":
                    await until(lambda body=f"{number}": body in reader.bodies)  # type: ignore[misc]
        return reader.kinds()


@pytest.mark.parametrize(
    ("loss", "query"), [("deleted", "queues=q&"), ("deleted", "read_marks=1"), ("rights", "queues=q,p")]
)
def test_a_lost_queue_is_reported_and_followed_again(
    owner: Caller, app: App, store: Store, query: str, loss: str
) -> None:
    """A queue that is deleted, or may not be read any more, gives one ``gone``; the stream stays and follows it."""
    losing = Losing(owner, store, loss)
    for name in ("q", "p"):
        owner.create(name, type="public")
    events = make_runner(app, waiters=50, beat=0.2)(lambda gateway: losing.read(gateway, query))
    assert events.count("gone") == 1
