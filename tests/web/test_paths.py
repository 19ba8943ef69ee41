"""What the path of a request names, as a function and through the application under a plain WSGI server."""

from __future__ import annotations

from contextlib import suppress
from urllib.parse import quote, quote_from_bytes, unquote_to_bytes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuey.web.errors import NoSuchResource
from queuey.web.requests import RAW, decode_path
from tests.web.caller import Caller

NAMES = st.text(st.characters(codec="utf-8"), min_size=1).filter(
    lambda name: "/" not in name and name not in {".", ".."}
)


@given(st.lists(NAMES, min_size=1))
def test_names_come_back(names: list[str]) -> None:
    """Names that a client has encoded are those names after decoding, one between each two slashes."""
    path = "/" + "/".join(quote(name, safe="") for name in names)
    assert decode_path(path.encode()).encode("latin-1").decode().split("/") == ["", *names]


@given(st.binary(), st.integers(0, 3))
def test_decoding_adds_no_separator(raw: bytes, times: int) -> None:
    """Whatever is in a path, decoding it never gives more names than it had, and none is a dot segment."""
    for _ in range(times):
        raw = quote_from_bytes(raw).encode()
    with suppress(NoSuchResource):
        parts = decode_path(raw).split("/")
        assert parts == [unquote_to_bytes(part).decode("latin-1") for part in raw.split(b"/")]
        assert not {".", ".."} & set(parts)


@pytest.mark.parametrize("key", RAW)
@pytest.mark.parametrize("tail", ["%2Fmessages", "%2fmessages", "%2F"])
def test_servers_that_tell_the_raw_path(owner: Caller, key: str, tail: str) -> None:
    """Under a WSGI server that hands over the path as it was sent, an encoded slash separates nothing either."""
    queue = owner.create("q")
    owner.post(queue, "kept")
    path = f"/v1/queuey/{queue}{tail}"
    environ = owner.environ("DELETE", path, b"", {}, "") | {key: path + "?a=%2F"}
    assert owner.send(environ).status == 404
    assert owner.get(queue).bodies == ["kept"]
    environ = owner.environ("GET", f"/v1/queuey/{queue}", b"", {}, "after=1%2F") | {
        key: f"/v1/queuey/{queue}?after=1%2F"
    }
    assert owner.send(environ).status == 400


@pytest.mark.parametrize("name", [".", "..", "%2e", "%2E%2e"])
def test_dots_name_no_group(owner: Caller, name: str) -> None:
    """A proxy that resolves ``offsets/..`` would make the request one for the queue: no such name is taken."""
    owner.create("q")
    assert owner("DELETE", f"q/offsets/{name}").status == 404
    assert owner("DELETE", "q").status == 200
