"""The bridge to the contracts from code that blocks: the command line, pipelines, Spark, and threads of a service.

A call of a contract is a coroutine. On an event loop it is awaited::

    page = await store.messages.read(queue, slices)

In a thread that may wait, this bridge runs it to its end::

    page = bridge.run(store.messages.read(queue, slices))
    for messages in bridge.iterate(store.bulk.scan(queue, part)): ...

It needs no loop of its own: where a store would suspend the coroutine, it waits in this thread. So it
works beside the loop that runs in a notebook's thread, and in forked children with stores that were opened there.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterator
from typing import Any, TypeVar

T = TypeVar("T")


class _Thread(threading.local):
    runs = 0
    """How many calls are run in this thread, one within the other."""
    shared: dict[object, Any] | None = None
    """What the calls of a run have in common that is to take the time of one."""


thread = _Thread()


def run(call: Coroutine[Any, Any, T], *, as_one: bool = False) -> T:
    """Runs a call of a store, or a coroutine that awaits nothing else, to its end; returns its result.

    Args:
        call: The call.
        as_one: All calls that it makes have together the time of one.

    Raises:
        RuntimeError: It awaits something else.
        Exception: As the call does.
    """
    before = thread.shared
    thread.runs += 1
    if as_one and before is None:
        thread.shared = {}
    try:
        call.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    finally:
        thread.runs -= 1
        thread.shared = before
    call.close()
    raise RuntimeError("this call awaits something that is not of a store: await it on an event loop")


def iterate(items: AsyncIterator[T]) -> Iterator[T]:
    """Gives the items of an iterator of a store one by one, each run as :func:`run` does."""

    async def following() -> list[T]:
        async for item in items:
            return [item]
        return []

    try:
        while item := run(following()):
            yield item[0]
    finally:
        if isinstance(items, AsyncGenerator):
            run(items.aclose())
