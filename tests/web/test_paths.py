"""What the path of a request names, as a function and through the application."""

from __future__ import annotations

from urllib.parse import quote, quote_from_bytes, unquote_to_bytes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuey.web.endpoint import decode_path
from tests.web.caller import Caller

NAMES = st.text(st.characters(codec="utf-8"), min_size=1).filter(
    lambda name: "/" not in name and name not in {".", ".."}
)


@given(st.lists(NAMES, min_size=1))
def test_names_come_back(names: list[str]) -> None:
    """Names that a client has encoded are those names after decoding, one between each two slashes."""
    path = "/" + "/".join(quote(name, safe="") for name in names)
    assert (decode_path(path.encode()) or "").split("/") == ["", *names]


@given(st.binary(), st.integers(0, 3))
def test_decoding_adds_no_separator(raw: bytes, times: int) -> None:
    """Decoding a path never gives more names than it had, and none is a dot segment."""
    for _ in range(times):
        raw = quote_from_bytes(raw).encode()
    if (path := decode_path(raw)) is not None:
        parts = path.split("/")
        assert parts == [unquote_to_bytes(part).decode() for part in raw.split(b"/")]
        assert not {".", ".."} & set(parts)


@pytest.mark.parametrize("tail", ["%2Fmessages", "%2fmessages", "%2F"])
def test_an_encoded_slash_separates_nothing(owner: Caller, tail: str) -> None:
    """A slash that was encoded is part of a name, of which no resource has one; in the query it is a character."""
    queue = owner.create("q")
    owner.post(queue, "kept")
    assert owner("DELETE", f"{queue}{tail}").status == 404
    assert owner.get(queue).bodies == ["kept"]
    assert owner("GET", f"{queue}?after=1%2F").status == 400


@pytest.mark.parametrize("name", [".", "..", "%2e", "%2E%2e"])
def test_dots_name_no_group(owner: Caller, name: str) -> None:
    """A proxy that resolves ``offsets/..`` would make the request one for the queue: no such name is taken."""
    owner.create("q")
    assert owner("DELETE", f"q/offsets/{name}").status == 404
    assert owner("DELETE", "q").status == 200
