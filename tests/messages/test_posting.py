"""Posting one message: bodies, headers, and the partition it goes to."""

from __future__ import annotations

import base64
import gzip
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuey.model.ids import parse_position
from queuey.runtime.limits import Limits
from tests.backends import Clock
from tests.web.caller import Caller

pytestmark = pytest.mark.one_app

FIRST_ID = "0" * 12 + "10008" + "0" * 15


def decode_body(message: dict[str, object]) -> bytes:
    body = message["body"]
    assert isinstance(body, str)
    return base64.b64decode(body) if message.get("encoding") == "base64" else body.encode()


def test_post_answers_with_the_place(owner: Caller) -> None:
    """A post is 201 with the id, its time as text with seven decimals, and the partition."""
    owner.create("q")
    posted = owner.post("q", "hello")
    assert re.fullmatch("[0-9a-f]{12}1[0-9a-f]{3}[89ab][0-9a-f]{15}", posted["key"])
    assert re.fullmatch(r"[0-9]{10}\.[0-9]{7}", posted["timestamp"])
    assert posted["partition"] == 1
    [read] = owner.get("q").messages
    assert read == {"message_id": posted["key"], "timestamp": posted["timestamp"], "partition": 1, "body": "hello"}


@given(body=st.binary(min_size=1, max_size=200) | st.text(min_size=1).map(str.encode))
def test_any_bytes_come_back(owner: Caller, body: bytes) -> None:
    """All bytes come back byte for byte: from ranges, by id, and raw."""
    owner("POST", "", "queue_name=q", headers={"Content-Type": "application/x-www-form-urlencoded"})
    posted = owner.post("q", body)
    name = f"q/{posted['partition']}:{posted['key']}"
    assert decode_body(owner.get("q", since=posted["key"], limit=1).messages[0]) == body
    assert decode_body(owner.get(name).messages[0]) == body
    raw = owner.get(name, raw="true")
    assert raw.body == body
    text = "encoding" not in owner.get(name).messages[0]
    assert raw.headers["Content-Type"] == ("text/plain; charset=utf-8" if text else "application/octet-stream")


@pytest.mark.parametrize(
    "kind", ["text/html; charset=latin-1", "application/jsonp", "application/json-seq", "image/png"]
)
def test_content_type_is_kept(owner: Caller, kind: str) -> None:
    """A Content-Type other than JSON travels with the message, which is stored as it is."""
    owner.create("q")
    posted = owner.post("q", '{"a": 1}', Content_Type=kind)
    [message] = owner.get("q").messages
    assert (message["content_type"], message["body"]) == (kind, '{"a": 1}')
    raw = owner.get(f"q/{posted['key']}", raw=1)
    assert raw.headers["Content-Type"] == kind


def test_own_headers_are_kept(owner: Caller) -> None:
    """X-Header-… travel with the message under lower-case names and come back as headers."""
    owner.create("q")
    posted = owner.post("q", "x", X_Header_Trace_Id="1-2", X_Header_Kind="a b")
    [message] = owner.get("q").messages
    assert message["headers"] == {"trace-id": "1-2", "kind": "a b"}
    raw = owner.get(f"q/{posted['key']}", raw="yes")
    assert raw.headers["X-Header-kind"] == "a b"
    assert raw.headers["X-Header-trace-id"] == "1-2"


def test_too_many_or_too_long_headers_are_refused(owner: Caller) -> None:
    """A message keeps at most 16 headers of 8 KiB together."""
    owner.create("q")
    many = {f"X-Header-{number}": "x" for number in range(17)}
    assert list(owner("POST", "q", "x", headers=many).errors) == ["headers"]
    assert list(owner("POST", "q", "x", headers={"X-Header-A": "x" * 9000}).errors) == ["headers"]
    assert owner.get("q").messages == []


def test_headers_choose_partition_and_ttl(owner: Caller, clock: Clock) -> None:
    """X-Partition picks the partition, X-TTL the seconds until the message expires."""
    owner.create("q", partitions=3)
    posted = owner.post("q", "x", X_Partition=" 3 ", X_TTL="10")
    assert posted["partition"] == 3
    clock.advance(9)
    assert owner.get("q", partitions=3).bodies == ["x"]
    clock.advance(2)
    assert owner.get("q", partitions=3).bodies == []
    assert owner.get(f"q/3:{posted['key']}").messages == []


def test_empty_headers_are_not_given(owner: Caller) -> None:
    """A header without a value means its default."""
    owner.create("q")
    headers = {f"X-{name}": "" for name in ("TTL", "Partition", "Message-Key", "Delay", "After")}
    assert owner("POST", "q", "x", headers=headers).status == 201


def test_after_orders(owner: Caller) -> None:
    """X-After puts the new id above the one named; one too far ahead is refused."""
    owner.create("q")
    first = owner.post("q", "x")["key"]
    second = owner.post("q", "x", X_After=first)["key"]
    assert parse_position(second) > parse_position(first)
    ahead = f"{first[:12]}1fff{first[16:]}"
    assert owner("POST", "q", "x", headers={"X-After": ahead}).status == 400
    assert list(owner("POST", "q", "x", headers={"X-After": "soon"}).errors) == ["after"]


