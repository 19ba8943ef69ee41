"""Tasks that the service calls at certain times: the code sets their schedules."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from typing import Any

import httpx2
import pytest

from qdo import Claims, InvalidArgument, Jobs, Worker
from queuey.client import AsyncClient, InvalidRequest, Outgoing, RetryPolicy
from tests.qdo.worker.claiming.test_claims import has_begun
from tests.qdo.worker.claiming.test_tasks import worker_of
from tests.qdo.worker.conftest import Workers, until


def copy_jobs(jobs: Jobs) -> Jobs:
    return Jobs(jobs.queues, client=jobs.client, async_client=jobs.async_client)


async def run_until_begun(workers: Workers, *programs: Jobs, client: AsyncClient | None = None) -> None:
    for program in programs:
        worker = worker_of(workers, program)
        if client is not None:
            worker = Worker(program, Claims(client, program.queues))
        running = workers.start(worker)
        await until(lambda worker=worker: has_begun(worker))  # type: ignore[misc]
        worker.stop()
        await running


async def test_a_worker_puts_them(workers: Workers, jobs: Jobs) -> None:
    """A worker's start creates the schedule, whose ticks call the function; a second start changes nothing."""
    ran: list[str] = []

    @jobs.task(cron=" 0 3  * * *", timezone="Europe/Berlin", missed="catch_up")
    async def tidy_up(what: str = "all") -> None:
        ran.append(what)

    schedules, name = workers.system.client.schedules, f"task:{jobs.queues[0]}:tidy_up"
    worker = worker_of(workers, jobs)
    async with workers.serving(worker):
        await until(lambda: has_begun(worker))
        made = await schedules.get(name)
        assert (made.cron, made.timezone, made.missed) == ("0 3 * * *", "Europe/Berlin", "catch_up")
        await schedules.run(name)
        await until(lambda: ran == ["all"])
    await schedules.pause(name)
    await run_until_begun(workers, jobs)
    schedule = await schedules.get(name)
    assert (schedule.created, schedule.paused) == (made.created, True)
    [put] = await jobs.aput_schedules()
    assert put == schedule == (await asyncio.to_thread(jobs.put_schedules))[0]


async def test_the_code_decides(workers: Workers, jobs: Jobs, caplog: pytest.LogCaptureFixture) -> None:
    """A change in the code changes the schedule; a schedule whose task has none any more stays, and is logged."""
    jobs.task(name="a", cron="0 3 * * *", timezone="Asia/Tokyo")(print)
    jobs.task(name="b", every=timedelta(hours=1))(print)
    await jobs.aput_schedules()
    schedules, prefix = workers.system.client.schedules, f"task:{jobs.queues[0]}:"
    other = await workers.system.client.create_queue(f"{jobs.queues[0]}:eu")
    await schedules.put(f"{prefix}eu:x", queue=other.name, every=60, message="of another queue")
    await schedules.put(f"{prefix}a", every=60)
    await schedules.put(
        f"{prefix}c", queue=jobs.queues[0], every=60, message=Outgoing(json={}, headers={"x": "by hand"})
    )
    new = copy_jobs(jobs)
    new.task(name="a", cron="0 4 * * *")(print)
    new.task(name="b")(print)
    new.task(name="c", every=60)(print)
    with caplog.at_level(logging.WARNING, "qdo.worker"):
        await run_until_begun(workers, new)
    changed = await schedules.get(f"{prefix}a")
    assert (changed.cron, changed.timezone, changed.every) == ("0 4 * * *", "UTC", None)
    assert (await schedules.get(f"{prefix}b")).every == 3600
    assert "headers" not in ((await schedules.get(f"{prefix}c")).message or {"headers": None})
    [text] = [record.getMessage() for record in caplog.records if "queuey schedule delete" in record.getMessage()]
    assert f"{prefix}b" in text
    assert f"{prefix}a" not in text


async def test_a_worker_that_may_not(workers: Workers, jobs: Jobs, caplog: pytest.LogCaptureFixture) -> None:
    """A worker without the right logs what to do and goes on; a program without schedules logs nothing."""
    answers = [403, 403, 503]

    def answer(request: httpx2.Request) -> httpx2.Response | None:
        return httpx2.Response(answers.pop()) if "/_schedules" in request.url.path else None

    workers.system.transport.answer = answer
    client = workers.system.connect(retry=RetryPolicy(deadline=0))
    plain = copy_jobs(jobs)
    plain.task(name="other")(print)
    jobs.task(name="tidy_up", every=60)(print)
    with caplog.at_level(logging.WARNING, "qdo.worker"):
        await run_until_begun(workers, jobs, client=client)
        assert [record.getMessage()[:65] for record in caplog.records] == [
            "the schedules of tasks (tidy_up) could not be put yet, retrying: ",
            "the credential may not change the schedules of tasks (tidy_up), s",
        ]
        caplog.clear()
        await run_until_begun(workers, plain, client=client)
    assert (caplog.messages, answers) == ([], [])


async def test_bad_cron(jobs: Jobs) -> None:
    """A schedule that only the service can check is refused with the field's name; the valid ones are put."""
    jobs.task(name="a", cron="0 0 30 2 *")(print)
    for name, put in (("b", jobs.aput_schedules), ("c", lambda: asyncio.to_thread(jobs.put_schedules))):
        jobs.task(name=name, every=60)(print)
        with pytest.raises(InvalidRequest) as refusal:
            await put()
        assert "cron" in refusal.value.fields
        made = await asyncio.to_thread(jobs.client.schedules.get, f"task:{jobs.queues[0]}:{name}")
        assert made.every == 60


def test_mistakes() -> None:
    """An impossible schedule is refused at its definition."""
    jobs = Jobs("q")
    bad: list[tuple[dict[str, Any], str]] = [
        ({"cron": "0 3 * *"}, "cron has 5 fields"),
        ({"cron": "0 3 * * *", "every": 60}, "use one"),
        ({"every": 9}, "at least 10"),
        ({"every": 10.5}, "whole seconds"),
        ({"every": "5m"}, "every of task nothing is '5m': use whole seconds"),
        ({"every": float("inf")}, "whole seconds"),
        ({"every": 60, "timezone": "UTC"}, "no timezone"),
        ({"timezone": "UTC"}, "neither cron nor every"),
        ({"every": 60, "missed": "all"}, "'skip' or 'catch_up'"),
        ({"every": 60, "name": "ü"}, "letters, digits"),
    ]
    for options, text in bad:
        with pytest.raises(InvalidArgument, match=text):
            jobs.task(**options)(nothing)  # type: ignore[no-untyped-call]
    with pytest.raises(InvalidArgument, match="without arguments: missing a required argument: 'path'"):
        jobs.task(every=60)(needs)


def nothing() -> None:
    """Needs nothing."""


def needs(path: str) -> None:
    """Needs an argument."""
