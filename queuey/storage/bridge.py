"""Runs calls of the storage contracts from blocking code: the command line, pipelines, Spark, and service threads.

A call of a contract is a coroutine. On an event loop it is awaited::

    page = await store.messages.read(queue, slices)

In a thread that may block, this bridge runs it to completion::

    page = bridge.run(store.messages.read(queue, slices))
    for messages in bridge.iterate(store.bulk.scan(queue, part)): ...

The bridge has no event loop: instead of suspending the coroutine, the store blocks this thread. So it also works in a
notebook, where a loop is running in the same thread, and in forked children with stores that were opened there.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterator
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakSet

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

T = TypeVar("T")


class _ThreadState(threading.local):
    may_block = False
    """True while this thread runs a call by the bridge."""
    shared: dict[object, Any] | None = None
    """Values that calls of a run with ``as_one`` share; None outside such a run."""


thread_state = _ThreadState()
service_loops: WeakSet[AbstractEventLoop] = WeakSet()
"""The loops of services, in whose threads a call must not block."""


def run(call: Coroutine[Any, Any, T], *, as_one: bool = False) -> T:
    """Runs a store call, or a coroutine that awaits only store calls, to completion. Returns its result.

    Args:
        call: The coroutine.
        as_one: All store calls of the coroutine share one deadline.

    Raises:
        RuntimeError: The coroutine awaits something else, or this is the thread of a service's loop.
        Exception: The error of the coroutine.
    """
    if service_loops:
        from asyncio import _get_running_loop  # noqa: PLC0415 - commands that run no loop are light

        if (loop := _get_running_loop()) is not None and loop in service_loops:
            call.close()
            raise RuntimeError("This would block the service's loop. Await the call.")
    before = thread_state.may_block, thread_state.shared
    thread_state.may_block = True
    if as_one and thread_state.shared is None:
        thread_state.shared = {}
    try:
        call.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    finally:
        thread_state.may_block, thread_state.shared = before
    call.close()
    raise RuntimeError("This coroutine awaits more than store calls. Await it on an event loop.")


def iterate(items: AsyncIterator[T]) -> Iterator[T]:
    """Yields the items of a store's asynchronous iterator, each by :func:`run`. Closes a generator at the end."""

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
