"""A slow job blocks no other: what a worker has claimed and not begun begins elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import pytest

from qdo.partitions import Queue
from qdo.settings import WorkerSettings
from qdo.worker.claim_source import Claims
from qdo.worker.worker import Worker
from queuey.client import AsyncClient, AsyncJob, AsyncTiming, Client, Message
from tests.qdo.worker import hands
from tests.qdo.worker.claiming.simulated import JobQueue, SimulatedTimeLoop
from tests.qdo.worker.claiming.test_claims import MODULE, make
from tests.qdo.worker.conftest import Workers, until
from tests.qdo.worker.test_processes import Book, book

__all__ = ["book"]

QUICK_SECONDS, SLOW_SECONDS = 0.001, 30.0
MAX_IDLE_SECONDS = 0.3
"""Max seconds for which a job waits while any place is idle."""
COUNT = 400
SLOW_JOBS = {"first": 1, "middle": COUNT // 2, "near the end": COUNT - 10, "last": COUNT}


class Record:
    """When jobs begin and end, in simulated time, and the seconds for which each waited beside an idle place.

    Args:
        loop: The loop that they run in.
        queue: The queue that they come from.
        slow: The numbers of the slow jobs.
        places: Number of jobs that can run at a time.
    """

    def __init__(self, loop: SimulatedTimeLoop, queue: JobQueue, slow: Container[int], places: int) -> None:
        self._loop, self._queue = loop, queue
        self._slow = slow
        self._places = places
        self.begun: dict[int, float] = {}
        self.unacknowledged: dict[int, set[int]] = {}
        self._changes: list[tuple[float, int]] = []

    async def _handle(self, number: int) -> None:
        assert number not in self.begun
        self.unacknowledged[number] = self.begun.keys() - self._queue.done
        self.begun[number] = self._loop.now
        self._changes.append((self._loop.now, 1))
        await asyncio.sleep(SLOW_SECONDS if number in self._slow else QUICK_SECONDS)
        self._changes.append((self._loop.now, -1))

    async def handle_message(self, message: Message, _context: object) -> None:
        await self._handle(int(message.body[1:]))

    async def handle_job(self, job: AsyncJob) -> None:
        await self._handle(int(job.body[1:]))

    def measure_waits(self, numbers: Sequence[int], sent: float) -> list[float]:
        """Returns for each of the jobs that were sent at a time for how long it waited while a place was idle."""
        busy, idle = 0, []
        for (at, change), (following, _) in pairwise([(0.0, 0), *self._changes, (self._loop.now, 0)]):
            busy += change
            if busy < self._places:
                idle.append((max(at, sent), following))
        begins = [self.begun.get(number, self._loop.now) for number in numbers]
        return [sum(max(0.0, min(end, begin) - start) for start, end in idle) for begin in begins]


class Simulation:
    """Workers or loops that handle jobs in simulated time.

    Args:
        kind: ``tasks`` for workers with async tasks, ``loop`` for loops of clients, which have one place each.
        count: Number of workers or loops.
        tasks: Places of a worker.
        slow: The numbers of the slow jobs.
    """

    def __init__(self, kind: str, count: int, tasks: int, slow: Container[int]) -> None:
        self.loop, self.queue = SimulatedTimeLoop(), JobQueue()
        self.record = Record(self.loop, self.queue, slow, places=tasks * count)
        self._kind = kind
        self._settings = WorkerSettings(tasks=tasks)
        timing = AsyncTiming(clock=self.loop.time, draw=lambda: 0.5)
        clients = [AsyncClient("http://q.test/v1/a/", transport=self.queue, timing=timing) for _ in range(count)]
        self._serving = [self.loop.create_task(self._serve(client)) for client in clients]

    async def _serve(self, client: AsyncClient) -> None:
        async with client:
            if self._kind == "loop":
                await client.job_queue("q").run(self.record.handle_job, limit=100)
            await Worker(self.record.handle_message, Claims(client, ["q"]), settings=self._settings).serve()

    def run(self, numbers: Sequence[int], seconds: float) -> list[float]:
        """Sends jobs and lets them be handled for some time; returns for how long each waited beside an idle place."""
        sent = self.loop.now
        self.queue.add(numbers)
        self.loop.run_until_complete(asyncio.sleep(seconds))
        assert not [task for task in self._serving if task.done()]
        return self.record.measure_waits(numbers, sent)

    def end(self) -> None:
        for task in self._serving:
            task.cancel()
        self.loop.run_until_complete(asyncio.wait(self._serving))
        self.loop.close()


@contextmanager
def simulate(kind: str, count: int, tasks: int, slow: Container[int]) -> Iterator[Simulation]:
    simulation = Simulation(kind, count, tasks, slow)
    try:
        yield simulation
    finally:
        simulation.end()


@pytest.mark.parametrize("place", SLOW_JOBS)
@pytest.mark.parametrize(("kind", "count", "tasks"), [("tasks", 1, 4), ("tasks", 2, 1), ("loop", 2, 1)])
def test_no_job_waits_beside_an_idle_place(kind: str, count: int, tasks: int, place: str) -> None:
    """Each quick job begins before a place has been idle for 0.3 s, is handled once, and is given back at most once."""
    with simulate(kind, count, tasks, [SLOW_JOBS[place]]) as simulation:
        waits = simulation.run(range(1, COUNT + 1), 2 * SLOW_SECONDS)
    assert max(waits) <= MAX_IDLE_SECONDS
    assert len(simulation.queue.done) == COUNT
    assert all(times == 1 for times in simulation.queue.given_back.values())


@pytest.mark.parametrize(("kind", "tasks"), [("tasks", 4), ("loop", 1)])
def test_idle_workers_share_slow_jobs(kind: str, tasks: int) -> None:
    """When a burst of slow jobs follows quick ones, every worker gets some at once and gives few back."""
    count, slow = 10, range(COUNT + 1, 2 * COUNT + 1)
    with simulate(kind, count, tasks, slow) as simulation:
        simulation.run(range(1, COUNT + 1), 5.0)
        waits = simulation.run(slow, SLOW_SECONDS / 2)
    assert sorted(waits)[count * tasks - 1] <= MAX_IDLE_SECONDS
    assert max(simulation.queue.given_back.values(), default=0) <= 2


def test_suspected_jobs_run_one_by_one() -> None:
    """Nothing is claimed beside a suspected job, so when one begins, the one before it is acknowledged."""
    with simulate("tasks", 1, 4, []) as simulation:
        simulation.queue.suspected = suspected = range(11, 21)
        simulation.run(range(1, 31), 20.0)
    assert len(simulation.queue.done) == 30
    later = [before for number, before in simulation.record.unacknowledged.items() if number > suspected[0]]
    assert not set(suspected) & set().union(*later)


async def send_with_one_last(workers: Workers, book: Book) -> Queue:
    """Sends quick jobs, and among them one that ends only once the book says that the others are done."""
    book.path.touch()
    queue = await workers.system.queue()
    bodies = [f"quick {number}" for number in range(1, COUNT + 1)]
    bodies[COUNT // 2] = f"last {COUNT - 1}"
    await workers.system.client.send_many(queue.name, bodies)
    return queue


@pytest.mark.parametrize(("kind", "count"), [("threads", 1), ("threads", 2), ("tasks", 2), ("processes", 2)])
async def test_a_slow_job_ends_after_all_others(workers: Workers, book: Book, kind: str, count: int) -> None:
    """With each executor, the jobs behind a slow one are handled while it runs, if only by another worker."""
    queue = await send_with_one_last(workers, book)

    async def end_last(message: Message, context: object) -> None:
        await asyncio.to_thread(hands.end_last, message, context)

    settings: Any = {kind: 4 if count == 1 else 1}
    handler = end_last if kind == "tasks" else hands.end_last
    options = settings | {"context": f"{MODULE}:book"}
    tasks = [workers.start(make(workers, handler, queue, **options)) for _ in range(count)]
    await until(lambda: len(book.lines("done")) == COUNT or any(task.done() for task in tasks))
    assert book.lines("done")[-1] == ["done", "last", str(COUNT - 1)]


async def test_a_loop_gives_back_what_it_has_not_begun(workers: Workers, book: Book) -> None:
    """When two loops in threads claim many jobs at once, each handles jobs that the other has not begun."""
    queue = await send_with_one_last(workers, book)
    profile = workers.system.profile

    def loop() -> None:
        with Client(profile.url, key=profile.key) as client:
            client.job_queue(queue.name).run(lambda job: hands.end_last(job.message, None), limit=100, idle=1)

    await asyncio.gather(*(asyncio.to_thread(loop) for _ in range(2)))
    assert book.lines("done")[-1] == ["done", "last", str(COUNT - 1)]
