"""What the path of a request names, as a function and through the application."""

from __future__ import annotations

from itertools import product
from typing import Any
from urllib.parse import quote, quote_from_bytes, unquote_to_bytes

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyramid.urldispatch import RoutesMapper

import queuey
from queuey.api.claims import LimitQuery
from queuey.app.application import make_app
from queuey.model.errors import InvalidRequest, StoreUnavailable
from queuey.runtime.limits import Limits
from queuey.storage import Store, bridge
from queuey.web.endpoint import Endpoint, Resources, decode_path
from queuey.web.fields import Fields
from queuey.web.requests import MAX_QUERIES, MAX_QUERY, Queries, Request
from tests.interposed_store import InterposedStore
from tests.web.caller import Caller
from tests.web.gateway_calls import KEY

pytestmark = pytest.mark.one_app

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


PATTERNS = (
    *("/v1/{app}{_:/?}", "/v1/{app}/_read{_:/?}", "/v1/{app}/{queue:[^/_][^/]*}{_:/?}", "/v1/{app}/{queue}/info{_:/?}"),
    *("/v1/{app}/{queue}/{ids}{_:/?}", "/sqs{_:/?}", "/sqs/{account:[^/]+}/{queue:[^/]+}{rest:/?}", "/p/*rest"),
    *("/{base:queue|dedupq}/1/{queue:[^/]+}/send", "/mq/{id:[a-z0-9-]+}", "/{queue:[^/]+}{rest:(?:/.*)?}"),
)
PARTS = st.sampled_from(["", "v1", "a", "info", "_read", "sqs", "queue", "1", "send", "mq", "A", "p", "info\n", "\n"])


@given(st.permutations(PATTERNS), st.lists(PARTS, min_size=1, max_size=6))
def test_the_first_route_that_matches_answers(patterns: list[str], parts: list[str]) -> None:
    """Only routes of the path's shape are compared with it, but the first of all that match is found."""
    mapper, path, nowhere = RoutesMapper(), "/" + "/".join(parts), Endpoint("nowhere", {})
    routes = [mapper.connect(pattern, pattern) for pattern in patterns]
    endpoints = {pattern: Endpoint(pattern, {}) for pattern in patterns}
    found = Resources(routes, endpoints, nowhere).find("GET", quote(path).encode())
    matches = ((route, route.match(path)) for route in routes)
    whole = ((route, match) for route, match in matches if not (path[-1] == "\n" and route.match(path[:-1]) == match))
    name, match = next(((route.name, match) for route, match in whole if match is not None), ("nowhere", {}))
    assert (found.path, found.endpoint.name, found.match) == (path, name, match)


def test_an_encoded_slash_separates_nothing(owner: Caller) -> None:
    """A slash that was encoded once, twice or oddly separates no names; in the query it is a character."""
    queue = owner.create("q")
    owner.post(queue, "kept")
    for slash, tail in product(("%2F", "%2f", "%252F", "%c0%af", "%5C", "%uff0f"), ("messages", "")):
        for application in ("/v1/queuey/", f"/v1/queuey{slash}"):
            assert owner("DELETE", f"{application}{queue}{slash}{tail}").status == 404, slash
    assert owner.get(queue).bodies == ["kept"]
    assert owner("GET", f"{queue}?after=1%2F").status == 400


@pytest.mark.parametrize("name", [".", "..", "%2e", "%2E%2e"])
def test_dots_name_no_group(owner: Caller, name: str) -> None:
    """A proxy that resolves ``offsets/..`` would make the request one for the queue: no such name is taken."""
    owner.create("q")
    assert owner("DELETE", f"q/offsets/{name}").status == 404
    assert owner("DELETE", "q").status == 200


# What a caller sees who has only the address


@pytest.mark.parametrize("path", ["/", "/v1", "/v1/"])
def test_hello(anonymous: Caller, store: Store, path: str) -> None:
    """Without a credential one learns what runs here, which store it serves, and where to go on."""
    content = anonymous.get(path).json
    assert {name: content[name] for name in ("name", "version", "store", "id")} == {
        "name": "queuey",
        "version": queuey.__version__,
        "store": "sqlite",
        "id": bridge.run(store.identity()),
    }
    for link in content["links"].values():
        assert "{" in link or anonymous.get(link).status == 200


def test_hello_asks_the_store_once(anonymous: Caller, between: InterposedStore) -> None:
    """While the store is down its name is unknown; once it is known, the service does not ask again."""
    between.fail(Store.identity, StoreUnavailable("no answer"))
    assert anonymous.get("/").status == 503
    between.instead(Store.identity, lambda: "0" * 32)
    assert [anonymous.get(path).json["id"] for path in ("/", "/v1/")] == ["0" * 32] * 2
    between.fail(Store.identity, StoreUnavailable("no answer"))
    assert [anonymous.get(path).status for path in ("/", "/v1/")] == [200] * 2


# Queries: each text is parsed once and then cached for all requests that have it


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
        assert len(read.queries.cache) <= MAX_QUERIES
    cached = dict(read.queries.cache)
    read("limit=2&strict=" + "0" * MAX_QUERY)
    read("limit=2&lim=3")
    with pytest.raises(InvalidRequest):
        read("limit=x")
    assert read.queries.cache == cached


def test_applications_have_limits_of_their_own(store: Store, owner: Caller) -> None:
    """What one application has read of a query means nothing to another in the same process."""
    strict = Caller(make_app(store, limits=Limits(max_limit=5, default_limit=3)), f"Application {KEY}")
    owner.create("q")
    owner.send_json("POST", "q", {"messages": [{"body": str(n)} for n in range(8)]})
    assert len(owner.get("q", limit=6).messages) == 6
    assert strict.get("q", limit=6).status == 400
    assert [len(each.get("q").messages) for each in (owner, strict, owner)] == [8, 3, 8]
