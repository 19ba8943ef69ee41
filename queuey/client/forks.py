"""Resets objects in a forked child process: connections and threads stay with the parent."""

from __future__ import annotations

import os
import signal
import threading
from typing import Protocol
from weakref import WeakSet


class Forkable(Protocol):
    def begin_in_child(self) -> None:
        """Called in the child's only thread, before anything else runs there. Must not block."""


_forkables: WeakSet[Forkable] = WeakSet()


def register_forkable(forkable: Forkable) -> None:
    """Calls the object's ``begin_in_child`` in every child that is forked while the object exists."""
    _forkables.add(forkable)


class DefaultSignals:
    """Resets SIGINT and SIGTERM to their default handlers in forked children, until :meth:`end` is called.

    With the inherited handlers, a signal to the child would wake the parent's event loop and not end the child. The two
    signals are blocked during the fork, so that a signal right after it already meets the default handlers.
    """

    def __init__(self) -> None:
        register_forkable(self)

    def begin_in_child(self) -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def end(self) -> None:
        _forkables.discard(self)


class _Forking(threading.local):
    """State of the forking thread.

    Attributes:
        old_mask: The signal mask from before the fork, to be restored. None outside a fork.
    """

    old_mask: set[signal.Signals | int] | None = None


_forking = _Forking()


def _block_signals() -> None:
    if any(isinstance(living, DefaultSignals) for living in _forkables):
        _forking.old_mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})


def _unblock_signals() -> None:
    if _forking.old_mask is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, _forking.old_mask)
        _forking.old_mask = None


def _run_in_child() -> None:
    try:
        for living in list(_forkables):
            living.begin_in_child()
    finally:
        _unblock_signals()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_block_signals, after_in_parent=_unblock_signals, after_in_child=_run_in_child)
