"""Jobs: claimed, renewed, acknowledged and released, on scripted servers."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from contextlib import closing
from threading import Event
from typing import Any

import httpx2
import pytest

from queuey.client import ClaimLost, ConnectionLost, InvalidArgument, InvalidRequest, RetryPolicy
from queuey.client.calls.claim_calls import name_this_process
from tests.client.scripted import Script, async_client, break_connection, claims, settlement

Connect = Callable[..., Any]


def describe_requests(script: Script) -> list[str]:
    """Returns the requests in short, in order: ``claims 1``, ``ack r1 r2``, ``claims 1 r2``, which acknowledges r2."""
    requests = []
    for request in script.requests:
        what = request.url.path.rpartition("/")[2]
        limit = [request.url.params["limit"]] if what == "claims" else []
        requests.append(" ".join([what, *limit, *receipts_in(request)]))
    return requests


def reply_bad_fields(*fields: str) -> httpx2.Response:
    body = {"status": "error", "error_msg": dict.fromkeys(fields, "is bad")}
    return httpx2.Response(400, json=body)


def receipts_in(request: httpx2.Request) -> list[str]:
    if not request.content:
        return []
    [receipts] = (value for value in json.loads(request.content).values() if isinstance(value, list))
    return list(receipts)


def test_a_job_is_acknowledged_when_the_next_is_asked_for(connect: Connect) -> None:
    """Each job is acknowledged by the next claim, in one request; an idle loop ends when nothing is there."""
    script = Script(claims(1), claims(2), claims())
    jobs = connect(script).job_queue("mail").claim(idle=0)
    handled = [(job.body, job.deliveries, job.receipt, job.lost, describe_requests(script)[-1]) for job in jobs]
    assert handled == [("m1", 1, "r1", False, "claims 1"), ("m2", 1, "r2", False, "claims 1 r1")]
    assert describe_requests(script) == ["claims 1", "claims 1 r1", "claims 1 r2"]
    assert dict(script.requests[0].url.params) == {
        "limit": "1",
        "ttl": "30",
        "worker": name_this_process(),
        "states": "true",
    }
    assert script.requests[0].url.path == "/v1/acme/mail/claims"


def test_jobs_of_one_claim_are_acknowledged_together(connect: Connect) -> None:
    """Several finished jobs cost one acknowledgement; one that took long is acknowledged without waiting."""
    script = Script(claims(1, 2, 3, 4), settlement(), claims())
    for job in connect(script).job_queue("mail").claim(limit=4, ttl=60, idle=0):
        script.now += 0.2 if job.body in {"m2", "m4"} else 0.0
    assert describe_requests(script) == ["claims 4", "ack r1 r2", "claims 4 r3 r4"]


def test_it_waits_for_jobs(connect: Connect) -> None:
    """The server holds a claim open, so long that a message still has most of its time; an idle loop ends in time."""
    script = Script(claims())

    def held(request: httpx2.Request) -> httpx2.Response:
        script.now += float(request.url.params.get("wait", 0))
        return claims()

    script = Script(held)
    assert list(connect(script).job_queue("mail").claim(idle=25)) == []
    assert [request.url.params.get("wait") for request in script.requests] == ["10", "10", "5"]


def test_a_loop_that_is_left_gives_its_jobs_back(connect: Connect) -> None:
    """Finished jobs are acknowledged; the current job and those that wait for their turn are released."""
    script = Script(claims(1, 2, 3), settlement())
    with closing(connect(script).job_queue("mail").claim(limit=3)) as jobs:
        assert [next(jobs).body for _ in range(2)] == ["m1", "m2"]
    assert describe_requests(script) == ["claims 3", "ack r1", "release r2", "release r3"]
    assert script.sent(2) == {"receipts": ["r2"], "delay": 1}
    assert "delay" not in script.sent(3)


@pytest.mark.parametrize(("deliveries", "delay"), [(1, 1), (2, 2), (3, 4), (6, 32), (7, 60), (100_000, 60)])
def test_a_job_that_ends_its_loop_waits_longer_each_time(connect: Connect, deliveries: int, delay: float) -> None:
    """The job in hand of a loop that is left is delivered again later, the later the more often it was delivered."""
    script = Script(claims(1, deliveries=deliveries), settlement())
    for _ in connect(script).job_queue("mail").claim():
        break
    assert describe_requests(script) == ["claims 1", "release r1"]
    assert script.sent() == {"receipts": ["r1"], "delay": delay}


def test_a_job_may_be_decided_on_by_hand(connect: Connect) -> None:
    """What the loop's body acknowledged or released is left alone afterwards."""
    script = Script(claims(1, 2, 3), settlement(), settlement(), settlement(), claims())
    for job in connect(script).job_queue("mail").claim(limit=3, idle=0):
        if job.body == "m1":
            job.ack()
        elif job.body == "m2":
            job.release()
        else:
            job.release(delay=600)
    assert describe_requests(script) == ["claims 3", "ack r1", "release r2", "release r3", "claims 3"]
    assert "delay" not in script.sent(2)
    assert script.sent(3)["delay"] == 600


