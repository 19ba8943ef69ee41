"""Reads that may wait: when they wait, and for which messages. For the end of a wait see the gateway's tests."""

from __future__ import annotations

from tests.web.caller import Caller


def test_a_message_outside_of_the_range_does_not_end_the_wait(owner: Caller) -> None:
    """Only messages that the read would give count."""
    owner.create("q", partitions=2)
    owner.post("q", "x", X_Partition="2")
    assert owner.get("q", wait="0.05", partitions="1").messages == []


def test_an_error_in_one_of_several_queues_prevents_the_wait(owner: Caller) -> None:
    """A read of several queues answers at once if one of them does not exist."""
    owner.create("a")
    content = {"queues": [{"queue_name": "a"}, {"queue_name": "missing"}], "wait": 20}
    assert owner.send_json("POST", "_read", content).json["queues"][-1]["status"] == "error"
