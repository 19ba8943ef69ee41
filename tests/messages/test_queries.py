"""Meaningless fields of queries: reported in a header, or refused on request, never ignored silently."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuey.web.endpoint import add_warnings
from queuey.web.requests import record_unknown_names
from tests.web.caller import Caller
from tests.web.gateway_calls import blank_request

pytestmark = pytest.mark.one_app

ID = "ab" * 6 + "1bcd8" + "0" * 15


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "q", ""),
        ("GET", f"q/{ID}", ""),
        ("POST", "q", "x"),
        ("PUT", f"q/{ID}", "x"),
        ("DELETE", f"q/{ID}", ""),
    ],
)
def test_unknown_fields(owner: Caller, method: str, path: str, body: str) -> None:
    """The original's resources name an unknown field in a warning, or refuse it with ``strict=1`` and do nothing."""
    owner.create("q")
    strict = owner(method, path, body, partition=2, strict=1)
    assert (strict.status, list(strict.errors)) == (400, ["partition"])
    assert owner.get("q").messages == []
    for query in ("partition=2", "partition=2&strict=0"):
        reply = owner(method, f"{path}?{query}", body)
        assert reply.headers.get("Warning") == '299 - "Ignored, as they are no fields of this query: partition"'
        if method != "DELETE":
            assert reply.status < 300


@pytest.mark.parametrize(
    ("method", "path", "body", "field"),
    [
        ("GET", "/?limits=1", "", "limits"),
        ("POST", "_read?wait=1", '{"queues": []}', "wait"),
        ("POST", "_read", '{"queues": [], "waits": 1}', "waits"),
        ("POST", "_read", '{"queues": [{"queue_name": "q", "partition": 2}]}', "partition"),
        ("POST", "", '{"queue_name": "p", "partitons": 3}', "partitons"),
        ("PUT", "q", '{"ttls": 3}', "ttls"),
        ("POST", "q/claims?limt=1", "", "limt"),
    ],
)
def test_unknown_fields_are_errors(owner: Caller, method: str, path: str, body: str, field: str) -> None:
    """Other resources, and JSON that makes or changes a queue, refuse unknown fields and do nothing."""
    owner.create("q")
    headers = {"Content-Type": "application/json"}
    reply = owner(method, path, body, headers=headers)
    assert (reply.status, list(reply.errors)) == (400, [field])
    assert owner.get("").json["queues"] == [{"queue_name": "q"}]
    lenient = owner(method, f"{path}{'&' if '?' in path else '?'}strict=0", body, headers=headers)
    assert lenient.status < 300
    assert field in lenient.headers["Warning"]


def test_an_unknown_field_names_a_similar_one(owner: Caller) -> None:
    reply = owner("POST", "", '{"partitons": 3}', headers={"Content-Type": "application/json"})
    assert reply.errors["partitons"].startswith("No field of this body; did you mean partitions? The fields are: ")


def test_two_warnings_are_one_header(owner: Caller) -> None:
    """A batch that is read as a message because of its Content-Type causes a warning as well; clients see both."""
    owner.create("q")
    reply = owner("POST", "q?until=-1", '{"messages": [{"body": "x"}]}', headers={"Content-Type": "text/plain"})
    assert reply.status == 201
    stored, ignored = reply.headers["Warning"].split(", 299 - ")
    assert stored.startswith('299 - "Stored as one message.')
    assert ignored == '"Ignored, as they are no fields of this query: until"'


def test_known_fields(owner: Caller) -> None:
    """Known fields cause no warning, and strict accepts them."""
    owner.create("q")
    fields = "partitions=*&limit=5&order=descending&since=1&after=1&before=2&until=2&delay=0&merge=1&wait=0&strict=true"
    for path in (f"q?{fields}", "?limit=1&offset=a&details=1&include_count=1&strict=1", f"q/{ID}?raw=0&strict=1"):
        reply = owner("GET", path)
        assert (reply.status, "Warning" in reply.headers) == (200, False)


@given(st.lists(st.text(), min_size=1, max_size=200))
def test_a_warning_is_one_short_line(names: list[str]) -> None:
    """Whatever the name of a field, the warning is a short, unambiguous header."""
    request = blank_request()
    record_unknown_names(request, names, "field", "query", ())
    [(name, value)] = add_warnings((), request.ignored)
    assert (name, value.isascii(), value.isprintable(), value.count('"'), "\\" in value) == (
        "Warning",
        True,
        True,
        2,
        False,
    )
    assert len(value) < 800
