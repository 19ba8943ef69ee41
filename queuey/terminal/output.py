"""Output, confirmation and exit codes, the same for both command lines.

With ``--json`` standard output carries one JSON document, or one a line, and nothing else. Without it tables are
drawn on a terminal and written as aligned text elsewhere, so that no value is ever cut off in a pipe.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from io import TextIOWrapper
from itertools import takewhile
from typing import Annotated, Any, NoReturn, TextIO, TypeVar
from weakref import WeakSet

import msgspec
import typer

from queuey.terminal.signals import end_by
from queuey.terminal.texts import IN_A_TEXT, escape, escape_json, printable

Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else on standard output.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
DryRun = Annotated[bool, typer.Option("--dry-run", "-n", help="Show what would be done, and change nothing.")]

T = TypeVar("T")

_NUMBER = re.compile(r"-?[0-9.,+]*")
FAILED, WRONG_USAGE, INTERRUPTED = 1, 2, 130
"""Exit codes: a failure; wrong usage or settings; Ctrl-C."""
BAD_ADDRESS, BAD_STORE, NEWER_STORE, BAD_TLS = 3, 4, 5, 6
"""Further exit codes of ``queuey serve``; see :mod:`queuey.cli.operations.serving`."""

_unread = WeakSet[TextIO]()
"""Outputs whose reader has gone away."""


class Failed(Exception):
    """Ends a command with a line for people.

    Args:
        text: The line.
        exit_code: The exit code.
    """

    def __init__(self, text: str, exit_code: int = FAILED) -> None:
        super().__init__(text)
        self.exit_code = exit_code


def reason_of(error: Exception) -> str:
    """Returns the reason of an error of the system, and the file that it is about."""
    strerror = getattr(error, "strerror", None)
    filename = getattr(error, "filename", None)
    return f"{strerror}{f' ({filename})' if filename else ''}" if strerror else str(error)


def say(text: str = "") -> None:
    """Prints a line of the result to standard output."""
    _print(f"{printable(text)}\n")


def note(text: str) -> None:
    """Prints a line to standard error."""
    try:
        sys.stderr.write(f"{printable(text)}\n")
        sys.stderr.flush()
    except OSError:
        _silence(sys.stderr)  # The output is closed or cannot be written, so no error can be shown.


def wants_json() -> bool:
    return "--json" in takewhile("--".__ne__, sys.argv)


def fail(text: str, kind: str = "Failed", exit_code: int = FAILED, begin: str = "queuey: ") -> None:
    """Prints the error that ends a command; with ``--json`` as a JSON document.

    Args:
        text: For people.
        kind: For programs; stable.
        exit_code: The exit code of the command.
        begin: What is printed before the text for people.
    """
    if not wants_json():
        note(begin + text)
        return
    note(msgspec.json.encode({"type": kind, "title": text, "exit_code": exit_code}).decode())


def emit(value: object) -> None:
    write(msgspec.json.encode(value) + b"\n", json=True)


def write(data: bytes, *, json: bool = False) -> None:
    """Writes a part of a stream of results at once, so that a reader of the pipe sees it as it comes.

    If nobody reads it any more, the command ends with success: it has nothing else to do.

    Args:
        data: As they are to be; a terminal gets text, escaped.
        json: Escape as JSON does.
    """
    if sys.stdout.isatty():
        _print(IN_A_TEXT.sub(escape_json if json else escape, data.decode("utf-8", "backslashreplace")))
    else:
        _print(data)
    if is_unread():
        raise SystemExit(0)


def is_unread() -> bool:
    """Returns whether the reader of a pipe has gone away."""
    return sys.stdout in _unread


def aligned(rows: Sequence[Sequence[str]], right: Sequence[bool]) -> None:
    """Prints escaped cells in columns; ``right`` are aligned to the right."""
    widths = [max(len(row[index]) for row in rows) for index in range(len(right))]
    for row in rows:
        parts = (
            value.rjust(width) if to_right else value.ljust(width)
            for value, width, to_right in zip(row, widths, right, strict=True)
        )
        _print("  ".join(parts).rstrip() + "\n")


def confirm(question: str, *, yes: bool) -> None:
    """Asks before something that cannot be undone.

    Raises:
        Failed: There is no terminal.
        typer.Exit: The answer is no.
    """
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise Failed(f"{question} There is no terminal to ask: repeat with --yes.", WRONG_USAGE)
    if not typer.confirm(printable(question), err=True):
        note("Nothing was changed.")
        raise typer.Exit(1)


def run(
    program: str,
    command: Callable[[], object],
    known: tuple[type[Exception], ...],
    is_usage: Callable[[Exception], bool],
) -> NoReturn:
    """Runs a command line and ends the process, without a traceback for ordinary errors.

    Args:
        program: Its name.
        command: Does the work; may raise ``SystemExit``.
        known: Errors whose text says all there is to say: exit code 1.
        is_usage: Whether such an error is one of usage: exit code 2.
    """
    if signal.getsignal(signal.SIGINT) is end_by:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    _replace_closed()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # for what the locale's encoding does not have
    code: int | str | None = FAILED
    ended_by: tuple[type[Exception], ...] = (Failed, *known)
    try:
        command()
    except SystemExit as ended:
        code = ended.code
    except KeyboardInterrupt:
        code = INTERRUPTED
    except ended_by as error:
        notes = getattr(error, "__notes__", ())
        text = str(error).removesuffix(".") if notes else str(error)
        code = error.exit_code if isinstance(error, Failed) else WRONG_USAGE if is_usage(error) else FAILED
        fail("; ".join([text, *notes]), getattr(error, "code", "Failed"), code, f"{program}: ")
    except OSError as error:
        fail(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}", begin=f"{program}: ")
    try:
        _print("")
    except SystemExit as ended:
        code = ended.code or code
    sys.exit(code)


def _replace_closed() -> None:
    """Opens standard streams that are closed (``>&-``): else a file or socket would get their numbers."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: PTH123, SIM115 - stays open to the end


