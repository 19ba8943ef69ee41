"""Output, confirmation and exit codes, the same for both command lines.

A command passes its result, a struct or a mapping, to :func:`show`, and does not check whether ``--json`` is given.
With ``--json``, standard output has the result as one JSON document and nothing else. Without it, people get the text
that the command passes with the result: a sentence, or an iterable of sentences, notes, fields and tables. The iterable
is not consumed with ``--json``, so it may request more from the service. Results of one kind go to :func:`show_each`: a
JSON document per line, each as soon as it arrives, or one table.

Title and unit of a field are defined with its struct (:mod:`queuey.model.titles`): :func:`fields` and :func:`table`
take names of fields and look them up there. A column made of several fields is a title with a function. Tables are
drawn on a terminal and written as aligned text elsewhere, so that no value is cut off in a pipe.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import AsyncIterable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from io import TextIOWrapper
from itertools import takewhile
from typing import Annotated, Any, NamedTuple, NoReturn, TextIO
from weakref import WeakSet

import msgspec
import typer

from queuey.model.texts import UNSAFE_IN_TEXT, escape, escape_json, printable
from queuey.model.titles import Column, make_columns
from queuey.terminal.signals import end_by_signal

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
DryRun = Annotated[bool, typer.Option("--dry-run", "-n", help="Show what would be done without changing anything.")]

_NUMBER = re.compile(r"-?[0-9.,+]*")
FAILED, WRONG_USAGE, INTERRUPTED = 1, 2, 130
"""Exit codes: a failure; wrong usage or settings; Ctrl-C."""
BAD_ADDRESS, BAD_STORE, OTHER_STORE, BAD_TLS = 3, 4, 5, 6
"""Further exit codes of ``queuey serve``. See :mod:`queuey.cli.operations.serving`."""

_closed_outputs = WeakSet[TextIO]()
"""Outputs whose reader has closed the pipe."""
_is_json: ContextVar[bool] = ContextVar("json", default=False)
"""Whether the running command was given ``--json``. Errors use :func:`is_json_in_argv`."""


class Failed(Exception):
    """Ends a command with a line of text and an exit code.

    Args:
        text: The line.
        exit_code: The exit code.
    """

    def __init__(self, text: str, exit_code: int = FAILED) -> None:
        super().__init__(text)
        self.exit_code = exit_code


def os_error_text(error: Exception) -> str:
    strerror = getattr(error, "strerror", None)
    filename = getattr(error, "filename", None)
    return f"{strerror}{f' ({filename})' if filename else ''}" if strerror else str(error)


class ToStderr(str):
    """A sentence that goes to standard error."""

    __slots__ = ()


class TitledValues(NamedTuple):
    """Titles and values, one pair per line."""

    pairs: Sequence[tuple[str, object]]


class Table(NamedTuple):
    """Titles of columns, and rows of values. A column of numbers alone is aligned to the right."""

    titles: Sequence[str]
    rows: Iterable[Sequence[object]]


Block = str | TitledValues | Table
"""A block of output: a sentence, a sentence for standard error, fields, or a table."""


def show(result: object, text: str | Iterable[Block] | None = None) -> None:
    """Prints the result of a command: as JSON with ``--json``, otherwise the text.

    Args:
        result: The struct or mapping.
        text: A sentence, or any number of blocks. None shows all fields of the struct.
    """
    if _is_json.get():
        write_json(result)
        return
    if text is None:
        text = (fields(result),)
    for block in (text,) if isinstance(text, str) else text:
        _print_block(block)


def show_each(kind: type, things: Iterable[Any], *chosen: Column) -> None:
    if not _is_json.get():
        _print_block(table(kind, things, *chosen))
        return
    for thing in things:
        write_json(thing)


async def show_each_async(kind: type, things: AsyncIterable[Any], *chosen: Column) -> None:
    rows = []
    async for thing in things:
        if _is_json.get():
            write_json(thing)
        else:
            rows.append(thing)
    if not _is_json.get():
        _print_block(table(kind, rows, *chosen))


def fields(thing: object, *chosen: Column) -> TitledValues:
    return TitledValues([(title, value(thing)) for title, value in make_columns(type(thing), chosen)])


def table(kind: type, things: Iterable[Any] | Mapping[Any, Any], *chosen: Column, key: str = "") -> Table:
    """Returns a table of structs.

    Args:
        kind: The type of the structs.
        things: The structs, or a mapping to them, which is shown sorted.
        chosen: The columns; all fields if none are given.
        key: Title of the column with the mapping's keys.
    """
    shown = make_columns(kind, chosen)
    titles, values = [title for title, _ in shown], [value for _, value in shown]
    if isinstance(things, Mapping):
        rows = ([name, *(value(thing) for value in values)] for name, thing in sorted(things.items()))
        return Table([key, *titles], rows)
    return Table(titles, ([value(thing) for value in values] for thing in things))


def _print_block(block: Block) -> None:
    if isinstance(block, ToStderr):
        print_note(block)
    elif isinstance(block, str):
        print_line(block)
    elif isinstance(block, TitledValues):
        _print_aligned([(title, cell(value)) for title, value in block.pairs], (False, False))
    else:
        _print_table(block)


def is_json_chosen() -> bool:
    return _is_json.get()


def choose_json(is_given: bool) -> bool:  # noqa: FBT001 - what typer hands on
    _is_json.set(is_given)
    return is_given


def print_line(text: str = "") -> None:
    _print(f"{printable(text)}\n")


def print_note(text: str) -> None:
    """Prints a line to standard error, or nothing if that cannot be written."""
    try:
        sys.stderr.write(f"{printable(text)}\n")
        sys.stderr.flush()
    except OSError:
        _silence(sys.stderr)  # Standard error is closed or cannot be written, so no error can be shown.


def note_pause(pause: float, error: Exception) -> None:
    print_note(f"The request failed. Retrying in {pause:.0f} s: {error}")


def is_json_in_argv() -> bool:
    return "--json" in takewhile("--".__ne__, sys.argv)


def print_error(text: str, kind: str = "Failed", exit_code: int = FAILED, begin: str = "queuey: ") -> None:
    """Prints an error to standard error; with ``--json`` as a JSON document. The caller ends the command.

    Args:
        text: The error for people.
        kind: The error for programs; stable.
        exit_code: The exit code of the command.
        begin: Text before the error, without ``--json``.
    """
    if not is_json_in_argv():
        print_note(begin + text)
        return
    print_note(msgspec.json.encode({"type": kind, "title": text, "exit_code": exit_code}).decode())


def write_json(value: object) -> None:
    write(msgspec.json.encode(value) + b"\n", json=True)


def write(data: bytes, *, json: bool = False) -> None:
    """Writes and flushes a part of a stream of results, so that the reader of a pipe gets it at once.

    If the reader has closed the pipe, the command ends with success, as it has nothing else to do.

    Args:
        data: The bytes to write; a terminal gets them as escaped text.
        json: Whether to escape as JSON does.
    """
    if sys.stdout.isatty():
        _print(UNSAFE_IN_TEXT.sub(escape_json if json else escape, data.decode("utf-8", "backslashreplace")))
    else:
        _print(data)
    if is_output_closed():
        raise SystemExit(0)


def is_output_closed() -> bool:
    return sys.stdout in _closed_outputs


def confirm(question: str, *, yes: bool) -> None:
    """Asks for confirmation, unless ``yes`` is set.

    Raises:
        Failed: There is no terminal to ask.
        typer.Exit: The answer is no.
    """
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise Failed(f"{question} There is no terminal to ask: repeat with --yes.", WRONG_USAGE)
    if not typer.confirm(printable(question), err=True):
        print_note("Nothing was changed.")
        raise typer.Exit(1)


def run(
    program: str,
    command: Callable[[], object],
    known: tuple[type[Exception], ...],
    is_usage: Callable[[Exception], bool],
) -> NoReturn:
    """Runs a command line and ends the process, without a traceback for expected errors and those of the system.

    Args:
        program: Name of the program.
        command: Does the work; may raise ``SystemExit``.
        known: Expected errors: only their text is printed, with exit code 1.
        is_usage: Returns whether such an error is wrong usage: exit code 2.
    """
    if signal.getsignal(signal.SIGINT) in {end_by_signal, signal.SIG_DFL}:  # See end_at_once.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    _replace_closed()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # for characters outside the locale's encoding
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
        kind = getattr(error, "code", getattr(error.__cause__, "code", "Failed"))
        print_error("; ".join([text, *notes]), kind, code, f"{program}: ")
    except OSError as error:
        print_error(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}", begin=f"{program}: ")
    try:
        _print("")
    except SystemExit as ended:
        code = ended.code or code
    sys.exit(code)


def _replace_closed() -> None:
    """Opens closed standard streams (``>&-``) as ``/dev/null``: else a file or socket would get their numbers."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: PTH123, SIM115 - stays open to the end


