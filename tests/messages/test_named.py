"""Messages by name over HTTP."""

from __future__ import annotations

from urllib.parse import quote

import pytest

from tests.web.caller import Caller

pytestmark = pytest.mark.one_app


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
