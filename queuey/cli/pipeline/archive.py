"""``queuey pipeline archive``: archives messages as Parquet, and checks archives."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from queuey.cli.pipeline.running import PipelineRun, on_spark
from queuey.model.texts import format_count
from queuey.pipeline.options import ArchiveOptions
from queuey.terminal import output
from queuey.terminal.output import Block, ToStderr
from queuey.terminal.struct_options import with_fields

if TYPE_CHECKING:
    from queuey.pipeline.archive.archive_job import ArchiveReport
    from queuey.pipeline.archive.verify import CheckReport
    from queuey.spark.options import Selection

Queues = Annotated[list[str] | None, typer.Argument(help="Names of queues.", show_default=False)]
Matching = Annotated[
    str | None, typer.Option("--pattern", help="Regular expression that matches whole names of queues.")
]


@on_spark
@with_fields(ArchiveOptions)
def archive(
    run: PipelineRun,
    fields: dict[str, Any],
    queues: Queues = None,
    pattern: Matching = None,
    check: Annotated[
        bool, typer.Option("--check", help="Only compare the archive with its manifests and the store.")
    ] = False,
) -> None:
    """Archive messages as Parquet before they expire.

    Archives whole buckets of time after their end. Checks each bucket against the store, and writes a manifest with
    its count and hash. A further run archives only what is missing. Exits with 1 if a bucket could not be archived.
    """
    selection = make_selection(queues, pattern)
    if check:
        _check_archive(run, selection, fields["to"], verify=fields["verify"])
        return
    from queuey.pipeline.archive.archive_job import archive as job

    options = ArchiveOptions(store=run.store, selection=selection, dry_run=run.dry_run, **fields)
    with run.session(selection) as spark:
        report = job(spark, options, run.report)
    output.show({**msgspec.to_builtins(report), "messages": report.messages}, _describe(report))
    if not report.ok:
        raise typer.Exit(1)


def make_selection(queues: list[str] | None, pattern: str | None) -> Selection:
    import re

    from queuey.spark.options import Pattern, Subscribe

    if bool(queues) == (pattern is not None):
        raise typer.BadParameter("name queues, or give --pattern", param_hint="QUEUES")
    if pattern is None:
        return Subscribe(tuple(dict.fromkeys(queues or ())))
    try:
        re.compile(pattern)
    except re.error as error:
        raise typer.BadParameter(f"not a regular expression: {error}", param_hint="--pattern") from error
    return Pattern(pattern)


def _check_archive(run: PipelineRun, selection: Selection, archive: str, *, verify: bool) -> None:
    from queuey.pipeline.archive.verify import CheckOptions
    from queuey.pipeline.archive.verify import check as job

    options = CheckOptions(store=run.store, selection=selection, archive=archive, against_store=verify)
    with run.session() as spark:
        report = job(spark, options, run.report)
    output.show(report, _describe_check(report))
    if not report.ok:
        raise typer.Exit(1)


def _describe(report: ArchiveReport) -> Iterator[Block]:
    from queuey.pipeline.archive.archive_job import ArchivedBucket

    if report.archived:
        yield output.table(ArchivedBucket, report.archived)
    done = "would be archived" if report.dry_run else "archived"
    buckets = f"{format_count(len(report.archived), 'bucket')} with {format_count(report.messages, 'message')}"
    yield ToStderr(f"{buckets} of {format_count(report.queues, 'queue')} {done}: {report.to}")
    late = sum(bucket.expiring for bucket in report.archived)
    if late:
        text = format_count(late, "bucket is older than its", "buckets are older than their")
        yield ToStderr(f"{text} queue's TTL, so messages may have expired before. Archive sooner.")
    for text in report.damaged:
        yield ToStderr(f"Archived again, because it was damaged: {text}")
    if report.vanished:
        yield ToStderr(f"{format_count(report.vanished, 'bucket was', 'buckets were')} deleted before the scan.")
    for bucket in report.failed:
        text = f"at the second scan, the store had {bucket.missing} more and {bucket.changed} changed messages"
        yield ToStderr(f"Not archived: {bucket.queue} {bucket.bucket}: {text}. Archive it again.")


def _describe_check(report: CheckReport) -> Iterator[Block]:
    from queuey.pipeline.archive.verify import UnarchivedBucket

    for damage in report.damaged:
        yield ToStderr(f"{damage.queue} {damage.bucket}: {damage.text}")
    yield from map(ToStderr, report.unreadable)
    if report.waiting:
        yield output.table(UnarchivedBucket, report.waiting)
    state = "equal to their manifests" if report.ok else "checked; some are damaged"
    text = f"{format_count(report.buckets, 'bucket')} with {format_count(report.messages, 'message')}"
    yield ToStderr(f"{text}, {state}: {report.archive}")