def _print(data: str | bytes) -> None:
    """Writes to standard output; to nowhere once the reader of a pipe has gone away.

    Raises:
        SystemExit: The output cannot be written, which was said.
    """
    try:
        if isinstance(data, str):
            sys.stdout.write(data)
        else:
            sys.stdout.flush()
            sys.stdout.buffer.write(data)
        sys.stdout.flush()
    except BrokenPipeError:
        _silence(sys.stdout)
        _unread.add(sys.stdout)
    except OSError as error:
        _silence(sys.stdout)
        note(f"The output is not complete: {error.strerror}.")
        raise SystemExit(FAILED) from error


def _silence(stream: TextIO) -> None:
    """Redirects a broken stream to nowhere, so that closing it at exit raises nothing."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    cells = [[cell(value) for value in row] for row in rows]
    numeric = [bool(cells) and all(_NUMBER.fullmatch(row[index]) for row in cells) for index in range(len(columns))]
    if not sys.stdout.isatty():
        aligned([list(columns), *cells], numeric)
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name, right in zip(columns, numeric, strict=True):
        drawn.add_column(name, justify="right" if right else "left", overflow="fold")
    for row in cells:
        drawn.add_row(*(Text(value) for value in row))
    Console().print(drawn)


def listed(columns: Sequence[str], found: Iterable[T], row: Callable[[T], Sequence[Any]], *, json: bool) -> None:
    """Prints things: as a table, or with ``json`` one a line, each as soon as it is there."""
    if not json:
        table(columns, map(row, found))
        return
    for one in found:
        write(msgspec.json.encode(one) + b"\n", json=True)


def pairs(values: Iterable[tuple[str, Any]]) -> None:
    aligned([(name, cell(value)) for name, value in values], (False, False))


def cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list | tuple):
        return ", ".join(cell(item) for item in value)
    return printable(str(value))
