"""Renewals after failures: by the thread of a client, and by the task of an async one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from threading import Event, Thread
from typing import Any

import httpx2
import pytest

from queuey.client import Client, RenewalError, RetryPolicy
from queuey.client._async.job import send_work as send_work_async
from queuey.client._sync.job import send_work
from queuey.client.calls.call import Call
from queuey.client.claims import renewers
from queuey.client.claims.held import LEAVE_TIMEOUT
from queuey.client.claims.renewers import AsyncClaimRenewer, ClaimRenewer
from tests.client.scripted import ONE, Script, async_client, break_connection, claims, settlement, sync_client
from tests.replacing import replace_in
from tests.waiting import until, until_async


def paths(script: Script) -> list[str]:
    return [request.url.path.rpartition("/")[2] for request in script.requests]


def test_without_a_thread_jobs_are_released(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop whose claims cannot be renewed raises an error and releases them; the next one renews its claims again."""
    renewed, start = Event(), Thread.start
    failures = [RuntimeError("can't start new thread")]

    def try_to_start(thread: Thread) -> None:
        if failures and thread.name == "queuey-claims":
            raise failures.pop()
        start(thread)

    def reply(_: httpx2.Request) -> httpx2.Response:
        renewed.set()
        return settlement()

    monkeypatch.setattr(Thread, "start", try_to_start)
    script = Script(claims(1, 2), settlement(), claims(3), reply, claims())
    with Client(ONE, key="k", transport=httpx2.MockTransport(script)) as client:
        jobs = client.job_queue("mail")
        with pytest.raises(RenewalError, match="can't start new thread"):
            list(jobs.claim(limit=2))
        assert paths(script) == ["claims", "release"]
        assert sorted(script.sent()["receipts"]) == ["r1", "r2"]
        assert [renewed.wait(60) for _ in jobs.claim(ttl=2, idle=0)] == [True]
    assert paths(script)[2:4] == ["claims", "renew"]


