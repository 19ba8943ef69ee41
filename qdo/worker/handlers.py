"""The functions that a program gives a worker: the handler, the factory of its context, and hooks around messages.

Handler and factory are found by their names; :class:`Middleware` is what others want to do around messages.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol

from qdo.errors import HandlerError, InvalidArgument
from qdo.worker.failure import CallOf, Failure, calls_nothing
from qdo.worker.runs import Delivery
from queuey.client import Message
from queuey.client.calls import tracing
from queuey.client.calls.call import encode_value
from queuey.client.claims.handlers import is_async, runs_nothing

if TYPE_CHECKING:
    from qdo.worker.worker import Worker

Handler = Callable[[Message, Any], object] | Callable[[Message, Any], Awaitable[object]]
"""``handle(message, context)``: returning means done, raising means not. What it returns is the result of a job."""


class HasHandler(Protocol):
    """Tasks, which have a handler when all of them are defined; see :class:`qdo.Jobs`."""

    def as_handler(self) -> Handler:
        """Returns the function for a worker."""


Context = Callable[[], AbstractContextManager[Any] | AbstractAsyncContextManager[Any]]
"""Called once. Its result is entered before the first message and left after the last; handlers get its value."""


TaskOf = Callable[[Message], Any]
"""Returns the task that a message calls, with its ``timeout`` and ``is_async``, or None if it calls no known task."""


present_delivery: ContextVar[Delivery] = ContextVar("delivery")
"""The delivery of the message that is being handled here."""


def delivery() -> Delivery:
    """Returns the partition of the message that the caller is handling, and the number of the attempt.

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
        LookupError: The caller is not a handler, or not in the thread or task in which it was called.
    """
    return present_delivery.get()


MAX_STATE = 4096
"""Max bytes of a state, as JSON."""

state_setter: ContextVar[Callable[[bytes], None]] = ContextVar("state_setter")
"""Called with the state, as JSON, of the message that is being handled here."""


def set_state(state: object) -> None:
    """Reports how far the caller has come with its message: ``queuey jobs`` shows it.

    The worker sends the last state once a second, and before it releases a message whose handling has failed. Only
    workers that claim their messages send it. Where no message is being handled, as when a test calls a task, nothing
    is done.

    Args:
        state: Any JSON value of up to 4,096 bytes.

    Raises:
        InvalidArgument: It is longer, or no JSON.

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
    if len(text) > MAX_STATE:
        raise InvalidArgument(f"a state has at most {MAX_STATE} bytes of JSON, and this one {len(text)}")
    set_text = state_setter.get(None)
    if set_text is not None:
        set_text(text)


def load_handler(name: str) -> Handler:
    """Returns the handler of ``module:function``, or of the tasks of ``module:jobs``; raises HandlerError."""
    found: Handler = handler_of(find(name))
    check_handler(found, name)
    return found


def traced(handler: Any, tasks: Any = None) -> Any:  # noqa: ANN401 - plain or async; what as_handler() returns
    """Returns a handler that runs in a span of its message's trace, if tracing is on; else itself.

    The span names the task that a message calls, if the handler has tasks; ``tasks`` has them if it is only one of
    their methods.
    """
    if not tracing.enabled():
        return handler
    call_of: CallOf = getattr(tasks or handler, "call_of", calls_nothing)
    if is_async(handler):

        async def handle_async(message: Message, context: object) -> object:
            with tracing.handling(delivery().partition.queue.name, message, call_of(message)):
                return await handler(message, context)

        return handle_async

    def handle(message: Message, context: object) -> object:
        with tracing.handling(delivery().partition.queue.name, message, call_of(message)):
            return handler(message, context)

    return handle


def handler_of(found: Any) -> Any:  # noqa: ANN401 - is judged later
    """Returns the handler of :class:`qdo.Jobs`, or the object itself."""
    make = getattr(found, "as_handler", None)
    return found if make is None or inspect.isclass(found) else make()


def load_context(name: str) -> Context:
    found: Context = find(name, "context")
    check_context(found, name)
    return found


def check_handler(handler: object, name: str = "") -> None:
    """Raises HandlerError unless it can be called with a message and a context."""
    text = name or repr(handler)
    if (why := runs_nothing(handler)) is not None:
        raise HandlerError(f"{text} {why}")
    _check_call(handler, text, 2, "handler(message, context)")


def check_context(factory: object, name: str = "") -> None:
    _check_call(factory, name or repr(factory), 0, "factory()")


def name_of(handler: object, what: str) -> str:
    """Returns the ``module:function`` by which another process finds the same object; raises HandlerError."""
    name = f"{getattr(handler, '__module__', '')}:{getattr(handler, '__qualname__', '')}"
    if name.startswith("__main__:"):
        raise HandlerError(f"the {what} is defined in the program itself; processes need one in a module")
    try:
        same = find(name, what) is handler
    except HandlerError:
        same = False
    if not same:
        raise HandlerError(f"processes need a {what} with a name, module:function, and {handler!r} has none")
    return name


