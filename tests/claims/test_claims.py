"""Messages that are claimed, acknowledged, renewed and released over HTTP."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from queuey.app.service import App, Service
from queuey.claims.log.log_requests import ClaimDelivery
from queuey.claims.rules.partition_state import MAX_OUTSTANDING
from queuey.model.messages import Record
from queuey.moves.move_records import KIND
from queuey.storage import Records, Store, bridge
from tests.backends import Clock
from tests.blocking import blocking
from tests.contract.samples import eventually, new_message
from tests.interposed_store import InterposedStore
from tests.web.caller import Caller, Reply

pytestmark = pytest.mark.one_app


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
        elsewhere.queues.access_unchecked(bridge.run(other.catalogue.queue("queuey", q))), limit=1, ttl=30
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


ID = "0123456789ab11e88000000000000001"
BAD_SECONDS: list[object] = [-1, 43_201, "x", [], True]
REFUSED: list[tuple[str, str, dict[str, Any], str]] = [
    *(("POST", f"q/claims?{query}", {}, query.partition("=")[0]) for query in ("limit=0", "limit=1001", "ttl=-1")),
    *(("POST", f"q/claims?{query}", {}, query.partition("=")[0]) for query in ("ttl=43201", "ttl=nan", "wait=21")),
    *(("POST", f"q/claims?partitions={text}", {}, "partitions") for text in ("x", "3")),
    *(("POST", "q/claims/renew", {"ttl": seconds}, "ttl") for seconds in BAD_SECONDS),
    *(("POST", "q/claims/release", {"delay": seconds}, "delay") for seconds in BAD_SECONDS),
    ("POST", "q/claims/ack", {"results": [1]}, "results"),
    ("POST", "q/claims/ack", {"results": {f"r{number}": 1 for number in range(101)}}, "results"),
    ("POST", "q/claims/ack", {"results": {"r": json.loads("[" * 101 + "]" * 101)}}, "results.0"),
    ("POST", "q/claims/ack", {"too_large": {"r": "much"}}, "too_large"),
    ("POST", "q/claims/ack", {"too_large": {"r": 0}}, "too_large"),
    ("POST", "q/claims/state", {"states": None}, "states"),
    ("POST", "q/claims/state", {"states": []}, "states"),
    ("POST", "q/claims/state", {"states": {f"r{number}": 1 for number in range(101)}}, "states"),
    ("POST", "q/claims/state", {"states": ["r", "the receipt"]}, "states.0"),
    ("POST", "_claims?partitions=1", {"queues": ["q"]}, "partitions"),
    ("POST", "_claims", {"queues": None}, "queues"),
    ("POST", "_claims", {"queues": ["q", "q"]}, "queues"),
    ("POST", "_claims", {"queues": [""]}, "queues"),
    ("POST", "_claims", {"queues": [str(number) for number in range(11)]}, "queues"),
    ("POST", "_claims", {"queues": ["q"], "acknowledge": ["x"]}, "acknowledge"),
    ("POST", "_claims", {"queues": ["q"], "acknowledge": {"other": []}}, "acknowledge"),
    ("POST", "_claims", {"queues": ["q"], "acknowledge": {"q": ["x"]}}, "acknowledge.q.0"),
    *(("POST", f"nowhere/claims{path}", {"receipts": []}, "InvalidQueueName") for path in ("", "/ack")),
    *((method, "nowhere/claims", {}, "InvalidQueueName") for method in ("GET", "DELETE")),
]
"""Requests, and the name in the refusal. The receipt of the claimed message is sent where receipts are."""


def test_what_is_refused(owner: Caller, q: str) -> None:
    """Each bad field is named; nothing is handed out, acknowledged, renewed, released or set."""
    (claimed,) = owner.claim(limit=1, ttl=100)
    before = owner.get("q/jobs", states=1).json
    for method, path, fields, name in REFUSED:
        content: dict[str, Any] = {"receipts": [claimed["receipt"]], **fields}
        if "states" in fields:
            content = {"states": {"r": 1, claimed["receipt"]: 2} if name == "states.0" else fields["states"]}
        if "?" in path or path == "_claims":
            content = fields
        reply = owner.send_json(method, path, content)
        status = 404 if name == "InvalidQueueName" else 400
        assert (reply.status, list(reply.errors)) == (status, [name]), (path, fields, reply)
    assert owner.get("q/jobs", states=1).json == before
    assert owner.get("q/claims").json["claimed"] == 1


BAD_RECEIPTS: list[tuple[dict[str, Any], str]] = [
    ({}, "receipts"),
    ({"receipts": "1"}, "receipts"),
    ({"receipts": [f"1-{ID}-1"] * 1001}, "receipts"),
    ({"receipts": [5]}, "receipts.0"),
    ({"receipts": [""]}, "receipts.0"),
    ({"receipts": [ID]}, "receipts.0"),
    ({"receipts": [f"3-{ID}-1"]}, "receipts.0"),
    ({"receipts": [f"1-{ID}-999999"]}, "receipts.0"),
    ({"receipts": ["1-" + "0" * 32 + "-1"]}, "receipts.0"),
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


# Forged receipts


@pytest.fixture
def mine(owner: Caller) -> dict[str, Any]:
    """Claims the first of three messages in the queue ``q``."""
    owner.create("q")
    for body in "abc":
        owner.post("q", body)
    return owner.claim(limit=1, ttl=100)[0]


def alter_receipt(receipt: str, **fields: str) -> str:
    parts = dict(zip(("partition", "id", "number", "secret", "mark"), receipt.split("-"), strict=True))
    return "-".join(part for part in (parts | fields).values() if part)


@pytest.mark.parametrize("what", ["ack", "renew", "release"])
@pytest.mark.parametrize("secret", ["", "0" * 14, "mine"])
def test_receipts_that_are_made_up(owner: Caller, mine: dict[str, Any], what: str, secret: str) -> None:
    """A caller that knows a message's id and delivery entry, but not the receipt, cannot affect the claim."""
    (other,) = owner.claim(limit=1, ttl=100)
    if secret == "mine":
        secret = mine["receipt"].split("-")[3]
    made_up = alter_receipt(other["receipt"], secret=secret)
    reply = settle(owner, what, made_up)
    assert (reply.status, list(reply.errors)) == (409, ["ClaimLost"])
    assert owner.get("q/claims").json["claimed"] == 2
    assert statuses(settle(owner, what, other["receipt"])) == ["ok"]


