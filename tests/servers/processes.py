"""Programs that tests start: they receive Ctrl-C, they end with their test, and they have children."""

from __future__ import annotations

import contextlib
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, AnyStr


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


def run_to_end(
    command: Sequence[str | Path],
    timeout: float = 300.0,
    **options: Any,  # noqa: ANN401 - those of subprocess.run
) -> subprocess.CompletedProcess[str]:
    """Runs a program to its end. Without ``input`` it has none; its output is text."""
    given: dict[str, Any] = {"input": "", "capture_output": True, **options}
    return subprocess.run(command, text=True, timeout=timeout, check=False, **given)


def run_well(command: Sequence[str | Path], timeout: float = 300.0, **options: Any) -> str:  # noqa: ANN401 - as above
    """Runs a program, which must end with 0; returns its output, without that on errors."""
    ended = run_to_end(command, timeout, **options)
    assert ended.returncode == 0, f"{command}\n{ended.stdout}{ended.stderr}"
    return ended.stdout


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