def test_every_bad_header_is_named(owner: Caller) -> None:
    """All bad headers are reported together, and nothing is stored."""
    owner.create("q", partitions=2)
    headers = {"X-TTL": "1e9", "X-Partition": "4", "X-Delay": "-1", "X-After": "z", "X-Message-Key": "k" * 257}
    reply = owner("POST", "q", "", headers=headers)
    assert reply.status == 400
    assert reply.errors == {
        "body": "Required",
        "ttl": '"1e9" is not a whole number in plain digits',
        "partition": "4 is greater than maximum value 2",
        "delay": "-1 is less than minimum value 0",
        "after": '"z" is not a message id',
        "message_key": "Longer than maximum length 256",
    }


@pytest.mark.parametrize(
    ("headers", "errors"),
    [
        ({"X-TTL": "9" * 5000}, {"ttl": f'"{"9" * 80}" is not a whole number in plain digits'}),
        ({"X-TTL": "٣"}, {"x-ttl": "Is not ASCII; a batch takes any text"}),
        ({"X-Delay": "inf"}, {"delay": '"inf" is not a number'}),
        ({"X-Delay": "9" * 20}, {"delay": f"{float('9' * 20):.0f} is greater than maximum value 33554432"}),
        ({"X-Message-Key": "a", "X-Partition": "1"}, {"message_key": "Not together with partition"}),
    ],
    ids=str,
)
def test_bad_headers_are_refused(owner: Caller, headers: dict[str, str], errors: dict[str, str]) -> None:
    """Each bad header is refused in the words of the original."""
    owner.create("q")
    reply = owner("POST", "q", "x", headers=headers)
    assert (reply.status, reply.errors) == (400, errors)
    assert owner.get("q").messages == []


def test_body_limit_is_kept_before_reading(owner: Caller, limits: Limits) -> None:
    """A body at the limit is stored; a longer one is 413 by its length alone."""
    owner.create("q")
    owner.post("q", b"x" * limits.max_body)
    reply = owner("POST", "q", b"x", headers={"Content-Length": str(limits.max_batch_bytes + 1)})
    assert reply.status == 413
    assert reply.errors == {"body": f"Longer than maximum length {limits.max_body} bytes"}
    assert len(owner.get("q").messages) == 1


@pytest.mark.parametrize(
    ("method", "path", "kind"),
    [
        ("POST", "", "application/json"),
        ("POST", "q", "text/plain"),
        ("PUT", "q/" + FIRST_ID, "text/plain"),
        ("PUT", "q/offsets/g", "application/json"),
    ],
)
def test_compressed_bodies_are_refused(owner: Caller, method: str, path: str, kind: str) -> None:
    """A body that would have to be decoded is 415, so that no reader takes compressed bytes for a message."""
    owner.create("q")
    for coding in ("gzip", "br", "identity, gzip", "x" * 1000):
        reply = owner(method, path, gzip.compress(b"{}"), headers={"Content-Type": kind, "Content-Encoding": coding})
        assert (reply.status, list(reply.errors)) == (415, ["Content-Encoding"])
        assert (reply.headers["Accept-Encoding"], len(reply.body) < 200) == ("identity", True)
    assert owner.get("q").messages == []


@pytest.mark.parametrize("coding", ["", "identity", " Identity ,"])
def test_bodies_that_are_said_to_be_as_they_are(owner: Caller, coding: str) -> None:
    """``identity`` is accepted: it does not encode the body."""
    owner.create("q")
    assert owner("POST", "q", "plain", headers={"Content-Encoding": coding}).status == 201
    assert owner.get("q").bodies == ["plain"]


@pytest.mark.parametrize("kind", ["", "text/plain"])
@pytest.mark.parametrize("body", ['{"messages": [{"body": "a"}]}', '\n{ "messages":[1]'])
def test_what_looks_like_a_batch_is_one_message_and_the_answer_says_so(owner: Caller, kind: str, body: str) -> None:
    """Without its Content-Type a batch is a message like any other, byte for byte; the answer names the header."""
    owner.create("q")
    reply = owner("POST", "q", body, headers={"Content-Type": kind} if kind else {})
    assert (reply.status, len(reply.messages)) == (201, 1)
    assert "one message" in reply.headers["Warning"]
    assert "Content-Type: application/json" in reply.headers["Warning"]
    assert owner.get("q").bodies == [body]
    assert "Warning" not in owner("POST", "q", '{"a": 1}').headers
    assert "Warning" not in owner.batch("q", {"body": "a"}).headers


def test_ttl_of_the_queue_is_the_default(owner: Caller, clock: Clock) -> None:
    """A message without a TTL of its own has its queue's, and else three days."""
    owner.create("short", ttl=5)
    owner.create("usual")
    owner.post("short", "x")
    owner.post("usual", "x")
    clock.advance(6)
    assert owner.get("short").messages == []
    clock.advance(259_190)
    assert owner.get("usual").bodies == ["x"]
    clock.advance(10)
    assert owner.get("usual").messages == []
