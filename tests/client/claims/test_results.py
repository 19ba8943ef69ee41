"""Results of jobs: receipts of either client request them, and callers that wait at the same time share a request."""

from __future__ import annotations

import asyncio
import pickle
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest
from msgspec import UNSET

from queuey.api.jobs import JobInfo
from queuey.app.service import App
from queuey.client import (
    AsyncClient,
    Client,
    InvalidArgument,
    JobFailed,
    JobGone,
    Receipt,
    ResultTimeout,
    ResultTooLarge,
    ResultUnknown,
)
from queuey.client.calls.job_calls import count_fitting, mark_without_result
from queuey.client.credentials.profile import read_profile
from tests.client.live import LOCAL, LOCAL_KEY, Served
from tests.in_process import InProcess
from tests.waiting import until


class Counted(InProcess):
    """Counts the requests for jobs."""

    def __init__(self, app: App) -> None:
        super().__init__(app)
        self.polls: list[int] = []

    def handle_request(self, request: Any) -> Any:  # noqa: ANN401 - as the transport has them
        if "/jobs/" in request.url.path:
            self.polls.append(request.url.path.count(",") + 1)
        return super().handle_request(request)


@pytest.fixture
def counted(app: App) -> Counted:
    """The counting transport of the client below."""
    return Counted(app)


@pytest.fixture
def client(counted: Counted) -> Iterator[Client]:
    with Client(LOCAL, key=LOCAL_KEY, transport=counted) as client:
        yield client


@pytest.fixture
def queue(client: Client) -> Iterator[str]:
    name = client.create_queue(result_ttl=3600).name
    yield name
    client.delete_queue(name)


@contextmanager
def call_in_threads(call: Callable[[Any], object], *receipts: Any) -> Iterator[list[Any]]:  # noqa: ANN401 - receipts
    """Calls a function with each receipt in threads, beside the block; yields a list that has the results after it."""
    results: list[Any] = []
    with ThreadPoolExecutor(max(1, len(receipts))) as pool:
        futures = [pool.submit(call, receipt) for receipt in receipts]
        yield results
        results += [future.result(60) for future in futures]


def test_many_share_a_poll(client: Client, queue: str, counted: Counted) -> None:
    """A hundred threads that wait cost one request at a time; each gets the result of its own job."""
    receipts = client.send_many(queue, [str(number) for number in range(100)])
    jobs = client.job_queue(queue)
    with call_in_threads(lambda receipt: receipt.result(60), *receipts) as results:
        until(lambda: counted.polls and sum(counted.polls) >= 100)
        before = len(counted.polls)
        jobs.run(lambda job: int(job.body) * 2, idle=0, limit=100)
    assert results == [number * 2 for number in range(100)]
    assert before <= 20


def test_a_later_caller_gets_its_result_at_once(client: Client, queue: str) -> None:
    """A caller that arrives while another one waits gets its result at once, and the other one goes on."""
    first, second = client.send_many(queue, ["a", "b"])
    with call_in_threads(lambda receipt: receipt.result(60), first) as results:
        late: list[object] = []
        asking = threading.Thread(target=lambda: late.append(second.result(60)))
        asking.start()
        jobs = client.job_queue(queue)
        first_job, second_job = jobs.receive(2)
        jobs.ack(second_job, results={second_job.receipt: "2"})
        asking.join(60)
        assert late == ["2"]
        jobs.ack(first_job, results={first_job.receipt: "1"})
    assert results == ["1"]


def test_async(served: Served) -> None:
    """The same for tasks; one that is cancelled leaves its poll to the others."""
    profile = read_profile(served.profile)

    async def main() -> None:
        async with AsyncClient(profile.url, key=profile.key) as client:
            queue = (await client.create_queue(result_ttl=3600)).name
            first = await client.send(queue, "a")
            [second] = await client.send_many(queue, ["b"])
            assert (await first.astatus()).status == "waiting"
            tasks = [asyncio.create_task(receipt.aresult(60)) for receipt in (first, second)]
            await asyncio.sleep(0.05)
            tasks[0].cancel()
            async for job in client.job_queue(queue).claim(idle=0, limit=2):
                await job.set_state({"done": job.body})
                job.set_result(job.body * 2)
            assert await tasks[1] == "bb"
            assert await first.aresult() == "aa"
            assert await first.astate() == {"done": "a"}
            named = await client.named(queue).set("n", "c")
            assert (await named.astatus()).status == "waiting"
            [info] = await client.job_queue(queue).status(second)
            assert info.result == "bb"
            with pytest.raises(InvalidArgument, match="from an AsyncClient: call aresult"):
                first.result()
            await client.delete_queue(queue)

    asyncio.run(main())


