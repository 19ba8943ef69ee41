"""Every form of a handler or task, in this process's executors and without a worker, with every way it can end."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable
from typing import Any

import pytest

from qdo import HandlerError, InvalidArgument, Jobs
from qdo.settings import WorkerSettings
from qdo.worker.executors.in_process import InThisProcess
from qdo.worker.failure import Failure, RunResult
from qdo.worker.handlers import Hooks, make_handler
from qdo.worker.runs import Delivery, MessageRun
from qdo.worker.worker import _make_executor
from queuey.client import InvalidArgument as InvalidHandle
from queuey.client import Message
from queuey.client.claims.handlers import NothingRan, is_coroutine_handler, make_async_handler, make_sync_handler
from tests.qdo.unit.samples import ONE, message

TIMEOUT = 60.0
NO_HOOKS = Hooks([], lambda _: None)
End = Callable[[], Any]


class Unspeakable(BaseException):
    """An error that cannot be printed or pickled."""

    def __init__(self) -> None:
        super().__init__(lambda: None)

    def __str__(self) -> str:
        raise ZeroDivisionError


def raising(error: BaseException) -> End:
    def end() -> None:
        raise error

    return end


ERRORS: list[BaseException] = [
    *(ValueError("no"), StopIteration(1), StopAsyncIteration(), GeneratorExit(), KeyboardInterrupt(), SystemExit(3)),
    *(asyncio.CancelledError(), ExceptionGroup("two", [ValueError(), TypeError()]), Unspeakable()),
]
FAILED = {type(error).__name__: raising(error) for error in ERRORS}


async def unheard() -> None:
    """Is never awaited."""


def generate() -> Any:  # noqa: ANN401
    yield


async def generate_async() -> Any:  # noqa: ANN401
    yield


class NonCoroutineAwaitable:
    """An awaitable that is not a coroutine."""

    def __await__(self) -> Any:  # noqa: ANN401
        yield


UNRUN_RESULTS: dict[str, End] = {
    "coroutine": unheard,
    "generator": generate,
    "async generator": generate_async,
    "awaitable": NonCoroutineAwaitable,
}


def plain(end: End) -> Any:  # noqa: ANN401
    def call(*_: object) -> Any:  # noqa: ANN401
        return end()

    return call


def coroutine_function(end: End) -> Any:  # noqa: ANN401
    async def call(*_: object) -> Any:  # noqa: ANN401
        return end()

    return call


class Called:
    """A callable object."""

    __module__ = __name__

    def __init__(self, end: End) -> None:
        self._end = end

    def __call__(self, *_: object) -> Any:  # noqa: ANN401
        return self._end()


class Awaited(Called):
    """An object whose call is awaited."""

    async def __call__(self, *_: object) -> Any:  # noqa: ANN401
        return self._end()


FORMS: dict[str, Callable[[End], Any]] = {
    "function": plain,
    "coroutine function": coroutine_function,
    "partial": lambda end: functools.partial(plain(end)),
    "async partial": lambda end: functools.partial(coroutine_function(end)),
    "lambda": lambda end: lambda *_: end(),
    "object": Called,
    "async object": Awaited,
}


def executor_of(handler: Any) -> InThisProcess:  # noqa: ANN401
    executor = _make_executor(
        WorkerSettings(threads=2, tasks=8), 9.0, handler, make_handler(handler), None, NO_HOOKS, None
    )
    assert isinstance(executor, InThisProcess)
    return executor


async def run_handler(handler: Any, count: int = 1, body: object = "x") -> RunResult:  # noqa: ANN401
    executor: Any = executor_of(handler)
    await executor.open()
    run = MessageRun([message(number, body=body) for number in range(1, count + 1)], 1)
    try:
        result: RunResult = await asyncio.wait_for(executor.start(run, Delivery(ONE, 1)), TIMEOUT)
        return result
    finally:
        await executor.close()


def name_of(error: BaseException) -> set[str]:
    """Returns the valid kinds of the failure: a coroutine turns the errors that mean its end into another one."""
    return {
        Failure.of(error).kind,
        *({"RuntimeError"} if isinstance(error, StopIteration | StopAsyncIteration) else ()),
    }


KINDS: dict[str, End] = {"returns": lambda: 5, **UNRUN_RESULTS, **FAILED}


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("form", FORMS)
async def test_handlers(form: str) -> None:
    """A message is handled if its handler returns, and fails with any error; an object that nothing runs is a mistake.

    The error neither ends the worker nor keeps its slot. The mistake ends the worker; nothing is handled.
    """
    assert (await run_handler(FORMS[form](KINDS["returns"]), 3))[:2] == (3, None)
    for error in ERRORS:
        ran = await run_handler(FORMS[form](raising(error)))
        assert ran.handled == 0
        assert ran.failure is not None
        assert (ran.failure.effect, ran.failure.kind in name_of(error)) == ("fail", True)
    for end in UNRUN_RESULTS.values():
        ran = await run_handler(FORMS[form](end))
        assert ran.handled == 0
        assert ran.failure is not None
        assert (ran.failure.effect, "nothing runs" in ran.failure.text) == ("exit", True)


@pytest.mark.parametrize("ends", [True, False])
async def test_a_handler_that_cancels_itself(*, ends: bool) -> None:
    """A handler that cancels itself fails if that ends it, and otherwise succeeds; the next message is unaffected."""
    seen: list[str] = []

    async def cancel(given: Message, _: object) -> None:
        seen.append(given.id)
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        if ends:
            await asyncio.sleep(0)

    ran = await run_handler(cancel, 3)
    kind = ran.failure and (ran.failure.effect, ran.failure.kind)
    expected = (0, ("fail", "asyncio.exceptions.CancelledError"), 1) if ends else (3, None, 3)
    assert (ran.handled, kind, len(seen)) == expected


# Tasks

BODY = {"task": "one", "args": [], "kwargs": {}}


def jobs_of(form: str, end: End, *, beside_async: bool) -> Jobs:
    jobs = Jobs("q")
    jobs.task(name="one")(FORMS[form](end))
    if beside_async:
        jobs.task(name="other")(unheard)
    return jobs


@pytest.mark.parametrize("beside_async", [False, True])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.filterwarnings("error::RuntimeWarning")
async def test_tasks(form: str, *, beside_async: bool) -> None:
    """A call is done when its task returns; any other end is a failed attempt, and the worker goes on."""
    for kind, end in KINDS.items():
        ran = await run_handler(jobs_of(form, end, beside_async=beside_async), body=BODY)
        assert ran.handled == (kind == "returns")
        if kind != "returns":
            assert ran.failure is not None
            assert ran.failure.effect == "fail"
            assert kind not in UNRUN_RESULTS or "task one returned a" in ran.failure.text


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", UNRUN_RESULTS)
async def test_what_nothing_ran_of_fails_without_a_worker(form: str, kind: str) -> None:
    """A task that returns an unrun object raises in tests and in ``job_queue.run`` too, without a worker."""
    handler = jobs_of(form, UNRUN_RESULTS[kind], beside_async=False).as_handler()
    call = message(1, body=BODY)
    with pytest.raises(NothingRan, match="task one"):
        await asyncio.to_thread(handler.run, call)
    with pytest.raises(NothingRan, match="task one"):
        await handler.run_async(call)
    handle = FORMS[form](UNRUN_RESULTS[kind])
    if is_coroutine_handler(handle):
        with pytest.raises(InvalidHandle, match="AsyncClient"):
            make_sync_handler(handle)
    else:
        with pytest.raises(NothingRan, match="handle"):
            make_sync_handler(handle)(call)
    if is_coroutine_handler(handle) or kind in {"generator", "async generator"}:
        with pytest.raises(NothingRan, match="handle"):
            await make_async_handler(handle)(call)


class Made:
    """A class."""

    def __init__(self, *_: object) -> None:
        """Takes anything."""


@pytest.mark.parametrize("function", [generate, generate_async, Made], ids=lambda function: function.__name__)
def test_what_would_run_nothing_is_refused_when_it_is_declared(function: Any) -> None:  # noqa: ANN401
    """A generator or a class is refused as a task, a handler and a ``handle``."""
    with pytest.raises(InvalidArgument, match=r"generator|class"):
        Jobs("q").task(function)
    for make in (make_sync_handler, make_async_handler):
        with pytest.raises(InvalidHandle, match=r"generator|class"):
            make(function)
    takes = function if inspect.isclass(function) else functools.partial(function)
    with pytest.raises(HandlerError):
        make_handler(takes)


def test_a_task_is_no_handler() -> None:
    """A worker that is given a single task names the object that has all tasks."""
    with pytest.raises(HandlerError, match=rf"{__name__}:resize is a task: run {__name__}:images"):
        make_handler(resize)


def test_a_task_without_a_name() -> None:
    """A partial function has no name, so one must be given."""
    with pytest.raises(InvalidArgument, match="name"):
        Jobs("q").task(functools.partial(plain(unheard)))


images = Jobs("images")


@images.task
def resize() -> None:
    """A task."""
