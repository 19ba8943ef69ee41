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
        ("POST", "_read", '{"queues":[]}'),
        ("GET", "/", ""),
    ],
)
def test_unknown_fields(owner: Caller, method: str, path: str, body: str) -> None:
    """An unknown field of any query is named in a warning; where strict is asked for it is refused and nothing done."""
    owner.create("q")
    strict = owner(method, path, body, partition=2, strict=1)
    assert (strict.status, list(strict.errors)) == (400, ["partition"])
    assert owner.get("q").messages == []
    for query in ("partition=2", "partition=2&strict=0"):
        reply = owner(method, f"{path}?{query}", body)
        assert reply.headers.get("Warning") == '299 - "Ignored, as they are no fields of this query: partition"'
        if method != "DELETE":
            assert reply.status < 300


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
