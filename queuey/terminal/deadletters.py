"""Options that select dead letters, and how dead letters are shown."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import typer

from queuey.model.deadletters import Cause, DeadLetter, DeadLetterFilter, Redriven
from queuey.model.task_calls import find_call
from queuey.model.texts import format_count
from queuey.model.titles import Column, make_inner_columns
from queuey.terminal import output
from queuey.terminal.output import Block, ToStderr
from queuey.terminal.struct_options import with_fields

with_queues_and_filter = with_fields(DeadLetterFilter)
"""Adds the options of a filter to a command."""
with_filter = with_fields(DeadLetterFilter, without=("queues", "patterns", "dead_queue"))
"""Adds the options of a filter to a command that has others for the queues."""

_CAUSE_COLUMNS = make_inner_columns("cause", Cause, "at", "attempts", "error", "text")


def _task_text(letter: DeadLetter) -> str:
    call = find_call(letter.body) if letter.json else None
    return "" if call is None else str(call)


COLUMNS: tuple[Column, ...] = ("queue", "partition", "id", ("task", _task_text), *_CAUSE_COLUMNS)


def make_filter(fields: dict[str, Any]) -> DeadLetterFilter:
    """Makes a filter of the values of its options.

    Raises:
        typer.BadParameter: Neither a queue nor a pattern is given.
    """
    try:
        return DeadLetterFilter(**fields)
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
