"""Options that select dead letters, and how dead letters are shown."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import partial
from typing import Annotated, Any

import msgspec
import typer

from queuey.model.deadletters import Cause, DeadLetter, DeadLetterFilter, Redriven
from queuey.model.task_calls import find_call
from queuey.model.texts import format_count
from queuey.model.titles import Column, make_inner_columns
from queuey.terminal import output, times
from queuey.terminal.commands import optional, with_parameters
from queuey.terminal.output import Block, ToStderr

Choose = Callable[..., DeadLetterFilter]
"""Returns the filter of the options. It also takes the arguments of :func:`make_filter`, for what has no option."""
QUEUE_OPTIONS = ("queue", "pattern", "dead_queue")
"""Options for the queues of dead letters: where they came from, and where they are."""
FILTER_OPTIONS = ("partition", "since", "until", "error", "limit")
"""Options that choose among the dead letters of these queues."""

_CAUSE_COLUMNS = make_inner_columns("cause", Cause, "at", "attempts", "error", "text")


def _task_text(letter: DeadLetter) -> str:
    call = find_call(letter.body) if letter.json else None
    return "" if call is None else str(call)


COLUMNS: tuple[Column, ...] = ("queue", "partition", "id", ("task", _task_text), *_CAUSE_COLUMNS)
_PANEL = "Which dead letters"


def _make_option(help_text: str, *names: str, **others: Any) -> Any:  # noqa: ANN401 - typer's
    return typer.Option(*names, help=help_text, rich_help_panel=_PANEL, **others)


_OPTIONS: dict[str, Any] = {
    "queue": Annotated[list[str] | None, _make_option("Queue that they came from; several may be given.", "--queue")],
    "pattern": Annotated[list[str] | None, _make_option("Queues that they came from: crash-*; several.", "--pattern")],
    "dead_queue": Annotated[
        str | None, _make_option("Queue that holds them.", show_default="<queue>.dead and the queue's dead_letter")
    ],
    "partition": Annotated[
        list[int] | None, _make_option("Only this partition; several may be given.", "--partition", min=1)
    ],
    "since": Annotated[float | None, times.instant("Given up at or after this time.", rich_help_panel=_PANEL)],
    "until": Annotated[float | None, times.instant("Given up at or before this time.", rich_help_panel=_PANEL)],
    "error": Annotated[str | None, _make_option("Class of the error, or a shell pattern: ValueError, requests.*")],
    "limit": Annotated[int | None, _make_option("Max dead letters of each queue of dead letters.", min=1)],
}


def with_filter(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Adds the named options to a command, which receives them as its parameter ``choose``."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        parameters = inspect.signature(command, eval_str=True).parameters.values()
        first, *others = (parameter for parameter in parameters if parameter.name != "choose")

        def run(**values: Any) -> Any:  # noqa: ANN401 - the options of any command
            return command(choose=partial(make_filter, **{name: values.pop(name) for name in names}), **values)

        return with_parameters(run, command, [first, *(optional(name, _OPTIONS[name]) for name in names), *others])

    return decorate


def make_filter(*, shown: int | None = None, **options: Any) -> DeadLetterFilter:  # noqa: ANN401 - values of options
    """Makes a filter of the options; ``shown`` is the default limit.

    Raises:
        typer.BadParameter: Neither a queue nor a pattern is given.
    """
    options["limit"] = options.get("limit") or shown
    for name in ("queue", "pattern"):
        options[f"{name}s"] = tuple(options.pop(name, None) or ())
    options["partitions"] = tuple(sorted(set(options.pop("partition", None) or ())))
    try:
        return DeadLetterFilter(**options)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def show(done: Redriven, *, dry_run: bool) -> None:
    """Prints what a redrive did, or would do.

    Args:
        done: The result.
        dry_run: Whether nothing was changed.

    Raises:
        typer.Exit: Some dead letters cannot be sent back.
    """
    output.show({"dry_run": dry_run, **msgspec.structs.asdict(done)}, _describe(done, dry_run=dry_run))
    if done.left or done.error:
        raise typer.Exit(1)


def _describe(redriven: Redriven, *, dry_run: bool) -> Iterator[Block]:
    verb = "would be sent back" if dry_run else "sent back"
    for name, count in sorted(redriven.sent.items()):
        yield f"{name}: {format_count(count, 'dead letter')} {verb}"
    if not redriven.sent:
        yield f"0 dead letters {verb}"
    if redriven.already_sent:
        yield f"{redriven.already_sent} had been sent back before, and were removed now"
    for reason, count in sorted(redriven.left.items()):
        yield f"{count} stay: {reason}"
    for sample in redriven.samples:
        yield ToStderr(f"{sample.lies_in} {sample.partition}:{sample.id} stays: {sample.reason}")
    if redriven.error:
        yield ToStderr(f"Then it failed: {redriven.error}")
