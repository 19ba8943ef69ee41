"""The recipes of Curator in one event loop: how calls of the program come there, and the steps that recipes share."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from qdo.coordination.changes import lacks_parent, make
from qdo.coordination.tree import Create, Link, Rejection, RejectionReason
from qdo.coordination.zookeeper.driver.link import BorrowedLink
from qdo.errors import CoordinationError, CoordinationLost
from qdo.tasks import LoopThread

T = TypeVar("T")

TRY_AGAIN = 0.1
"""Interval between two tries of a request whose end is not known, in seconds."""

_loops: dict[int, LoopThread] = {}
"""By process."""
_making = threading.Lock()


def run(work: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine in the loop, for a thread of the program, and waits for its end."""
    return _loop().call(work)


def soon(function: Callable[[], object]) -> None:
    """Calls a function in the loop, without waiting."""
    _loop().soon(function)


def _loop() -> LoopThread:
    process = os.getpid()
    with _making:
        if process not in _loops:
            _loops[process] = LoopThread("curator")
        return _loops[process]


async def within(seconds: float, work: Coroutine[Any, Any, T]) -> T:
    """Raises CoordinationLost if ZooKeeper does not answer in time."""
    try:
        async with asyncio.timeout(seconds):
            return await work
    except TimeoutError:
        raise CoordinationLost(
            f"ZooKeeper has not answered for {seconds:g} s; what was asked for may be done yet"
        ) from None


@asynccontextmanager
async def lent(client: Any) -> AsyncIterator[Link]:  # noqa: ANN401 - kazoo has no types
    """Gives a link to the session that a client of kazoo has now; waits until it is connected."""
    link = BorrowedLink(client)
    try:
        await link.open()
        yield link
    finally:
        await link.close()


async def insist(link: Link, ask: Callable[[], Awaitable[T]]) -> T:
    """Makes a request until it is answered; waits for a connection that broke.

    Raises:
        CoordinationError: Not CoordinationLost.
    """
    while True:
        try:
            await link.open()
            return await ask()
        except CoordinationLost:
            await asyncio.sleep(TRY_AGAIN)


async def ensure(link: Link, paths: Iterable[str]) -> None:
    """Makes persistent nodes, with all above them, unless they exist; what exists needs no rights further up."""
    every = list(paths)
    nodes = await link.look(every)
    await make(link, [path for path, node in zip(every, nodes, strict=True) if node is None])


async def append(link: Link, path: str, prefix: str, data: bytes) -> None:
    """Creates a node with the next sequence, and its parent if that is missing; waits for a connection that broke.

    Raises:
        CoordinationLost: It was stored or not.
        CoordinationError: It was not stored.
    """
    await link.open()
    create = Create(f"{path}/{prefix}", data, sequence=True)
    (outcome,) = await link.apply([(create,)])
    if lacks_parent(outcome):
        await ensure(link, [path])
        (outcome,) = await link.apply([(create,)])
    if isinstance(outcome, Rejection):
        raise not_created(path, outcome)


async def count(link: Link, path: str) -> int:
    """Returns how many nodes are inside of a node, also if it is not there; waits for a connection that broke."""
    await link.open()
    (number,) = await link.count([path])
    return number or 0


def not_created(path: str, rejection: Rejection) -> CoordinationError:
    if rejection.why is RejectionReason.NODE_EXISTS:
        return CoordinationError(
            f"ZooKeeper has no further number for the nodes of {path}: 2147483647 were created in it. Use another path"
        )
    return CoordinationError(f"the node {path} of the queue is not there; somebody has removed it")
