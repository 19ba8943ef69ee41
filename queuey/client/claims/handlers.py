"""Handlers of jobs, as each client calls them."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from queuey.client.errors import InvalidArgument

J = TypeVar("J")
log = logging.getLogger("queuey.client")


def sync_handler(handle: Callable[[J], object]) -> Callable[[J], object]:
    """Returns a function that calls the handler, and fails where nothing of it ran.

    Raises:
        InvalidArgument: It is a coroutine function, or calling it would run nothing.
    """
    if is_async(handle):
        raise InvalidArgument("handle is a coroutine function, which nothing would await here: use AsyncClient")
    _check(handle)

    def call(job: J) -> object:
        result = handle(job)
        check_ran(result, "handle")
        return result

    return call


def async_handler(handle: Callable[[J], object]) -> Callable[[J], Awaitable[object]]:
    """Returns a coroutine function that awaits the result of the handler, where it can be awaited.

    Raises:
        InvalidArgument: Calling it would run nothing.
    """
    _check(handle)

    async def call(job: J) -> object:
        result = handle(job)
        result = await result if inspect.isawaitable(result) else result
        check_ran(result, "handle")
        return result

    return call


def is_async(handler: object) -> bool:
    """Returns True if calling the handler returns an awaitable."""
    if inspect.iscoroutinefunction(handler):
        return True
    wrapped = getattr(handler, "func", None)  # functools.partial
    if wrapped is not None and not inspect.isfunction(handler):
        return is_async(wrapped)
    return inspect.iscoroutinefunction(getattr(handler, "__call__", None))  # noqa: B004 - whether that is async


def runs_nothing(handler: object) -> str | None:
    """Returns why a call of the handler would do nothing of its work, as the end of a sentence."""
    if inspect.isclass(handler):
        return "is a class, not a function"
    call = getattr(handler, "__call__", None)  # noqa: B004 - that of an object
    if any(map(inspect.isgeneratorfunction, (handler, call))) or any(map(inspect.isasyncgenfunction, (handler, call))):
        return "is a generator; calling it would handle nothing"
    return None


def check_ran(result: object, what: str) -> None:
    """Checks what a call has returned: a coroutine or generator that nobody runs is closed.

    Raises:
        NothingRan: It is one of them, or something else to be awaited.
    """
    if result is None:
        return
    if inspect.iscoroutine(result) or inspect.isgenerator(result):
        result.close()
    if inspect.isawaitable(result) or inspect.isgenerator(result) or inspect.isasyncgen(result):
        kind = type(result).__name__
        raise NothingRan(f"{what} returned a {kind} that nothing runs, so its work is not done: make it async")


class HasResult(Protocol):
    """A job of either kind."""

    def set_result(self, result: object) -> None:
        """Sets the result of the job."""


def keep_result(job: HasResult, result: object) -> None:
    """Sets what a handler has returned as its job's result; its work is done, also if that cannot be kept."""
    try:
        job.set_result(result)
    except InvalidArgument as error:
        log.warning("%r has no result: %s", job, error)


class NothingRan(TypeError):
    """A call returned something that would have to be run or awaited."""


def _check(handle: object) -> None:
    if (why := runs_nothing(handle)) is not None:
        raise InvalidArgument(f"handle {why}")
