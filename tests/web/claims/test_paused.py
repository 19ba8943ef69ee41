"""Queues whose claims are paused."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from queuey.claims.receipts import ReceiptStatus, parse_receipt
from queuey.errors import QueueChanged
from queuey.messages import Queue, QueueSpec
from queuey.service import Limits
from queuey.service.claims.claiming import ClaimDelivery
from queuey.storage import Store, bridge
from queuey.web.gateway.asgi import Gateway
from queuey.web.parts import App
from tests.web.caller import Caller, Reply
from tests.web.claims.test_claims import bodies, settle, statuses, statuses_of
from tests.web.gateway_calls import TEST_TIMEOUT, Request, make_runner, until


@pytest.fixture
def limits() -> Limits:
    """Long polls that outlast a busy machine."""
    return Limits(max_wait=TEST_TIMEOUT)


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


def test_all_else_goes_on(owner: Caller, first: dict[str, Any]) -> None:
    """Posts, reads and counts go on while claims are paused, and so do existing claims."""
    owner.post("q", "c", X_Partition="1")
    assert owner.get("q/size").json["size"] == 3
    assert [one["body"] for one in owner.get("q/peek").messages] == ["a", "c", "b"]
    assert statuses(settle(owner, "renew", first, ttl=100)) == ["ok"]
    assert statuses(settle(owner, "ack", first)) == ["ok"]
    assert owner.get("q/size").json["size"] == 2


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
        await until(lambda: task.done() or gateway._polls.places.total != gateway._polls.places.free)
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


def test_a_claim_by_the_row_of_before_gets_nothing(
    app: App, owner: Caller, store: Store, first: dict[str, Any]
) -> None:
    """A claim with a stale row has to read the row again if it is alone; with others it is decided by their rows."""
    claims, paused = app.service.claims, bridge.run(store.catalogue.queue("queuey", "q"))
    before = msgspec.structs.replace(paused, claims="open", version=paused.version - 1)
    receipts = [parse_receipt(first["receipt"].rpartition("-")[0])]

    async def ask(queue: Queue) -> list[ClaimDelivery]:
        return await claims.claim(queue, limit=1, ttl=30.0, partitions=[1])

    async def both() -> list[ClaimDelivery]:
        acknowledging = asyncio.ensure_future(claims.acknowledge(paused, receipts))
        deliveries = await ask(before)
        assert [one.status for one in await acknowledging] == [ReceiptStatus.DONE]
        return deliveries

    owner.post("q", "c", X_Partition="1")
    with pytest.raises(QueueChanged):
        claims.core.run(ask(before))
    assert claims.core.run(both()) == []