def _print(data: str | bytes) -> None:
    """Writes to standard output, and discards the data once the reader has closed the pipe.

    Raises:
        SystemExit: The output cannot be written; the reason has been printed.
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
        _closed_outputs.add(sys.stdout)
    except OSError as error:
        _silence(sys.stdout)
        print_note(f"The output is not complete: {error.strerror}.")
        raise SystemExit(FAILED) from error


def _silence(stream: TextIO) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _print_table(drawn: Table) -> None:
    cells = [[cell(value) for value in row] for row in drawn.rows]
    numeric = [bool(cells) and all(_NUMBER.fullmatch(row[n]) for row in cells) for n in range(len(drawn.titles))]
    if not sys.stdout.isatty():
        _print_aligned([list(drawn.titles), *cells], numeric)
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    rich = RichTable(box=box.SIMPLE_HEAD, pad_edge=False)
    for name, right in zip(drawn.titles, numeric, strict=True):
        rich.add_column(name, justify="right" if right else "left", overflow="fold")
    for row in cells:
        rich.add_row(*(Text(value) for value in row))
    Console().print(rich)


def _print_aligned(rows: Sequence[Sequence[str]], right: Sequence[bool]) -> None:
    widths = [max(len(row[index]) for row in rows) for index in range(len(right))]
    for row in rows:
        parts = (
            value.rjust(width) if to_right else value.ljust(width)
            for value, width, to_right in zip(row, widths, right, strict=True)
        )
        _print("  ".join(parts).rstrip() + "\n")


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


@contextmanager
def bar() -> Iterator[Callable[[str, int, int | None], None]]:
    """Shows a progress bar on standard error, if that is a terminal; yields the function that updates it.

    Its arguments are a text, the amount done, and the total, or None if the total is unknown.
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
            shown_total = None if total is None else max(total, done)
            shown.update(task, description=printable(text), completed=done, total=shown_total)

        yield move
