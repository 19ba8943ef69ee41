"""``queuey pipeline replay``: writes an archive back into queues."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from queuey.cli.pipeline.archive import Matching, Queues, make_selection
from queuey.cli.pipeline.running import PipelineRun, on_spark
from queuey.model import ids, time_parsing
from queuey.model.texts import format_count
from queuey.pipeline.options import ReplayOptions
from queuey.terminal import output
from queuey.terminal.output import Block, ToStderr
from queuey.terminal.struct_options import with_fields

if TYPE_CHECKING:
    from queuey.pipeline.archive.replay import ReplayReport

_POSITION_FORMS = "an id, seconds since 1970, ISO 8601, or relative: -1h, -2d12h"


@on_spark
@with_fields(ReplayOptions)
def replay(
    pipeline: PipelineRun,
    fields: dict[str, Any],
    queues: Queues = None,
    pattern: Matching = None,
    start: Annotated[
        str | None, typer.Option("--from", help=f"Only messages from this position on: {_POSITION_FORMS}.")
    ] = None,
    end: Annotated[str | None, typer.Option("--to", help="Only messages before this position.")] = None,
) -> None:
    """Write an archive back into queues; each message once, even if run again.

    Without queues and --pattern, replays all archived queues. Messages keep their ids unless --fresh is given. Without
    --into, they go to new queues with the old names.
    """
    from queuey.pipeline.archive.replay import replay as job

    now = time.time()
    if start is not None:
        fields["lower"] = _parse_position(start, now, "--from")
    if end is not None:
        fields["upper"] = _parse_position(end, now, "--to")
    selection = make_selection(queues, pattern if queues or pattern is not None else ".*")
    options = ReplayOptions(store=pipeline.store, selection=selection, dry_run=pipeline.dry_run, **fields)
    with pipeline.session() as spark:
        report = job(spark, options, pipeline.report)
    output.show({**msgspec.to_builtins(report), "messages": report.messages}, _describe(report))


def _describe(report: ReplayReport) -> Iterator[Block]:
    from queuey.pipeline.archive.replay import Replayed

    if report.queues:
        yield output.table(Replayed, report.queues)
    if report.expired:
        yield ToStderr(f"{format_count(report.expired, 'message has', 'messages have')} expired and are skipped.")
    if report.moved:
        yield ToStderr(f"{format_count(report.moved, 'message')} could not be written in time and got later ids.")
    whole = f"{format_count(report.messages, 'message')} of {format_count(report.buckets, 'bucket')}"
    if report.dry_run:
        yield ToStderr(f"{whole} would be written. Run {report.run}.")
        return
    before = report.messages - report.written
    text = f", {before} of them from earlier runs" if before > 0 else ""
    yield ToStderr(f"Replayed {whole}{text}. Run {report.run}.")


def _parse_position(text: str, now: float, option: str) -> ids.Position:
    try:
        point = time_parsing.parse_point(text, now)
        ticks = ids.parse_instant(point)
        return ids.parse_position(point) if ticks is None else (ticks, ids.LOW_MIN)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from error
