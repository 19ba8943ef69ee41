"""Heads with an Idempotency-Key, which differs from head to head: parsed as all others, and cached without the key."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuey.web.http import heads
from queuey.web.http.heads import MAX_FIELDS, Head, Refused, read_head

LINES = ("Host: x", "Content-Length: 3", "X-TTL: 60", "Connection: keep-alive")
KEY = st.text('abc0-"=: \t\u00e9\x01', max_size=8)


def head(*lines: str) -> bytes:
    return "\r\n".join(("POST /v1/a/q?x=1 HTTP/1.1", *lines, "", "")).encode("latin-1")


def head_fields(found: Head) -> object:
    fields = sorted([*found.fields, *([(b"idempotency-key", found.key)] if found.key else [])])
    return found.method, found.path, found.query, fields, found.length, found.is_old, found.keeps_alive, found.expects


def outcome(data: bytes, read: object) -> object:
    try:
        return head_fields(read(data))  # type: ignore[operator]
    except Refused as refused:
        return refused.status


@given(
    name=st.sampled_from(["Idempotency-Key", "idempotency-key", "IDEMPOTENCY-KEY"]),
    separator=st.sampled_from([": ", ":", ":  "]),
    key=KEY,
    at=st.integers(0, len(LINES)),
    behind=st.sampled_from([(), (" folded",), ("\tfolded",), ("Idempotency-Key: b",), ("idempotency-key: b",)]),
)
def test_read_as_others(name: str, separator: str, key: str, at: int, behind: tuple[str, ...]) -> None:
    """However the header is written, wherever it stands and whatever follows, the head is what the parser reads."""
    data = head(*LINES[:at], f"{name}{separator}{key}", *behind, *LINES[at:])
    assert outcome(data, read_head) == outcome(data, heads._parse)


@pytest.mark.parametrize("count", [MAX_FIELDS - 1, MAX_FIELDS])
def test_the_key_counts_as_a_field(count: int) -> None:
    """A head has as many fields with a key as without one."""
    lines = ["Host: x", *(f"X-{number}: a" for number in range(count - 1))]
    data = head(*lines, "Idempotency-Key: a")
    assert outcome(data, read_head) == outcome(data, heads._parse)
    assert (outcome(data, read_head) == 431) == (count == MAX_FIELDS)


def test_remembered_once() -> None:
    """Heads that differ only in their keys are parsed once, share the result, and take one place."""
    heads._cached_heads.clear()
    parsed = [read_head(head(*LINES, f'idempotency-key: "{number}"')) for number in range(50)]
    assert [each.key for each in parsed] == [b'"%d"' % number for number in range(50)]
    assert len(heads._cached_heads) == 1
    assert all(each.application_cache is parsed[0].application_cache for each in parsed)
