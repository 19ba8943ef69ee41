"""Messages that are claimed, acknowledged, renewed and released over HTTP."""

from __future__ import annotations

import re
from typing import Any

import pytest

from queuey.service import Service
from queuey.storage import Store, bridge
from tests.backends import Clock
from tests.blocking import blocking
from tests.web.caller import Caller, Reply


@pytest.fixture
def q(owner: Caller) -> str:
    """A queue of two partitions with the messages a, b and c in the first."""
    owner.create("q", partitions=2)
    for body in "abc":
        owner.post("q", body, X_Partition="1")
    return "q"


def settle(caller: Caller, what: str, *claims: dict[str, Any] | str, **fields: object) -> Reply:
    receipts = [each if isinstance(each, str) else each["receipt"] for each in claims]
    return caller.send_json("POST", f"q/claims/{what}", {"receipts": receipts, **fields})


def statuses(reply: Reply) -> list[str]:
    return statuses_of(reply.json["results"])


def statuses_of(results: list[dict[str, Any]]) -> list[str]:
    return [result["status"] for result in results]


def bodies(claims: list[dict[str, Any]]) -> list[str]:
    return [each["body"] for each in claims]


def test_a_claim_expires(owner: Caller, q: str, clock: Clock) -> None:
    """What was not acknowledged in time is handed out again, alone and as a further attempt; its receipt is stale."""
    first = owner.claim(limit=3, ttl=30)
    assert settle(owner, "ack", first[1]).status == 200
    clock.advance(29)
    assert owner.claim() == []
    clock.advance(5)
    second = owner.claim(ttl=30) + owner.claim(ttl=30)
    assert [(each["body"], each["deliveries"], each["suspected"]) for each in second] == [
        ("a", 2, True),
        ("c", 2, True),
    ]
    reply = settle(owner, "ack", first[0], first[2], second[1])
    assert (reply.status, statuses(reply)) == (409, ["superseded", "superseded", "ok"])
    assert list(reply.errors) == ["ClaimLost"]
    clock.advance(100)
    assert bodies(owner.claim()) == ["a"]


def test_a_release_with_a_delay_ends_the_claim_then(owner: Caller, q: str, clock: Clock) -> None:
    """A message that is released with a delay comes when that is over, whatever is left of its claim."""
    long, short = owner.claim(limit=1, ttl=100) + owner.claim(limit=1, ttl=10)
    reply = settle(owner, "release", long, short, delay=30)
    assert statuses(reply) == ["ok", "ok"]
    assert reply.json["results"][0]["expires"] == pytest.approx(long["expires"] - 70, abs=0.01)
    assert bodies(owner.claim(limit=1, ttl=100)) == ["c"]
    clock.advance(29)
    assert owner.claim() == []
    clock.advance(5)
    assert bodies(owner.claim()) == ["a", "b"]
    assert settle(owner, "release", long, delay=43201).status == 400


def test_a_release_says_why(owner: Caller, q: str) -> None:
    """A reason is stored with the worker's name; an invalid one is refused, and releases nothing."""
    [claim] = owner.claim(worker="ann:1", limit=1)
    assert statuses(settle(owner, "release", claim, reason={"error": "ValueError", "text": "no egg"})) == ["ok"]
    reasons = owner.get(f"q/explain/{claim['partition']}:{claim['message_id']}").json["reasons"]
    [text] = [one["text"] for one in reasons if one["code"] == "attempt"]
    assert text.startswith("An attempt by ann:1 failed at ")
    assert text.endswith(": ValueError: no egg")
    [claim] = owner.claim(limit=1)
    for reason in ("x", {"error": "a\nb"}, {"error": "e" * 201}, {"text": "t" * 4097}, {"text": 1}):
        assert settle(owner, "release", claim, reason=reason).status == 400
    reply = settle(owner, "release", *[claim["receipt"]] * 101, reason={})
    assert (reply.status, "at most 100 receipts" in reply.body.decode()) == (400, True)
    assert owner.send_json("POST", "q/claims?worker=" + "w" * 65, {}).status == 400
    assert statuses(settle(owner, "ack", claim)) == ["ok"]


def test_counts_size_and_peek(owner: Caller, q: str, clock: Clock) -> None:
    """Claimed and waiting messages are counted; size and peek leave out finished ones, and nothing else."""
    one, two = owner.claim(limit=2, ttl=100)
    settle(owner, "ack", one)
    settle(owner, "release", two)
    owner.claim(limit=1, ttl=100, partitions="1")
    owner.post(q, "d", X_Partition="2")
    owner.claim(limit=1, partitions="2", ttl=50)
    clock.advance(60)
    counts = owner.get("q/claims").json
    assert (counts["claimed"], counts["waiting"]) == (1, 1)
    assert counts["partitions"]["1"] == {"claimed": 1, "waiting": 0, "retrying": 0}
    assert counts["partitions"]["2"] == {"claimed": 0, "waiting": 1, "retrying": 0}
    size = owner.get("q/size").json
    assert (size["size"], size["exact"]) == (3, True)
    assert sorted(owner.get("q/peek").bodies) == ["b", "c", "d"]
    assert len(owner.get("q/peek", limit=1).messages) == 1


