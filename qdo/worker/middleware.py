"""Middleware: what others want to do around messages."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from qdo.errors import InvalidArgument
from qdo.worker.failure import Delivery, Failure
from queuey.client import Message

if TYPE_CHECKING:
    from qdo.worker.worker import Worker

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
