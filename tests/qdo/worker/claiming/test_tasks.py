"""Tasks: functions that are sent as messages, and called by workers with the same arguments."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry, generate_latest

from qdo import Claims, InvalidArgument, Jobs, UnknownTask, Worker, WorkerSettings
from qdo.tasks.tasks import Invocation
from qdo.worker.failure import ExitCode
from queuey.client import Backoff, Client, disable_tracing, enable_tracing
from tests.qdo.worker.claiming.test_claims import wait_until_drained
from tests.qdo.worker.conftest import Workers, until
from tests.servers.served import Served

if TYPE_CHECKING:
    import decimal
    from collections.abc import Sequence

    from qdo import Partition


SAID = {'shown("b', "hidden(…", "unknown("}
"""The beginning of log lines that name a task."""


def worker_of(workers: Workers, jobs: Jobs, **settings: Any) -> Worker:  # noqa: ANN401 - of WorkerSettings
    return Worker(jobs, Claims(workers.system.connect(), jobs.queues), settings=WorkerSettings(**settings))


def test_types_that_exist_for_type_checkers_only() -> None:
    """Parameters with types of type checkers only take any value; the other arguments are converted all the same."""
    jobs = Jobs("q")

    @jobs.task
    def price(
        pieces: Sequence[int], at: datetime, *rest: decimal.Decimal | int, where: dict[str, Partition | None]
    ) -> Partition | None:
        """Takes types that are imported for type checkers only."""

    now = datetime.now(UTC)
    call = msgspec.json.decode(price.call([1], now, 5, where={"a": None}).body, type=Invocation)
    bound = price.bound(call)
    assert (bound.args, bound.kwargs) == (([1], now, 5), {"where": {"a": None}})
    with pytest.raises(InvalidArgument, match="argument at"):
        price.call([1], "today", where={})  # type: ignore[arg-type]


def test_type_checkers_know_the_arguments() -> None:
    """A wrong call is refused where it is made, with the reason; mypy reports it too, or these comments."""
    jobs = Jobs("q")

    @jobs.task(retries=3)
    async def thumb(path: str, *, width: int = 1) -> None:
        """Makes one."""

    with pytest.raises(InvalidArgument, match="argument path: Expected `str`, got `int`"):
        thumb.send(5)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="missing a required argument: 'path'"):
        thumb.send()  # type: ignore[call-arg]
    with pytest.raises(InvalidArgument, match="argument width: Expected `int`, got `str`"):
        thumb.send_with(delay=1).send("a", width="x")  # type: ignore[arg-type]


def test_mistakes_of_definitions() -> None:
    """Names in use, and impossible queues and numbers, are refused at once."""
    jobs = Jobs(["hi", "lo"])
    with pytest.raises(InvalidArgument, match="not one of hi, lo"):
        jobs.task(queue="other")(print)
    with pytest.raises(InvalidArgument, match="retries"):
        jobs.task(retries=-1)(print)
    with pytest.raises(InvalidArgument, match="timeout"):
        jobs.task(timeout=0)(print)

    @jobs.task(queue="lo")
    def one() -> None:
        """Does nothing."""

    assert (one.queue, repr(one)) == ("lo", "<Task one of lo>")
    with pytest.raises(InvalidArgument, match="two tasks 'one'"):
        jobs.task(one.function)
    with pytest.raises(InvalidArgument, match="time zone"):
        one.send_with(at=datetime(2030, 1, 1))  # noqa: DTZ001 - the mistake
    with pytest.raises(InvalidArgument, match="unique"):
        one.send_with(delay=1, unique="x")
    with pytest.raises(InvalidArgument, match="key"):
        one.send_with(key="k", unique="x")


async def test_unknown_tasks_wait_for_a_worker_that_knows_them(workers: Workers, jobs: Jobs) -> None:
    """A message that matches no task of a worker goes back with a reason; nothing is lost."""
    seen: list[str] = []
    old, new = Jobs(jobs.queues, client=jobs.client), jobs

    @old.task(retries=0)
    def known() -> None:
        """Does nothing."""

    @new.task
    def thumb(path: str) -> None:
        seen.append(path)

    @new.task(name="known")
    def known_here() -> None:
        """Does nothing."""

    client, name = workers.system.client, jobs.queues[0]
    sent = await client.send(name, json={"task": "thumb", "args": ["a"]})
    bad = await client.send(name, "no call at all")
    async with workers.serving(worker_of(workers, old)):
        told: set[str] = set()
        async with asyncio.timeout(30):
            while len(told) < 2:
                for receipt in (sent, bad):
                    explanation = await client.explain(name, receipt)
                    told |= {
                        reason.text.partition(": ")[2] for reason in explanation.reasons if reason.code == "attempt"
                    }
                await asyncio.sleep(0.05)
    assert any("there is no task 'thumb' here, but known" in text for text in told), told
    assert any("does not call a task" in text for text in told), told
    async with workers.serving(worker_of(workers, new)):
        await until(lambda: seen == ["a"])


async def test_retries(workers: Workers, jobs: Jobs) -> None:
    """A task is retried as often as it declares, with its own delays; then it is a dead letter with reasons."""
    tried: list[float] = []

    @jobs.task(retries=2, backoff=Backoff(first=0.2, most=0.2, jitter=0))
    async def work(name: str) -> None:
        tried.append(asyncio.get_running_loop().time())
        raise KeyError(name)

    await work.asend("egg")
    async with workers.serving(worker_of(workers, jobs)):
        queue = workers.system.refer_to(jobs.queues[0])
        await wait_until_drained(workers, queue)
    assert len(tried) == 3
    assert tried[2] - tried[0] >= 0.4
    [dead_letter] = await workers.letters(queue, count=1)
    assert (dead_letter.cause.error, dead_letter.cause.text, dead_letter.cause.attempts) == ("KeyError", "'egg'", 3)


async def test_time_limits(workers: Workers, jobs: Jobs) -> None:
    """An async task over its time limit is cancelled and fails; a plain one needs processes for a limit."""
    ended = asyncio.Event()

    @jobs.task(timeout=timedelta(seconds=0.1), retries=0)
    async def slow() -> None:
        try:
            await asyncio.sleep(600)
        finally:
            ended.set()

    await slow.asend()
    async with workers.serving(worker_of(workers, jobs)):
        await asyncio.wait_for(ended.wait(), 20)
        await wait_until_drained(workers, workers.system.refer_to(jobs.queues[0]))
    alone = Jobs("q")
    alone.task(timeout=1)(lambda: None)
    with pytest.raises(InvalidArgument, match="use processes"):
        worker_of(workers, alone)


async def test_tasks_of_both_kinds_in_one_worker(workers: Workers, jobs: Jobs) -> None:
    """Plain tasks run in threads beside async ones, and do not block them."""
    gate, threads = threading.Event(), list[str]()

    @jobs.task
    def plain() -> None:
        threads.append(threading.current_thread().name)
        assert gate.wait(20)

    @jobs.task
    async def opens() -> None:
        gate.set()

    await jobs.asend_many([plain.call(), opens.call()])
    async with workers.serving(worker_of(workers, jobs)):
        await wait_until_drained(workers, workers.system.refer_to(jobs.queues[0]))
    assert len(threads) == 1
    assert threads != ["MainThread"]


async def test_options_of_a_call(workers: Workers, jobs: Jobs, client: Client) -> None:
    """A call may be delayed, or sent for a time; one whose time has passed runs at once."""
    seen: list[str] = []

    @jobs.task
    def thumb(path: str) -> None:
        seen.append(path)

    def send() -> None:
        assert thumb.send_with(delay=timedelta(hours=1)).send("later") is not None
        assert thumb.send_with(at=datetime.now(UTC) + timedelta(hours=1)).send("later") is not None
        assert thumb.send_with(at=datetime.now(UTC) - timedelta(hours=1), headers={"who": "ann"}).send("now")
        assert jobs.run_all() == 1

    await asyncio.to_thread(send)
    assert seen == ["now"]
    backlog = await workers.system.client.job_queue(jobs.queues[0]).backlog()
    assert (backlog.waiting, backlog.delayed) == (0, 2)


@pytest.fixture
def name(running: Served, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a queue in the service of the profile, for programs without an event loop."""
    monkeypatch.setenv("QUEUEY_PROFILE", str(running.profile_path))
    with running.client() as client:
        return client.create_queue().name


