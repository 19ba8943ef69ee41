"""``queuey pipeline replay``."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from queuey import ids, time_parsing
from queuey.cli.pipeline.archive import Matching, Queues, selected
from queuey.cli.pipeline.running import PipelineRun, on_spark
from queuey.terminal import output, times
from queuey.terminal.output import Block, ToStderr
from queuey.terminal.texts import plural

if TYPE_CHECKING:
    from queuey.pipeline.archive.replay import ReplayReport

_FORMS = "an id, seconds since 1970, ISO 8601, or relative: -1h, -2d12h"


@on_spark
def replay(
    run: PipelineRun,
    archive: Annotated[str, typer.Argument(help="Directory or URL of the archive.", show_default=False)],
    queues: Queues = None,
    pattern: Matching = None,
    into: Annotated[
        str | None, typer.Option("--into", help="The target queue.", show_default="queues of the same names")
    ] = None,
    existing: Annotated[bool, typer.Option("--existing", help="The target may exist already.")] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Give messages new ids, in their old order, so that readers get them.")
    ] = False,
    start: Annotated[str | None, typer.Option("--from", help=f"Only messages from this position on: {_FORMS}.")] = None,
    end: Annotated[str | None, typer.Option("--to", help="Only messages before this position.")] = None,
    where: Annotated[
        str | None, typer.Option("--where", help="Only messages that match this condition, in Spark's SQL.")
    ] = None,
    partitions: Annotated[
        int | None, typer.Option(min=1, help="Partitions of a new queue.", show_default="as archived")
    ] = None,
    ttl: Annotated[
        int | None, times.ttl("Time to live of the messages, from now on.", show_default="the queue's")
    ] = None,
    keep_expiry: Annotated[
        bool, typer.Option("--keep-expiry", help="Messages keep their time of expiry; expired ones are left out.")
    ] = False,
    rate: Annotated[float, typer.Option("--rate", min=0, help="Most messages per second; 0: no limit.")] = 0,
    name: Annotated[
        str | None,
        typer.Option(
            "--run", help="Name of this replay: under one name each message is written once.", show_default="derived"
        ),
    ] = None,
) -> None:
    """Write an archive back into queues, each message once however often it is run.

    Messages keep their ids unless --fresh is given. Without --into they go to new queues of the old names.
    """
    from queuey.pipeline.archive.replay import ReplayOptions
    from queuey.pipeline.archive.replay import replay as job

    now = time.time()
    options = ReplayOptions(
        store=run.store,
        archive=archive,
        selection=selected(queues, pattern if queues or pattern is not None else ".*"),
        into=into,
        existing=existing,
        fresh=fresh,
        lower=ids.FIRST if start is None else _position(start, now, "--from"),
        upper=ids.LAST if end is None else _position(end, now, "--to"),
        where=where,
        partitions=partitions,
        ttl=ttl,
        keep_expiry=keep_expiry,
        rate=rate,
        run=name,
        dry_run=run.dry_run,
    )
    with run.session() as spark:
        report = job(spark, options, run.say)
    output.show({**msgspec.to_builtins(report), "messages": report.messages}, _described(report))


def _described(report: ReplayReport) -> Iterator[Block]:
    from queuey.pipeline.archive.replay import Replayed

    if report.queues:
        yield output.table(Replayed, report.queues)
    if report.expired:
        yield ToStderr(f"{plural(report.expired, 'message has', 'messages have')} expired and are left out.")
    if report.moved:
        yield ToStderr(f"{plural(report.moved, 'message')} could not be written in time and got later ids.")
    whole = f"{plural(report.messages, 'message')} of {plural(report.buckets, 'bucket')}"
    if report.dry_run:
        yield ToStderr(f"{whole} would be there. Run {report.run}.")
        return
    before = report.messages - report.written
    text = f", {before} of them from earlier runs" if before > 0 else ""
    yield ToStderr(f"There: {whole}{text}. Run {report.run}.")


def _position(text: str, now: float, option: str) -> ids.Position:
    try:
        point = time_parsing.point(text, now)
        ticks = ids.parse_instant(point)
        return ids.parse_position(point) if ticks is None else (ticks, ids.LOW_MIN)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from error
