"""Programs that tests start: they receive Ctrl-C, and they end with their test."""

from __future__ import annotations

import contextlib
import signal
import subprocess
from collections.abc import Iterator
from typing import AnyStr


def restore_interrupts() -> None:
    """Lets programs started from here on end by SIGINT, as if started from a terminal.

    A shell without job control makes its background processes ignore SIGINT, and programs inherit that: Ctrl-C should
    not end a command in the background. The tests need it to.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextlib.contextmanager
def ending(process: subprocess.Popen[AnyStr], patience: float = 30.0) -> Iterator[subprocess.Popen[AnyStr]]:
    """Ends a program at the end of a block, however that is left. ``with process`` alone would wait for its end.

    Args:
        process: Gets SIGTERM first, so that it can end its own children.
        patience: Seconds after which it gets SIGKILL.
    """
    with process:
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(patience)
            except subprocess.TimeoutExpired:
                process.kill()
