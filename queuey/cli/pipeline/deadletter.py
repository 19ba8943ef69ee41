"""``queuey pipeline deadletter``: what handlers failed on, over any number of queues."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated
from uuid import uuid4

import typer

from queuey.cli.pipeline.running import PipelineRun, on_spark
from queuey.deadletters import DeadLetter
from queuey.terminal import output, times
from queuey.terminal.commands import group
from queuey.terminal.deadletters import COLUMNS, ORIGIN, WHICH, Choose, choosing, show
from queuey.terminal.output import Block
from queuey.terminal.texts import plural

if TYPE_CHECKING:
    from queuey.pipeline.deadletter.deadletter_job import DeadLetterClasses

app = group()

_SHOWN = 100


@app.command("classes")
@on_spark
@choosing(*ORIGIN, *WHICH)
def classes(
    run: PipelineRun,
    choose: Choose,
    samples: Annotated[int, typer.Option(min=0, max=100, help="Number of dead letters to list for each class.")] = 3,
) -> None:
    """Sort dead letters by queue, class of the error and what its texts have in common. Nothing is changed."""
    from queuey.pipeline.deadletter import deadletter_job

    wanted = choose()
    run.nothing_to_try()
    with run.session() as spark:
        found = deadletter_job.classes(spark, run.store, wanted, samples=samples, say=run.say)
    output.show(found, _described(found))


@app.command("list")
@on_spark
@choosing(*ORIGIN, *WHICH)
def list_dead_letters(run: PipelineRun, choose: Choose) -> None:
    """List dead letters; with --json one a line, whole. Nothing is changed."""
    from queuey.pipeline.deadletter import deadletter_job

    wanted = choose(shown=_SHOWN)
    run.nothing_to_try()
    with run.session() as spark:
        output.show_each(DeadLetter, deadletter_job.each(spark, run.store, wanted, run.say), *COLUMNS)


@app.command("redrive")
@on_spark
@choosing(*ORIGIN, *WHICH)
def redrive(
    run: PipelineRun,
    choose: Choose,
    ttl: Annotated[int | None, times.ttl("How long the messages live, such as 2d.", show_default="the queue's")] = None,
    name: Annotated[
        str | None,
        typer.Option("--run", help="Name of the run; the same name continues a run.", show_default="a new one"),
    ] = None,
) -> None:
    """Send dead letters back to the ends of the partitions that they came from, each once, and remove them.

    A dead letter is removed after it is certain that it was sent. Interrupted, the run may be repeated by its name.
    """
    from queuey.pipeline.deadletter import deadletter_job
    from queuey.pipeline.deadletter.redrive import RedriveOrder

    wanted = choose()
    order = RedriveOrder(run=name or f"redrive-{uuid4().hex[:12]}", wanted=wanted, ttl=ttl, dry_run=run.dry_run)
    if not run.dry_run:
        output.note(f"If it is interrupted, continue with --run {order.run} and the same queues and filters.")
    with run.session() as spark:
        done = deadletter_job.redrive(spark, run.store, order, run.say)
    show(done, dry_run=run.dry_run, run=order.run)


def _described(found: DeadLetterClasses) -> Iterator[Block]:
    from queuey.pipeline.deadletter.selection import ErrorClass

    columns = ("count", "queue", "error", "text", "first", "last", "attempts")
    yield output.table(ErrorClass, found.classes, *columns)
    for one in found.classes:
        for sample in one.samples:
            yield f"{one.queue}  {sample.partition}:{sample.id}  {one.error}: {sample.text}"
    classes = plural(len(found.classes), "class", "classes")
    yield f"{plural(found.dead_letters, 'dead letter')} in {classes}"
