"""``queuey pipeline stats``: sizes and rates of queues, and the lag of consumer groups."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from queuey.cli.pipeline.archive import Matching, make_selection
from queuey.cli.pipeline.running import PipelineRun, on_spark
from queuey.model import time_parsing
from queuey.pipeline.options import LAG_PANEL, LagOptions, StatsOptions
from queuey.terminal import output
from queuey.terminal.output import Block, ToStderr
from queuey.terminal.struct_options import with_fields

if TYPE_CHECKING:
    from queuey.pipeline.stats.lag import LagReport
    from queuey.pipeline.stats.stats_job import Stats
    from queuey.pipeline.stats.totals import Order, QueueFigures
    from queuey.spark.options import Selection

_ORDER_TITLES: dict[Order, str] = {
    "messages": "The deepest",
    "bytes": "The largest",
    "rate": "The busiest",
    "skew": "The most uneven",
}


@on_spark
@with_fields(StatsOptions, LagOptions)
def stats(
    run: PipelineRun,
    fields: dict[str, Any],
    queue: Annotated[list[str] | None, typer.Argument(help="Queues.", show_default="all")] = None,
    pattern: Matching = None,
    lag: Annotated[
        bool, typer.Option("--lag", help="Show the lag of consumer groups instead.", rich_help_panel=LAG_PANEL)
    ] = False,
) -> None:
    """Measure queues: depth, bytes, rate and skew; with --lag the messages that groups have not read or will miss.

    Measures inside the store, without moving messages. Changes nothing.
    """
    if fields["groups"] and not lag:
        raise typer.BadParameter("--group needs --lag")
    selection = make_selection(queue, pattern) if queue or pattern else None
    if lag:
        _measure_lag(run, selection, fields)
    else:
        _measure_queues(run, selection, fields["top"])


def _measure_queues(run: PipelineRun, selection: Selection | None, top: int) -> None:
    from queuey.pipeline.stats import stats_job as job

    options = StatsOptions(store=run.store, selection=selection, top=top)
    run.report_dry_run()
    with run.session(options.selection) as spark:
        statistics = job.run(spark, options, run.report)
    output.show(_stats_as_json(statistics), _describe(statistics))


def _measure_lag(run: PipelineRun, selection: Selection | None, fields: dict[str, Any]) -> None:
    from queuey.pipeline.stats import lag

    options = LagOptions(store=run.store, selection=selection, **fields)
    run.report_dry_run()
    with run.session(options.selection) as spark:
        report = lag.run(spark, options, run.report)
    output.show(report, _describe_lag(report))


def _stats_as_json(stats: Stats) -> dict[str, Any]:
    tally = stats.tally
    lists = {order: [_queue_fields(stats, queue) for queue in listed] for order, listed in tally.top.items()}
    return {"at": stats.at, **msgspec.structs.asdict(tally), "top": lists}


def _queue_fields(stats: Stats, row: QueueFigures) -> dict[str, Any]:
    recent = stats.recent.get(row.queue)
    recent_fields = {} if recent is None else {"recent": msgspec.structs.asdict(recent)}
    return {**msgspec.structs.asdict(row), "rate": round(row.rate, 6), "skew": round(row.skew, 6), **recent_fields}


def _describe(stats: Stats) -> Iterator[Block]:
    from queuey.pipeline.stats.totals import QueueFigures

    tally = stats.tally
    queues = ("queues", lambda tally: f"{tally.queues:,} ({tally.empty:,} of them empty)")
    ends = [name for name in ("oldest", "newest") if getattr(tally, name) is not None]
    yield output.fields(tally, queues, "partitions", "messages", "bytes", *ends)
    for order, title in _ORDER_TITLES.items():
        if listed := tally.top.get(order, ()):
            yield ""
            yield f"{title}:"
            columns = ("queue", "partitions", "messages", "bytes", *_COMPUTED_COLUMNS)
            recent = [(f"last {span}", partial(_recent_text, stats, span)) for span in ("minute", "hour")]
            yield output.table(QueueFigures, listed, *columns, *recent)


def _recent_text(stats: Stats, span: str, queue: QueueFigures) -> str:
    recent = stats.recent.get(queue.queue)
    return "" if recent is None else f"{getattr(recent, span):,}{' or more' if recent.more else ''}"


_COMPUTED_COLUMNS = (("a second", lambda queue: f"{queue.rate:.2f}"), ("skew", lambda queue: f"{queue.skew:.2f}"))


def _describe_lag(report: LagReport) -> Iterator[Block]:
    from queuey.pipeline.stats.lag import GroupPartitionLag

    partitions = ("groups and partitions", lambda lag: f"{lag.partitions:,} ({lag.behind:,} of them behind)")
    lost = (f"lost within {time_parsing.format_duration(report.within)}", _loss_text)
    measured = (
        f"measured over {time_parsing.format_duration(report.sample)}" if report.sample else "as if groups stood still"
    )
    yield output.fields(report, partitions, "messages", lost, ("growth", lambda _: measured))
    if not report.rows:
        return
    yield ""
    forecast = [
        ("lost", lambda behind: None if behind.forecast.first is None else f"{behind.forecast.lost:,}"),
        (
            "first in",
            lambda behind: (
                None if behind.forecast.first is None else time_parsing.format_duration(behind.forecast.first)
            ),
        ),
    ]
    yield output.table(
        GroupPartitionLag, report.rows, "queue", "partition", "group", "messages", "seconds", "growth", *forecast
    )
    if len(report.rows) < report.behind:
        yield ToStderr(f"Lagging groups that are not shown: {report.behind - len(report.rows):,}; --top shows more.")


def _loss_text(report: LagReport) -> str:
    return (
        "none"
        if report.first is None
        else f"{report.lost:,}, the first in {time_parsing.format_duration(report.first)}"
    )
