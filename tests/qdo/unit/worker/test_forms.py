"""Every form of a handler or task, in this process's executors and without a worker, with every way it can end."""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
from collections.abc import Callable
from typing import Any

import pytest

from qdo import HandlerError, InvalidArgument, Jobs
from qdo.settings import WorkerSettings
from qdo.worker.executors.in_process import InThisProcess, MixedExecutor
from qdo.worker.failure import Failure, RunResult
from qdo.worker.handlers import Hooks, check_handler, handler_of
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
    task_of = getattr(handler, "task_of", lambda _: None)
    executor = _make_executor(WorkerSettings(threads=2, tasks=8), 9.0, handler, handler, task_of, None, NO_HOOKS, None)
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


@pytest.mark.parametrize("form", FORMS)
async def test_what_returns_is_handled(form: str) -> None:
    """A handler that returns any value has handled the message."""
    for end in (lambda: None, lambda: 5):
        assert (await run_handler(FORMS[form](end), 3))[:2] == (3, None)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
async def test_what_raises_is_a_failed_attempt(form: str, error: BaseException) -> None:
    """Any error fails the message and names its class; it neither ends the worker nor keeps its slot."""
    ran = await run_handler(FORMS[form](raising(error)))
    assert ran.handled == 0
    assert ran.failure is not None
    assert ran.failure.effect == "fail"
    assert ran.failure.kind in name_of(error)


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", UNRUN_RESULTS)
async def test_what_nothing_ran_of_is_not_handled(form: str, kind: str) -> None:
    """A handler that returns an object which nothing runs ends the worker with an error; nothing is handled."""
    ran = await run_handler(FORMS[form](UNRUN_RESULTS[kind]))
    assert ran.handled == 0
    assert ran.failure is not None
    assert ran.failure.effect == "exit"
    assert "nothing runs" in ran.failure.text


async def test_a_handler_that_cancels_itself() -> None:
    """A handler that cancels itself fails if that ends it, and otherwise succeeds; the next message is unaffected."""
    seen: list[str] = []

    async def cancelled(given: Message, _: object) -> None:
        seen.append(given.id)
        task = asyncio.current_task()
        assert task is not None
        if len(seen) == 1:
            task.cancel()
        await asyncio.sleep(0)

    ran = await run_handler(cancelled, 2)
    assert ran.handled == 0
    assert ran.failure is not None
    assert (ran.failure.effect, ran.failure.kind) == ("fail", "asyncio.exceptions.CancelledError")

    async def outlasted(given: Message, _: object) -> None:
        seen.append(given.id)
        await asyncio.sleep(0)
        task = asyncio.current_task()
        assert task is not None
        task.cancel()

    seen.clear()
    assert (await run_handler(outlasted, 3))[:2] == (3, None)
    assert len(seen) == 3


async def test_a_run_that_its_executor_cancels() -> None:
    """A run that its executor cancels is not a failure of its message."""
    begun = asyncio.Event()

    async def waiting(_given: Message, _: object) -> None:
        begun.set()
        await asyncio.Event().wait()

    executor: Any = executor_of(waiting)
    await executor.open()
    future = executor.start(MessageRun([message(1)], 1), Delivery(ONE, 1))
    await asyncio.wait_for(begun.wait(), TIMEOUT)
    assert executor.give_up()
    assert (await asyncio.wait_for(future, TIMEOUT))[:2] == (0, None)


# Tasks

BODY = {"task": "one", "args": [], "kwargs": {}}


def make_mixed(end: End) -> Any:  # noqa: ANN401
    """Returns the handler of a program with a plain task, which ends this way, and an async one."""
    jobs = Jobs("q")
    jobs.task(name="plain")(end)
    jobs.task(name="awaited")(coroutine_function(lambda: None))
    return handler_of(jobs)


def calls(*tasks: str) -> MessageRun:
    return MessageRun([message(number, body={"task": task}) for number, task in enumerate(tasks, 1)], 1)


def jobs_of(form: str, end: End, *, beside_async: bool) -> Jobs:
    jobs = Jobs("q")
    jobs.task(name="one")(FORMS[form](end))
    if beside_async:
        jobs.task(name="other")(unheard)
    return jobs


