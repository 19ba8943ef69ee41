"""Calls from the program into the event loop that all Curator recipes share, and steps that recipes have in common."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from qdo.errors import CoordinationError, CoordinationLost
from qdo.group.zookeeper.link import BorrowedLink
from qdo.group.zookeeper.tree import Create, Link, Rejection, RejectionReason, lacks_parent, make_nodes
from qdo.loops import LoopThread

T = TypeVar("T")

RETRY_INTERVAL = 0.1
"""Interval between two attempts of a request, in seconds."""

_loops: dict[int, LoopThread] = {}
"""Process id -> the loop of that process."""
_loops_lock = threading.Lock()


def run(work: Coroutine[Any, Any, T]) -> T:
    return _get_loop().call(work)


def call_soon(function: Callable[[], object]) -> None:
    _get_loop().call_soon(function)


def _get_loop() -> LoopThread:
    """Returns the loop of this process, and starts it at the first call. A fork gets its own."""
    process = os.getpid()
    with _loops_lock:
        if process not in _loops:
            _loops[process] = LoopThread("curator")
        return _loops[process]


async def await_within(seconds: float, work: Coroutine[Any, Any, T]) -> T:
    """Returns the result; raises CoordinationLost if ZooKeeper does not answer in time."""
    try:
        async with asyncio.timeout(seconds):
            return await work
    except TimeoutError:
        raise CoordinationLost(
            f"ZooKeeper has not answered for {seconds:g} s; the request may still be applied"
        ) from None


@asynccontextmanager
async def open_borrowed_link(client: Any) -> AsyncIterator[Link]:  # noqa: ANN401 - kazoo has no types
    """Opens a link to the present session of a kazoo client; waits until it is connected."""
    link = BorrowedLink(client)
    try:
        await link.open()
        yield link
    finally:
        await link.close()


async def retry_until_answered(link: Link, ask: Callable[[], Awaitable[T]]) -> T:
    """Repeats a request until it is answered; waits while the connection is broken.

    Raises:
        CoordinationError: ZooKeeper refused. Never CoordinationLost.
    """
    while True:
        try:
            await link.open()
            return await ask()
        except CoordinationLost:
            await asyncio.sleep(RETRY_INTERVAL)


async def create_missing_nodes(link: Link, paths: Iterable[str]) -> None:
    """Creates missing persistent nodes and their parents. Existing nodes need no rights on their parents."""
    requested = list(paths)
    nodes = await link.stat(requested)
    await make_nodes(link, [path for path, node in zip(requested, nodes, strict=True) if node is None])


async def create_sequential_node(link: Link, path: str, prefix: str, data: bytes) -> None:
    """Creates a node with the next sequence, and its parent if that is missing; waits while the connection is broken.

    Raises:
        CoordinationLost: The node may have been created or not.
        CoordinationError: The node was not created.
    """
    await link.open()
    create = Create(f"{path}/{prefix}", data, sequence=True)
    (outcome,) = await link.apply([(create,)])
    if lacks_parent(outcome):
        await create_missing_nodes(link, [path])
        (outcome,) = await link.apply([(create,)])
    if isinstance(outcome, Rejection):
        raise make_put_error(path, outcome)


async def count_children(link: Link, path: str) -> int:
    """Returns the number of a node's children, 0 if it is missing.

    Waits for a connection first; does not repeat a request that fails.
    """
    await link.open()
    (number,) = await link.count([path])
    return number or 0


def make_put_error(path: str, rejection: Rejection) -> CoordinationError:
    if rejection.why is RejectionReason.NODE_EXISTS:
        return CoordinationError(
            f"ZooKeeper has no sequence left for {path}: 2147483647 nodes were created in it. Use another path"
        )
    return CoordinationError(f"the node {path} of the queue does not exist; another program has removed it")
