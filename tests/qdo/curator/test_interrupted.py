"""Drains and fills that end at any step: the next run completes them, and moves each message once."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from qdo.curator.drain import Drain, Drained, DrainPlan, DrainTarget
from qdo.curator.fill import Fill, Filled, FillPlan
from qdo.curator.place import open_place
from qdo.errors import CuratorError
from qdo.group.zookeeper.link import ZooKeeperLink
from queuey.client import AsyncClient, AsyncJobQueue, Client
from tests.commands import Run
from tests.qdo.curator.conftest import CuratorQueue, async_client, bodies
from tests.replacing import replace
from tests.servers.served import Served


class Killed(BaseException):
    """The simulated end of the process: nothing that it does later counts."""


class Steps:
    """Counts the requests of a run, and ends it before or after one of them.

    Args:
        at: The number of the step, from 0; -1 for never.
        after: The step is carried out, and its answer is lost.
    """

    def __init__(self, at: int = -1, *, after: bool = False) -> None:
        self.count = 0
        self._at, self._after = at, after

    def make_step(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Returns the call as a counted step; the chosen one raises Killed, before or after its effect."""

        async def step(*arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - any call
            mine, self.count = self.count, self.count + 1
            if mine == self._at and not self._after:
                raise Killed
            answer = await call(*arguments, **options)
            if mine == self._at:
                raise Killed
            return answer

        return step

    def run(self, ask: Callable[[], Any]) -> Any:  # noqa: ANN401 - any answer
        """Runs a plan with its steps counted; returns None if it was ended."""
        with (
            replace(ZooKeeperLink.apply, self.make_step(ZooKeeperLink.apply)),
            replace(AsyncClient.send_many, self.make_step(AsyncClient.send_many)),
            replace(AsyncJobQueue.receive, self.make_step(AsyncJobQueue.receive)),
            replace(AsyncJobQueue.ack, self.make_step(AsyncJobQueue.ack)),
        ):
            try:
                return asyncio.run(ask())
            except Killed:
                return None


def make_drain(curator: CuratorQueue, served: Served, queue: str, **options: Any) -> Callable[[], Any]:  # noqa: ANN401 - of a plan
    async def run() -> Drained:
        async with open_place(curator.url, curator.path) as place, async_client(served) as client:
            target = DrainTarget((await client.hello()).id, client.application, queue)
            return await Drain(place, client, DrainPlan(target=target, **options)).run()

    return run


def make_fill(curator: CuratorQueue, served: Served, queue: str) -> Callable[[], Any]:
    async def run() -> Filled:
        async with open_place(curator.url, curator.path) as place, async_client(served) as client:
            source = DrainTarget((await client.hello()).id, client.application, queue)
            return await Fill(place, client, FillPlan(source=source)).run()

    return run


def end_at_each_step(fresh: Callable[[], str], make: Callable[[str], Callable[[], Any]]) -> Iterator[Any]:
    """Ends a run before and after each of its requests; yields the queue and the result of the run after it."""
    counted = Steps()
    counted.run(make(fresh()))
    assert counted.count >= 4
    for step, after in itertools.product(range(counted.count), (False, True)):
        queue = fresh()
        assert Steps(step, after=after).run(make(queue)) is None
        yield queue, Steps().run(make(queue))


@pytest.mark.parametrize("locks", [(), ("lock_path",)], ids=["no locks", "locks"])
def test_a_drain_that_ends_at_any_step_is_completed(
    curator: CuratorQueue, served: Served, client: Client, locks: tuple[str, ...]
) -> None:
    """A drain that ends before or after any request is completed by the next one, and nothing is moved twice."""

    def fresh() -> str:
        for messages in ([b"one"], [b"two"], [b"three", b"four"]):
            curator.put(*messages)
        return client.create_queue(partitions=1).name

    options = dict.fromkeys(locks, curator.root + curator.lock_path)
    for queue, done in end_at_each_step(fresh, lambda queue: make_drain(curator, served, queue, **options)):
        assert done.held == 0
        assert bodies(client, queue) == ["one", "two", "three", "four"]
        assert (curator.names(), curator.state_nodes()) == ([], [])


def test_a_fill_that_ends_at_any_step_is_completed(curator: CuratorQueue, served: Served, client: Client) -> None:
    """A fill that ends before or after any request is completed by the next one once its claims have ended."""

    def fresh() -> str:
        for name in curator.names():
            curator.kazoo.delete(f"{curator.root}{curator.path}/{name}")
        queue = client.create_queue(partitions=1).name
        client.send_many(queue, ["one", "two", "three"])
        return queue

    def make(queue: str) -> Callable[[], Any]:
        client.job_queue(queue).release_all()  # as time would
        return make_fill(curator, served, queue)

    for _, done in end_at_each_step(fresh, make):
        assert (done.twice, done.remaining) == (0, 0)
        assert curator.messages() == [b"one", b"two", b"three"]
        assert curator.state_nodes() == []


def test_a_drain_to_another_queue_is_refused_until_the_first_is_completed(
    run: Run, curator: CuratorQueue, served: Served, client: Client
) -> None:
    """Items taken out for one queue never arrive in another."""
    first, second = (client.create_queue().name for _ in range(2))
    curator.put(b"one")
    steps = 0
    while not curator.state_nodes() or curator.names():
        assert Steps(steps, after=True).run(make_drain(curator, served, first)) is None
        steps += 1
    assert run("curator", "peek", curator.path, "--json").json["staged"] == 1
    ended = run("curator", "drain", curator.path, second)
    assert ended.code == 1
    assert f"to the queue '{first}'" in ended.err
    assert run("curator", "drain", curator.path, first).code == 0
    assert (bodies(client, first), bodies(client, second)) == (["one"], [])


TARGET = DrainTarget("store", "app", "queue")


@pytest.mark.parametrize(
    "data",
    [b"", b"junk", msgspec.msgpack.encode("text"), msgspec.msgpack.encode([TARGET, "other recipe", None, None, []])],
    ids=["empty", "junk", "text", "recipe"],
)
def test_nodes_of_others_beside_the_queue_are_named(
    curator: CuratorQueue, served: Served, client: Client, data: bytes
) -> None:
    """Nodes that no drain or fill wrote are neither posted nor removed; the error names them."""
    queue = client.create_queue(partitions=1).name
    curator.put(b"one")
    drained, filled = (f"{curator.root}/queues/qdo-{what}-orders" for what in ("drain", "fill"))
    curator.kazoo.create(f"{drained}/some", data, makepath=True)
    curator.kazoo.create(filled, data)
    with pytest.raises(CuratorError, match=f"The node '{drained}/some' is not in the format of this version"):
        asyncio.run(make_drain(curator, served, queue)())
    with pytest.raises(CuratorError, match=f"The node '{filled}' is not in the format of this version"):
        asyncio.run(make_fill(curator, served, queue)())
    assert (curator.names(), len(curator.state_nodes())) == (["queue-0000000000"], 2)


def test_two_drains_at_once_move_each_message_once(curator: CuratorQueue, served: Served, client: Client) -> None:
    """Two drains may complete each other's batches."""
    queue = client.create_queue(partitions=1).name
    curator.put_many(f"{number}".encode() for number in range(500))

    async def both() -> None:
        await asyncio.gather(*(make_drain(curator, served, queue)() for _ in range(2)))

    asyncio.run(both())
    assert sorted(bodies(client, queue), key=int) == [str(number) for number in range(500)]
    assert (curator.names(), curator.state_nodes()) == ([], [])
