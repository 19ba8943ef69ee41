"""``queuey pipeline deadletter``: dead letters of any number of queues."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from queuey.cli.pipeline.running import PipelineRun, on_spark
from queuey.model.texts import format_count
from queuey.terminal import output, times
from queuey.terminal.commands import make_group
from queuey.terminal.deadletters import make_filter, show, with_queues_and_filter
from queuey.terminal.output import Block

if TYPE_CHECKING:
    from queuey.pipeline.deadletter.deadletter_job import DeadLetterClasses

app = make_group()


@app.command("classes")
@on_spark
@with_queues_and_filter
def classes(
    run: PipelineRun,
    fields: dict[str, Any],
    samples: Annotated[int, typer.Option(min=0, max=100, help="Max dead letters to list for each class.")] = 3,
) -> None:
    """Group dead letters by queue, class of the error, and the common part of its texts. Changes nothing."""
    from queuey.pipeline.deadletter import deadletter_job

    selected = make_filter(fields)
    run.report_dry_run()
    with run.session() as spark:
        report = deadletter_job.classify_dead_letters(
            spark, run.store, selected, samples=samples, report_progress=run.report
        )
    output.show(report, _describe(report))


@app.command("redrive")
@on_spark
@with_queues_and_filter
def redrive(
    run: PipelineRun,
    fields: dict[str, Any],
    ttl: Annotated[int | None, times.ttl("TTL of the messages, such as 2d.", show_default="the queue's")] = None,
) -> None:
    """Send dead letters back to the ends of their former partitions, each once, and remove them.

    A dead letter is removed only after it is certain that it was sent. After an interruption, repeat the command within
    a day.
    """
    from queuey.pipeline.deadletter import deadletter_job

    with run.session() as spark:
        done = deadletter_job.redrive(spark, run.store, make_filter(fields), run.report, ttl=ttl, dry_run=run.dry_run)
    show(done, dry_run=run.dry_run)


def _describe(report: DeadLetterClasses) -> Iterator[Block]:
    from queuey.pipeline.deadletter.selection import ErrorClass

    columns = ("count", "queue", "error", "text", "first", "last", "attempts")
    yield output.table(ErrorClass, report.classes, *columns)
    for error_class in report.classes:
        for sample in error_class.samples:
            yield f"{error_class.queue}  {sample.partition}:{sample.id}  {error_class.error}: {sample.text}"
    classes = format_count(len(report.classes), "class", "classes")
    yield f"{format_count(report.dead_letters, 'dead letter')} in {classes}"
