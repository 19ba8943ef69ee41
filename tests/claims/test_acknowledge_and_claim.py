"""Requests that acknowledge messages and claim the next ones."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from queuey.app.service import App
from queuey.model.errors import StoreUnavailable
from queuey.model.messages import QueueSpec
from queuey.runtime.limits import Limits
from queuey.storage import ClaimLogs, Store, bridge
from queuey.web.admission.scheduling import SharedQuota
from queuey.web.gateway import Gateway
from tests.claims.test_claims import BAD_RECEIPTS, bodies, settle, statuses_of
from tests.interposed_store import InterposedStore
from tests.web.caller import Caller, Reply
from tests.web.gateway_calls import TEST_TIMEOUT, Request, make_runner, until

Ask = Callable[..., Reply]
BAD = [(body, field) for body, field in BAD_RECEIPTS if body.get("receipts") is not None]
QUERY = "limit=1&ttl=60&partitions="


@pytest.fixture
def limits() -> Limits:
    """Long polls that outlast a busy machine."""
    return Limits(max_wait=TEST_TIMEOUT)


@pytest.fixture
def q(owner: Caller) -> str:
    """A queue of two partitions with the messages a, b and c in the first, and d in the second."""
    owner.create("q", partitions=2)
    for body in "abc":
        owner.post("q", body, X_Partition="1")
    owner.post("q", "d", X_Partition="2")
    return "q"


def written(acknowledge: object) -> bytes:
    return json.dumps({"acknowledge": acknowledge}).encode()


@pytest.fixture
def ask(owner: Caller) -> Ask:
    """Claims one message of a partition, with a body."""
    return lambda body, partition=1: owner("POST", f"q/claims?{QUERY}{partition}", body)


def claim_one(owner: Caller, partition: int = 1) -> str:
    claimed_receipt: str = owner.claim(limit=1, ttl=100, partitions=partition)[0]["receipt"]
    return claimed_receipt


def count_claimed(owner: Caller) -> int:
    count: int = owner.get("q/claims").json["claimed"]
    return count


def test_both_in_one_request(owner: Caller, q: str, ask: Ask) -> None:
    """The next message arrives with the outcomes of the receipts, in their order; repeating the request is safe."""
    first, other = claim_one(owner), claim_one(owner, partition=2)
    for status, expected in (("ok", ["b"]), ("ok", ["c"])):
        reply = ask(written([other, first]))
        assert (reply.status, bodies(reply.messages)) == (200, expected)
        assert reply.json["acknowledged"] == [{"receipt": each, "status": status} for each in (other, first)]
    assert count_claimed(owner) == 2
    assert owner.get("q/size").json["size"] == 2


@pytest.mark.parametrize(("body", "field"), BAD)
def test_bad_receipts(owner: Caller, q: str, ask: Ask, body: dict[str, Any], field: str) -> None:
    """What cannot be a receipt of this queue is named; nothing is acknowledged and nothing claimed."""
    receipts = body["receipts"]
    if isinstance(receipts, list) and len(receipts) == 1:
        receipts, field = [claim_one(owner), *receipts], "receipts.1"
    reply = ask(written(receipts))
    assert (reply.status, list(reply.errors)) == (400, [field.replace("receipts", "acknowledge")]), reply
    assert count_claimed(owner) == (1 if field == "receipts.1" else 0)


# Failures


def failing(error: Callable[[], Exception], times: int = 1000) -> Callable[..., Awaitable[None]]:
    """Returns a method that fails with the error, and after these times with an AssertionError."""
    remaining = [times]

    async def call(*_: object, **_options: object) -> None:
        remaining[0] -= 1
        raise error() if remaining[0] >= 0 else AssertionError("not expected")

    return call


def test_the_acknowledgement_fails(owner: Caller, between: InterposedStore, q: str, ask: Ask) -> None:
    """If nothing could be written, nothing was done, and the error says so."""
    body = written([claim_one(owner)])
    between.instead(ClaimLogs.append_entry, failing(lambda: StoreUnavailable("away")))
    for partition in (1, 2):
        reply = ask(body, partition)
        assert (reply.status, reply.json["outcome"]) == (503, "none")
    between.restore(ClaimLogs.append_entry)
    assert count_claimed(owner) == 1
    assert bodies(ask(body).messages) == ["b"]


# Waiting


def ack_all_but_last(owner: Caller) -> str:
    *finished, last = [claim_one(owner), claim_one(owner), claim_one(owner), claim_one(owner, 2)]
    assert settle(owner, "ack", *finished).status == 200
    return last


@pytest.mark.parametrize("ends", ["message", "service"])
def test_a_long_poll(app: App, owner: Caller, q: str, ends: str) -> None:
    """A long poll acknowledges when it begins, whatever ends the wait."""
    body = written([ack_all_but_last(owner)])

    async def work(gateway: Gateway) -> Reply:
        request = Request("POST", "/v1/queuey/q/claims", body, query=f"wait={TEST_TIMEOUT}&ttl=60")
        task = asyncio.create_task(request.to(gateway))
        await until(lambda: gateway.polls.places.total != gateway.polls.places.free)
        assert await asyncio.to_thread(count_claimed, owner) == 0
        assert not task.done()
        if ends == "message":
            await Request(body=b"next").to(gateway)
        else:
            app.service.stopping.set()
        return await task

    reply = make_runner(app)(work)
    assert bodies(reply.messages) == (["next"] if ends == "message" else [])
    assert [each["status"] for each in reply.json["acknowledged"]] == ["ok"]


def test_no_place_to_wait(app: App, owner: Caller, q: str) -> None:
    """A claim that is refused its wait has still acknowledged, so the error leaves that open."""
    body = written([ack_all_but_last(owner)])

    async def work(gateway: Gateway) -> Reply:
        gateway.polls.places = SharedQuota(0, alpha=2)
        return await Request("POST", "/v1/queuey/q/claims", body, query="wait=60&ttl=60").to(gateway)

    reply = make_runner(app)(work)
    assert (reply.status, list(reply.errors), reply.json["outcome"]) == (503, ["TooManyWaiters"], "unknown")
    assert count_claimed(owner) == 0


# Queues whose claims are paused


@pytest.fixture
def first(owner: Caller) -> dict[str, Any]:
    """The first message of q, claimed before claims were paused; a second one waits."""
    owner.create("q", partitions=2)
    owner.post("q", "a", X_Partition="1")
    owner.post("q", "b", X_Partition="2")
    [claim] = owner.claim(partitions="1", ttl=60)
    pause(owner)
    return claim


def pause(owner: Caller, claims: str = "paused") -> None:
    assert owner.send_json("PUT", "q", {"claims": claims}).json["claims"] == claims


def test_nobody_gets_a_message(owner: Caller, first: dict[str, Any]) -> None:
    """While paused, no claim of the queue, alone or with others, delivers or shows a message; then all are there."""
    assert owner.claim() == owner.claim(ttl=0) == []
    reply = owner.send_json("POST", "_claims", {"queues": ["q"]})
    assert (reply.status, reply.json["queue_name"], reply.messages) == (200, None, [])
    owner.create("other")
    owner.post("other", "c")
    assert bodies(owner.send_json("POST", "_claims", {"queues": ["q", "other"]}).messages) == ["c"]
    pause(owner, "open")
    assert bodies(owner.claim()) == ["b"]


@pytest.mark.parametrize("partition", ["1", "2", "*"])
def test_a_claim_acknowledges(owner: Caller, first: dict[str, Any], partition: str) -> None:
    """Receipts that come with a claim are acknowledged, whichever partition it asks first."""
    reply = owner.send_json("POST", f"q/claims?partitions={partition}", {"acknowledge": [first["receipt"]]})
    assert (reply.messages, statuses_of(reply.json["acknowledged"])) == ([], ["ok"])
    assert owner.get("q/size").json["size"] == 1


def test_it_is_explained(owner: Caller, first: dict[str, Any]) -> None:
    """The explanations of the queue and of its messages say that claims are paused."""
    assert any("claims are paused" in one for one in owner.get("q/explain").json["sentences"])
    reasons = owner.get(f"q/explain/1:{first['message_id']}").json["reasons"]
    assert [one["code"] for one in reasons if one["code"] in {"paused", "claimed"}] == ["paused", "claimed"]


def test_a_waiting_claim_notices_both(app: App, owner: Caller, first: dict[str, Any]) -> None:
    """A waiting claim gets no message posted after the pause, and one soon after the pause has ended."""
    claim = Request("POST", "/v1/queuey/q/claims", b"", query=f"wait={TEST_TIMEOUT}")

    async def work(gateway: Gateway) -> Reply:
        task = asyncio.create_task(claim.to(gateway))
        await until(lambda: task.done() or gateway.polls.places.total != gateway.polls.places.free)
        await Request(path="/v1/queuey/q", body=b"c").to(gateway)
        await asyncio.sleep(0.3)
        assert not task.done(), task.result()
        await asyncio.to_thread(pause, owner, "open")
        reply: Reply = await task
        return reply

    assert make_runner(app)(work).messages


def test_a_resumed_queue_is_open_in_every_process(owner: Caller, other: Store, first: dict[str, Any]) -> None:
    """A process that only answers short polls notices changes by another process."""
    assert owner.claim() == []
    row = bridge.run(other.catalogue.queue("queuey", "q"))
    assert bridge.run(other.catalogue.update_queue(row, QueueSpec(claims="open"))).claims == "open"
    assert bodies(owner.claim()) == ["b"]
