"""Messages by name over HTTP."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import quote

import pytest

from queuey.errors import StoreUnavailable
from queuey.storage import ClaimLogs, Messages, Names
from tests.interposed_store import InterposedStore
from tests.web.caller import Caller
from tests.web.gateway_calls import limit_thread_work


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


def test_bad_input(owner: Caller, q: str) -> None:
    """An empty body, a bad header and an idempotency key are refused by the field's name, and nothing is stored."""
    for method in ("POST", "PUT"):
        assert list(owner(method, f"{q}/named/n", b"").errors) == ["body"]
        assert list(owner(method, f"{q}/named/n", b"x", headers={"X-TTL": "0"}).errors) == ["ttl"]
        assert list(owner(method, f"{q}/named/n", b"x", headers={"Idempotency-Key": "k"}).errors) == ["idempotency_key"]
    assert owner("GET", f"{q}/named/n", b"").status == 404


@pytest.mark.parametrize(("times", "status"), [(1, 200), (1000, 503)])
def test_replaced_while_it_is_read(owner: Caller, between: InterposedStore, q: str, times: int, status: int) -> None:
    """GET returns a value also if the one that it is about to read is replaced; if that goes on for ever, it is 503."""
    path, values = f"{q}/named/n", iter(range(times))
    assert owner("PUT", path, b"first").status == 200
    replaced: list[str] = []

    async def replace() -> None:
        for value in values:
            between.restore(Messages.fetch)
            assert (await asyncio.to_thread(owner, "PUT", path, b"%d" % value)).status == 200
            between.before(Messages.fetch, replace)
            replaced.append(str(value))
            break

    between.before(Messages.fetch, replace)
    reply = owner("GET", path, b"")
    assert reply.status == status
    assert replaced
    if status == 200:
        assert reply.bodies == replaced
    else:
        assert (list(reply.errors), reply.headers["Retry-After"]) == (["StoreBusy"], "1")


def test_freed_while_it_is_read(owner: Caller, between: InterposedStore, q: str) -> None:
    """GET is 404 if the message is deleted, or acknowledged, while it is being read."""
    value_path = f"{q}/named/n"
    for path, how in ((value_path, "DELETE"), (f"{q}/claims/ack", "POST")):
        assert owner("PUT", value_path, b"a").status == 200
        [held] = owner.claim()

        async def free(path: str = path, how: str = how, held: dict[str, Any] = held) -> None:
            between.restore(Messages.fetch)
            reply = await asyncio.to_thread(owner.send_json, how, path, {"receipts": [held["receipt"]]})
            assert reply.status == 200

        between.before(Messages.fetch, free)
        assert owner("GET", value_path, b"").status == 404


def test_what_becomes_of_it(owner: Caller, between: InterposedStore, q: str) -> None:
    """If the value was written but not the claim log, the answer says that the outcome is unknown."""
    assert owner("PUT", f"{q}/named/n", b"a").status == 200

    def fail(*_args: object, **_named: object) -> None:
        raise StoreUnavailable("no log")

    between.instead(ClaimLogs.append_entry, fail)
    failed = owner("PUT", f"{q}/named/n", b"b")
    assert (failed.status, failed.json["outcome"]) == (503, "unknown")
    between.restore(ClaimLogs.append_entry)
    assert owner("GET", f"{q}/named/n", b"").bodies == ["b"]
    between.instead(Names.write_named, fail)
    failed = owner("PUT", f"{q}/named/n", b"c")
    assert (failed.status, failed.json["outcome"]) == (503, "none")
    between.restore(Names.write_named)
    assert owner("GET", f"{q}/named/n", b"").bodies == ["b"]


def test_a_name_is_changed_or_refused(owner: Caller, q: str) -> None:
    """When an application runs out of threads at any step, 429 says that nothing was done, and nothing was."""
    path, statuses = f"{q}/named/n", []
    for most in range(9):
        assert owner("PUT", path, b"old").status == 200
        with limit_thread_work(most):
            statuses.append(owner("PUT", path, b"new").status)
        assert owner("GET", path, b"").bodies == ["new" if statuses[-1] == 200 else "old"]
    assert set(statuses) == {200, 429}
    assert statuses == sorted(statuses, reverse=True)


def test_a_name_is_read_however_many_threads_are_left(owner: Caller, q: str, between: InterposedStore) -> None:
    """What a process that stopped has left behind is removed by the way: a read does not fail by it."""
    path = f"{q}/named/n"
    assert owner("PUT", path, b"old").status == 200
    between.before(Names.settle_named, _fail)
    assert owner("PUT", path, b"new").status == 200
    statuses = []
    for most in range(5):
        with limit_thread_work(most):
            reply = owner("GET", path, b"")
        statuses.append(reply.status)
        assert reply.status == 429 or reply.bodies == ["new"]
    assert (statuses[0], statuses[2:]) == (429, [200] * 3)


def _fail() -> None:
    raise StoreUnavailable("away", outcome="none")
