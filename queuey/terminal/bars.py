"""A bar on a terminal for what takes long."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from queuey.terminal.texts import printable


@contextmanager
def bar() -> Iterator[Callable[[str, int, int | None], None]]:
    """Shows a bar on standard error, if that is a terminal; gives the function that moves it.

    It is called with a text, how much is done, and how much there is to do, None if that is not known.
    """
    if not sys.stderr.isatty():
        yield lambda _text, _done, _total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task("", total=None)

        def move(text: str, done: int, total: int | None) -> None:
            known = None if total is None else max(total, done)
            shown.update(task, description=printable(text), completed=done, total=known)

        yield move
