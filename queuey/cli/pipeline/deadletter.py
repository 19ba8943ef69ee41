"""``queuey pipeline deadletter``: what handlers failed on, over any number of queues."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any
from uuid import uuid4

import typer

from queuey.cli import output
from queuey.cli.pipeline import times
from queuey.cli.pipeline.running import PipelineRun, on_spark

if TYPE_CHECKING:
    from queuey.spark.jobs.deadletter.deadletter_job import DeadLetterClasses
    from queuey.spark.jobs.deadletter.redrive import Outcome
    from queuey.spark.jobs.deadletter.selection import DeadLetterFilter

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Sort dead letters by what went wrong, list them, and send them back to where they came from.",
)

_PANEL = "Which dead letters"
_SHOWN = 100
Queues = Annotated[
    list[str] | None,
    typer.Option("--queue", help="Of messages of this queue; several may be given.", rich_help_panel=_PANEL),
]
Patterns = Annotated[
    list[str] | None,
    typer.Option("--pattern", help="Of all queues with such a name: crash-*; several.", rich_help_panel=_PANEL),
]
DeadQueue = Annotated[
    str | None,
    typer.Option(help="The queue in which they lie.", show_default="<queue>.dead", rich_help_panel=_PANEL),
]
Numbers = Annotated[
    list[int] | None,
    typer.Option("--partition", min=1, help="Only of this partition; several may be given.", rich_help_panel=_PANEL),
]
Since = Annotated[str | None, typer.Option(help="Given up at this instant or later.", rich_help_panel=_PANEL)]
Until = Annotated[str | None, typer.Option(help="Given up at this instant or before.", rich_help_panel=_PANEL)]
Error = Annotated[
    str | None, typer.Option(help="Class of the error: ValueError, requests.*; shell style.", rich_help_panel=_PANEL)
]
Limit = Annotated[int | None, typer.Option(min=1, help="At most so many of a queue.", rich_help_panel=_PANEL)]


@app.command("classes")
@on_spark
def classes(
    run: PipelineRun,
    queue: Queues = None,
    pattern: Patterns = None,
    dead_queue: DeadQueue = None,
    partition: Numbers = None,
    since: Since = None,
    until: Until = None,
    error: Error = None,
    limit: Limit = None,
    samples: Annotated[int, typer.Option(min=0, max=100, help="So many letters of each class are named.")] = 3,
) -> None:
    """Sort dead letters by queue, class of the error and what its texts have in common. Nothing is changed."""
    from queuey.spark.jobs.deadletter import deadletter_job

    wanted = _wanted(queue, pattern, dead_queue, partition, since, until, error, limit)
    if run.dry_run:
        _nothing_to_try()
    with run.session() as spark:
        found = deadletter_job.classes(spark, run.store, wanted, samples=samples, say=run.say)
    if run.json:
        output.emit(found)
    else:
        _show_classes(found)


@app.command("list")
@on_spark
def list_dead_letters(
    run: PipelineRun,
    queue: Queues = None,
    pattern: Patterns = None,
    dead_queue: DeadQueue = None,
    partition: Numbers = None,
    since: Since = None,
    until: Until = None,
    error: Error = None,
    limit: Limit = _SHOWN,
) -> None:
    """List dead letters; with --json one a line, whole. Nothing is changed."""
    from queuey.spark.jobs.deadletter import deadletter_job

    wanted = _wanted(queue, pattern, dead_queue, partition, since, until, error, limit)
    if run.dry_run:
        _nothing_to_try()
    rows: list[tuple[object, ...]] = []
    with run.session() as spark:
        for dead_letter in deadletter_job.each(spark, run.store, wanted, run.say):
            if run.json:
                output.emit(dead_letter)
                continue
            cause = dead_letter.cause
            store_at = dead_letter.queue, dead_letter.partition, dead_letter.id
            rows.append((*store_at, times.shown(cause.at), cause.attempts, cause.error, cause.text))
    if not run.json:
        output.table(["queue", "partition", "id", "given up", "attempts", "error", "text"], rows)


@app.command("redrive")
@on_spark
def redrive(
    run: PipelineRun,
    queue: Queues = None,
    pattern: Patterns = None,
    dead_queue: DeadQueue = None,
    partition: Numbers = None,
    since: Since = None,
    until: Until = None,
    error: Error = None,
    limit: Limit = None,
    ttl: Annotated[
        str | None, typer.Option(help="How long they are to live: 3600, 2d.", show_default="the queue's")
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            "--run", help="Name of the run: given again, it goes on and sends nothing twice.", show_default="a new one"
        ),
    ] = None,
) -> None:
    """Send dead letters back to the ends of the partitions that they came from, each once, and remove them.

    A dead letter is removed after it is certain that it was sent. Interrupted, the run may be repeated by its name.
    """
    from queuey.messages import MAX_TTL
    from queuey.spark.jobs.deadletter import deadletter_job
    from queuey.spark.jobs.deadletter.redrive import RedriveOrder

    wanted = _wanted(queue, pattern, dead_queue, partition, since, until, error, limit)
    seconds = None if ttl is None else int(times.length(ttl, least=1, most=MAX_TTL))
    order = RedriveOrder(run=name or f"redrive-{uuid4().hex[:12]}", wanted=wanted, ttl=seconds, dry_run=run.dry_run)
    if not run.dry_run:
        output.note(f"If it is interrupted, go on with --run {order.run} and the same queues and filters.")
    with run.session() as spark:
        outcome = deadletter_job.redrive(spark, run.store, order, run.say)
    if run.json:
        output.emit({"run": order.run, "dry_run": run.dry_run, **_described(outcome)})
    else:
        _show_outcome(outcome, dry_run=run.dry_run)
    if outcome.left:
        raise typer.Exit(1)


def _wanted(
    queues: list[str] | None,
    patterns: list[str] | None,
    dead_queue: str | None,
    partitions: list[int] | None,
    since: str | None,
    until: str | None,
    error: str | None,
    limit: int | None,
) -> DeadLetterFilter:
    """Puts the options together.

    Raises:
        OptionError: Neither a queue nor a pattern is named.
    """
    from queuey.deadletters import DeadLetterChoice
    from queuey.spark.jobs.deadletter.selection import DeadLetterFilter

    now = time.time()
    return DeadLetterFilter(
        queues=tuple(queues or ()),
        patterns=tuple(patterns or ()),
        dead_queue=dead_queue,
        partitions=tuple(sorted(set(partitions or ()))),
        choice=DeadLetterChoice(
            since=None if since is None else times.instant(since, now),
            until=None if until is None else times.instant(until, now),
            error=error,
        ),
        limit=limit,
    )


def _nothing_to_try() -> None:
    output.note("Nothing is changed in any case; --dry-run means nothing here.")


def _show_classes(found: DeadLetterClasses) -> None:
    columns = ["letters", "queue", "error", "text", "first", "last", "attempts"]
    output.table(
        columns,
        [
            (one.count, one.queue, one.error, one.text, times.shown(one.first), times.shown(one.last), one.attempts)
            for one in found.classes
        ],
    )
    for one in found.classes:
        for sample in one.samples:
            output.say(f"{one.queue}  {sample.partition}:{sample.id}  {one.error}: {sample.text}")
    classes = output.plural(len(found.classes), "class", "classes")
    output.say(f"{output.plural(found.dead_letters, 'dead letter')} in {classes}")


def _described(outcome: Outcome) -> dict[str, Any]:
    return {
        "sent": outcome.sent,
        "moved": outcome.moved,
        "kept": outcome.kept,
        "left": outcome.left,
        "samples": outcome.samples,
    }


def _show_outcome(outcome: Outcome, *, dry_run: bool) -> None:
    verb = "would be sent back" if dry_run else "sent back"
    for name, count in sorted(outcome.sent.items()):
        output.say(f"{name}: {output.plural(count, 'dead letter')} {verb}")
    if not outcome.sent:
        output.say(f"0 dead letters {verb}")
    if outcome.moved:
        output.say(f"{outcome.moved} of them got other ids than those reserved first")
    for reason, count in sorted(outcome.left.items()):
        output.say(f"{count} stay: {reason}")
    for one in outcome.samples:
        output.note(f"{one.lies_in} {one.partition}:{one.id} stays: {one.reason}")
