"""Handling a run of messages, one after another: the loops that every message goes through.

What a loop does beside calling the handler is what each message costs, so the clock is read once a message, and only
what took long is written down one by one.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from time import perf_counter
from typing import Any, Protocol

from qdo.errors import HandlerError, TimeLimit
from qdo.worker.failure import Delivery, Failure, RunResult
from queuey.client import Message

QUICK = 0.0005
"""Seconds. Handlers that return sooner are not told apart."""
_BREATH = 0.01
"""Seconds for which an async handler that never waits may keep the loop from everything else."""

_delivery: ContextVar[Delivery] = ContextVar("delivery")


class MessageHooks(Protocol):
    """What is called around each message: hooks, or what stands for them in another process."""

    @property
    def around(self) -> bool:
        """Whether it is to be called."""

    def call(self, name: str, *arguments: Any) -> None:  # noqa: ANN401 - as the hook has them
        """``before`` or ``after``, with the message and its delivery. Raises nothing."""


class RunControl:
    """By which a run is told to end after the message in hand.

    Attributes:
        halt: Looked at before each message.
        handled: How many messages of the run are handled, while it goes on.
        seen: How many they were when somebody looked last.
        since: When that was another number, by the loop's clock.
        told: After how many seconds without another one somebody was told last.
        tell: Called when it is set, for whoever cannot look.
        begun: A handler has it in hand: it waits for nothing else.
        abandoned: How many were handled when the message in hand did not come to an end in time; None: it never was so.
        stray: Nor did it come to an end when it was to be stopped.
    """

    __slots__ = ("abandoned", "begun", "halt", "handled", "seen", "since", "stray", "tell", "told")

    def __init__(self) -> None:
        self.halt = False
        self.handled = 0
        self.seen = 0
        self.since = 0.0
        self.told = 0.0
        self.tell: Callable[[], None] | None = None
        self.begun = False
        self.abandoned: int | None = None
        self.stray = False

    def stop(self) -> None:
        """Ends the run after the message in hand."""
        self.halt = True
        if self.tell is not None:
            self.tell()


def delivery() -> Delivery:
    """Returns the partition of the message that the caller is handling, and the number of the attempt.

    Example:
        >>> from qdo import AsyncConsumer, StopWorker, Worker, delivery, open_coordinator
        >>> from queuey.client import AsyncClient
        >>> def handle(message, context):
        ...     print(message.body, "attempt", delivery().attempt)
        ...     raise StopWorker
        >>> consumer = AsyncConsumer(AsyncClient(), open_coordinator("local:", "billing"), queues=["orders"])
        >>> Worker(handle, consumer).run()
        one apple attempt 1
        0

    Raises:
        LookupError: The caller is not a handler, or not in the thread or task in which it was called.
    """
    return _delivery.get()


def run_plain(
    handler: Callable[[Message, Any], Any],
    context: object,
    messages: Sequence[Message],
    place: Delivery,
    control: RunControl,
    seconds: float,
    hooks: MessageHooks,
) -> RunResult:
    """Calls a plain function for one message after another; blocks.

    Args:
        handler: The function.
        context: Its second argument.
        messages: The messages.
        place: Where they come from.
        control: Says when to end before the last.
        seconds: After which to end before the last.
        hooks: Called around each.
    """
    _delivery.set(place)
    around = hooks.around
    handled, failure, slow = 0, None, []
    begun = last = perf_counter()
    until = begun + seconds
    try:
        for message in messages:
            if control.halt:
                break
            if around:
                hooks.call("before", message, place)
            result = handler(message, context)
            if result is not None and inspect.isawaitable(result):
                refuse_awaitable(result)
            handled = control.handled = handled + 1
            if around:
                hooks.call("after", message, place)
            now = perf_counter()
            if now - last > QUICK:
                slow.append(now - last)
            last = now
            if now > until:
                break
    except BaseException as error:  # noqa: BLE001 - whatever it is, it belongs to this message and is judged elsewhere
        failure = Failure.of(error)
    return RunResult(handled, failure, handled - len(slow), last - begun - sum(slow), tuple(slow))


async def run_async(  # noqa: C901 - every message goes through it, and calls cost
    handler: Callable[[Message, Any], Awaitable[Any]],
    context: object,
    messages: Sequence[Message],
    place: Delivery,
    control: RunControl,
    seconds: float,
    hooks: MessageHooks,
    limit: float | None,
) -> RunResult:
    """Awaits an async function for one message after another; see :func:`run_plain`.

    When its task is cancelled the message in hand counts as not handled, and those before it as handled; a cancellation
    that the handler brought about itself is its failure. ``limit`` is the seconds that one call may take; None: any.
    """
    _delivery.set(place)
    around = hooks.around
    handled, failure, slow = 0, None, []
    begun = last = breath = perf_counter()
    until = begun + seconds
    try:
        for message in messages:
            if control.halt:
                break
            if around:
                hooks.call("before", message, place)
            if limit is None:
                await handler(message, context)
            else:
                await _limited(handler(message, context), limit)
            handled = control.handled = handled + 1
            if around:
                hooks.call("after", message, place)
            now = perf_counter()
            if now - last > QUICK:
                slow.append(now - last)
            last = now
            if now > until:
                break
            if now - breath > _BREATH:
                await asyncio.sleep(0)
                last = breath = perf_counter()
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or not task.cancelling():
            failure = Failure.of(error)
    except BaseException as error:  # noqa: BLE001 - as above
        failure = Failure.of(error)
    return RunResult(handled, failure, handled - len(slow), max(0.0, last - begun - sum(slow)), tuple(slow))


async def _limited(call: Awaitable[Any], limit: float) -> None:
    timer = asyncio.timeout(limit)
    try:
        async with timer:
            await call
    except TimeoutError as error:
        if timer.expired():
            raise TimeLimit(f"the handler took longer than {limit:g} s") from error
        raise


def refuse_awaitable(result: Any) -> None:  # noqa: ANN401 - is an awaitable
    """Says that a handler which was taken for a plain function is none.

    Raises:
        HandlerError: Always. Nothing was handled, and nothing would be by calling it again.
    """
    if inspect.iscoroutine(result):
        result.close()
    raise HandlerError("the handler is a plain function that returned something to be awaited; make it async")
