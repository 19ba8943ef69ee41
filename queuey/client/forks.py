"""Objects in a child that was forked: the parent keeps their connections and threads."""

from __future__ import annotations

import os
import signal
import threading
from typing import Protocol
from weakref import WeakSet


class Forkable(Protocol):
    def begin_in_child(self) -> None:
        """Called in the child's only thread, before anything else runs there. Must not block."""


_living: WeakSet[Forkable] = WeakSet()


def begin_in_children(one: Forkable) -> None:
    """Calls ``begin_in_child`` of an object in each child that is forked while the object lives."""
    _living.add(one)


class DefaultSignals:
    """Gives children that are forked the default handlers of SIGINT and SIGTERM, until :meth:`end` is called.

    With those of their parent, a signal to a child would reach the parent's event loop, and not end the child. A fork
    holds these signals back, so that one that comes at once meets the default handlers, too.
    """

    def __init__(self) -> None:
        begin_in_children(self)

    def begin_in_child(self) -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def end(self) -> None:
        _living.discard(self)


class _Forking(threading.local):
    """The thread that forks.

    Attributes:
        blocked: The signals that it blocked before a fork; else None.
    """

    blocked: set[signal.Signals | int] | None = None


_forking = _Forking()


def _hold_signals() -> None:
    if any(isinstance(one, DefaultSignals) for one in _living):
        _forking.blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})


def _let_signals_come() -> None:
    if _forking.blocked is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, _forking.blocked)
        _forking.blocked = None


def _begin() -> None:
    try:
        for one in list(_living):
            one.begin_in_child()
    finally:
        _let_signals_come()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_hold_signals, after_in_parent=_let_signals_come, after_in_child=_begin)
