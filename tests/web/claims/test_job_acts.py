"""Jobs that operators cancel or retry over HTTP."""

from __future__ import annotations

from typing import Any

from tests.web.caller import Caller
from tests.web.claims.test_claims import bodies


def act(caller: Caller, what: str, place: str) -> Any:  # noqa: ANN401 - a word, or a refusal
    reply = caller.send_json("POST", f"q/jobs/{place}/{what}", {})
    return reply.json["job"] if reply.status == 200 else (reply.status, *reply.json["error_msg"])


def test_cancel(owner: Caller) -> None:
    """A waiting job is removed, the worker of a claimed one learns of it at its next renewal; a repeat does nothing."""
    owner.create("q", partitions=2)
    owner.post("q", "waits", X_Partition="2")
    owner.post("q", "runs", X_Partition="1")
    [job] = owner.claim(partitions="1", ttl=60)
    [waits] = owner.get("q", partitions="2").messages
    assert [act(owner, "cancel", f"2:{waits['message_id']}") for _ in range(2)] == ["removed", "done"]
    for place in (job["message_id"], f"1:{job['message_id']}"):
        assert act(owner, "cancel", place) == "claimed"
    renewal = owner.send_json("POST", "q/claims/renew", {"receipts": [job["receipt"]], "ttl": 60})
    assert renewal.json["results"][0]["cancelled"] is True
    owner.send_json("POST", "q/claims/release", {"receipts": [job["receipt"]]})
    assert owner.claim() == []


def test_retry(owner: Caller) -> None:
    """A job that was released with a delay, and a delayed one, can be claimed at once."""
    owner.create("q")
    later = str(owner.post("q", "later", X_Delay="600")["key"])
    owner.post("q", "rests")
    [job] = owner.claim(ttl=60)
    assert act(owner, "retry", job["message_id"]) == "claimed"
    owner.send_json("POST", "q/claims/release", {"receipts": [job["receipt"]], "delay": 600})
    assert owner.claim() == []
    assert [act(owner, "retry", place) for place in (job["message_id"], later)] == ["waiting"] * 2
    assert sorted(bodies(owner.claim(limit=9))) == ["later", "rests"]


def test_mistakes(owner: Caller) -> None:
    """An id that is not a job's is refused by name."""
    owner.create("q")
    missing = "0123456789ab11e88000000000000001"
    assert act(owner, "cancel", missing) == act(owner, "retry", f"1:{missing}") == (404, "InvalidMessageID")
    assert act(owner, "cancel", "7") == (400, "InvalidMessageID")
    assert act(owner, "retry", f"2:{missing}") == (400, "partitions")
