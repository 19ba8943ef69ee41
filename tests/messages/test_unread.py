"""Read marks over HTTP: who has them, what is refused, and which events of streams report them."""

from __future__ import annotations

from typing import Any

import pytest

from queuey.access.credentials.readers import Identity
from queuey.app.application import make_app
from queuey.app.service import App, Service
from queuey.messages.ranges import OTHER_PARTITIONS
from queuey.messages.streams import Cursor
from queuey.model import ids
from queuey.model.messages import QueueSpec
from queuey.model.rights import Grant, Verb
from queuey.storage import Store, bridge
from queuey.web.gateway import Gateway
from tests.contract.samples import new_message
from tests.messages.test_streams import Event, Reader, reading
from tests.web.caller import Caller, Reply, Tokens
from tests.web.gateway_calls import make_runner, until

ID = "0123456789ab11e88000000000000001"
READ: frozenset[Verb] = frozenset({"read"})


@pytest.fixture
def app(app: App, store: Store, tokens: Tokens) -> App:
    """The application with users, whose queues are hidden from strangers."""
    assert app.endpoints
    return make_app(store, readers=[tokens], private={"queuey"})


def user(app: App, tokens: Tokens, name: str, *queues: str) -> Caller:
    grants = tuple(Grant("queuey", READ, queue) for queue in queues)
    tokens.known[name] = Identity(frozenset({f"queuey user:{name}"}), grants, "users of queuey", None)
    return Caller(app, f"Token {name}")


def unread(caller: Caller, *queues: str, **more: int) -> list[tuple[int, bool]]:
    queues_read = caller.send_json("POST", "_unread", {"queues": queues, **more}).json["queues"]
    return [(each["unread"], each["more"]) for each in queues_read]


def mark_read(caller: Caller, queue: str, **given: object) -> Reply:
    return caller.send_json("PUT", f"{queue}/read", given)


def test_a_user_marks_the_own_inbox(owner: Caller, app: App, tokens: Tokens) -> None:
    """A user marks their own inbox by an id or a cursor, for that user alone; the application has its own mark."""
    ann, bob = user(app, tokens, "ann", "inbox-ann"), user(app, tokens, "bob", "inbox-bob")
    for name in ("inbox-ann", "inbox-bob"):
        owner.create(name)
    first, second, _ = (owner.post("inbox-ann", text)["key"] for text in "abc")
    assert unread(ann, "inbox-ann") == [(3, False)]
    reply = mark_read(ann, "inbox-ann", until=second)
    assert reply.json == {"status": "ok", "read": {"1": second}, "pending": 0.0}
    assert mark_read(ann, "inbox-ann", until=f"1:{first}").json["read"] == {"1": second}
    assert mark_read(ann, "inbox-ann", until=first, back=True).json["read"] == {"1": first}
    assert unread(ann, "inbox-ann") == [(2, False)]
    assert unread(owner, "inbox-ann", limit=2) == [(2, True)]
    cursor = ann.get("inbox-ann", limit=2).json["cursor"]
    assert mark_read(ann, "inbox-ann", cursor=cursor).json["read"] == {"1": second}
    assert mark_read(owner, "inbox-ann", until=first).status == 200
    assert unread(ann, "inbox-ann") == [(1, False)]
    for refused in (mark_read(ann, "inbox-bob", until=first), mark_read(ann, "none", until=first)):
        assert refused.status == 403
    mine, other, none = ann.send_json("POST", "_unread", {"queues": ["inbox-ann", "inbox-bob", "none"]}).json["queues"]
    assert mine["read"] == {"1": second}
    assert list(other["error_msg"]) == list(none["error_msg"]) == ["Forbidden"]
    own = ann.send_json("POST", "_unread", {}).json["queues"]
    assert [(each["queue_name"], each["unread"]) for each in own] == [("inbox-ann", 1)]
    assert unread(bob, "inbox-bob") == [(0, False)]


