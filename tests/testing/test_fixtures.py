"""The guarantees of the fixtures for users' tests."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from qdo import InvalidArgument, Jobs
from queuey import embedded
from queuey.client import Backoff, Client
from queuey.testing import Clock, RealService


@pytest.mark.parametrize("test", [1, 2])
def test_each_test_has_an_empty_store(queuey: Client, test: int) -> None:
    """A test does not see what another one left, and schedules of another one do not fire."""
    assert list(queuey.queue_names()) == []
    queuey.create_queue("mails")
    queuey.schedules.put("poll", queue="mails", message=f"{test}", every=10)
    queuey.close()  # a program under test may do that


def test_delays_and_claims_go_by_the_clock(queuey: Client, queuey_clock: Clock) -> None:
    """A delayed message comes at its time by the clock; a claim and a backoff end by it."""
    queuey.create_queue("mails", backoff=Backoff(first=600, factor=1, most=600))
    queuey.send("mails", "later", delay=3600)
    mails = queuey.job_queue("mails")
    assert list(mails.claim(idle=0)) == []
    queuey_clock.move(minutes=59)
    assert list(mails.claim(idle=0)) == []
    queuey_clock.move(minutes=1)
    [claimed] = mails.receive(ttl=300)
    assert list(mails.receive()) == []
    queuey_clock.move(minutes=5)
    [again] = mails.receive(ttl=300)
    assert (again.message.id, again.deliveries) == (claimed.message.id, 2)
    mails.release(again, reason="it failed")
    assert list(mails.receive()) == []
    queuey_clock.move(minutes=10)
    assert list(mails.receive()) != []


def test_messages_expire_and_show_by_the_clock(queuey: Client, queuey_clock: Clock) -> None:
    """TTLs, read delays and the ``now`` of reads use the clock."""
    queuey.create_queue("mails", read_delay=60)
    queuey.send("mails", "short", ttl=3600)
    assert list(queuey.read_all("mails", since=0)) == []
    queuey_clock.move(seconds=61)
    assert [message.body for message in queuey.read_all("mails", since=0)] == ["short"]
    queuey_clock.move(hours=1)
    assert list(queuey.read_all("mails", since=0)) == []


def test_schedules_fire_on_the_way(queuey: Client, queuey_clock: Clock) -> None:
    """Each tick is posted when it comes due, however far one move goes; schedules that skip ticks too."""
    queuey.create_queue("mails")
    queuey.schedules.put("daily", queue="mails", message="daily", cron="0 3 * * *")
    queuey.schedules.put("paused", queue="mails", message="paused", every=10, paused=True)
    queuey_clock.move(days=3)
    assert [job.body for job in queuey.job_queue("mails").claim(idle=0)] == ["daily"] * 3


def test_the_clock_does_not_go_back(queuey_clock: Clock) -> None:
    """The clock does not go back, as ids only grow."""
    with pytest.raises(ValueError, match="back"):
        queuey_clock.move(hours=-1)
    assert queuey_clock.ahead == 0


def test_calls_settle(queuey: Client) -> None:
    """Failed calls are retried at once, and end as dead letters; the calls that they send run as well."""
    queuey.create_queue("mails", max_deliveries=3, backoff=Backoff(first=600, factor=1, most=600))
    jobs, runs = Jobs("mails", client=queuey), []

    @jobs.task
    def fails(name: str, times: int) -> None:
        runs.append(name)
        if runs.count(name) <= times:
            raise RuntimeError(name)

    @jobs.task(retries=1)
    def sends() -> None:
        fails.send("twice", 2)
        fails.send("always", 9)
        raise KeyError

    sends.send()
    assert jobs.run_all(until="settled") == 12
    assert {name: runs.count(name) for name in runs} == {"twice": 4, "always": 6}
    assert len(list(queuey.read_all("mails.dead", since=0))) == 3


def test_async_calls_stay_in_the_test(tmp_path: Path) -> None:
    """With one client for a test no call uses another one; with two clients of one file, async calls run as well."""
    jobs, seen = Jobs("mails"), []

    @jobs.task
    async def greet(name: str) -> None:
        seen.append(name)
        if name == "Ann":
            await greet.asend("Bob")

    file = tmp_path / "test.db"
    with embedded.open(file, settings={"sync": "normal"}) as client:
        with jobs.using(client):
            greet.send("Ann")
            with pytest.raises(InvalidArgument, match="async client"):
                jobs.run_all()
        with jobs.using(client, embedded.open_async(file, settings={"sync": "normal"})):
            greet.send("Ann")
            assert jobs.run_all() == 2
            asyncio.run(jobs.aclose())
    assert seen == ["Ann", "Ann", "Bob"]


def test_calls_that_never_settle(queuey: Client) -> None:
    """A call that is retried for ever ends the run, with a hint."""
    queuey.create_queue("mails")
    jobs = Jobs("mails", client=queuey)

    @jobs.task(backoff=Backoff(first=600, factor=1, most=600))
    async def fails() -> None:
        raise RuntimeError

    fails.send()
    with pytest.raises(RuntimeError) as failure:
        jobs.run_all(until="settled")
    assert "max_deliveries" in failure.value.__notes__[0]


@pytest.mark.needs_programs
def test_a_real_service(queuey_service: RealService) -> None:
    """A real service is reached over HTTP, and its application is empty."""
    assert list(queuey_service.client.queue_names()) == []
    with Client(queuey_service.url, key=queuey_service.key, application=queuey_service.application) as client:
        client.create_queue("mails")
        assert client.send("mails", "x").partition == 1
