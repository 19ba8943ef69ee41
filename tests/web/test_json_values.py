"""JSON of callers is checked without being built: what is refused, and how much memory the check takes."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from queuey.facades.emodb import requests
from queuey.facades.emodb.errors import BadArgument, BadBody
from queuey.messages.message_views import parse_batch
from queuey.model.errors import InvalidRequest, TooLarge
from queuey.model.messages import Queue
from queuey.runtime.limits import Limits
from queuey.web.json_values import MAX_DEPTH, check_value, make_list_decoder
from queuey.web.requests import Request
from queuey.web.validators import JSON_ERRORS, BadField, decode_any
from tests.web.gateway_calls import blank_request

pytestmark = pytest.mark.one_app

LIMITS = Limits()
QUEUE = Queue(application="a", name="q", uid=1, qid=1)
MIB = 1024 * 1024
NUMBERS = [b"1", b"-2.5e3", b"1e999", b"-1e309", b"1E+0400", b"1e-999", b"1" * 4000, b"1" * 5000, b"9" * 250 + b"e70"]
STRINGS = [b"a", rb"\"", rb"\\", rb"\\\"[", b"[{", b"}]", b",", b"1e999", b"\\u00e9", "é".encode(), b"\xff", rb"\ud800"]


def is_refused(raw: bytes) -> bool:
    """Returns whether decoding a value would fail, or the value is nested too deeply."""
    try:
        level = [decode_any(raw)]
    except JSON_ERRORS:
        return True
    for _ in range(MAX_DEPTH):
        level = [each for one in level if isinstance(one, list) for each in one] + [
            each for one in level if isinstance(one, dict) for each in one.values()
        ]
        if not level:
            return False
    return any(isinstance(one, list | dict) for one in level)


def nest_values(inner: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    lists = st.lists(inner, max_size=4).map(lambda some: b"[" + b", ".join(some) + b"]")
    objects = st.lists(inner, max_size=4).map(
        lambda some: b"{" + b",".join(b'"%d": %b' % (n, one) for n, one in enumerate(some)) + b"}"
    )
    deep = st.tuples(st.integers(MAX_DEPTH - 4, MAX_DEPTH), inner).map(
        lambda two: b"[" * two[0] + two[1] + b"]" * two[0]
    )
    long = inner.map(lambda one: b'["' + b"\\n," * 9 + b'",' + one + b"," + one + b"]")
    return lists | objects | deep | long


STRING = st.lists(st.sampled_from(STRINGS), max_size=4).map(lambda some: b'"' + b"".join(some) + b'"')
VALUES = st.recursive(st.sampled_from([b"null", b"", b"01", *NUMBERS]) | STRING, nest_values, max_leaves=6)


@given(VALUES)
@example(b"[" * MAX_DEPTH + b"1e999" + b"]" * MAX_DEPTH)
def test_it_refuses_what_decoding_would_refuse(raw: bytes) -> None:
    """A value is refused exactly if decoding it fails, or it is nested too deeply."""
    if is_refused(raw):
        with pytest.raises(BadField):
            check_value(raw, block=16)
    else:
        assert check_value(raw, block=16) == raw.decode()


def test_a_list_is_read_up_to_its_longest() -> None:
    """A list of as many values as are allowed is read, a longer one is refused."""
    decode = make_list_decoder(3)
    assert [bytes(one) for one in decode(b'[1, {"a":[2]} ,null]')] == [b"1", b'{"a":[2]}', b"null"]
    assert decode(b"[]") == []
    with pytest.raises(msgspec.ValidationError):
        decode(b"[1,2,3,4]")


def batch(body: bytes) -> object:
    return parse_batch(body, LIMITS, QUEUE, blank_request())


def _make_request(body: bytes) -> Request:
    request = blank_request(content_type="application/json")
    request.body = body
    return request


def ids(body: bytes) -> object:
    return requests.read_ids(_make_request(body), LIMITS)


def message(body: bytes) -> object:
    return requests.read_message(_make_request(body), LIMITS)


def many(piece: bytes, size: int) -> bytes:
    return b"[" + piece * ((size - 200) // len(piece)) + b"{}]"


SMALL = b'{"":0},'
TALL = 2 * MIB


@pytest.mark.parametrize(
    ("read", "body"),
    [
        (batch, b'{"messages":[{"body":1},' + many(b"1,", TALL)[1:] + b"}"),
        (batch, b'{"messages":' + many(b'{"body":"ab","headers":{"a":""}},', TALL) + b"}"),
        (batch, b'{"messages":[{"body":' + many(SMALL, TALL) + b"}]}"),
        (batch, b'{"messages":[{"body":"a","headers":{' + b'"ab":"",' * 225_000 + b'"":""}}]}'),
        (ids, many(b'"ab",', TALL)),
        (message, many(SMALL, TALL)),
    ],
)
def test_memory_of_a_body(read: Callable[[bytes], object], body: bytes) -> None:
    """Reading any body takes little more memory than a few copies of it, however small its values are."""
    tracemalloc.start()
    try:
        read(body)
    except (InvalidRequest, TooLarge, BadArgument, BadBody):
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 4 * len(body)


def test_every_text_of_a_body_that_is_not_too_long() -> None:
    """A body as long as allowed is taken however it is written: escaped, and in base64."""
    limits = Limits(max_body=10)
    escaped = "".join(f"\\u{ord(char):04x}" for char in "0123456789")
    [draft] = parse_batch(b'{"messages":[{"body":"%b","delay":0}]}' % escaped.encode(), limits, QUEUE, blank_request())
    assert draft.body == "0123456789"
    base64 = "".join(f"\\u{ord(char):04x}" for char in "MDEyMzQ1Njc4OQ==")
    [draft] = parse_batch(
        b'{"messages":[{"body":"%b","encoding":"base64"}]}' % base64.encode(), limits, QUEUE, blank_request()
    )
    assert draft.body == "0123456789"
