"""Requests that acknowledge messages and claim the next ones."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest

from queuey.errors import QueueChanged, StoreUnavailable
from queuey.messages import Page, Queue, Slice
from queuey.service import Limits, PiggybackedAck
from queuey.service.claims.requests import SettleRequest
from queuey.storage import ClaimLogs, Messages, Store
from queuey.web.admission.scheduling import SharedQuota
from queuey.web.gateway.asgi import Gateway
from queuey.web.parts import App
from tests.interposed_store import InterposedStore
from tests.replacing import replace
from tests.web.caller import Caller, Reply
from tests.web.claims.test_claims import BAD_RECEIPTS, bodies, settle
from tests.web.gateway_calls import TEST_TIMEOUT, Request, make_runner, until

Ask = Callable[..., Reply]
BAD = [(body, field) for body, field in BAD_RECEIPTS if body.get("receipts") is not None]
QUERY = "limit=1&ttl=60&partitions="


@pytest.fixture
def limits() -> Limits:
    """Long polls that outlast a busy machine, and a low bound of bodies."""
    return Limits(max_wait=TEST_TIMEOUT, max_body=200_000)


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


@pytest.fixture
def settling() -> Iterator[list[int]]:
    """Numbers of receipts in each acknowledgement that reached the service."""
    counts: list[int] = []
    real = PiggybackedAck.wait

    async def counting(ack: PiggybackedAck, settles: Mapping[int, SettleRequest]) -> None:
        counts.append(sum(len(each.receipts) for each in settles.values()))
        await real(ack, settles)

    with replace(PiggybackedAck.wait, counting):
        yield counts


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


def test_at_once_without_a_thread(app: App, owner: Caller, q: str) -> None:
    """The gateway needs no thread for it."""
    body = written([claim_one(owner)])

    async def work(gateway: Gateway) -> Reply:
        async def refuse(*_: object, **__: object) -> None:
            raise AssertionError("a thread was asked for")

        gateway._threads.run = refuse  # type: ignore[method-assign, assignment]
        return await Request("POST", "/v1/queuey/q/claims", body, query=f"{QUERY}1").to(gateway)

    reply = make_runner(app)(work)
    assert (bodies(reply.messages), len(reply.json["acknowledged"])) == (["b"], 1)


@pytest.mark.parametrize(("body", "field"), BAD)
def test_bad_receipts(owner: Caller, q: str, ask: Ask, body: dict[str, Any], field: str) -> None:
    """What cannot be a receipt of this queue is named; nothing is acknowledged and nothing claimed."""
    receipts = body["receipts"]
    if isinstance(receipts, list) and len(receipts) == 1:
        receipts, field = [claim_one(owner), *receipts], "receipts.1"
    reply = ask(written(receipts))
    assert (reply.status, list(reply.errors)) == (400, [field.replace("receipts", "acknowledge")]), reply
    assert count_claimed(owner) == (1 if field == "receipts.1" else 0)


@pytest.mark.parametrize("partition", [1, 2])
def test_a_receipt_of_no_entry(owner: Caller, q: str, ask: Ask, partition: int) -> None:
    """A well-formed receipt may name a delivery that never happened: nothing is claimed."""
    place, number, secret, mark = claim_one(owner).rsplit("-", 3)
    reply = ask(written([f"{place}-{int(number) + 50}-{secret}-{mark}"]), partition)
    assert (reply.status, list(reply.errors)) == (400, ["acknowledge"])
    assert count_claimed(owner) == 1


def test_too_long(owner: Caller, q: str, ask: Ask) -> None:
    """A body has the same bounds as that of an acknowledgement."""
    assert ask(b" " * 200_001).status == 413
    receipts = [claim_one(owner)] * 1000
    reply = ask(json.dumps({"acknowledge": receipts}, indent=40).encode())  # longer than what is handled in the loop
    assert len(reply.json["acknowledged"]) == 1000


def test_without_the_right(owner: Caller, guest: Caller, anonymous: Caller, q: str) -> None:
    """A caller that may not claim may not acknowledge by a claim."""
    body = written([claim_one(owner)])
    assert [caller("POST", f"{caller.base}/q/claims", body).status for caller in (guest, anonymous)] == [403, 401]
    assert count_claimed(owner) == 1


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


def test_the_claim_fails(owner: Caller, between: InterposedStore, q: str, ask: Ask) -> None:
    """Acknowledgements stay done when the claim fails, and the error leaves that open; a repeat finds them done."""
    body = written([claim_one(owner)])
    between.instead(Messages.read, failing(lambda: StoreUnavailable("away")))
    reply = ask(body, partition=2)
    assert (reply.status, reply.json["outcome"]) == (503, "unknown")
    assert count_claimed(owner) == 0
    between.restore(Messages.read)
    reply = ask(body, partition=2)
    assert (bodies(reply.messages), reply.json["acknowledged"][0]["status"]) == (["d"], "ok")


def test_the_row_changes(
    owner: Caller, between: InterposedStore, store: Store, q: str, ask: Ask, settling: list[int]
) -> None:
    """A claim that is made again with a fresh row does not acknowledge again."""
    body = written([claim_one(owner)])
    changes = [QueueChanged("another row")]

    async def read(queue: Queue, slices: Sequence[Slice]) -> list[Page]:
        if changes:
            raise changes.pop()
        return await store.messages.read(queue, slices)

    between.instead(Messages.read, read)
    reply = ask(body, partition=2)
    assert (bodies(reply.messages), settling, changes) == (["d"], [1], [])
    assert reply.json["acknowledged"][0]["status"] == "ok"


# Waiting


def ack_all_but_last(owner: Caller) -> str:
    *finished, last = [claim_one(owner), claim_one(owner), claim_one(owner), claim_one(owner, 2)]
    assert settle(owner, "ack", *finished).status == 200
    return last


@pytest.mark.parametrize("ends", ["message", "time", "leaves"])
def test_a_long_poll(app: App, owner: Caller, q: str, settling: list[int], ends: str) -> None:
    """A long poll acknowledges and claims without a thread, whatever ends the wait."""
    body = written([ack_all_but_last(owner)])
    settling.clear()

    async def work(gateway: Gateway) -> Reply:
        wait = 1 if ends == "time" else TEST_TIMEOUT
        request = Request("POST", "/v1/queuey/q/claims", body, query=f"wait={wait}&ttl=60")
        task = asyncio.create_task(request.to(gateway))
        await until(lambda: gateway._polls.places.total != gateway._polls.places.free)
        if ends != "time":
            assert await asyncio.to_thread(count_claimed, owner) == 0
            assert not task.done()
        if ends == "message":
            await Request(body=b"next").to(gateway)
        elif ends == "leaves":
            app.service.stopping.set()
        return await task

    reply = make_runner(app)(work)
    assert bodies(reply.messages) == (["next"] if ends == "message" else [])
    assert [each["status"] for each in reply.json["acknowledged"]] == ["ok"]
    assert settling == [1]


def test_no_place_to_wait(app: App, owner: Caller, q: str) -> None:
    """A claim that is refused its wait has still acknowledged, so the error leaves that open."""
    body = written([ack_all_but_last(owner)])

    async def work(gateway: Gateway) -> Reply:
        gateway._polls.places = SharedQuota(0, alpha=2)
        return await Request("POST", "/v1/queuey/q/claims", body, query="wait=60&ttl=60").to(gateway)

    reply = make_runner(app)(work)
    assert (reply.status, list(reply.errors), reply.json["outcome"]) == (503, ["TooManyWaiters"], "unknown")
    assert count_claimed(owner) == 0
