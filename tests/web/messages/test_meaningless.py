"""Meaningless fields of a request are reported, and a malformed request does not read its queue."""

from __future__ import annotations

from typing import Any

import pytest

from queuey.storage import Catalogue
from tests.interposed_store import InterposedStore
from tests.web.caller import Caller

Case = tuple[str, str, Any, dict[str, str]]
CLAIM: Case = ("POST", "q/claims", {"limit": 5, "tll": 60}, {})
MISSPELT: Case = ("POST", "", {"queue_name": "x", "partitons": 4}, {})
MISSPELT_IN_A_BATCH: Case = ("POST", "q", {"messages": [{"body": "x", "tll": 60}]}, {})
MISSPELT_HEADER = ("POST", "q", None, {"X_TLL": "60"})
HEADER_OF_ANOTHER_OPERATION = ("POST", "q/claims", None, {"X_Delay": "60"})
CASES = [CLAIM, MISSPELT, MISSPELT_IN_A_BATCH, MISSPELT_HEADER, HEADER_OF_ANOTHER_OPERATION]
NAMES = ["claim", "misspelt", "misspelt in a batch", "misspelt header", "header of another operation"]
ID = "0123456789ab11e88000000000000001"
MEANINGLESS: dict[str, tuple[Case, str]] = {
    "beside a batch": (("POST", "q", {"messages": [{"body": {"a": 1}}], "partition": 2}, {}), "partition"),
    "in JSON of a batch": (("POST", "q", {"messages": [{"body": 1}, {"body": 2, "tll": 3}]}, {}), "1.tll"),
    "header of a batch": (("POST", "q", {"messages": []}, {"X_Delay": "60"}), "x-delay"),
    "own header of a batch": (("POST", "q", {"messages": []}, {"X_Header_Colour": "red"}), "x-header-colour"),
    "header without JSON": (("POST", "q/claims/ack", {"receipts": []}, {"X_Message_Key": "a"}), "x-message-key"),
    "update": (("PUT", "q", {"ttl": 5, "queue_name": "p"}, {}), "queue_name"),
    "receipts": (("POST", "q/claims/renew", {"receipts": [], "tll": 5}, {}), "tll"),
    "reason": (("POST", "q/claims/release", {"receipts": [], "reason": {"txt": "a"}}, {}), "txt"),
    "states": (("POST", "q/claims/state", {"states": {}, "state": {}}, {}), "state"),
    "several queues": (("POST", "_claims", {"queues": ["q"], "limit": 5, "limt": 5}, {}), "limt"),
    "range of several": (("POST", "_read", {"queues": [{"queue_name": "q", "limt": 5}]}, {}), "limt"),
    "offsets": (("PUT", "q/offsets/g", {"partitions": {"1": {"offset": ID, "expect": ID}}}, {}), "expect"),
    "lag": (("POST", "q/lag", {"partitions": {"1": None}, "group": "g"}, {}), "group"),
    "read mark": (("PUT", "q/read", {"until": ID, "backwards": True}, {}), "backwards"),
    "unread": (("POST", "_unread", {"queue": "q"}, {}), "queue"),
    "rights": (("POST", "_rights", {"queues": [], "verbs": []}, {}), "verbs"),
    "move": (("POST", "_moves", {"from": "q", "to": "p", "limit": 5}, {}), "limit"),
    "schedule": (
        ("PUT", "_schedules/s", {"queue": "q", "every": 60, "message": {"body": "x", "tll": 5}}, {}),
        "0.tll",
    ),
}
"""Requests, and the meaningless field in each."""


def ask(owner: Caller, case: tuple[str, str, Any, dict[str, str]], **query: object) -> Any:  # noqa: ANN401 - a reply
    """Makes the request of a case; with a query, JSON is sent with ``strict=1``."""
    method, path, content, headers = case
    if content is None:
        return owner(
            method, path, b"x" * (path == "q"), headers={k.replace("_", "-"): v for k, v in headers.items()}, **query
        )
    target = f"{path}?strict=1" if query else path
    return owner.send_json(method, target, content, **headers)


@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_fields_and_headers_that_mean_nothing(owner: Caller, case: tuple[str, str, Any, dict[str, str]]) -> None:
    """The answer warns of them, and with ``strict=1`` refuses them."""
    owner.create("q")
    assert "Warning" in ask(owner, case).headers
    assert ask(owner, case, strict=1).status == 400


@pytest.mark.parametrize(("case", "name"), MEANINGLESS.values(), ids=list(MEANINGLESS))
def test_each_body_and_header(owner: Caller, case: Case, name: str) -> None:
    """Whatever the operation, the warning names the field or header that was ignored, and strict refuses it alone."""
    owner.create("q")
    owner.create("p")
    strict = ask(owner, case, strict=1)
    assert strict.status == 400
    assert [field.removeprefix("message.") for field in strict.errors] == [name.removeprefix("0.")]
    reply = ask(owner, case)
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


def test_fields_of_lists_are_known(owner: Caller) -> None:
    """The page that a list begins at is a field that means something."""
    reply = owner.get("_schedules", start="a", strict=1)
    assert (reply.status, "Warning" in reply.headers) == (200, False)


def test_a_malformed_body_costs_no_read_of_its_queue(owner: Caller, between: InterposedStore) -> None:
    """A body that no row of a queue could make valid is refused with the cached row."""
    owner.create("q")
    owner.post("q", "x")
    reads: list[str] = []
    between.before(Catalogue.queue, lambda: reads.append("q"))
    assert owner.send_json("POST", "q", {"messages": [{"body": 5, "ttl": "never"}]}).status == 400
    assert not reads


def test_a_partition_that_a_row_may_lack_is_looked_up_afresh(owner: Caller, between: InterposedStore) -> None:
    """Even beside something malformed: what another process has just made is never said to be missing."""
    owner.create("q")
    owner.post("q", "x")
    reads: list[str] = []
    between.before(Catalogue.queue, lambda: reads.append("q"))
    batch = {"messages": [{"body": "a", "partition": 9}, {"body": "b", "ttl": "never"}]}
    assert owner.send_json("POST", "q", batch).status == 400
    assert reads
