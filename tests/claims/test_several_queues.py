"""Claims from the first of several queues that has messages."""

from __future__ import annotations

import asyncio
import json

import pytest

from queuey.app.service import App
from queuey.runtime.limits import Limits
from queuey.storage import Store
from queuey.web.gateway import Gateway
from tests.claims.test_claims import bodies
from tests.web.caller import Caller, Reply, limited_caller
from tests.web.gateway_calls import TEST_TIMEOUT, Request, make_runner, until

QUEUES = ["hi", "mid", "lo"]


@pytest.fixture
def limits() -> Limits:
    """Long polls that outlast a busy machine."""
    return Limits(max_wait=TEST_TIMEOUT)


@pytest.fixture(autouse=True)
def queues(owner: Caller) -> None:
    """Three queues with several partitions, of both kinds."""
    owner.create("hi", partitions=3)
    owner.create("mid", kind="dedup")
    owner.create("lo", partitions=2)


def claim_several(caller: Caller, acknowledge: object = None, query: str = "ttl=60", names: object = QUEUES) -> Reply:
    return caller.send_json("POST", f"_claims?{query}", {"queues": names, "acknowledge": acknowledge})


def queue_and_bodies(reply: Reply) -> tuple[str | None, list[str]]:
    assert reply.status == 200, reply
    return reply.json["queue_name"], bodies(reply.messages)


def test_acknowledgements(owner: Caller) -> None:
    """Receipts of each queue are acknowledged at once, also if nothing can be claimed; stale ones are reported."""
    for name in QUEUES:
        owner.post(name, name)
    receipts = {name: [claim_several(owner).messages[0]["receipt"]] for name in QUEUES}
    owner.post("lo", "more")
    reply = claim_several(owner, receipts)
    assert queue_and_bodies(reply) == ("lo", ["more"])
    assert reply.json["acknowledged"] == [{"receipt": receipts[name][0], "status": "ok"} for name in QUEUES]
    assert [owner.get(f"{name}/size").json["size"] for name in QUEUES] == [0, 0, 1]
    stale = reply.messages[0]["receipt"]
    owner("DELETE", "lo/claims")
    assert queue_and_bodies(claim_several(owner, names=["lo"])) == ("lo", ["more"])
    assert claim_several(owner, {"lo": [stale]}).json["acknowledged"] == [{"receipt": stale, "status": "superseded"}]


def test_terms_in_the_body(owner: Caller) -> None:
    """The terms are those of one queue; bad ones are named, and a field that is also in the query is refused."""
    for body in "ab":
        owner.post("hi", body, X_Partition="1")
    reply = owner.send_json("POST", "_claims?ttl=60", {"queues": QUEUES, "limit": 1, "worker": "ann"})
    assert queue_and_bodies(reply) == ("hi", ["a"])
    assert [job["worker"] for job in owner.get("hi/jobs").json["jobs"]] == ["ann"]
    for query, fields, bad in (
        ("", {"limit": 0}, "limit"),
        ("?ttl=5", {"ttl": 6}, "ttl"),
        ("?partitions=1", {}, "partitions"),
    ):
        reply = owner.send_json("POST", f"_claims{query}", {"queues": QUEUES} | fields)
        assert (reply.status, list(reply.errors)) == (400, [bad])


def read_refused(reply: Reply) -> dict[str, list[str]]:
    return {each["queue_name"]: list(each["error_msg"]) for each in reply.json.get("refused", [])}


def test_each_queue_has_its_own_error(owner: Caller, store: Store) -> None:
    """A missing or closed queue blocks neither the other queues nor the acknowledgements sent with the claim."""
    limited = limited_caller(owner, store, "read,claim", "hi*")
    for body in ("one", "two"):
        owner("POST", "hi", body.encode(), headers={"X-Partition": "1"})
    first = claim_several(limited, names=["none", "lo", "hi"], query="ttl=60&limit=1")
    assert queue_and_bodies(first) == ("hi", ["one"])
    assert read_refused(first) == {"none": ["InvalidQueueName"], "lo": ["Forbidden"]}
    receipt = first.messages[0]["receipt"]
    second = claim_several(owner, {"hi": [receipt], "none": ["x"]}, names=["none", "hi"])
    assert (queue_and_bodies(second), read_refused(second)) == (("hi", ["two"]), {"none": ["InvalidQueueName"]})
    assert second.json["acknowledged"] == [{"receipt": receipt, "status": "ok"}]
    assert owner.get("hi/size").json["size"] == 1


def test_queues_that_are_all_refused(owner: Caller, store: Store) -> None:
    """If no queue can be claimed from, the error is that of the first."""
    assert claim_several(owner, names=["none", "nothing"]).status == 404
    limited = limited_caller(owner, store, "read,claim", "hi*")
    assert queue_and_bodies(claim_several(limited, names=["hi"])) == (None, [])
    assert claim_several(limited, names=["lo", "none"]).status == 403


@pytest.mark.parametrize("name", QUEUES)
def test_one_wait_is_for_all(app: App, owner: Caller, name: str) -> None:
    """A message in any of the queues ends the wait; receipts were acknowledged once, when it began."""
    owner.post("lo", "before")
    receipt = claim_several(owner).messages[0]["receipt"]
    body = json.dumps({"queues": QUEUES, "acknowledge": {"lo": [receipt]}}).encode()
    claim = Request("POST", "/v1/queuey/_claims", body, query=f"wait={TEST_TIMEOUT}&ttl=60")

    async def work(gateway: Gateway) -> Reply:
        task = asyncio.create_task(claim.to(gateway))
        await until(lambda: task.done() or gateway.polls.places.total != gateway.polls.places.free)
        assert not task.done(), task.result()
        await Request(path=f"/v1/queuey/{name}", body=b"news").to(gateway)
        reply: Reply = await task
        return reply

    reply = make_runner(app)(work)
    assert queue_and_bodies(reply) == (name, ["news"])
    assert reply.json["acknowledged"] == [{"receipt": receipt, "status": "ok"}]
