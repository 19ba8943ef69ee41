"""Posts with an Idempotency-Key: stored once, however often the request is repeated."""

from __future__ import annotations

import pytest

from queuey.model.errors import KeyInUse
from queuey.storage import KeyedPosts
from tests.backends import Clock
from tests.interposed_store import InterposedStore
from tests.web.caller import Caller, Reply

pytestmark = pytest.mark.one_app

MARK = "Idempotent-Replayed"


def post_keyed(caller: Caller, queue: str, body: str = "x", key: str = "a", **headers: str) -> Reply:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return caller("POST", queue, body, headers={"Idempotency-Key": key, **named})


def test_repeated(owner: Caller) -> None:
    """A repeated post has the status and body of the first, and a mark; the message is there once."""
    owner.create("q", partitions=50)
    first = post_keyed(owner, "q", "hello")
    assert first.status == 201
    assert MARK not in first.headers
    for _ in range(5):
        again = post_keyed(owner, "q", "hello")
        assert (again.status, again.json) == (201, first.json)
        assert again.headers[MARK] == "true"
    assert owner.get("q", partitions="*").bodies == ["hello"]


@pytest.mark.parametrize(
    "other",
    [
        {"body": "y"},
        {"X_TTL": "60"},
        {"X_Delay": "5"},
        {"Content_Type": "text/html"},
        {"body": '{"messages": [{"body": "x"}, {"body": "x"}]}', "Content_Type": "application/json"},
    ],
    ids=str,
)
def test_another_post(owner: Caller, other: dict[str, str]) -> None:
    """Another post under a key is 422 whatever it differs in, and stores nothing; the key stays with the first."""
    owner.create("q", partitions=2)
    first = post_keyed(owner, "q")
    refused = post_keyed(owner, "q", **({"body": "x"} | other))
    assert refused.status == 422
    assert list(refused.errors) == ["idempotency_key"]
    assert post_keyed(owner, "q").json == first.json
    assert owner.get("q", partitions="1,2").bodies == ["x"]


def test_forms_of_a_key(owner: Caller) -> None:
    """A key may be bare or in quotation marks, and is the same then; case counts."""
    owner.create("q")
    post_keyed(owner, "q", key="8e03978e-40d5-43dd-bc93-6894a57f9324")
    assert MARK in post_keyed(owner, "q", key='"8e03978e-40d5-43dd-bc93-6894a57f9324"').headers
    assert MARK not in post_keyed(owner, "q", key="8E03978E-40D5-43DD-BC93-6894A57F9324").headers
    assert MARK not in post_keyed(owner, "q", key='"a \\"b\\" \\\\, c;"').headers
    assert MARK in post_keyed(owner, "q", key=' "a \\"b\\" \\\\, c;" ').headers
    assert MARK not in post_keyed(owner, "q", key="~" * 255).headers
    assert MARK not in post_keyed(owner, "q", key=f'"{"~" * 254}{chr(92)}""').headers


def test_what_is_no_key(owner: Caller) -> None:
    """An invalid key is refused by name, and nothing is stored."""
    owner.create("q")
    lists = ("a,b", '"a","b"', '"a";b=1')
    for key in (*lists, "", " ", '""', '"', 'a"b', '"a', "a b", "a\\b", '"a\\b"', "a" * 256, '"\t"', "\x7f"):
        refused = post_keyed(owner, "q", key=key)
        assert (refused.status, list(refused.errors)) == (400, ["idempotency_key"]), key
    assert owner.get("q").bodies == []


def test_bad_requests_use_no_key(owner: Caller) -> None:
    """A request that is refused leaves its key free."""
    owner.create("q")
    assert post_keyed(owner, "q", X_TTL="soon").status == 400
    assert post_keyed(owner, "q", X_Partition="9").status == 400
    assert MARK not in post_keyed(owner, "q").headers


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [({"X_TTL": "1"}, 60), ({"X_TTL": "100"}, 100), ({"X_TTL": "50", "X_Delay": "49.5"}, 100), ({}, 86_400)],
)
def test_life_of_a_key(owner: Caller, clock: Clock, headers: dict[str, str], seconds: int) -> None:
    """A key is known as long as the message lives, at least a minute and at most what the setting says."""
    owner.create("q")
    post_keyed(owner, "q", **headers)
    clock.advance(seconds - 1)
    assert MARK in post_keyed(owner, "q", **headers).headers
    clock.advance(1)
    assert MARK not in post_keyed(owner, "q", **headers).headers


def test_in_use(owner: Caller, between: InterposedStore) -> None:
    """While a post with the key is under way another is 409 with Retry-After, in both forms of errors."""
    owner.create("q")

    between.fail(KeyedPosts.append_once, KeyInUse("a", 3))
    for accept in ("application/json", "application/problem+json"):
        refused = post_keyed(owner, "q", Accept=accept)
        assert (refused.status, refused.headers["Retry-After"]) == (409, "3")
        assert "3 s" in refused.text
