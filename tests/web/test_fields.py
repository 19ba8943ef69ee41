"""Queries: each text is parsed once and then cached for all requests that have it."""

from __future__ import annotations

from typing import Any

import pytest

from queuey.api.claims import LimitQuery
from queuey.errors import InvalidRequest
from queuey.service import Limits
from queuey.storage import Store
from queuey.web import make_app
from queuey.web.fields import MAX_QUERIES, MAX_QUERY, Fields, Queries
from queuey.web.requests import Request
from tests.web.caller import Caller
from tests.web.gateway_calls import KEY

FIELDS = Fields(LimitQuery, Limits())


class CountingParser:
    """Counts how often a query is parsed."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.queries = Queries(self._read)

    def _read(self, request: Request) -> LimitQuery:
        self.texts.append(request.query)
        return FIELDS.query(request)

    def __call__(self, text: str) -> tuple[LimitQuery, Request]:
        server: Any = None
        request = Request(server, "GET", "/", text, "http", {})
        return self.queries.read(request), request


def test_each_text_is_read_once() -> None:
    """Equal texts share one result; a different text gets its own."""
    read = CountingParser()
    assert [read(text)[0].limit for text in ("limit=2", "limit=3", "limit=2", "")] == [2, 3, 2, 10]
    assert read("limit=2")[0] is read("limit=2")[0]
    assert read.texts == ["limit=2", "limit=3", ""]


def test_bad_and_unknown_fields_are_told_each_time() -> None:
    """A text with unknown fields warns each request that has it, and a bad one is refused each time."""
    read = CountingParser()
    for _ in range(3):
        assert read("limit=2&lim=3")[1].ignored
        assert not read("limit=2")[1].ignored
        for bad in ("limit=x", "lim=3&strict=1"):
            with pytest.raises(InvalidRequest):
                read(bad)


def test_callers_cannot_fill_the_memory() -> None:
    """The cache keeps neither too many texts nor a long one, nor queries that are refused or warned about."""
    read = CountingParser()
    for number in range(2 * MAX_QUERIES + 10):
        read(f"limit={number % 1000 + 1}&strict={'0' * (number // 1000)}")
        assert len(read.queries._cache) <= MAX_QUERIES
    cached = dict(read.queries._cache)
    read("limit=2&strict=" + "0" * MAX_QUERY)
    read("limit=2&lim=3")
    with pytest.raises(InvalidRequest):
        read("limit=x")
    assert read.queries._cache == cached


def test_applications_have_limits_of_their_own(store: Store, owner: Caller) -> None:
    """What one application has read of a query means nothing to another in the same process."""
    strict = Caller(make_app(store, limits=Limits(max_limit=5, default_limit=3)), f"Application {KEY}")
    owner.create("q")
    owner.send_json("POST", "q", {"messages": [{"body": str(n)} for n in range(8)]})
    assert len(owner.get("q", limit=6).messages) == 6
    assert strict.get("q", limit=6).status == 400
    assert [len(each.get("q").messages) for each in (owner, strict, owner)] == [8, 3, 8]