@pytest.mark.parametrize("beside_async", [False, True])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["returns", *UNRUN_RESULTS, *FAILED])
@pytest.mark.filterwarnings("error::RuntimeWarning")
async def test_tasks(form: str, kind: str, *, beside_async: bool) -> None:
    """A call is done when its task returns; any other end is a failed attempt, and the worker goes on."""
    end = {"returns": lambda: 5, **UNRUN_RESULTS, **FAILED}[kind]
    jobs = jobs_of(form, end, beside_async=beside_async)
    ran = await run_handler(handler_of(jobs), body=BODY)
    assert ran.handled == (kind == "returns")
    if kind != "returns":
        assert ran.failure is not None
        assert ran.failure.effect == "fail"
        assert kind not in UNRUN_RESULTS or "task one returned a" in ran.failure.text


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", UNRUN_RESULTS)
async def test_what_nothing_ran_of_fails_without_a_worker(form: str, kind: str) -> None:
    """A task that returns an unrun object raises in tests and in ``job_queue.run`` too, without a worker."""
    handler: Any = handler_of(jobs_of(form, UNRUN_RESULTS[kind], beside_async=False))
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


async def test_plain_calls_beside_async_ones_have_threads_of_their_own() -> None:
    """Plain calls have threads of their own; while none is free no call begins, because any call may be plain."""
    gate = threading.Event()
    executor: Any = executor_of(make_mixed(lambda: gate.wait(TIMEOUT)))
    assert isinstance(executor, MixedExecutor)
    await executor.open()
    place = Delivery(ONE, 1)
    assert executor.slots == 2
    futures = [executor.start(calls("awaited"), place)]
    assert executor.slots == 3
    futures += [executor.start(calls("plain"), place) for _ in range(2)]
    assert executor.slots == 3
    assert (await asyncio.wait_for(futures[0], TIMEOUT))[:2] == (1, None)
    assert executor.slots == 2  # Both plain calls run.
    gate.set()
    for future in futures[1:]:
        assert (await asyncio.wait_for(future, TIMEOUT))[:2] == (1, None)
    assert executor.slots == 2
    await executor.close()


async def test_a_run_has_calls_of_one_kind() -> None:
    """A run ends before the first call of the other kind; the source begins the rest anew."""
    executor: Any = executor_of(make_mixed(lambda: None))
    await executor.open()
    for tasks, handled in ((("plain", "plain", "awaited"), 2), (("awaited", "plain"), 1), (("other", "plain"), 0)):
        ran = await asyncio.wait_for(executor.start(calls(*tasks), Delivery(ONE, 1)), TIMEOUT)
        assert ran.handled == handled
        assert (ran.failure is None) == (tasks[0] != "other")
    await executor.close()


async def test_a_plain_call_that_hangs_beside_async_ones() -> None:
    """The message of a plain call that hangs fails; once as many hang as there are threads, no call begins."""
    gate = threading.Event()
    executor: Any = executor_of(make_mixed(lambda: gate.wait(TIMEOUT)))
    await executor.open()
    runs = [calls("plain"), calls("plain")]
    futures = [executor.start(run, Delivery(ONE, 1)) for run in runs]
    for run, slots in zip(runs, (3, 0), strict=True):
        run.abandoned = 0
        assert not executor.abandon(run)
        assert executor.slots == slots
    gate.set()
    await asyncio.wait_for(asyncio.wait(futures), TIMEOUT)
    assert executor.slots == 2
    await executor.close()


async def test_a_plain_call_may_have_a_loop_of_its_own() -> None:
    """A plain call does not run in the loop of the async ones, so it may run its own."""
    executor: Any = executor_of(make_mixed(lambda: asyncio.run(unheard())))
    await executor.open()
    assert (await asyncio.wait_for(executor.start(calls("plain"), Delivery(ONE, 1)), TIMEOUT))[:2] == (1, None)
    await executor.close()


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
        check_handler(takes)


def test_a_task_is_no_handler() -> None:
    """A worker that is given a single task names the object that has all tasks."""
    with pytest.raises(HandlerError, match=rf"{__name__}:resize is a task: run {__name__}:images"):
        handler_of(resize)


def test_a_task_without_a_name() -> None:
    """A partial function has no name, so one must be given."""
    with pytest.raises(InvalidArgument, match="name"):
        Jobs("q").task(functools.partial(plain(unheard)))


images = Jobs("images")


@images.task
def resize() -> None:
    """A task."""
