"""``queuey pipeline stats``: how much queues hold, and how far groups are behind."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from queuey import time_parsing
from queuey.cli.pipeline.archive import Matching, selected
from queuey.cli.pipeline.running import PipelineRun, on_spark
from queuey.messages import MAX_TTL
from queuey.terminal import output, times

if TYPE_CHECKING:
    from queuey.pipeline.stats.lag import LagReport
    from queuey.pipeline.stats.stats_job import Stats
    from queuey.pipeline.stats.totals import Order, QueueFigures
    from queuey.pipeline.stats.ttl_forecast import Forecast
    from queuey.spark.options import Selection

_LAG = "How far groups are behind"
MAX_SAMPLE = 86_400
"""Max time between two observations, in seconds."""
_ORDERS: dict[Order, str] = {
    "messages": "The deepest",
    "bytes": "The largest",
    "rate": "The busiest",
    "skew": "The most uneven",
}


@on_spark
def stats(
    run: PipelineRun,
    queue: Annotated[list[str] | None, typer.Argument(help="Queues.", show_default="all")] = None,
    pattern: Matching = None,
    top: Annotated[int, typer.Option(min=0, help="Length of the lists.")] = 10,
    lag: Annotated[
        bool, typer.Option("--lag", help="Show the lag of consumer groups instead.", rich_help_panel=_LAG)
    ] = False,
    group: Annotated[
        list[str] | None,
        typer.Option(help="Only this group; several may be given.", show_default="all", rich_help_panel=_LAG),
    ] = None,
    offsets: Annotated[
        Path | None,
        typer.Option(help="File with a group's offsets, as qdo offsets show --json prints them.", rich_help_panel=_LAG),
    ] = None,
    sample: Annotated[
        float,
        times.duration(
            "Measure twice, this far apart, to see whether groups keep up; 0: once.",
            most=MAX_SAMPLE,
            rich_help_panel=_LAG,
        ),
    ] = 0,
    within: Annotated[
        float,
        times.duration(
            "Time span of the forecast of messages that expire unread.",
            least=1,
            most=MAX_TTL,
            show_default="1h",
            rich_help_panel=_LAG,
        ),
    ] = 3600.0,
) -> None:
    """Measure queues: depth, bytes, rate and skew; with --lag what groups have not read, and what they will miss.

    The store measures; no messages are moved. Nothing is changed.
    """
    if (group or offsets) and not lag:
        raise typer.BadParameter("--group and --offsets are for --lag")
    selection = selected(queue, pattern) if queue or pattern else None
    if lag:
        _lag(run, selection, tuple(group or ()), offsets, sample, within, top)
    else:
        _stats(run, selection, top)


def _stats(run: PipelineRun, selection: Selection | None, top: int) -> None:
    from queuey.pipeline.stats import stats_job as job

    options = job.StatsOptions(store=run.store, selection=selection, top=top)
    run.nothing_to_try()
    with run.session(options.selection) as spark:
        found = job.run(spark, options, run.say)
    output.emit(_document(found)) if run.json else _show(found)


def _lag(
    run: PipelineRun,
    selection: Selection | None,
    groups: tuple[str, ...],
    file: Path | None,
    sample: float,
    within: float,
    top: int,
) -> None:
    from queuey.pipeline import offset_files
    from queuey.pipeline.stats import lag

    given = None
    if file is not None:
        read = offset_files.read(file, run.application)
        given = {queue: dict(partitions) for queue, partitions in read.items()}
    options = lag.LagOptions(
        store=run.store,
        selection=selection,
        groups=tuple(dict.fromkeys(groups)),
        offsets=given,
        within=within,
        sample=sample,
        top=top,
    )
    run.nothing_to_try()
    with run.session(options.selection) as spark:
        found = lag.run(spark, options, run.say)
    output.emit(found) if run.json else _show_lag(found)


def _document(found: Stats) -> dict[str, Any]:
    """Returns the report as JSON, with what is computed beside what was measured."""
    tally = found.tally
    lists = {order: [_listed(found, one) for one in listed] for order, listed in tally.top.items()}
    return {"at": found.at, **msgspec.structs.asdict(tally), "top": lists}


def _listed(found: Stats, one: QueueFigures) -> dict[str, Any]:
    recent = found.recent.get(one.queue)
    lately = {} if recent is None else {"recent": msgspec.structs.asdict(recent)}
    return {**msgspec.structs.asdict(one), "rate": round(one.rate, 6), "skew": round(one.skew, 6), **lately}


def _show(found: Stats) -> None:
    tally = found.tally
    output.pairs(
        [
            ("queues", f"{tally.queues:,} ({tally.empty:,} of them empty)"),
            ("partitions with messages", f"{tally.partitions:,}"),
            ("messages", _count(tally.messages, exact=tally.exact)),
            ("bytes", _count(tally.bytes, exact=tally.exact)),
            *([("oldest", time_parsing.iso(tally.oldest))] if tally.oldest is not None else []),
            *([("newest", time_parsing.iso(tally.newest))] if tally.newest is not None else []),
        ]
    )
    for order, title in _ORDERS.items():
        listed = tally.top.get(order, ())
        if not listed:
            continue
        output.say()
        output.say(f"{title}:")
        columns = ["queue", "partitions", "messages", "bytes", "a second", "skew", "last minute", "last hour"]
        output.table(columns, [_row(found, one) for one in listed])


def _row(found: Stats, one: QueueFigures) -> tuple[object, ...]:
    recent = found.recent.get(one.queue)
    lately = (
        ("", "") if recent is None else (_least(recent.minute, more=recent.more), _least(recent.hour, more=recent.more))
    )
    counts = _count(one.messages, exact=one.exact), _count(one.bytes, exact=one.exact)
    return one.queue, one.partitions, *counts, f"{one.rate:.2f}", f"{one.skew:.2f}", *lately


def _show_lag(found: LagReport) -> None:
    output.pairs(
        [
            ("groups and partitions", f"{found.partitions:,} ({found.behind:,} of them behind)"),
            ("unread messages", _count(found.messages, exact=found.exact)),
            (f"lost within {time_parsing.length(found.within)}", _loss(found.lost, found.first)),
            (
                "growth",
                f"measured over {time_parsing.length(found.sample)}" if found.sample else "as if groups stood still",
            ),
        ]
    )
    if not found.rows:
        return
    output.say()
    columns = ["queue", "partition", "group", "unread", "behind", "growth", "lost", "first in"]
    output.table(
        columns,
        [
            (
                one.queue,
                one.partition,
                one.group,
                _count(one.messages, exact=one.exact),
                time_parsing.length(one.seconds),
                "" if one.growth is None else f"{one.growth:.2f}",
                *_foretold(one.forecast),
            )
            for one in found.rows
        ],
    )
    if len(found.rows) < found.behind:
        output.note(f"Groups with a lag that are not shown: {found.behind - len(found.rows):,}; --top shows more.")


def _foretold(forecast: Forecast) -> tuple[str, str]:
    return ("", "") if forecast.first is None else (f"{forecast.lost:,}", time_parsing.length(forecast.first))


def _loss(lost: int, first: float | None) -> str:
    return "none" if first is None else f"{lost:,}, the first in {time_parsing.length(first)}"


def _count(number: int, *, exact: bool) -> str:
    return f"{number:,}" if exact else f"about {number:,}"


def _least(number: int, *, more: bool) -> str:
    return f"{number:,} or more" if more else f"{number:,}"
