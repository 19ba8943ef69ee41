"""The bridge from blocking code to calls of a store."""

from __future__ import annotations

import ast
import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from queuey.model.errors import StoreUnavailable
from queuey.model.messages import NewMessage, Queue, QueueSpec, Slice
from queuey.runtime.event_loop import Core
from queuey.storage import bridge, sqlite
from queuey.storage.deadlines import Deadline, Done, LoopCalls, in_thread, iterate_in_thread, start_and_wait
from queuey.storage.sqlite import SqliteStore

ROOT = Path(__file__).parents[2]
PROGRAMS = tuple(f"queuey/{name}" for name in ("cli/", "pipeline/", "spark/", "storage/", "testing/"))
IN_THREADS = {
    *("queuey/embedded/service.py", "queuey/facades/start.py"),
    *("queuey/runtime/event_loop.py", "queuey/web/requests.py"),
}


@pytest.fixture
def store(tmp_path: Path) -> Any:  # noqa: ANN401 - a generator
    store = sqlite.open_store(tmp_path)
    yield store
    store.close()


@pytest.fixture
def queue(store: SqliteStore) -> Queue:
    bridge.run(store.applications.create_application("acme"))
    return bridge.run(store.catalogue.create_queue("acme", "orders", QueueSpec()))[0]


async def number(value: int) -> int:
    return value


def test_where_a_call_runs() -> None:
    """By the bridge a call runs to its end in the calling thread; on a loop a blocking one runs in another thread."""

    async def where() -> threading.Thread:
        return await in_thread(threading.current_thread)

    assert bridge.run(where()) is threading.current_thread() is not asyncio.run(where())
    assert not bridge.thread_state.may_block


def test_beside_a_running_loop(store: SqliteStore, queue: Queue) -> None:
    """A call works beside a running loop, as in a notebook, whose cells run in the thread of a loop."""

    async def cell() -> list[Any]:
        bridge.run(store.messages.append(queue, [NewMessage("a", 1, 60)]))
        [page] = await store.messages.read(queue, [Slice(1, keeps_read_delay=False)])
        return [message.body for message in page.messages]

    assert asyncio.run(cell()) == ["a"]


def test_the_loop_of_a_service_is_not_blocked() -> None:
    """In the thread of a service's loop a call is refused, as it would hold up all requests."""

    async def serve(core: Core) -> None:
        core.adopt(LoopCalls(asyncio.get_running_loop()))
        with pytest.raises(RuntimeError, match="Await the call"):
            bridge.run(number(1))
        assert await asyncio.to_thread(bridge.run, number(2)) == 2
        core.adopt(None)
        assert bridge.run(number(3)) == 3

    asyncio.run(serve(Core()))


def test_who_crosses_the_bridge() -> None:
    """Only programs and their threads do; in a service, what runs in a thread that a use case has asked for."""
    crossing = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "queuey").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom)
        and (node.module == "queuey.storage.bridge" or "bridge" in {alias.name for alias in node.names})
    }
    assert {name for name in crossing if not name.startswith(PROGRAMS)} <= IN_THREADS


def test_what_awaits_something_else_is_refused() -> None:
    """A call that awaits something else would never end, and is refused with what to do."""
    with pytest.raises(RuntimeError, match="Await it on an event loop"):
        bridge.run(asyncio.sleep(0))
    assert not bridge.thread_state.may_block


def test_errors_and_calls_within_calls() -> None:
    """An error is raised unchanged, and a call may run another one."""

    async def outer() -> int:
        return bridge.run(number(1)) + await number(2)

    async def failing() -> None:
        raise StoreUnavailable("away")

    assert bridge.run(outer()) == 3
    with pytest.raises(StoreUnavailable, match="away"):
        bridge.run(failing())
    assert not bridge.thread_state.may_block


def test_items_come_one_by_one() -> None:
    """The iterator goes no further than its user, and is closed when that stops."""
    given: list[int | str] = []

    async def items() -> AsyncIterator[int]:
        try:
            for value in range(9):
                given.append(value)
                yield await number(value)
        finally:
            given.append("closed")

    for value in bridge.iterate(items()):
        if value == 1:
            break
    assert given == [0, 1, "closed"]
    assert list(bridge.iterate(items())) == list(range(9))


def test_steps_of_what_blocks() -> None:
    """A blocking iterator gives the same on a loop, each step in another thread, and ends with its reader."""
    threads: set[threading.Thread] = set()

    def items() -> Any:  # noqa: ANN401 - a generator
        for value in range(3):
            threads.add(threading.current_thread())
            yield value

    async def all_of() -> list[int]:
        return [value async for value in iterate_in_thread(items())]

    assert asyncio.run(all_of()) == [0, 1, 2]
    assert threading.current_thread() not in threads


def waiting_call(deadline: Deadline) -> Any:  # noqa: ANN401 - a coroutine
    def begin(_done: Done) -> Any:  # noqa: ANN401 - what gives up
        return lambda: "none"

    return start_and_wait(begin, deadline)


def test_the_time_of_one_call() -> None:
    """All calls of a run that counts as one share a deadline; otherwise each has its own."""
    now = [0.0]

    def clock() -> float:
        now[0] += 0.6
        return now[0]

    deadline = Deadline(1.0, clock)

    async def twice() -> list[float]:
        ends = []
        for _ in range(2):
            with deadline.running():
                ends.append(deadline.call.ends)
        return ends

    first, second = bridge.run(twice(), as_one=True)
    assert first == second
    first, second = bridge.run(twice())
    assert first < second


def test_a_thread_waits_no_longer_than_a_call_may() -> None:
    """At its deadline the work is cancelled, and the error has its outcome."""
    with pytest.raises(StoreUnavailable) as caught:
        bridge.run(waiting_call(Deadline(0.01)))
    assert caught.value.outcome == "none"