def test_a_queue_for_all_users(owner: Caller, app: App, tokens: Tokens, anonymous: Caller, guest: Caller) -> None:
    """Each has a mark in it; those are in no list of groups, and no group's name reaches them."""
    owner.create("news", type="public")
    last = owner.post("news", "a")["key"]
    ann, bob = user(app, tokens, "ann"), user(app, tokens, "bob")
    assert mark_read(ann, "news", until=last).status == 200
    assert (unread(ann, "news"), unread(bob, "news"), unread(owner, "news")) == (
        [(0, False)],
        [(1, False)],
        [(1, False)],
    )
    assert mark_read(guest, "news", until=last).status == 200
    assert unread(owner, "news") == [(1, False)]
    assert owner.get("news/offsets").json["groups"] == []
    for group in ("~user:ann", "%7Euser:ann"):
        assert owner.get(f"news/offsets/{group}").status == 404
        assert owner("DELETE", f"news/offsets/{group}").status == 404
        assert owner.send_json("PUT", f"news/offsets/{group}", {"partitions": {"1": {"offset": ID}}}).status == 400
    assert unread(ann, "news") == [(0, False)]
    assert mark_read(anonymous, "news", until=last).status == 401
    assert anonymous.send_json("POST", "_unread", {"queues": ["news"]}).status == 401


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({}, "until"),
        ({"until": 5}, "until"),
        ({"until": "2:" + ID}, "partitions.2"),
        ({"until": ID, "cursor": ID}, "cursor"),
        ({"cursor": "1:" + ID + "," * 100_000}, "cursor"),
    ],
)
def test_marks_that_are_refused(owner: Caller, given: dict[str, Any], field: str) -> None:
    """A mark above all visible messages, or without a message, is 400, names the field, and moves nothing."""
    owner.create("q")
    owner.post("q", "a")
    reply = mark_read(owner, "q", **given)
    assert (reply.status, list(reply.errors)) == (400, [field])
    assert unread(owner, "q") == [(1, False)]
    assert owner("PUT", "q/read", "[]", headers={"Content-Type": "application/json"}).status == 400


def reads(reader: Reader) -> list[Event]:
    return [event for event in reader.events if event.kind == "read"]


@pytest.mark.parametrize("path", ["q", "_stream"])
def test_streams_tell_of_marks(owner: Caller, store: Store, app: App, path: str) -> None:
    """First the unread counts, then each moved mark of this process, at once; only the reader's own, on request."""
    queue = bridge.run(store.catalogue.queue("queuey", owner.create("q")))
    places = bridge.run(store.messages.append(queue, [new_message(text) for text in "abc"]))
    service: Service = app.service
    access = service.queues.access_unchecked(queue)

    async def work(gateway: Gateway) -> None:
        more = "" if path == "q" else "&queues=q"
        async with reading(gateway, Reader(path, f"read_marks=1{more}")) as one, reading(gateway, Reader(path)) as two:
            await until(lambda: len(reads(one)) == 1)
            name = {} if path == "q" else {"queue_name": "q"}
            assert reads(one)[0].data == {**name, "read": {}, "unread": 3, "more": False}
            await service.unread.mark(access, "user:bob", {OTHER_PARTITIONS: ids.following(places[2])})
            await service.unread.mark(access, "app:queuey", {OTHER_PARTITIONS: ids.following(places[1])})
            await until(lambda: len(reads(one)) == 2)
            assert reads(one)[1].data == {**name, "read": {"1": ids.to_hex(places[1])}, "unread": 1, "more": False}
            assert all(Cursor.parse(event.id, "q").base > places[2] for event in reads(one))
            await until(lambda: len(two.bodies) == 3)
            assert reads(two) == []
            # Only streams that report read marks read the reader's marks: they are known by reader and by queue.
            assert [*map(len, service.streams.followers.values())] == [1, 1]
        await until(lambda: not service.streams.followers)

    make_runner(app, waiters=50)(work)


def test_anonymous_readers_have_no_marks_to_follow(owner: Caller, app: App) -> None:
    """A stream of an anonymous reader that asks for read marks is refused."""
    owner.create("news", type="public")

    async def work(gateway: Gateway) -> None:
        async with reading(gateway, Reader("news", "read_marks=1", key=None)) as reader:
            await until(lambda: reader.answered)
        assert reader.status == 403

    make_runner(app, waiters=50)(work)


def test_a_thousand_queues(owner: Caller, store: Store) -> None:
    """A thousand queues are counted in one call; one more is refused, as is a body that is not a list of names."""
    names = [f"q{number}" for number in range(1000)]
    for name in names:
        queue, _ = bridge.run(store.catalogue.create_queue("queuey", name, QueueSpec()))
    bridge.run(store.messages.append(queue, [new_message("last")]))
    assert unread(owner, *names) == [(0, False)] * 999 + [(1, False)]
    reply = owner.send_json("POST", "_unread", {"queues": [*names, "q"], "limit": 1001})
    assert (reply.status, sorted(reply.errors)) == (400, ["limit", "queues"])
    for queues in ("q", [5], [""], {"a": 1}):
        assert owner.send_json("POST", "_unread", {"queues": queues}).status == 400
