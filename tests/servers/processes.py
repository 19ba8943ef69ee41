"""Programs that tests start: they receive Ctrl-C, they end with their test, and they have children."""

from __future__ import annotations

import contextlib
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
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


def _list_processes() -> Iterator[tuple[int, int, int]]:
    """Yields the id, the parent and the group of each process; a zombie counts as ended."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, parent, group = stat.read_text().rpartition(")")[2].split()[:3]
            if state != "Z":
                yield int(stat.parent.name), int(parent), int(group)


def children(parent: int) -> list[int]:
    return [process for process, its_parent, _ in _list_processes() if its_parent == parent]


def live_processes(group: int) -> list[int]:
    return [process for process, _, its_group in _list_processes() if its_group == group]


def is_alive(process: int) -> bool:
    return any(process == each for each, _, _ in _list_processes())
