"""What keeps claims when something fails: the thread of a client, and the task of an async one."""

from __future__ import annotations

import asyncio
import threading
from threading import Event, Thread
from typing import Any

import httpx2
import pytest

from queuey.client import Client, RenewalError
from queuey.client.calls.call import Call
from queuey.client.claims.async_jobs import AsyncKeeper
from queuey.client.claims.held import Holding
from queuey.client.claims.keeper import Keeper
from tests.client.scripted import ONE, Script, claims, settled


def paths(script: Script) -> list[str]:
    """Says in short what was asked."""
    return [request.url.path.rpartition("/")[2] for request in script.requests]


def test_without_a_thread_jobs_are_released(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop whose claims cannot be renewed says so and releases them; the next one renews its claims again."""
    renewed, start = Event(), Thread.start
    failures = [RuntimeError("can't start new thread")]

    def try_to_start(thread: Thread) -> None:
        if failures and thread.name == "queuey-claims":
            raise failures.pop()
        start(thread)

    def reply(_: httpx2.Request) -> httpx2.Response:
        renewed.set()
        return settled()

    monkeypatch.setattr(Thread, "start", try_to_start)
    script = Script(claims(1, 2), settled(), claims(3), reply, claims())
    with Client(ONE, key="k", transport=httpx2.MockTransport(script)) as client:
        jobs = client.job_queue("mail")
        with pytest.raises(RenewalError, match="can't start new thread"):
            list(jobs.claim(limit=2))
        assert paths(script) == ["claims", "release"]
        assert sorted(script.sent()["receipts"]) == ["r1", "r2"]
        assert [renewed.wait(60) for _ in jobs.claim(ttl=2, idle=0)] == [True]
    assert paths(script)[2:4] == ["claims", "renew"]


def test_an_unexpected_error_does_not_end_the_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is reported as one that ends a thread, and the renewal that it has stopped is tried again."""
    times, renewed = [100.0], Event()
    reports: list[tuple[type[BaseException], str]] = []

    def run(call: Call[None], within: float | None = None) -> None:
        if not reports:
            raise MemoryError(call.path)
        renewed.set()

    def report(args: threading.ExceptHookArgs) -> None:
        reports.append((args.exc_type, str(args.exc_value)))
        times.append(130.0)  # What has failed is due again.

    monkeypatch.setattr(threading, "excepthook", report)
    keeper = Keeper(run, lambda: times[-1])  # type: ignore[arg-type] # it returns nothing whatever the call
    hold = keeper.holding.add("q", "r1", 40, 80)
    keeper.keep([hold])
    assert renewed.wait(60)
    keeper.close()
    assert reports == [(MemoryError, "q/claims/renew")]
    assert hold.state == "held"


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
        keeper = AsyncKeeper(run, lambda: times[-1])  # type: ignore[arg-type] # it returns nothing whatever the call
        hold = keeper.holding.add("q", "r1", 40, 80)
        keeper.keep([hold])
        await asyncio.wait_for(renewed.wait(), 60)
        assert hold.state == "held"
        await keeper.close()

    asyncio.run(work())
    assert reports == ["q/claims/renew"]


class Failing(Holding):
    """Fails when its keeper looks for work for the first time."""

    looks = 0

    def pause(self) -> float | None:
        """Fails once."""
        self.looks += 1
        if self.looks == 1:
            raise MemoryError
        return super().pause()


def test_a_thread_that_ended_has_a_successor(monkeypatch: pytest.MonkeyPatch) -> None:
    """If an error ends the thread nevertheless, the next claim starts another, which renews all that is held."""
    ended, renewed = Event(), Event()
    found: list[str] = []

    def run(call: Call[None], within: float | None = None) -> None:
        found.append(call.path)
        if len(found) == 2:
            renewed.set()

    monkeypatch.setattr(threading, "excepthook", lambda args: ended.set())
    keeper = Keeper(run, lambda: 100.0)  # type: ignore[arg-type] # it returns nothing whatever the call
    keeper.holding = Failing(lambda: 100.0)
    keeper.keep([keeper.holding.add("p", "r1", 40, 80)])
    assert ended.wait(60)
    keeper.keep([keeper.holding.add("q", "r1", 40, 80)])
    assert renewed.wait(60)
    keeper.close()
    assert sorted(found) == ["p/claims/renew", "q/claims/renew"]
