"""Unique tasks: at most one call of a name waits or runs."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, cast

import pytest

from qdo import InvalidArgument, Jobs
from queuey.client import Receipt
from tests.qdo.worker.claiming.test_claims import wait_until_drained
from tests.qdo.worker.claiming.test_tasks import worker_of
from tests.qdo.worker.conftest import Workers


async def test_what_calls_have_in_common(jobs: Jobs) -> None:
    """The name comes from all arguments, a template with some, or a function of them; tasks have separate names."""
    ran: list[Any] = []

    @jobs.task(unique=True)
    def page(number: int, options: dict[str, int], *, deep: bool = False) -> None:
        ran.append(number)

    @jobs.task(unique="{number}")
    def order(number: int, note: str) -> None:
        ran.append(note)

    @jobs.task(unique=lambda path: path)
    def file(path: str) -> None:
        ran.append(path)

    def send() -> None:
        first = page.send(1, {"a": 1, "b": 2})
        assert first is not None
        again = page.send(1, {"a": 1, "b": 2})
        assert again is not None
        assert (again, first.merged, again.merged) == (first, None, "waiting")
        # The same arguments in another message, so no receipt of this one.
        assert page.send(1, {"b": 2, "a": 1}, deep=False) is None
        assert page.send(1, {}) is not None
        assert order.send(1, "first") is not None
        assert order.send(1, "second") is None
        assert order.send_with(ttl=60).send(1, "third") is None
        assert order.send_with(unique="mine").send(1, "fourth") is not None
        assert file.send("a/b/" + "long" * 99) is not None
        assert file.send("a/b/" + "long" * 99) is not None
        assert jobs.run_all() == 5
        assert order.send(1, "fifth") is not None

    await asyncio.to_thread(send)
    assert await order.asend(1, "sixth") is None
    assert await jobs.arun_all() == 1
    assert [one for one in ran if one != 1] == ["first", "fourth", "a/b/" + "long" * 99, "fifth"]


async def test_while_it_runs_and_is_tried_again(workers: Workers, jobs: Jobs) -> None:
    """A name is taken while its call runs and between its attempts, and free once it is a dead letter."""
    begun, gate, seen, statuses = asyncio.Event(), threading.Event(), list[Receipt | None](), list[str | None]()
    loop = asyncio.get_running_loop()

    @jobs.task(unique="{number}", retries=1)
    def order(number: int, note: str) -> None:
        loop.call_soon_threadsafe(begun.set)
        assert gate.wait(20)
        seen.append(order.send(1, "again"))
        merged = order.send(1, "first")
        statuses.append(None if merged is None else merged.merged)
        raise ValueError(note)

    assert await order.asend(1, "first") is not None
    async with workers.serving(worker_of(workers, jobs)):
        await begun.wait()
        assert await order.asend(1, "second") is None
        gate.set()
        await wait_until_drained(workers, workers.system.refer_to(jobs.queues[0]))
        assert (seen, statuses) == ([None, None], ["claimed", "claimed"])
        assert await order.asend(1, "third") is not None


def test_colons() -> None:
    """Calls of two tasks have different names, wherever their colons are."""
    jobs = Jobs("q")
    first = jobs.task(name="a", unique="{text}")(lambda text: None)
    other = jobs.task(name="a:b", unique="{text}")(lambda text: None)
    names = [first.call("b:c").unique, other.call("c").unique, first.call("c").unique, first.call("b:/").unique]
    assert names[:1] == ["a:b:c"]
    assert len({*names, other.call("/").unique}) == 5


def test_mistakes() -> None:
    """A ``unique`` that gives no name is refused at the definition, or else at the call."""
    jobs = Jobs("q")
    for unique in ("{order}", "{", "{}", 7, False):
        with pytest.raises(InvalidArgument, match="unique of task one is"):
            jobs.task(unique=cast("str", unique))(one)
    bad = jobs.task(name="bad", unique=lambda number: number)(one)
    with pytest.raises(InvalidArgument, match="unique of task bad returned 7"):
        bad.send(7)
    keyed = jobs.task(name="keyed", unique=True)(lambda options: None)
    with pytest.raises(InvalidArgument, match=r"argument options of task keyed is \{7: 'x'\}: it would arrive as"):
        keyed.call({7: "x"})
    with pytest.raises(InvalidArgument, match="delay"):
        jobs.task(unique=True)(one).send_with(delay=1)
    with pytest.raises(InvalidArgument, match="leave out unique"):
        jobs.task(name="scheduled", unique=True, every=60)(lambda: None)


def one(number: int) -> None:
    """Does nothing."""