def test_nothing_stays_of_event_loops(name: str) -> None:
    """Calls from many event loops leave no loop, client or socket behind."""
    jobs = Jobs(name)
    kept: list[weakref.ref[Any]] = []

    @jobs.task
    def thumb(path: str) -> None:
        """Makes one."""

    async def send() -> None:
        await thumb.asend("a")
        kept.extend(map(weakref.ref, (asyncio.get_running_loop(), jobs.async_client)))
        assert jobs.async_client is kept[-1]()

    def run_in_a_loop() -> None:
        asyncio.run(send())
        loop = asyncio.new_event_loop()
        loop.run_until_complete(send())
        loop.run_until_complete(jobs.aclose())
        loop.close()

    run_in_a_loop()
    sockets = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(15):
        run_in_a_loop()
    gc.collect()
    assert [one for one in kept if one() is not None] == []
    assert len(list(Path("/proc/self/fd").iterdir())) <= sockets
    assert jobs.run_all() == 32
    jobs.close()


async def test_running_what_waits(workers: Workers, jobs: Jobs) -> None:
    """In a test of a program jobs run at once; the first error is raised, and its job is retried later."""
    seen: list[str] = []

    @jobs.task(backoff=Backoff(first=600, most=600, jitter=0))
    def plain(text: str) -> None:
        if text == "bad":
            raise LookupError(text)
        seen.append(text)

    @jobs.task
    async def awaited(text: str) -> None:
        plain.send(f"{text} too") if text != "more" else await plain.asend(f"{text} too")
        seen.append(text)

    def run() -> None:
        awaited.send("one")
        assert jobs.run_all() == 2
        plain.send("bad")
        with pytest.raises(LookupError, match="bad"):
            jobs.run_all()
        assert jobs.run_all() == 0

    await asyncio.to_thread(run)
    await awaited.asend("more")
    assert await jobs.arun_all() == 2
    assert seen == ["one", "one too", "more", "more too"]
    backlog = await workers.system.client.job_queue(jobs.queues[0]).backlog()
    assert (backlog.waiting, backlog.claimed, backlog.retrying) == (0, 0, 1)
    await workers.system.client.send(jobs.queues[0], json={"task": "none"})
    with pytest.raises(UnknownTask):
        await jobs.arun_all()


