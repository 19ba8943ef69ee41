"""Posting several messages at once as JSON."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuey.model.ids import parse_position
from queuey.model.partitions import by_key
from queuey.runtime.limits import Limits
from queuey.storage import Catalogue
from tests.backends import Clock
from tests.interposed_store import InterposedStore
from tests.web.caller import Caller

pytestmark = pytest.mark.one_app

JSON = {"Content-Type": "application/json"}

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=4), inner, max_size=4)
    ),
    max_leaves=10,
)


@given(value=json_values.filter(lambda value: value is not None and value != ""))
def test_any_json_value_is_shown_as_itself(owner: Caller, value: Any) -> None:  # noqa: ANN401
    """A JSON body comes back as the value that was posted."""
    owner.send_form("POST", "", queue_name="q")
    [posted] = owner.batch("q", {"body": value}).messages
    [read] = owner.get(f"q/{posted['partition']}:{posted['key']}").messages
    assert read["body"] == value
    assert type(read["body"]) is type(value)
    assert "encoding" not in read


def test_json_bodies_are_kept_verbatim(owner: Caller) -> None:
    """The text of a JSON body is not rewritten: number forms, spaces, order and repeated keys stay."""
    owner.create("q")
    text = '{"b": 1.50,  "a":[1e2,\\u00e9], "b":2}'.replace("\\u00e9", '"\\u00e9"')
    reply = owner("POST", "q", '{"messages":[{"body":' + text + "}]}", headers=JSON)
    assert f'"body":{text}' in owner.get("q").text
    raw = owner.get(f"q/{reply.messages[0]['key']}", raw="1")
    assert (raw.text, raw.headers["Content-Type"]) == (text, "application/json")


def test_every_field_of_an_item(owner: Caller, clock: Clock) -> None:
    """An item may carry TTL, partition or key, content type, headers, delay and base64."""
    owner.create("q", partitions=5)
    reply = owner.batch(
        "q",
        {"body": "a", "ttl": "7", "partition": "2", "content_type": "text/x", "headers": {"Trace": "é"}},
        {"body": "/wA=", "encoding": "base64", "message_key": "k"},
        {"body": "b", "delay": 5, "ttl": None, "partition": 2.9, "unknown": 1},
        {"body": "aGk=", "encoding": "base64", "partition": 2},
    )
    assert [m["partition"] for m in reply.messages] == [2, by_key("k", 5), 2, 2]
    first, text = owner.get("q", partitions=2).messages
    assert (first["content_type"], first["headers"], first["body"]) == ("text/x", {"trace": "é"}, "a")
    assert (text["body"], "encoding" in text) == ("hi", False)
    [binary] = owner.get(f"q/{by_key('k', 5)}:{reply.messages[1]['key']}").messages
    assert (binary["body"], binary["encoding"]) == ("/wA=", "base64")
    clock.advance(8)
    assert owner.get("q", partitions=2).bodies == ["hi", "b"]


def test_all_or_nothing_and_every_error_is_named(owner: Caller) -> None:
    """Bad items are named by index and field, all together, and nothing of the batch is stored."""
    owner.create("q")
    reply = owner.batch(
        "q",
        {"body": "good"},
        {"body": "x", "partition": 4, "ttl": 0},
        {"body": "", "ttl": "x"},
        {},
        7,
        {"body": None, "encoding": "base64"},
        {"body": "x", "delay": -1, "message_key": 5, "encoding": "hex"},
        {"body": "x", "headers": {"a b": "c"}, "content_type": "a\nb"},
        {"body": "*", "encoding": "base64"},
        {"body": 5, "encoding": "base64"},
        {"body": "x", "headers": {"a": "b\r\nSet-Cookie: c"}},
        {"body": "x", "partition": True, "ttl": [], "headers": "a"},
    )
    assert reply.status == 400
    assert reply.errors == {
        "1.partition": "4 is greater than maximum value 1",
        "1.ttl": "0 is less than minimum value 1",
        "2.body": "Required",
        "2.ttl": '"x" is not a number',
        "3.body": "Required",
        "4": "Is not an object",
        "5.body": "Is not base64",
        "6.delay": "-1 is less than minimum value 0",
        "6.message_key": '"5" is not a string',
        "6.encoding": '"hex" is not one of base64',
        "7.headers": '"a b" is not a header name',
        "7.content_type": "A content type must not have control characters",
        "8.body": "Is not base64",
        "9.body": "Is not base64",
        "10.headers": "A header must not have control characters",
        "11.partition": '"true" is not a number',
        "11.ttl": '"[]" is not a number',
        "11.headers": '"a" is not an object',
    }
    assert owner.get("q").messages == []


def test_null_is_a_value(owner: Caller) -> None:
    """An explicit null is kept as the JSON value null; only a body that is absent is missing."""
    owner.create("q")
    posted = owner.batch("q", {"body": None}, {"body": "null"}).messages
    assert owner.get("q").bodies == [None, "null"]
    raw = owner.get(f"q/{posted[0]['key']}", raw="1")
    assert (raw.text, raw.headers["Content-Type"]) == ("null", "application/json")
    assert owner.batch("q", {"body": None}, {}).errors == {"1.body": "Required"}


def test_headers_of_the_request_do_not_count(owner: Caller) -> None:
    """X-TTL and X-Partition are ignored for a batch, however wrong; X-After holds for all of it."""
    owner.create("q")
    first = owner.batch("q", {"body": "a"}, X_TTL="x", X_Partition="9").messages[0]["key"]
    second = owner.batch("q", {"body": "b"}, X_After=first).messages[0]["key"]
    assert parse_position(second) > parse_position(first)
    both = owner("POST", "q", '{"messages":[{"body":""}]}', headers={**JSON, "X-After": "?"})
    assert both.errors.keys() == {"0.body", "after"}


@pytest.mark.parametrize("kind", ["application/json", "application/json; charset=UTF-8", "Application/JSON"])
def test_json_is_known_by_its_media_type(owner: Caller, kind: str) -> None:
    """The media type decides, in any case and with any parameter."""
    owner.create("q")
    assert owner("POST", "q", '{"messages":[{"body":"x"}]}', headers={"Content-Type": kind}).status == 201
    assert owner.get("q").bodies == ["x"]


def test_limits_of_a_batch(owner: Caller, limits: Limits) -> None:
    """Too many messages, one too long, or too many bytes are 413, and nothing is stored."""
    owner.create("q")
    longest = "é" * (limits.max_body // 2)
    assert owner.batch("q", *[{"body": "x"}] * limits.max_batch).status == 201
    assert owner.batch("q", {"body": longest}).status == 201
    many = owner.batch("q", *[{"body": "x"}] * (limits.max_batch + 1))
    long = owner.batch("q", {"body": longest + "é"}, {"body": 1, "ttl": 0})
    heavy = owner.batch("q", {"body": "x" * limits.max_batch_bytes})
    assert (many.status, list(many.errors)) == (413, ["messages"])
    assert (long.status, list(long.errors)) == (413, ["0.body", "1.ttl"])
    assert (heavy.status, list(heavy.errors)) == (413, ["body"])
    assert len(owner.get("q", limit=1000).messages) == limits.max_batch + 1


def test_fields_of_an_item_have_bounds_together(owner: Caller) -> None:
    """Beside its body an item may have 128 KiB, whatever they are; a larger one is named, and nothing is stored."""
    owner.create("q")
    assert owner.batch("q", {"body": ["x" * 140_000], "unknown": "y" * 120_000}).status == 201
    reply = owner.batch("q", {"body": ["x"]}, {"body": ["x"], "unknown": "y" * 132_000})
    assert (reply.status, reply.errors) == (400, {"1": "Longer than maximum length 131072 bytes without its body"})
    assert len(owner.get("q").messages) == 1


# Meaningless fields of a request are reported, and a malformed request does not read its queue


Case = tuple[str, str, Any, dict[str, str]]
ID = "0123456789ab11e88000000000000001"
MEANINGLESS: dict[str, tuple[Case, str]] = {
    "misspelt header": (("POST", "q", None, {"X_TLL": "60"}), "x-tll"),
    "header of another operation": (("POST", "q/claims", None, {"X_Delay": "60"}), "x-delay"),
    "beside a batch": (("POST", "q", {"messages": [{"body": {"a": 1}}], "partition": 2}, {}), "partition"),
    "header of a batch": (("POST", "q", {"messages": []}, {"X_Delay": "60"}), "x-delay"),
    "own header of a batch": (("POST", "q", {"messages": []}, {"X_Header_Colour": "red"}), "x-header-colour"),
    "update": (("PUT", "q", {"ttl": 5, "queue_name": "p"}, {}), "queue_name"),
    "reason": (("POST", "q/claims/release", {"receipts": [], "reason": {"txt": "a"}}, {}), "txt"),
    "states": (("POST", "q/claims/state", {"states": {}, "state": {}}, {}), "state"),
    "several queues": (("POST", "_claims", {"queues": ["q"], "limit": 5, "limt": 5}, {}), "limt"),
    "offsets": (("PUT", "q/offsets/g", {"partitions": {"1": {"offset": ID, "expect": ID}}}, {}), "expect"),
    "read mark": (("PUT", "q/read", {"until": ID, "backwards": True}, {}), "backwards"),
    "move": (("POST", "_moves", {"from": "q", "to": "p", "limit": 5}, {}), "limit"),
    "schedule": (("PUT", "_schedules/s", {"queue": "q", "every": 60, "message": {"body": "x", "tll": 5}}, {}), "0.tll"),
}
"""Requests, and the meaningless field in each."""


def ask(owner: Caller, case: tuple[str, str, Any, dict[str, str]], strict: int) -> Any:  # noqa: ANN401 - a reply
    method, path, content, headers = case
    target = f"{path}?strict={strict}"
    if content is None:
        own = {name.replace("_", "-"): value for name, value in headers.items()}
        return owner(method, target, b"x" * (path == "q"), headers=own)
    return owner.send_json(method, target, content, **headers)


@pytest.mark.parametrize(("case", "name"), MEANINGLESS.values(), ids=list(MEANINGLESS))
def test_each_body_and_header(owner: Caller, case: Case, name: str) -> None:
    """Whatever the operation, ``strict=1`` refuses the field or header alone, and ``strict=0`` gets a warning."""
    owner.create("q")
    owner.create("p")
    strict = ask(owner, case, 1)
    assert strict.status == 400
    assert [field.removeprefix("message.") for field in strict.errors] == [name.removeprefix("0.")]
    reply = ask(owner, case, 0)
    assert reply.status < 300
    assert reply.headers["Warning"].endswith(f': {name}"')


@pytest.mark.parametrize(
    ("method", "path"), [("PUT", f"q/{ID}"), ("POST", "q/named/n"), ("PUT", "q/named/n")], ids=["id", "create", "name"]
)
def test_what_would_change_the_meaning_is_refused(owner: Caller, method: str, path: str) -> None:
    """A message at an id or under a name has no delay, partition, key or predecessor: it is not stored without them."""
    owner.create("q")
    headers = {"X-Delay": "60", "X-Partition": "2", "X-Message-Key": "a", "X-After": ID}
    reply = owner(method, path, "x", headers=headers)
    assert (reply.status, set(reply.errors)) == (400, {"delay", "partition", "message_key", "after"})
    keyed = owner(method, path, "x", headers={"Idempotency-Key": "1"})
    assert (keyed.status, list(keyed.errors)) == (400, ["idempotency_key"])
    assert "Warning" not in reply.headers
    assert owner.get("q").messages == []
    assert owner(method, path, "x", headers={"X-TTL": "60", "X-Delay": "", "X-Header-Colour": "red"}).status < 300


def test_headers_of_clients_and_proxies(owner: Caller) -> None:
    """Headers that proxies and browsers add cause no warning, and strict accepts them."""
    owner.create("q")
    names = "X-Forwarded-For X-Real-IP X-Request-Id X-Amzn-Trace-Id X-Api-Key Traceparent Sec-Fetch-Mode Cookie Origin"
    headers = dict.fromkeys(names.split(), "1")
    for method, path in (("POST", "q"), ("GET", "q"), ("POST", "q/claims"), ("GET", "q/info")):
        reply = owner(method, f"{path}?strict=1", b"x" * (method == "POST" and path == "q"), headers=headers)
        assert (reply.status < 300, "Warning" in reply.headers) == (True, False)


@pytest.mark.parametrize(
    ("items", "is_read"),
    [([{"body": 5, "ttl": "never"}], False), ([{"body": "a", "partition": 9}, {"body": "b", "ttl": "never"}], True)],
)
def test_a_malformed_body_costs_no_read_of_its_queue(
    owner: Caller, between: InterposedStore, items: list[object], *, is_read: bool
) -> None:
    """A body that no row could make valid is refused with the cached row; a partition that it lacks is looked up."""
    owner.create("q")
    owner.post("q", "x")
    reads: list[str] = []
    between.before(Catalogue.queue, lambda: reads.append("q"))
    assert owner.batch("q", *items).status == 400
    assert bool(reads) == is_read
