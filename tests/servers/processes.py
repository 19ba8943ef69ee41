"""Programs that tests start: they hear Ctrl-C, and they end with their test."""

from __future__ import annotations

import contextlib
import signal
import subprocess
from collections.abc import Iterator
from typing import AnyStr


def hear_interrupts() -> None:
    """Has programs that are started from here on end by SIGINT, as they do when started from a terminal.

    A shell without job control makes what it runs in the background ignore SIGINT, and a program inherits that, as it
    should: whoever starts a command in the background does not want Ctrl-C to end it. The tests want it to.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextlib.contextmanager
def ending(process: subprocess.Popen[AnyStr], patience: float = 30.0) -> Iterator[subprocess.Popen[AnyStr]]:
    """Ends a program when its block is left, however that happens; ``with process`` alone would wait for its end.

    Args:
        process: Gets SIGTERM first, so that it can end what it has started itself.
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
