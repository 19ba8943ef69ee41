"""Signals that end a command. Imports little, so that a command handles them as early as possible."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

_INTERRUPT_DELAYS = (0.05, 0.5, 2.0)
"""Seconds until the main thread is interrupted, so that it has entered the system call that it was about to enter."""


def end_by_signal(number: int, _frame: object = None) -> None:
    """Ends the process by a signal; process 1 of a container, which no signal ends, exits with 128 + number."""
    signal.signal(number, signal.SIG_DFL)
    signal.raise_signal(number)
    os._exit(128 + number)


def end_silently_on_signals() -> None:
    """Makes SIGTERM and SIGINT end the process silently, until the command sets its own handlers.

    The default action of the system works at any time, even just before a system call, but not for process 1.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        if signal.getsignal(number) in {signal.SIG_DFL, signal.default_int_handler}:
            signal.signal(number, end_by_signal if os.getpid() == 1 else signal.SIG_DFL)


def stop_with_parent(sentinel: int) -> None:
    """Stops this process, as SIGTERM does, once its parent has ended, however that ended.

    Args:
        sentinel: The end of a pipe whose other end only the parent has, so that the system closes it with the parent.
    """
    import threading

    def wait() -> None:
        while os.read(sentinel, 1):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="parent", daemon=True).start()


@contextmanager
def handle_signals(handler: Callable[[int, object], object], numbers: Iterable[int]) -> Iterator[None]:
    """Handles signals with a function, and restores the handlers at the end. An ignored signal stays ignored.

    Signals also interrupt a system call in which the main thread waits.
    """
    before = {number: old for number in numbers if (old := signal.getsignal(number)) is not signal.SIG_IGN}
    with _interrupt_main_thread():
        try:
            for number in before:
                signal.signal(number, handler)
            yield
        finally:
            for number, old in before.items():
                signal.signal(number, old)


@contextmanager
def _interrupt_main_thread() -> Iterator[None]:
    """Makes each signal interrupt the system call in which the main thread waits, while the block runs.

    Python runs handlers between two instructions of the main thread. If a signal comes just before the thread enters a
    ``recv`` of 20 s, or is delivered to another thread, its handler would run only after that call.
    """
    if not hasattr(signal, "pthread_kill"):
        yield
        return
    import socket
    import threading

    main, ended, (received, sent) = threading.get_ident(), threading.Event(), socket.socketpair()

    def interrupt() -> None:
        while signals := received.recv(64):
            for pause in _INTERRUPT_DELAYS if signals.strip(bytes([signal.SIGURG])) else ():
                if not ended.wait(pause):
                    signal.pthread_kill(main, signal.SIGURG)

    interrupting = threading.Thread(target=interrupt, name="signals", daemon=True)
    with received, sent:
        sent.settimeout(0)
        before = signal.set_wakeup_fd(sent.fileno(), warn_on_full_buffer=False)
        urgent = signal.signal(signal.SIGURG, lambda _number, _frame: None)
        interrupting.start()
        try:
            yield
        finally:
            signal.set_wakeup_fd(before)
            ended.set()
            sent.shutdown(socket.SHUT_WR)
            interrupting.join()
            signal.signal(signal.SIGURG, urgent)
