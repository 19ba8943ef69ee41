"""The end of a ``qdo work`` whose handlers keep it from ending, so that a supervisor can start it again.

:mod:`faulthandler` ends a process in which nothing else runs, because its timer does not need the interpreter's lock. A
process has one such timer. It stands still while the machine sleeps, but not while a signal has stopped the process.
"""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from qdo.tasks import cancel

if TYPE_CHECKING:
    from qdo.worker.worker import Worker

log = logging.getLogger("qdo.cli")

_MAX_INTERVAL = 1.0
"""Interval between two settings of the timer, at most, in seconds."""
_STANDARD_ERROR = 2
_MIN_LEFT = 1.0
"""Min seconds for tasks, threads and the handlers' context to end after the worker, although its time is over."""


@asynccontextmanager
async def ended_if_blocked(seconds: float) -> AsyncIterator[None]:
    """Ends the process with code 1, and its stacks on standard error, if the event loop stands still for so long."""

    async def postpone() -> None:
        while True:
            interval = _set_timer(seconds)
            await asyncio.sleep(interval)

    postponing = asyncio.create_task(postpone())
    try:
        yield
    finally:
        await cancel(postponing)
        faulthandler.cancel_dump_traceback_later()


def end_child_if_blocked(seconds: float) -> None:
    """Ends a child if its interpreter is blocked for that long and no parent is left to kill it."""

    def postpone() -> None:
        while True:
            time.sleep(_set_timer(seconds))

    threading.Thread(target=postpone, name="qdo-blocked", daemon=True).start()


def _set_timer(seconds: float) -> float:
    """Sets the timer anew; returns the seconds after which to do so again."""
    interval = min(_MAX_INTERVAL, seconds / 10)
    # Two intervals later, so that the session ends first and the log says why.
    faulthandler.dump_traceback_later(seconds + 2 * interval, exit=True, file=_STANDARD_ERROR)
    return interval


class EndedInTime:
    """Middleware that ends the process in time although a handler's tasks or threads go on after the worker."""

    def stopped(self, worker: Worker) -> None:
        """Tasks and threads get the rest of the time for draining."""
        timer = threading.Timer(max(_MIN_LEFT, worker.time_left), self._end, [worker, sys.exc_info()[1]])
        timer.daemon = True
        timer.start()

    @staticmethod
    def _end(worker: Worker, error: BaseException | None) -> None:
        try:
            worker.give_up()
            if error is not None:
                log.critical("the worker ends by an error: %s", error)
            log.warning("tasks or threads that handlers have begun go on: the process ends without them")
            sys.stdout.flush()
        finally:
            os._exit(worker.exit_code)


def end_at_once_if_told() -> None:
    """Ends the process at once by a signal to end; while the worker serves, it handles the signals."""
    from qdo.worker import exit_codes

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: os._exit(exit_codes.FAILED))