def test_a_release_that_failed_is_no_acknowledgement(connect: Connect) -> None:
    """A job that its handler gave up is never acknowledged, also if the service was away for the release."""
    script = Script(claims(1), break_connection, claims())
    for job in connect(script, retry=RetryPolicy(deadline=0)).job_queue("mail").claim(idle=0):
        with pytest.raises(ConnectionLost):
            job.release(delay=10)
    assert describe_requests(script) == ["claims 1", "release r1", "claims 1"]


def test_an_acknowledgement_that_failed_is_tried_again(connect: Connect) -> None:
    """A job that its handler has done is acknowledged by the loop, if the service was away before, also at its end."""
    script = Script(claims(1), break_connection, claims(2), break_connection, settlement())
    for job in connect(script, retry=RetryPolicy(deadline=0)).job_queue("mail").claim(idle=0):
        with pytest.raises(ConnectionLost):
            job.ack()
        if job.body == "m2":
            break
    assert describe_requests(script) == ["claims 1", "ack r1", "claims 1 r1", "ack r2", "ack r2"]


def test_a_release_that_is_refused_changes_nothing(connect: Connect) -> None:
    """A job whose release is refused as bad input is still held, and released when the loop ends."""
    script = Script(claims(1), reply_bad_fields("delay"), settlement())

    def work() -> None:
        for job in connect(script).job_queue("mail").claim():
            job.release(delay=50_000)

    with pytest.raises(InvalidRequest):
        work()
    assert describe_requests(script) == ["claims 1", "release r1", "release r1"]


def test_a_loop_that_is_left_before_its_client() -> None:
    """``async with`` ends before an ``async for`` that was left: the client acknowledges and releases its jobs."""

    async def work() -> None:
        async with async_client(script) as client:
            async for job in client.job_queue("mail").claim(limit=3):
                if job.body == "m2":
                    break
        assert job.lost

    script = Script(claims(1, 2, 3), settlement())
    asyncio.run(work())
    requests = describe_requests(script)
    assert (requests[:2], sorted(requests[2:])) == (["claims 3", "ack r1"], ["release r2", "release r3"])
    delays = {receipts_in(request)[0]: json.loads(request.content).get("delay") for request in script.requests[2:]}
    assert delays == {"r2": 1, "r3": None}


def test_a_lost_job_does_not_end_the_loop(connect: Connect) -> None:
    """A redelivered message belongs to another worker; the loop goes on, and by hand it is an error."""
    script = Script(claims(1), claims(2, superseded=[1]), settlement(2), claims())
    jobs = []
    for job in connect(script).job_queue("mail").claim(idle=0):
        jobs.append(job)
        if job.body == "m2":
            with pytest.raises(ClaimLost) as lost:
                job.ack()
            assert [(each.receipt, each.status) for each in lost.value.refused] == [("r2", "superseded")]
    assert [job.lost for job in jobs] == [True, True]
    assert describe_requests(script) == ["claims 1", "claims 1 r1", "ack r2", "claims 1"]


@pytest.mark.parametrize("fields", ["acknowledge.0 acknowledge.1", "acknowledge.0", "acknowledge"])
def test_a_purge_does_not_end_the_loop(connect: Connect, fields: str) -> None:
    """Receipts that a claim is refused for are lost; it is sent again, and acknowledges the others."""
    script = Script(claims(1, 2), reply_bad_fields(*fields.split()), claims(3), claims())
    jobs = list(connect(script).job_queue("mail").claim(limit=2, idle=0))
    expected = " r2" if fields == "acknowledge.0" else ""
    assert describe_requests(script) == ["claims 2", "claims 2 r1 r2", f"claims 2{expected}", "claims 2 r3"]
    assert [job.lost for job in jobs] == [True, not expected, False]
    assert script.slept == []


