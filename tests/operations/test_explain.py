"""Why a message cannot be read or claimed, over HTTP: each reason is given where it holds, and only there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args

import pytest

from queuey.api.messages import Code
from queuey.model import ids
from queuey.model.messages import MAX_TTL
from tests.backends import Clock
from tests.web.caller import Caller

pytestmark = pytest.mark.one_app

ROOT = Path(__file__).parents[2]


def read_explanation(caller: Caller, place: str) -> dict[str, Any]:
    reply = caller.get(f"q/explain/{place}")
    assert reply.status == 200, reply
    explanation: dict[str, Any] = reply.json
    return explanation


def codes(caller: Caller, place: str) -> list[str]:
    return [reason["code"] for reason in read_explanation(caller, place)["reasons"]]


def post_message(caller: Caller, body: str = "x", **headers: str) -> str:
    return f"2:{caller.post('q', body, X_Partition='2', **headers)['key']}"


@pytest.fixture
def q(owner: Caller) -> str:
    owner.create("q", partitions=2)
    return "q"


def test_a_queue(owner: Caller, q: str) -> None:
    """What readers see of each partition is said, with the counts of claims and the groups that fit into one answer."""
    place = post_message(owner)
    post_message(owner, X_Delay="600")
    for number in range(25):
        owner.send_json("PUT", f"q/offsets/g{number:02}", {"partitions": {"2": {"offset": place[2:]}}})
    answer = owner.get("q/explain").json
    assert answer["partitions"]["1"]["shown"] == "nothing: it is empty"
    assert answer["partitions"]["2"]["shown"].startswith("a part, all from ")
    assert (answer["partitions"]["2"]["count"], answer["partitions"]["2"]["claimed"]) == (2, 0)
    assert (answer["queue"]["count"], answer["backlog"]["delayed"], answer["claims_refused"]) == (2, 1, None)
    assert [group["group"] for group in answer["groups"]] == [f"g{number:02}" for number in range(20)]
    assert "Group g00 is 0 messages behind." in answer["sentences"]
    assert "5 more groups have offsets." in answer["sentences"]
    owner.create("wide", partitions=200)
    for name in "abcd":
        owner.send_json("PUT", f"wide/offsets/{name}", {"partitions": {"1": {"offset": place[2:]}}})
    assert [group["group"] for group in owner.get("wide/explain").json["groups"]] == ["a", "b"]
    assert owner.get("no-such/explain").status == 404


def test_the_page_has_every_code() -> None:
    """The table of the API's page has a line for each code."""
    section = (ROOT / "docs/api-queues.md").read_text().partition("\n## Explain\n")[2].partition("\n## ")[0]
    assert sorted(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)) == sorted(get_args(Code))


def test_a_message_that_reads_show(owner: Caller, q: str) -> None:
    """It is readable, and expires when its TTL ends; an id alone is found in any partition."""
    place = post_message(owner, X_TTL="60")
    explanation = read_explanation(owner, place.partition(":")[2])
    assert (explanation["stored"], explanation["readable"], explanation["message_id"]) == (True, True, place[2:])
    readable, expires = explanation["reasons"]
    assert (readable["code"], readable["partition"]) == ("readable", 2)
    assert expires["code"] == "expires"
    assert expires["at"] - float(explanation["timestamp"]) == pytest.approx(60)


def test_a_delayed_message(owner: Caller, q: str, clock: Clock) -> None:
    """Until it is due the moment is named; then reads show it, as soon as they do."""
    place = post_message(owner, X_Delay="100")
    explanation = read_explanation(owner, place)
    assert (explanation["stored"], explanation["readable"]) == (True, False)
    assert explanation["reasons"][0]["code"] == "delayed"
    assert explanation["reasons"][0]["at"] == pytest.approx(float(explanation["timestamp"]))
    clock.advance(101)
    assert codes(owner, place) == ["readable", "expires"]


def test_from_claim_to_acknowledgement(owner: Caller, q: str, clock: Clock) -> None:
    """Not claimed, claimed until a moment, waiting after that, done when acknowledged; reads show it all along."""
    place = post_message(owner)
    other = post_message(owner)
    assert codes(owner, place) == ["readable", "expires"]
    [first] = owner.claim(limit=1, ttl=30)
    reason = read_explanation(owner, place)["reasons"][-1]
    assert (reason["code"], reason["at"]) == ("claimed", pytest.approx(first["expires"], abs=0.01))
    assert "delivered 1 time." in reason["text"]
    assert codes(owner, other)[-1] == "unclaimed"
    clock.advance(40)
    assert codes(owner, place)[-1] == "waiting"
    [again] = owner.claim(limit=1, ttl=30)
    assert "delivered 2 times." in read_explanation(owner, place)["reasons"][-1]["text"]
    assert owner.send_json("POST", "q/claims/ack", {"receipts": [again["receipt"]]}).status == 200
    explanation = read_explanation(owner, place)
    assert (explanation["reasons"][-1]["code"], explanation["readable"]) == ("done", True)


def test_a_dedup_queue(owner: Caller) -> None:
    """Another message may be delivered in its place."""
    owner.create("q", partitions=1, kind="dedup")
    key = owner.post("q", "x")["key"]
    assert codes(owner, key) == ["readable", "expires", "duplicates"]


def test_expired_and_never_there(owner: Caller, q: str, clock: Clock) -> None:
    """A missing id is explained by its time: the queue's TTL, the queue's age, the future."""
    place = post_message(owner, X_TTL="10")
    clock.advance(20)
    assert codes(owner, place) == ["absent", "no_trace"]
    clock.advance(4 * 86_400)
    explanation = read_explanation(owner, place)
    assert [reason["code"] for reason in explanation["reasons"]] == ["absent", "expired", "no_trace"]
    assert explanation["reasons"][1]["at"] == pytest.approx(float(explanation["timestamp"]) + 259_200)
    low = place[-16:]
    old = ids.to_hex((clock() - (MAX_TTL + 9) * ids.TICKS_PER_SECOND, ids.parse_low(low)))
    assert codes(owner, old) == ["absent", "older_than_queue", "expired", "no_trace"]
    ahead = ids.to_hex((clock() + 100 * ids.TICKS_PER_SECOND, ids.parse_low(low)))
    assert codes(owner, ahead) == ["absent", "ahead", "no_trace"]


@pytest.mark.parametrize("place", ["1:x", "x", "0" * 32, "1:2:" + "0" * 32, "a,b"])
def test_what_is_no_id(owner: Caller, q: str, place: str) -> None:
    """Text that is not an id is refused as an invalid message id."""
    reply = owner.get(f"q/explain/{place}")
    assert (reply.status, list(reply.errors)) == (400, ["InvalidMessageID"])


def test_no_such_partition(owner: Caller, q: str) -> None:
    """A partition beyond the queue's is the one reason, and nothing is looked up."""
    assert codes(owner, "3:0123456789ab11e88000000000000001") == ["no_partition"]
    assert codes(owner, "0:0123456789ab11e88000000000000001") == ["no_partition"]
