"""The functions that a program gives a worker: the handler, the factory of its context, and middleware.

Loads handlers and factories by name, and checks that they can be called.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from contextvars import ContextVar
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import msgspec

from qdo.errors import HandlerError, InvalidArgument
from qdo.worker.failure import Failure, TaskRetry
from qdo.worker.runs import Delivery
from queuey.client import AsyncClient, Message
from queuey.client.calls import tracing
from queuey.client.calls.call import encode_value
from queuey.client.claims.handlers import explain_unusable, is_coroutine_handler
from queuey.model.task_calls import HIDDEN, ShownCall, find_call

if TYPE_CHECKING:
    from qdo.worker.worker import Worker

Handler = Callable[[Message, Any], object] | Callable[[Message, Any], Awaitable[object]]
"""``handle(message, context)``: the message is done if it returns and failed if it raises. A job keeps its result."""


class HandledTask(msgspec.Struct, frozen=True):
    """What a worker has to know of a task.

    Attributes:
        name: The name of the task in messages.
        is_async: Whether a call of the function has to be awaited.
        timeout: Max seconds of a call, or None for no limit.
        retry: When failed calls are retried.
        show_arguments: Whether the worker's log and spans show the arguments of calls.
    """

    name: str
    is_async: bool
    timeout: float | None
    retry: TaskRetry
    show_arguments: bool


def find_retry(task: HandledTask | None, failure: Failure) -> TaskRetry:
    """Returns the retry options of a task, or those of the queue if there is no task or it is unknown here."""
    return TaskRetry() if task is None or failure.is_unknown_task else task.retry


class TaskHandler(Protocol):
    """What a worker calls with messages. A subclass defines at least ``call``.

    Attributes:
        call: Handles a message; plain or async.
        call_plain: Handles a message of a plain task, if ``call`` is async because of other tasks.
        tasks: The tasks that messages call, by name.
    """

    call: Handler
    call_plain: Handler | None = None
    tasks: Mapping[str, HandledTask] = MappingProxyType({})

    async def keep_queues(self, client: AsyncClient) -> None:  # noqa: ARG002 - for subclasses
        """Awaited before the first claim of a worker."""
        return

    async def keep_schedules(self, client: AsyncClient) -> None:  # noqa: ARG002 - for subclasses
        """Runs in the background when a worker that claims has started."""
        return

    def task_of(self, message: Message) -> HandledTask | None:
        """Returns the task that a message calls, or None if it does not call a known task."""
        name = message.body.get("task") if self.tasks and isinstance(message.body, dict) else None
        return self.tasks.get(name) if isinstance(name, str) else None

    def call_of(self, message: Message) -> ShownCall | None:
        """Returns the call of a message for logs and spans, without hidden arguments."""
        call = find_call(encode_value(message.body)) if self.tasks and isinstance(message.body, dict) else None
        task = self.task_of(message)
        return call if call is None or (task is not None and task.show_arguments) else call._replace(arguments=HIDDEN)


class FunctionHandler(TaskHandler):
    """Calls a function with each message."""

    def __init__(self, call: Handler) -> None:
        self.call = call


@runtime_checkable
class HasHandler(Protocol):
    """An object that makes a handler, such as :class:`qdo.Jobs` once all tasks are defined."""

    def as_handler(self) -> TaskHandler:
        """Returns the handler."""


Context = Callable[[], AbstractContextManager[Any] | AbstractAsyncContextManager[Any]]
"""Called once. Its result is entered before the first message and exited after the last. Handlers get the value."""


TaskOf = Callable[[Message], HandledTask | None]
"""See :meth:`TaskHandler.task_of`."""


present_delivery: ContextVar[Delivery] = ContextVar("delivery")
"""The delivery of the message that this thread or task handles."""


def delivery() -> Delivery:
    """Returns the partition and attempt number of the message that the caller is handling.

    Example:
        >>> from qdo import AsyncConsumer, StopWorker, Worker, delivery
        >>> from queuey.client import AsyncClient
        >>> def handle(message, context):
        ...     print(message.body, "attempt", delivery().attempt)
        ...     raise StopWorker
        >>> consumer = AsyncConsumer(AsyncClient(), group="billing", queues=["orders"])
        >>> Worker(handle, consumer).run()
        one apple attempt 1
        0

    Raises:
        LookupError: The caller is not a handler, or runs in another thread or task than the handler.
    """
    return present_delivery.get()


MAX_STATE_BYTES = 4096

state_setter: ContextVar[Callable[[bytes], None]] = ContextVar("state_setter")
"""Called with the state, as JSON, of the message that this thread or task handles."""


def set_state(state: object) -> None:
    """Reports the progress of the caller with its message, which ``queuey jobs`` shows.

    The worker sends the last state once a second, and before it releases a failed message. Only workers that claim
    messages send states. It does nothing if no message is being handled, as in a test that calls a task.

    Args:
        state: Any JSON value of up to 4,096 bytes.

    Raises:
        InvalidArgument: The state is longer, or not JSON.

    Example:
        >>> from qdo import Jobs, set_state
        >>> jobs = Jobs("orders")
        >>> @jobs.task
        ... def weigh(*pieces: int) -> None:
        ...     for number, piece in enumerate(pieces):
        ...         set_state({"done": number, "of": len(pieces)})
        >>> weigh(7, 8)
    """
    try:
        text = encode_value(state)
    except ValueError as error:
        raise InvalidArgument(f"the state is {error}") from error
    if len(text) > MAX_STATE_BYTES:
        raise InvalidArgument(f"the state is longer than {MAX_STATE_BYTES} bytes of JSON: it has {len(text)}")
    set_text = state_setter.get(None)
    if set_text is not None:
        set_text(text)


def make_handler(handler: Handler | HasHandler | str) -> TaskHandler:
    """Returns the handler of :class:`qdo.Jobs`, or that of a function; imports it if its name is given."""
    loaded: Any = import_by_name(handler) if isinstance(handler, str) else handler
    if isinstance(loaded, HasHandler) and not inspect.isclass(loaded):
        return loaded.as_handler()
    name = handler if isinstance(handler, str) else repr(handler)
    if (why := explain_unusable(loaded)) is not None:
        raise HandlerError(f"{name} {why}")
    _check_call(loaded, name, 2, "handler(message, context)")
    return FunctionHandler(loaded)


def wrap_in_span(call: Any, handler: TaskHandler) -> Any:  # noqa: ANN401 - plain or async
    """Returns ``call``, or if tracing is enabled, a wrapper that handles each message in a span of its trace.

    The span names the task that the message calls.
    """
    if not tracing.is_enabled():
        return call
    call_of = handler.call_of
    if is_coroutine_handler(call):

        async def handle_async(message: Message, context: object) -> object:
            with tracing.handling(delivery().partition.queue.name, message, call_of(message)):
                return await call(message, context)

        return handle_async

    def handle(message: Message, context: object) -> object:
        with tracing.handling(delivery().partition.queue.name, message, call_of(message)):
            return call(message, context)

    return handle


def load_context(context: Context | str) -> Context:
    """Returns the factory, imported if its name is given; raises HandlerError if it cannot be called."""
    factory: Any = import_by_name(context, "context") if isinstance(context, str) else context
    _check_call(factory, context if isinstance(context, str) else repr(context), 0, "factory()")
    return factory  # type: ignore[no-any-return]


def find_import_name(handler: object, what: str) -> str:
    """Returns ``module:function`` by which child processes import a handler.

    Raises HandlerError if it is in ``__main__`` or not found by that name.
    """
    name = f"{getattr(handler, '__module__', '')}:{getattr(handler, '__qualname__', '')}"
    if name.startswith("__main__:"):
        raise HandlerError(f"the {what} is defined in the main program: move it to a module that processes can import")
    try:
        same = import_by_name(name, what) is handler
    except HandlerError:
        same = False
    if not same:
        raise HandlerError(f"processes import the {what} by its name, module:function, and cannot find {handler!r}")
    return name


def import_by_name(name: str, what: str = "handler") -> Any:  # noqa: ANN401 - whatever has the name
    module_name, colon, path = name.partition(":")
    if not colon or not module_name or not path:
        raise HandlerError(f"not a valid name of a {what}: {name!r}. Use module:function")
    try:
        named: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if module_name == missing or module_name.startswith(missing + "."):
            raise HandlerError(f"there is no module {missing!r} for the {what} {name!r}") from error
        raise HandlerError(f"module {module_name!r} needs {missing!r}, which is not installed") from error
    except Exception as error:
        raise HandlerError(f"module {module_name!r} cannot be imported: {type(error).__name__}: {error}") from error
    for attribute in path.split("."):
        try:
            named = getattr(named, attribute)
        except AttributeError as error:
            close = difflib.get_close_matches(attribute, dir(named), n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise HandlerError(f"module {module_name!r} has no {path!r}{hint}") from error
    return named


def _check_call(function: Any, name: str, arguments: int, form: str) -> None:  # noqa: ANN401 - is judged here
    if not callable(function):
        raise HandlerError(f"{name} cannot be called: it must be a function {form}")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # implemented in C: only a call can show it
    try:
        signature.bind(*[None] * arguments)
    except TypeError as error:
        raise HandlerError(f"{name}{signature} cannot be called as {form}: {error}") from error


logger = logging.getLogger("qdo.worker")


class Middleware:
    """Hooks around messages. Any object with at least one of these methods is a middleware.

    Example:
        >>> from qdo import Middleware
        >>> class Log(Middleware):
        ...     def failed(self, message, delivery, failure):
        ...         print(f"{delivery.partition}: attempt {delivery.attempt} failed with {failure}")

    Hooks are plain functions. Errors of hooks are logged and counted, and the worker continues. So a hook cannot lose a
    message or prevent its handling.

    ``before`` and ``after`` are called where the handler is called: in its thread, or in the loop. With processes they
    are called in the worker's own process. All other methods are called in the loop and must not block it.
    """

    def started(self, worker: Worker) -> None:
        """Called when the worker has joined its group, before it takes messages."""

    def stopped(self, worker: Worker) -> None:
        """Called when the worker has left its group."""

    def before(self, message: Message, delivery: Delivery) -> None:
        """Called before the handler."""

    def after(self, message: Message, delivery: Delivery) -> None:
        """Called after the handler has returned, but not after a failure. Middlewares are called in reverse order."""

    def failed(self, message: Message, delivery: Delivery, failure: Failure) -> None:
        """Called after a failed attempt."""

    def retrying(self, message: Message, delivery: Delivery, failure: Failure, seconds: float) -> None:
        """Called when a failed message will be retried after ``seconds``."""

    def dead(self, message: Message, delivery: Delivery, failure: Failure) -> None:
        """Called when a message is given up: it is skipped, or becomes a dead letter."""


Hook = Callable[..., None]

_HOOK_NAMES = ("started", "stopped", "before", "after", "failed", "retrying", "dead")


class Hooks:
    """The hooks of several middlewares, in order. ``hook_failed`` is called with the name of each hook that raised.

    Raises:
        InvalidArgument: A hook is not a plain function, or an object does not have hooks.
    """

    def __init__(self, middleware: Iterable[object], hook_failed: Callable[[str], None]) -> None:
        self._hook_failed = hook_failed
        self._hooks: dict[str, list[Hook]] = {name: [] for name in _HOOK_NAMES}
        for instance in middleware:
            hooks = {name: hook for name in _HOOK_NAMES if (hook := _find_hook(instance, name)) is not None}
            if not hooks and not isinstance(instance, Middleware):
                raise InvalidArgument(f"{instance!r} has none of the hooks {', '.join(_HOOK_NAMES)}")
            for name, hook in hooks.items():
                self._hooks[name].append(hook)
        self._hooks["after"].reverse()
        self.around = bool(self._hooks["before"] or self._hooks["after"])
        """Whether a middleware has ``before`` or ``after``."""

    def call(self, name: str, *arguments: Any) -> None:  # noqa: ANN401 - as the hook has them
        """Calls one hook of all middlewares; logs and counts their errors."""
        for hook in self._hooks[name]:
            try:
                hook(*arguments)
            except Exception:
                self._hook_failed(name)
                logger.exception("the hook %s of %r failed", name, getattr(hook, "__self__", hook))


def _find_hook(instance: object, name: str) -> Hook | None:
    hook: Any = getattr(instance, name, None)
    if hook is None or getattr(hook, "__func__", None) is getattr(Middleware, name):
        return None
    if not callable(hook) or inspect.iscoroutinefunction(hook):
        raise InvalidArgument(f"{name} of {instance!r} is not a plain function")
    return hook  # type: ignore[no-any-return]