def test_errors(client: Client, queue: str) -> None:
    """Each outcome has its error, with the state of the job; a wait that times out is a timeout."""
    jobs = client.job_queue(queue)
    failed, large, expired, never = client.send_many(queue, ["failed", "large", "gone", "never"])
    with pytest.raises(TimeoutError, match="has not ended"):
        failed.result(0)
    with pytest.raises(ResultTimeout):
        failed.result(0.05)
    for job in jobs.claim(idle=0):
        if job.body == "failed":
            job.release(reason=ValueError("no egg"), retry=False)
        elif job.body == "large":
            job.ack("x" * 20_000)
        else:
            job.release(600)
    client.delete(queue, expired)
    with pytest.raises(JobFailed, match="failed: ValueError: no egg") as refused:
        failed.result(0)
    assert (refused.value.error, refused.value.text) == ("ValueError", "no egg")
    with pytest.raises(ResultTooLarge, match="20002 bytes"):
        large.result(60)
    with pytest.raises(JobGone, match="is removed"):
        expired.result(60)
    client.purge_queue(queue)
    with pytest.raises(ResultUnknown, match="was never in this queue"):
        never.result(60)


@pytest.mark.parametrize("timeout", [float("nan"), "1", True], ids=str)
def test_bad_timeouts(client: Client, queue: str, timeout: Any) -> None:  # noqa: ANN401 - that is the test
    """Invalid timeouts are refused before any request."""
    with pytest.raises(InvalidArgument, match=r"timeout is .*: give seconds"):
        client.send(queue, "a").result(timeout)


def test_a_result_that_is_not_kept_is_not_none(client: Client, counted: Counted) -> None:
    """Also where the job was seen unfinished before: here by the request that ends with the first one."""
    queue = client.create_queue().name
    receipts = client.send_many(queue, ["first", "second"])
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(receipt.result, 60) for receipt in receipts]
        until(lambda: sum(counted.polls) == 2)
        for number, job in enumerate(client.job_queue(queue).claim(idle=0)):
            job.ack(3)
            with pytest.raises(ResultUnknown, match="this queue keeps no results"):
                waiting[number].result(60)
    client.delete_queue(queue)


@pytest.mark.parametrize(("age", "result"), [(9, None), (11, UNSET)])
def test_what_was_seen_unfinished_long_ago(age: int, result: object) -> None:
    """A result of a job last seen unfinished long ago may have expired, so its absence proves nothing."""
    done = JobInfo(message_id="0" * 32, partition=1, status="done", kept=10)
    assert mark_without_result(done, age).result is result


def test_what_is_no_json(client: Client, queue: str, caplog: pytest.LogCaptureFixture) -> None:
    """A value without a JSON form is refused where it is set; returned by a handler, it is logged and dropped."""
    receipt = client.send(queue, "a")
    jobs = client.job_queue(queue)
    for job in jobs.claim(idle=0):
        with pytest.raises(InvalidArgument, match="no JSON form"):
            job.set_result(object())
        job.release()
        break
    jobs.run(lambda _job: object(), idle=0)
    assert receipt.result(60) is None
    assert "has no result" in caplog.text


def test_what_is_nested_too_deeply(client: Client, queue: str, caplog: pytest.LogCaptureFixture) -> None:
    """A value nested too deeply is dropped: the service would refuse its acknowledgement again and again."""
    deep: list[Any] = []
    for _ in range(99):
        deep = [deep]
    receipts = client.send_many(queue, ["fits", "deep", "raw"])
    results = {"fits": deep, "deep": [deep], "raw": msgspec.Raw(b"no JSON")}
    client.job_queue(queue).run(lambda job: results[job.body], idle=0)
    assert [receipt.result(60) for receipt in receipts] == [deep, None, None]
    assert "is nested 101 levels deep" in caplog.text


def test_receipts_are_equal(client: Client, queue: str) -> None:
    """Two receipts of a message are equal, whether they have a client or not; a pickled one says how to go on."""
    receipt = client.send(queue, "a", idempotency_key="k")
    again = client.send(queue, "a", idempotency_key="k")
    plain = Receipt(receipt.id, receipt.timestamp, receipt.partition)
    assert receipt == again == plain == pickle.loads(pickle.dumps(receipt))
    assert len({receipt, again, plain}) == 1
    assert repr(receipt) == repr(plain)
    with pytest.raises(InvalidArgument, match="job_queue"):
        plain.status()
    with pytest.raises(InvalidArgument, match="from a Client: call result"):
        asyncio.run(receipt.aresult())
    [info] = client.job_queue(queue).status(plain, states=True)
    assert (info.status, info.state, receipt.state()) == ("waiting", None, None)


@pytest.mark.parametrize(
    ("results", "count"),
    [
        ([None] * 2000, 1000),
        ([b"1"] * 200, 100),
        ([b"x" * 16_384] * 20, 8),
        ([20_000] * 20, 20),
        ([b"x" * 200_000, None], 1),
    ],
)
def test_a_request_has_room_for_results(results: list[Any], count: int) -> None:
    """An acknowledgement has as many receipts as there may be, and as many results as fit."""
    assert count_fitting(results) == count