def test_metrics(owner: Caller, other: Store, q: str, clock: Clock) -> None:
    """What was handed out, again, acknowledged and refused is counted, and what the logs were asked for it."""
    first = owner.claim(limit=2, ttl=30)
    clock.advance(40)
    second = owner.claim(limit=1, ttl=30)
    settle(owner, "ack", first[0], second[0])
    settle(owner, "release", first[1])
    elsewhere = Service(other)
    blocking(elsewhere.claims).claim(
        elsewhere.enter(bridge.run(other.catalogue.queue("queuey", q)), lambda _queue: None), limit=1, ttl=30
    )
    owner.claim(limit=1, ttl=30)
    pattern = re.compile(r"^queuey_claims_(\w+) ([0-9.e+]+)$", re.MULTILINE)
    metrics = {name: float(value) for name, value in pattern.findall(owner.get("/metrics").text)}
    assert metrics.pop("memory_bytes") > 0
    assert metrics == {
        "delivered_total": 4,
        "redelivered_total": 1,
        "acknowledged_total": 1,
        "superseded_total": 1,
        "appends_total": 5,
        "appends_refused_total": 1,
        "operations_total": 5,
        "forwarded_total": 0,
        "covers": 0,
        "outstanding": 2,
        "waiting": 0,
    }


def test_an_answer_has_what_the_page_says(owner: Caller) -> None:
    """An answer ends at 256 KiB, also the first of a process, which a thread makes."""
    owner.create("q")
    for _ in range(12):
        owner.post("q", "x" * 60_000)
    assert [len(owner.claim(limit=1000)) for _ in range(3)] == [5, 5, 2]


BAD_CLAIMS = [
    ("limit", "0"),
    ("limit", "1001"),
    ("limit", "many"),
    ("limit", "1.5"),
    ("ttl", "-1"),
    ("ttl", "43201"),
    ("ttl", "soon"),
    ("ttl", "nan"),
    ("wait", "21"),
    ("wait", "-1"),
    ("partitions", "x"),
    ("partitions", "3"),
    ("partitions", "0"),
    ("partitions", " "),
]


def test_bad_claims_are_refused(owner: Caller, q: str) -> None:
    """A parameter out of its range is named, and nothing is handed out."""
    for field, value in BAD_CLAIMS:
        reply = owner("POST", "q/claims", b"", headers=None, **{field: value})
        assert (reply.status, list(reply.errors)) == (400, [field]), (value, reply)
    assert owner.get("q/claims").json["claimed"] == 0


ID = "0123456789ab11e88000000000000001"
BAD_RECEIPTS: list[tuple[dict[str, Any], str]] = [
    ({}, "receipts"),
    ({"receipts": None}, "receipts"),
    ({"receipts": "1"}, "receipts"),
    ({"receipts": {"1": "2"}}, "receipts"),
    ({"receipts": [f"1-{ID}-1"] * 1001}, "receipts"),
    ({"receipts": [5]}, "receipts.0"),
    ({"receipts": [None]}, "receipts.0"),
    ({"receipts": [""]}, "receipts.0"),
    ({"receipts": [[]]}, "receipts.0"),
    ({"receipts": [ID]}, "receipts.0"),
    ({"receipts": [f"3-{ID}-1"]}, "receipts.0"),
    ({"receipts": [f"0-{ID}-1"]}, "receipts.0"),
    ({"receipts": [f"1-{ID}-999999"]}, "receipts.0"),
    ({"receipts": ["1-" + "0" * 32 + "-1"]}, "receipts.0"),
    ({"receipts": ["x" * 100_000]}, "receipts.0"),
]


@pytest.mark.parametrize(("body", "field"), BAD_RECEIPTS)
def test_bad_receipts_are_refused(owner: Caller, q: str, body: dict[str, Any], field: str) -> None:
    """A body without a list of receipts, or with one of another queue, is refused by name, without effect."""
    (good,) = owner.claim(limit=1, ttl=100)
    if isinstance(body.get("receipts"), list) and len(body["receipts"]) == 1:
        body, field = {"receipts": [good["receipt"], *body["receipts"]]}, "receipts.1"
    for what in ("ack", "renew", "release"):
        reply = owner.send_json("POST", f"q/claims/{what}", body)
        assert (reply.status, list(reply.errors)) == (400, [field]), (what, reply)
    assert owner.get("q/claims").json["partitions"]["1"] == {"claimed": 1, "waiting": 0, "retrying": 0}


@pytest.mark.parametrize(("what", "field"), [("renew", "ttl"), ("release", "delay")])
def test_bad_times_are_refused(owner: Caller, q: str, what: str, field: str) -> None:
    """The time of a renewal and the delay of a release have their bounds."""
    (claimed,) = owner.claim(limit=1, ttl=100)
    bad: list[object] = [-1, 43201, "x", [], True]
    for seconds in bad:
        reply = settle(owner, what, claimed, **{field: seconds})
        assert (reply.status, list(reply.errors)) == (400, [field]), seconds


def test_receipts_of_another_queue_are_refused(owner: Caller, q: str) -> None:
    """A receipt that another queue gave does nothing to this one."""
    owner.create("other")
    for _ in range(3):
        owner.post("other", "x")
        foreign = owner("POST", "other/claims").messages[0]["receipt"]
    reply = settle(owner, "ack", foreign)
    assert (reply.status, list(reply.errors)) == (400, ["receipts.0"])


@pytest.mark.parametrize("body", ["", "x", "[]", "1", '{"receipts":[1', '{"receipts":NaN}'])
def test_bodies_that_are_none(owner: Caller, q: str, body: str) -> None:
    """A body that is not a JSON object is bad input."""
    assert owner("POST", "q/claims/ack", body, headers={"Content-Type": "application/json"}).status == 400


def test_queues_that_do_not_exist(owner: Caller) -> None:
    """Claims of a missing queue are 404, in the usual form."""
    for method, path in [("POST", ""), ("POST", "/ack"), ("GET", ""), ("DELETE", "")]:
        reply = owner.send_json(method, f"nowhere/claims{path}", {"receipts": []})
        assert (reply.status, list(reply.errors)) == (404, ["InvalidQueueName"])