@pytest.mark.parametrize("what", ["ack", "renew", "release"])
def test_receipts_that_name_no_delivery(owner: Caller, mine: dict[str, Any], what: str) -> None:
    """Number 0, which a claim with a ttl of 0 shows, is bad input, with a secret and without."""
    (shown,) = owner.claim(limit=1, ttl=0)
    for receipt in (
        shown["receipt"],
        alter_receipt(mine["receipt"], number="0"),
        alter_receipt(mine["receipt"], number="0", secret=""),
    ):
        reply = settle(owner, what, receipt)
        assert (reply.status, list(reply.errors)) == (400, ["receipts.0"]), receipt
    assert "only shows messages" in reply.text
    assert owner.get("q/claims").json["claimed"] == 1


# The limit of jobs in a partition


ROUND = 1000


def test_a_partition_with_all_the_claims_that_it_may_have(app: App, owner: Caller, store: Store) -> None:
    """20,000 messages can be claimed. Then a claim is refused without waiting, until one is acknowledged."""
    owner.create("q", partitions=2)
    service: Service = app.service
    queue = bridge.run(store.catalogue.queue("queuey", "q"))
    access = service.queues.access_unchecked(queue)
    claimed: list[ClaimDelivery] = []
    for _ in range(MAX_OUTSTANDING // ROUND):
        bridge.run(store.messages.append(queue, [new_message("x") for _ in range(ROUND)]))
        claimed += blocking(service.claims).claim(access, limit=ROUND, ttl=43_200, partitions=[1])
    assert len(claimed) == MAX_OUTSTANDING
    owner.post("q", "one more", X_Partition="1")
    for wait in (0, 20):
        reply = owner("POST", "q/claims", b"", headers=None, partitions="1", wait=wait)
        assert (reply.status, list(reply.errors)) == (429, ["TooManyClaims"]), reply
        assert "Partition 1 has 20000 claims" in reply.text
        assert int(reply.headers["Retry-After"]) >= 1
    owner.post("q", "elsewhere", X_Partition="2")
    (message,) = owner("POST", "q/claims", b"", headers=None, ttl=60).messages
    assert message["body"] == "elsewhere"
    counts = owner.get("q/claims").json["partitions"]
    assert counts["1"] == {"claimed": MAX_OUTSTANDING, "waiting": 0, "retrying": 0}
    blocking(service.claims).acknowledge(access, [claimed[0].receipt])
    (message,) = owner("POST", "q/claims", b"", headers=None, ttl=60).messages
    assert message["body"] == "one more"


# Messages that are moved to another queue over HTTP


def test_moves_that_are_refused(owner: Caller) -> None:
    """Missing and impossible values are refused by name: queues, a queue to itself, an invalid move id."""
    owner.create("q")
    assert owner.send_json("POST", "_moves", {}).json["error_msg"] == {"from": "Required", "to": "Required"}
    assert owner.send_json("POST", "_moves", {"from": "q", "to": 5}).status == 400
    assert owner.send_json("POST", "_moves", {"from": "q", "to": "q"}).json["error_msg"].keys() == {"to"}
    assert owner.send_json("POST", "_moves", {"from": "q", "to": "gone"}).status == 404
    for method in ("GET", "DELETE"):
        reply = owner(method, "_moves/01f1e5fcaf55cfbe")
        assert (reply.status, list(reply.json["error_msg"])) == (404, ["InvalidMoveId"])
    assert owner("PUT", "_moves").status == 405


def wait_for_end(caller: Caller, move: str) -> dict[str, Any]:
    moves: list[dict[str, Any]] = []

    def over() -> bool:
        moves[:] = [caller("GET", f"_moves/{move}").json]
        return moves[0]["ended"] is not None

    assert eventually(over, 60)
    return moves[0]


def test_ended_while_it_is_looked_for(owner: Caller, store: Store, between: InterposedStore) -> None:
    """A move that begins and ends between the two reads of a look-up is found, in the list too."""
    for name in ("from", "to"):
        owner.create(name)
    move = owner.send_json("POST", "_moves", {"from": "from", "to": "to"}).json["move"]
    wait_for_end(owner, move)
    assert eventually(lambda: not bridge.run(store.records.records(KIND, "queuey")), 60)
    for path in (f"_moves/{move}", "_moves"):
        early: list[list[Record]] = [[]]

        def not_begun(kind: str, application: str, *, limit: int, early: list[list[Record]] = early) -> list[Record]:
            if kind == KIND and early:
                return early.pop()
            return bridge.run(store.records.records(kind, application, limit=limit))

        between.instead(Records.records, not_begun)
        reply = owner("GET", path)
        assert (reply.status, early) == (200, [])
        assert [one["state"] for one in reply.json.get("moves", [reply.json])] == ["done"]
        between.restore(Records.records)