def test_an_unexpected_error_does_not_end_the_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is reported as one that ends a thread, and the failed renewal is retried."""
    times, renewed = [100.0], Event()
    reports: list[tuple[type[BaseException], str]] = []

    def run(call: Call[None], within: float | None = None) -> None:
        if not reports:
            raise MemoryError(call.path)
        renewed.set()

    def report(args: threading.ExceptHookArgs) -> None:
        reports.append((args.exc_type, str(args.exc_value)))
        times.append(130.0)  # The failed renewal is due again.

    monkeypatch.setattr(threading, "excepthook", report)
    renewer = ClaimRenewer(run, send_work, lambda: times[-1])
    claim = renewer.claims.add("q", "r1", 40, 80)
    renewer.keep([claim])
    assert renewed.wait(60)
    renewer.close()
    assert reports == [(MemoryError, "q/claims/renew")]
    assert claim.state == "held"


def test_an_unexpected_error_does_not_end_the_task() -> None:
    """The same in async code, reported by the event loop."""
    times, renewed = [100.0], asyncio.Event()
    reports: list[str] = []

    async def run(call: Call[None], within: float | None = None) -> None:
        if not reports:
            raise MemoryError(call.path)
        renewed.set()

    def report(_: asyncio.AbstractEventLoop, about: dict[str, Any]) -> None:
        reports.append(str(about["exception"]))
        times.append(130.0)

    async def work() -> None:
        asyncio.get_running_loop().set_exception_handler(report)
        renewer = AsyncClaimRenewer(run, send_work_async, lambda: times[-1])
        claim = renewer.claims.add("q", "r1", 40, 80)
        renewer.keep([claim])
        await asyncio.wait_for(renewed.wait(), 60)
        assert claim.state == "held"
        await renewer.close()

    asyncio.run(work())
    assert reports == ["q/claims/renew"]


# Renewals that are under way when a claim is released

Answer = Callable[[httpx2.Request], httpx2.Response]
WAIT_TIMEOUT = 60.0


class SlowRenewals(Script):
    """A service that receives a renewal only after a release.

    Half of the claim's time is over at its arrival, so that the client renews immediately.
    """

    def __init__(self, answer: Answer = lambda _: settlement(), *, tasks: bool = False) -> None:
        renew: Any = self._renew_in_task if tasks else self._renew
        super().__init__(self._claim, renew, self._release)
        self._answer = answer
        self._renewed = False
        self.released: list[bool] = []
        """For each release, whether a renewal came before it."""
        self.arrives: Callable[[], object] = lambda: self.released

    @property
    def renews(self) -> bool:
        return len(self.requests) >= 2

    def _claim(self, _: httpx2.Request) -> httpx2.Response:
        self.now += 2000
        return claims(1)

    def _renew(self, request: httpx2.Request) -> httpx2.Response:
        until(lambda: bool(self.arrives()))
        self._renewed = True
        return self._answer(request)

    async def _renew_in_task(self, request: httpx2.Request) -> httpx2.Response:
        await until_async(lambda: bool(self.arrives()))
        self._renewed = True
        return self._answer(request)

    def _release(self, _: httpx2.Request) -> httpx2.Response:
        self.released.append(self._renewed)
        return settlement()


@pytest.mark.parametrize("answer", [lambda _: settlement(), break_connection], ids=["answered", "broken"])
def test_a_release_outlasts_a_renewal(connect: Callable[..., Any], kind: str, answer: Answer) -> None:
    """A job that is released during a renewal is released once more after it, with its delay."""
    script = SlowRenewals(answer, tasks=kind == "async")
    for job in connect(script, retry=RetryPolicy(deadline=0)).job_queue("mail").claim(ttl=4000):
        until(lambda: script.renews)
        job.release(delay=9)
        until(lambda: len(script.released) == 2)
        assert not job.lost
        break
    assert paths(script) == ["claims", "renew", "release", "release"]
    assert script.released == [False, True]
    assert script.sent(2) == script.sent(3) == {"receipts": ["r1"], "delay": 9}


def test_a_client_that_closes_waits_for_what_is_released_again() -> None:
    """A loop is left during a renewal, and then its client: connections stay open until the job is released again."""
    script = SlowRenewals()
    with replace_in(renewers, LEAVE_TIMEOUT, WAIT_TIMEOUT), sync_client(script) as client:
        script.arrives = lambda: script.released and client._renewer._closed
        for _ in client.job_queue("mail").claim(ttl=4000):
            until(lambda: script.renews)
            break
    assert script.released == [False, True]
    assert script.sent(2) == script.sent(3) == {"receipts": ["r1"], "delay": 1}


async def test_an_async_client_that_closes_waits_for_what_is_released_again() -> None:
    """An async client waits too. Here the client itself releases the job after the loop breaks off."""
    script = SlowRenewals(tasks=True)
    with replace_in(renewers, LEAVE_TIMEOUT, WAIT_TIMEOUT):
        async with async_client(script) as client:
            async for _ in client.job_queue("mail").claim(ttl=4000):
                await until_async(lambda: script.renews)
                break
    assert script.released == [False, True]


def test_a_client_that_closes_does_not_wait_for_other_renewals() -> None:
    """A close does not wait for renewals of claims that are still held."""
    begun, closed, sent = Event(), Event(), []

    def run(call: Call[None], within: float | None = None) -> None:
        begun.set()
        sent.append(closed.wait(WAIT_TIMEOUT))

    renewer = ClaimRenewer(run, send_work, lambda: 100.0)
    renewer.keep([renewer.claims.add("q", "r1", 40, 80)])
    assert begun.wait(WAIT_TIMEOUT)
    with replace_in(renewers, LEAVE_TIMEOUT, 2 * WAIT_TIMEOUT):
        renewer.close()
    closed.set()
    until(lambda: bool(sent))
    assert sent == [True]


def test_a_claim_that_is_due_sooner_breaks_off_no_renewal() -> None:
    """A task's running renewal is answered before another claim is renewed, whenever that is due."""
    sent: list[str] = []
    answered = asyncio.Event()

    async def run(call: Call[None], within: float | None = None) -> None:
        sent.append(call.path)
        await asyncio.wait_for(answered.wait(), 60)

    async def work() -> None:
        renewer = AsyncClaimRenewer(run, send_work_async, lambda: 100.0)
        renewer.keep([renewer.claims.add("p", "r1", 40, 80)])
        await until_async(lambda: bool(sent))
        renewer.keep([renewer.claims.add("q", "r1", 40, 70)])
        await asyncio.sleep(0)
        answered.set()
        await until_async(lambda: renewer.claims.seconds_until_due() == 20)
        await renewer.close()

    asyncio.run(work())
    assert sent[:2] == ["p/claims/renew", "q/claims/renew"]
    assert "p/claims/renew" not in sent[2:]