def test_a_purge_does_not_end_an_acknowledgement(connect: Connect) -> None:
    """Nor does it end the loop when an acknowledgement of its own is refused, between two jobs."""
    script = Script(claims(1, 2, 3), reply_bad_fields("receipts.0"), settlement(), claims())
    for job in connect(script).job_queue("mail").claim(limit=3, idle=0):
        script.now += 0.2 if job.body == "m2" else 0.0
    assert describe_requests(script) == ["claims 3", "ack r1 r2", "ack r2", "claims 3 r3"]


@pytest.mark.parametrize("fields", ["acknowledge.0 limit", "limit", "acknowledge.7", ""])
def test_a_bad_claim_ends_the_loop(connect: Connect, fields: str) -> None:
    """Where anything but receipts that were sent is refused, the same again would be, too."""
    script = Script(claims(1), reply_bad_fields(*fields.split()), settlement())
    with pytest.raises(InvalidRequest):
        list(connect(script).job_queue("mail").claim(idle=0))
    assert describe_requests(script) == ["claims 1", "claims 1 r1", "ack r1"]


@pytest.mark.parametrize("name", ["", "a/b", "_q", None, [], ["a", ""], ["a", "a"], list("abcdefghijk")])
def test_a_name_that_no_queue_can_have(connect: Connect, name: Any) -> None:  # noqa: ANN401 - a mistake
    """It is refused where it is given, and not by the first claim; so are no, too many and equal queues."""
    with pytest.raises(InvalidArgument, match=r"queue is|is not a valid queue name|1 to 10 different ones"):
        connect(Script(claims())).job_queue(name)


def test_batches(connect: Connect) -> None:
    """A program may claim and acknowledge by itself; it learns which receipts were refused."""
    script = Script(claims(1, 2, 3), settlement(2), settlement(), settlement())
    queue = connect(script).job_queue("mail")
    claimed = queue.receive(100, ttl=60, wait=5, partitions=[1, 3])
    params = {
        "limit": "100",
        "ttl": "60",
        "wait": "5",
        "partitions": "1,3",
        "worker": name_this_process(),
        "states": "true",
    }
    assert dict(script.requests[0].url.params) == params
    assert (claimed[0].message.body, claimed[0].receipt, claimed[0].deliveries) == ("m1", "r1", 1)
    assert [refused.receipt for refused in queue.ack(claimed)] == ["r2"]
    assert queue.renew("r1", 60) == []
    assert queue.release(["r1", claimed[2]], delay=5) == []
    assert describe_requests(script)[1:] == ["ack r1 r2 r3", "renew r1", "release r1 r3"]
    assert script.sent()["delay"] == 5


def test_a_claim_may_acknowledge(connect: Connect) -> None:
    """One request acknowledges what was done and claims the next; more receipts than it takes go before it."""
    script = Script(claims(1, 2), claims(3, superseded=[2]), settlement(1700), settlement(), claims(superseded=[5]))
    queue = connect(script).job_queue("mail")
    first = queue.receive()
    assert first.refused == []
    second = queue.receive(1, wait=5, acknowledge=first)
    assert [(refused.receipt, refused.status) for refused in second.refused] == [("r2", "superseded")]
    third = queue.receive(1, acknowledge=[f"r{n}" for n in range(2500)])
    assert [refused.receipt for refused in third.refused] == ["r5", "r1700"]
    assert describe_requests(script)[:2] == ["claims 10", "claims 1 r1 r2"]
    assert [len(receipts_in(request)) for request in script.requests] == [0, 2, 1000, 500, 1000]
    assert script.requests[1].headers["content-type"] == "application/json"
    with pytest.raises(InvalidArgument):
        queue.receive(acknowledge="")


# The thread and the task


def test_a_finished_job_does_not_wait_for_a_long_one(connect: Connect) -> None:
    """What is finished is acknowledged while the loop works on the next job, however long claims last."""
    acknowledged = Event()

    def reply(_: httpx2.Request) -> httpx2.Response:
        acknowledged.set()
        return settlement()

    script = Script(claims(1, 2), reply, claims())
    for job in connect(script, scripted_time=False).job_queue("mail").claim(limit=2, ttl=3600, idle=0):
        time.sleep(0.02)  # The thread or task now sleeps for half an hour.
        assert job.body == "m1" or acknowledged.wait(60)
    first, acknowledgement, last = describe_requests(script)
    assert (first, acknowledgement) == ("claims 2", "ack r1")
    # It names r1 again if it is sent before the answer to the acknowledgement is read.
    assert last in {"claims 2 r2", "claims 2 r1 r2"}
