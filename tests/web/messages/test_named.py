"""Messages by name over HTTP."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any
from urllib.parse import quote

import pytest

from queuey.errors import WriteUndone
from queuey.storage import KeyedPosts, Messages, Names, Store
from tests.interposed_store import InterposedStore
from tests.web.caller import Caller


@pytest.fixture
def q(owner: Caller) -> str:
    owner.create("q", partitions=3)
    return "q"


def test_create_replace_get_delete(owner: Caller, q: str) -> None:
    """POST creates once, PUT replaces, GET shows and DELETE removes; the holder of an old value gets 409 for it."""
    path = f"{q}/named/n"
    created = owner("POST", path, b"a", headers={"X-TTL": "600"})
    assert created.status == 201
    again = owner("POST", path, b"a", headers={"X-TTL": "600"})
    [first], [merged] = created.messages, again.messages
    assert (again.status, merged) == (200, first | {"merged": "waiting"})
    taken = owner("POST", path, b"b")
    assert (taken.status, list(taken.errors)) == (409, ["NameTaken"])
    [held] = owner.claim()
    assert owner("POST", path, b"a", headers={"X-TTL": "600"}).messages == [first | {"merged": "claimed"}]
    replaced = owner("PUT", path, b'{"b": 1}', headers={"X-Encoding": "json"})
    assert replaced.status == 200
    [message] = owner("GET", path, b"").messages
    assert message["message_id"] == replaced.json["messages"][0]["key"]
    assert message["body"] == {"b": 1}
    raw = owner("GET", path, b"", raw="1")
    assert (raw.body, raw.headers["X-Message-Id"]) == (b'{"b": 1}', message["message_id"])
    lost = owner.send_json("POST", f"{q}/claims/ack", {"receipts": [held["receipt"]]})
    assert (lost.status, lost.json["results"][0]["status"]) == (409, "superseded")
    [current] = owner.claim()
    assert current["body"] == {"b": 1}
    assert owner.send_json("POST", f"{q}/claims/ack", {"receipts": [current["receipt"]]}).status == 200
    free = owner("GET", path, b"")
    assert (free.status, list(free.errors)) == (404, ["InvalidName"])
    assert owner("POST", path, b"c").status == 201
    for _ in range(2):
        assert owner("DELETE", path, b"").status == 200
    assert owner("GET", path, b"").status == 404
    assert owner.claim() == []


def test_names(owner: Caller, q: str) -> None:
    """A name is any text of 1 to 255 characters, percent-encoded; with a slash the path names no resource."""
    for name in ("x" * 255, "é👾", "a b%&?#", "named", "0" * 32, " "):
        path = f"{q}/named/{quote(name, safe='')}"
        assert owner("PUT", path, name.encode()).status == 200
        assert owner("GET", path, b"").bodies == [name]
    for method in ("POST", "PUT", "GET", "DELETE"):
        long = owner(method, f"{q}/named/{'x' * 256}", b"x")
        assert (long.status, long.errors) == (400, {"name": "Longer than maximum length 255"})
        assert owner(method, f"{q}/named/a/b", b"x").status == 404
        assert owner(method, "none/named/a", b"x").status == 404


# Posts whose first attempt the store has undone: clients of every API are answered as if it had not been made


@pytest.fixture
def undoing(store: Store, between: InterposedStore) -> Callable[[int], list[str]]:
    """Makes this many posts fail with WriteUndone; returns the list of calls that posts make from then on."""
    calls: list[str] = []

    def undo(times: int) -> list[str]:
        async def append(method: Callable[..., Any], *args: Any, **how: Any) -> Any:  # noqa: ANN401 - of the method
            calls.append(method.__name__)
            if len(calls) > times:
                return await method(*args, **how)
            raise WriteUndone("Cassandra wrote the message too late; the write is undone")

        between.instead(Messages.append, partial(append, store.messages.append))
        between.instead(KeyedPosts.append_once, partial(append, store.keyed_posts.append_once))
        return calls

    return undo


@pytest.mark.parametrize(
    "headers", [{}, {"Idempotency-Key": "k"}, {"X-After": "%"}], ids=["plain", "under a key", "after another"]
)
def test_one_message(owner: Caller, undoing: Callable[[int], list[str]], headers: dict[str, str]) -> None:
    """The answer is 201 with the place of the one message that is there."""
    owner.create("q", partitions=3)
    before = owner.post("q", "before")
    calls = undoing(1)
    reply = owner("POST", "q", "x", headers={name: text.replace("%", before["key"]) for name, text in headers.items()})
    assert (reply.status, len(calls)) == (201, 2)
    [stored] = reply.messages
    assert stored["key"] > before["key"]
    assert sorted(owner.get("q", partitions="*").bodies) == ["before", "x"]
    [shown] = owner.get(f"q/{stored['partition']}:{stored['key']}").messages
    assert shown["body"] == "x"


def test_both_fail(owner: Caller, undoing: Callable[[int], list[str]]) -> None:
    """After two attempts the answer is the same as after one: 503, nothing stored, and when to retry."""
    owner.create("q")
    calls = undoing(9)
    reply = owner("POST", "q", "x")
    assert (reply.status, reply.json["outcome"], reply.headers["Retry-After"]) == (503, "none", "1")
    assert list(reply.errors) == ["StoreUnavailable"]
    assert len(calls) == 2
    assert owner.batch("q", {"body": "x"}).json["outcomes"] == ["none"]
    assert len(calls) == 3  # The budget of this second is used up.
    assert owner.get("q").bodies == []


def test_by_its_id_and_by_its_name(owner: Caller, store: Store, between: InterposedStore) -> None:
    """Messages at ids that the client gives, and named ones, are written once."""
    owner.create("q")
    calls = []

    def fail(*_: object, **__: object) -> None:
        calls.append(1)
        raise WriteUndone("taken back")

    for method in (Messages.put, Names.write_named):
        between.instead(method, fail)
    replies = [owner("PUT", "q/" + "0" * 12 + "10008" + "0" * 15, "x"), owner("PUT", "q/named/n", "x")]
    assert [reply.status for reply in replies] == [503, 503]
    assert len(calls) == 2


def test_delayed(owner: Caller, undoing: Callable[[int], list[str]]) -> None:
    """Delayed messages are not repeated."""
    owner.create("q")
    calls = undoing(1)
    assert owner.batch("q", {"body": "a"}, {"body": "b", "delay": 1}).status == 503
    assert len(calls) == 1
