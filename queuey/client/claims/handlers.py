"""Job handlers: checks, and calls from the sync and the async client."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from queuey.client.errors import InvalidArgument

J = TypeVar("J")
log = logging.getLogger("queuey.client")


def make_sync_handler(handle: Callable[[J], object]) -> Callable[[J], object]:
    """Returns a function that calls the handler and raises :class:`NothingRan` if the call did no work.

    Raises:
        InvalidArgument: The handler is a coroutine function, a generator function or a class.
    """
    if is_coroutine_handler(handle):
        raise InvalidArgument("handle is a coroutine function, which nothing would await here: use AsyncClient")
    _check_usable(handle)

    def call(job: J) -> object:
        result = handle(job)
        check_ran(result, "handle")
        return result

    return call


def make_async_handler(handle: Callable[[J], object]) -> Callable[[J], Awaitable[object]]:
    """Returns a coroutine function that calls the handler and awaits an awaitable result.

    It raises NothingRan if the result is a generator, or awaitable once more.

    Raises:
        InvalidArgument: The handler is a generator function or a class.
    """
    _check_usable(handle)

    async def call(job: J) -> object:
        result = handle(job)
        result = await result if inspect.isawaitable(result) else result
        check_ran(result, "handle")
        return result

    return call


def is_coroutine_handler(handler: object) -> bool:
    """Returns whether a call of the handler returns a coroutine.

    Also True for a ``functools.partial`` of a coroutine function, or one as ``__call__``.
    """
    if inspect.iscoroutinefunction(handler):
        return True
    wrapped = getattr(handler, "func", None)  # functools.partial
    if wrapped is not None and not inspect.isfunction(handler):
        return is_coroutine_handler(wrapped)
    return inspect.iscoroutinefunction(getattr(handler, "__call__", None))  # noqa: B004 - tests if ``__call__`` is async


def explain_unusable(handler: object) -> str | None:
    """Returns why a class or a generator function cannot handle jobs, as the end of a sentence.

    Returns None for anything else, coroutine functions included.
    """
    if inspect.isclass(handler):
        return "is a class, not a function"
    call = getattr(handler, "__call__", None)  # noqa: B004 - reads the method of a callable object
    if any(map(inspect.isgeneratorfunction, (handler, call))) or any(map(inspect.isasyncgenfunction, (handler, call))):
        return "is a generator; calling it would handle nothing"
    return None


def check_ran(result: object, what: str) -> None:
    """Checks that a call's result is not a coroutine or generator that nothing runs. Closes it if it is.

    Raises:
        NothingRan: The result is an awaitable or a generator.
    """
    if result is None:
        return
    if inspect.iscoroutine(result) or inspect.isgenerator(result):
        result.close()
    if inspect.isawaitable(result) or inspect.isgenerator(result) or inspect.isasyncgen(result):
        kind = type(result).__name__
        raise NothingRan(f"{what} returned a {kind} that nothing runs, so its work is not done: make it async")


class HasResult(Protocol):
    """A sync or async job."""

    def set_result(self, result: object) -> None:
        """Sets the result of the job."""


def keep_result(job: HasResult, result: object) -> None:
    """Sets a handler's return value as the job's result. Logs a value that is not valid: the work is done anyway."""
    try:
        job.set_result(result)
    except InvalidArgument as error:
        log.warning("%r has no result: %s", job, error)


class NothingRan(TypeError):
    """A call returned a coroutine or generator that nothing runs."""


def _check_usable(handle: object) -> None:
    if (why := explain_unusable(handle)) is not None:
        raise InvalidArgument(f"handle {why}")