async def test_a_worker_says_which_task(workers: Workers, jobs: Jobs, caplog: pytest.LogCaptureFixture) -> None:
    """Log, metrics and spans have the task; arguments are shown only by known tasks that allow it.

    The span of a handler is a child of the one that sent its message.
    """
    exporter, provider, registry = InMemorySpanExporter(), TracerProvider(), CollectorRegistry()
    provider.add_span_processor(SimpleSpanProcessor(exporter))

    @jobs.task(retries=0)
    def shown(path: str, *, size: int) -> None:
        raise ValueError(f"no stack for {len(path)} and {size}")

    @jobs.task(retries=0, show_arguments=False)
    async def hidden(text: str) -> None:
        raise ValueError(f"no stack for {len(text)}")

    enable_tracing(provider)
    try:
        await shown.asend("beach.jpg", size=4)
        await hidden.asend("secret")
        await workers.system.client.send(jobs.queues[0], json={"task": "unknown", "args": ["secret"]})
        claims = Claims(workers.system.connect(), jobs.queues)
        task = workers.start(worker := Worker(jobs, claims, registry=registry))
        await until(
            lambda: len({one.getMessage()[:8] for one in caplog.records if one.name == "qdo.worker"} & SAID) == 3
        )
        metrics = generate_latest(registry).decode()
        worker.stop()
        assert await task == ExitCode.ENDED
    finally:
        disable_tracing()
    lines = {one.getMessage().partition(":")[0]: vars(one) for one in caplog.records if "task" in vars(one)}
    assert sorted(lines) == ["hidden(…)", 'shown("beach.jpg", size=4)', "unknown(…)"]
    assert [lines["hidden(…)"][name] for name in ("task", "arguments", "error")] == ["hidden", "…", "ValueError"]
    assert "secret" not in caplog.text
    processed = [span for span in exporter.get_finished_spans() if span.name.startswith("process")]
    sent = {span.context.span_id for span in exporter.get_finished_spans() if span.name.startswith("send")}
    assert sent == {span.parent.span_id for span in processed if span.parent is not None}
    spans = [span.attributes or {} for span in processed]
    said = {(span["messaging.queuey.task.name"], span["messaging.queuey.task.arguments"]) for span in spans}
    assert said == {("shown", '"beach.jpg", size=4'), ("hidden", "…"), ("unknown", "…")}
    assert f'qdo_messages_dead_total{{queue="{jobs.queues[0]}",task="shown"}} 1.0' in metrics
    assert 'task="unknown"' not in metrics