def find(name: str, what: str = "handler") -> Any:  # noqa: ANN401 - whatever has the name
    """Returns the object named ``module:name``; raises HandlerError."""
    module_name, colon, path = name.partition(":")
    if not colon or not module_name or not path:
        raise HandlerError(f"a {what} is named module:function, not {name!r}")
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if module_name == missing or module_name.startswith(missing + "."):
            raise HandlerError(f"there is no module {missing!r} for the {what} {name!r}") from error
        raise HandlerError(f"module {module_name!r} needs {missing!r}, which is not installed") from error
    except Exception as error:
        raise HandlerError(f"module {module_name!r} cannot be imported: {type(error).__name__}: {error}") from error
    for part in path.split("."):
        try:
            found = getattr(found, part)
        except AttributeError as error:
            close = difflib.get_close_matches(part, dir(found), n=1)
            hint = f"; is {close[0]!r} meant?" if close else ""
            raise HandlerError(f"module {module_name!r} has no {path!r}{hint}") from error
    return found


def _check_call(found: Any, name: str, arguments: int, form: str) -> None:  # noqa: ANN401 - is judged here
    if not callable(found):
        raise HandlerError(f"{name} cannot be called; it must be a {form}")
    try:
        signature = inspect.signature(found)
    except (TypeError, ValueError):
        return  # made in C: the call will show it
    try:
        signature.bind(*[None] * arguments)
    except TypeError as error:
        raise HandlerError(f"{name}{signature} cannot be called as {form}: {error}") from error


logger = logging.getLogger("qdo.worker")


class Middleware:
    """Hooks around messages. Any object with some of these methods is a middleware.

    Example:
        >>> from qdo import Middleware
        >>> class Log(Middleware):
        ...     def failed(self, message, delivery, failure):
        ...         print(f"{delivery.partition}: attempt {delivery.attempt} failed with {failure}")

    Hooks are plain functions. If one raises, that is logged and counted, and the worker continues without it:
    no hook can lose a message or prevent its handling.

    ``before`` and ``after`` are called where the handler is: in its thread, or in the loop. With processes they are
    called in the worker's own process. All other methods are called in the loop and must not block it.
    """

    def started(self, worker: Worker) -> None:
        """The worker has joined its group and begins."""

    def stopped(self, worker: Worker) -> None:
        """The worker has left its group."""

    def before(self, message: Message, delivery: Delivery) -> None:
        """The handler is about to be called."""

    def after(self, message: Message, delivery: Delivery) -> None:
        """The handler has returned; called in reverse order, and not after a failure."""

    def failed(self, message: Message, delivery: Delivery, failure: Failure) -> None:
        """An attempt has failed."""

    def retrying(self, message: Message, delivery: Delivery, failure: Failure, seconds: float) -> None:
        """There will be another attempt after so long."""

    def dead(self, message: Message, delivery: Delivery, failure: Failure) -> None:
        """The message was given up: it is a dead letter now, or was skipped."""


Hook = Callable[..., None]

_NAMES = ("started", "stopped", "before", "after", "failed", "retrying", "dead")


class Hooks:
    """The hooks of several middlewares, in their order. ``hook_failed`` gets the name of each hook that raised.

    Raises:
        InvalidArgument: A hook cannot be called, or is async; or an object has none.
    """

    def __init__(self, middleware: Iterable[object], hook_failed: Callable[[str], None]) -> None:
        self._hook_failed = hook_failed
        self._hooks: dict[str, list[Hook]] = {name: [] for name in _NAMES}
        for one in middleware:
            found = {name: hook for name in _NAMES if (hook := _hook(one, name)) is not None}
            if not found and not isinstance(one, Middleware):
                raise InvalidArgument(f"{one!r} has none of the hooks {', '.join(_NAMES)}")
            for name, hook in found.items():
                self._hooks[name].append(hook)
        self._hooks["after"].reverse()
        self.around = bool(self._hooks["before"] or self._hooks["after"])
        """A middleware has hooks for single messages."""

    def call(self, name: str, *arguments: Any) -> None:  # noqa: ANN401 - as the hook has them
        for hook in self._hooks[name]:
            try:
                hook(*arguments)
            except Exception:
                self._hook_failed(name)
                logger.exception("the hook %s of %r failed", name, getattr(hook, "__self__", hook))


def _hook(one: object, name: str) -> Hook | None:
    hook: Any = getattr(one, name, None)
    if hook is None or getattr(hook, "__func__", None) is getattr(Middleware, name):
        return None
    if not callable(hook) or inspect.iscoroutinefunction(hook):
        raise InvalidArgument(f"{name} of {one!r} is no plain function")
    return hook  # type: ignore[no-any-return]
