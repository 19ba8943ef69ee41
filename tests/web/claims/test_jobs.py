"""Jobs by id over HTTP: what became of them, and their results."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.waiting import until
from tests.web.caller import Caller, Reply


@pytest.fixture
def queue(owner: Caller) -> str:
    """A queue that keeps results for an hour."""
    return owner.create("q", result_ttl=3600)


def post(caller: Caller, *bodies: str, **how: Any) -> list[str]:
    """Posts messages; returns their places."""
    batch = {"messages": [{"body": body, **how} for body in bodies]}
    posted = caller.send_json("POST", "q", batch).json["messages"]
    return [f"{each['partition']}:{each['key']}" for each in posted]


def jobs(caller: Caller, *places: str, **query: object) -> list[dict[str, Any]]:
    """What became of jobs."""
    found: list[dict[str, Any]] = caller.get(f"q/jobs/{','.join(places)}", **query).json["jobs"]
    assert [f"{each['partition']}:{each['message_id']}" for each in found] == list(places)
    return found


def acknowledge(caller: Caller, receipt: str, **more: object) -> Reply:
    """Acknowledges a claim."""
    return caller.send_json("POST", "q/claims/ack", {"receipts": [receipt], **more})


def test_one(owner: Caller, queue: str) -> None:
    [place] = post(owner, "a")
    print(jobs(owner, place))
    [claim] = owner.claim(ttl=60, worker="ann:1")
    print(jobs(owner, place))
    print(acknowledge(owner, claim["receipt"], results={claim["receipt"]: {"x": 1}}).json)
    print(jobs(owner, place))
    assert 0
