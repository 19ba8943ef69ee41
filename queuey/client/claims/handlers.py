"""Handlers of jobs, as each client calls them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from inspect import isawaitable, iscoroutinefunction
from typing import TypeVar

from queuey.client.errors import InvalidArgument

J = TypeVar("J")


def sync_handler(handle: Callable[[J], object]) -> Callable[[J], object]:
    """Returns the function, unless it is a coroutine function.

    Raises:
        InvalidArgument: It is one.
    """
    if iscoroutinefunction(handle):
        raise InvalidArgument("handle is a coroutine function, which nothing would await here: use AsyncClient")
    return handle


def async_handler(handle: Callable[[J], object]) -> Callable[[J], Awaitable[None]]:
    """Returns a coroutine function that awaits the result of the function, where it can be awaited."""

    async def call(job: J) -> None:
        result = handle(job)
        if isawaitable(result):
            await result

    return call
