"""Commands about dead letters: options that select them, and how they are shown."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import partial
from typing import Annotated, Any

import msgspec
import typer

from queuey.deadletters import Cause, DeadLetter, DeadLetterFilter, Redriven
from queuey.terminal import output, times
from queuey.terminal.commands import optional, with_parameters
from queuey.terminal.output import Block, ToStderr
from queuey.terminal.task_calls import shown_call
from queuey.terminal.texts import plural
from queuey.titles import Column, within

Choose = Callable[..., DeadLetterFilter]
"""Gives what the options say; see :func:`chosen`, whose arguments it takes too, for what has no option."""
ORIGIN = ("queue", "pattern", "dead_queue")
"""Options that say where dead letters came from and lie."""
WHICH = ("partition", "since", "until", "error", "limit")
"""Options that choose among them."""

_CAUSE = within("cause", Cause, "at", "attempts", "error", "text")


def _task(letter: DeadLetter) -> str:
    """Returns the task that a dead letter calls, with a short form of the arguments; blank if it calls none."""
    call = shown_call(letter.body) if letter.json else None
    return "" if call is None else str(call)


COLUMNS: tuple[Column, ...] = ("queue", "partition", "id", ("task", _task), *_CAUSE)
"""Columns of a dead letter."""
_PANEL = "Which dead letters"


def _option(help_text: str, *names: str, **others: Any) -> Any:  # noqa: ANN401 - typer's
    return typer.Option(*names, help=help_text, rich_help_panel=_PANEL, **others)


_OPTIONS: dict[str, Any] = {
    "queue": Annotated[list[str] | None, _option("Of messages of this queue; several may be given.", "--queue")],
    "pattern": Annotated[list[str] | None, _option("Of all queues with such a name: crash-*; several.", "--pattern")],
    "dead_queue": Annotated[
        str | None, _option("The queue in which they lie.", show_default="<queue>.dead and the queue's dead_letter")
    ],
    "partition": Annotated[
        list[int] | None, _option("Only of this partition; several may be given.", "--partition", min=1)
    ],
    "since": Annotated[float | None, times.instant("Given up at this instant or later.", rich_help_panel=_PANEL)],
    "until": Annotated[float | None, times.instant("Given up at this instant or before.", rich_help_panel=_PANEL)],
    "error": Annotated[str | None, _option("Class of the error: ValueError, requests.*; shell style.")],
    "limit": Annotated[int | None, _option("At most so many of a queue of dead letters.", min=1)],
}


def choosing(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Adds the named options to a command, which receives them as its parameter ``choose``."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        parameters = inspect.signature(command, eval_str=True).parameters.values()
        first, *others = (each for each in parameters if each.name != "choose")

        def run(**values: Any) -> Any:  # noqa: ANN401 - the options of any command
            return command(choose=partial(chosen, **{name: values.pop(name) for name in names}), **values)

        return with_parameters(run, command, [first, *(optional(name, _OPTIONS[name]) for name in names), *others])

    return decorate


def chosen(*, shown: int | None = None, **given: Any) -> DeadLetterFilter:  # noqa: ANN401 - values of options
    """Puts the options together; ``shown`` is the limit where none is given.

    Raises:
        typer.BadParameter: Neither a queue nor a pattern is named.
    """
    given["limit"] = given.get("limit") or shown
    for name in ("queue", "pattern"):
        given[f"{name}s"] = tuple(given.pop(name, None) or ())
    given["partitions"] = tuple(sorted(set(given.pop("partition", None) or ())))
    try:
        return DeadLetterFilter(**given)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def show(done: Redriven, *, dry_run: bool, **about: object) -> None:
    """Prints what a redrive did, or would do.

    Args:
        done: The result.
        dry_run: Nothing was changed.
        **about: What the document says beside.

    Raises:
        typer.Exit: Some cannot go back.
    """
    output.show({**about, "dry_run": dry_run, **msgspec.structs.asdict(done)}, _described(done, dry_run=dry_run))
    if done.left:
        raise typer.Exit(1)


def _described(done: Redriven, *, dry_run: bool) -> Iterator[Block]:
    verb = "would be sent back" if dry_run else "sent back"
    for name, count in sorted(done.sent.items()):
        yield f"{name}: {plural(count, 'dead letter')} {verb}"
    if not done.sent:
        yield f"0 dead letters {verb}"
    if done.moved:
        yield f"{done.moved} of them got other ids than those reserved first"
    for reason, count in sorted(done.left.items()):
        yield f"{count} stay: {reason}"
    for one in done.samples:
        yield ToStderr(f"{one.lies_in} {one.partition}:{one.id} stays: {one.reason}")
