"""``queuey pipeline pipe``: moves messages through SQL or a function into a queue, each exactly once."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Annotated, Any

import typer

from queuey.cli.pipeline.archive import Matching, Queues, make_selection
from queuey.cli.pipeline.running import PipelineRun, on_spark
from queuey.model.messages import MAX_TTL
from queuey.model.texts import format_count
from queuey.pipeline.options import Pipe
from queuey.terminal import output, times
from queuey.terminal.output import Table
from queuey.terminal.signals import handle_signals
from queuey.terminal.struct_options import with_fields

if TYPE_CHECKING:
    from queuey.pipeline.pipe import Piped, Preview


@on_spark
@with_fields(Pipe)
def pipe(
    run: PipelineRun,
    fields: dict[str, Any],
    queues: Queues = None,
    pattern: Matching = None,
    sql: Annotated[str | None, typer.Option(help="SELECT from the view messages, or @FILE that contains it.")] = None,
    to: Annotated[str | None, typer.Option(help="Queue to write to; ignores the column queue.")] = None,
    route: Annotated[bool, typer.Option("--route", help="Write each row to the queue in its column queue.")] = False,
    checkpoint: Annotated[
        str | None, typer.Option(help="Directory of the progress, one for each pipe. Required.")
    ] = None,
    start: Annotated[
        str, typer.Option("--from", help="Where to begin without a checkpoint: earliest, latest, -1h.")
    ] = "latest",
    watermark: Annotated[
        int | None, times.duration("Max delay of messages for a group by time: 10m.", maximum=MAX_TTL, whole=True)
    ] = None,
    update: Annotated[
        bool, typer.Option("--update", help="Write groups whenever they change, not when they are complete.")
    ] = False,
) -> None:
    """Move messages from queues to a queue through SQL or a function, each exactly once.

    Runs until SIGTERM or Ctrl-C, and ends after the present micro-batch. Started again with its checkpoint, it
    continues there. --dry-run shows the first rows that it would write from the present messages.
    """
    from queuey.pipeline import pipe as job

    if (to is None) != route:
        raise typer.BadParameter("give exactly one of --to QUEUE and --route")
    if checkpoint is None and not run.dry_run:
        raise typer.BadParameter("a pipe needs a directory for its checkpoint", param_hint="--checkpoint")
    options = Pipe(
        store=run.store,
        source=make_selection(queues, pattern),
        target=to,
        sql=None if sql is None else _read_sql(sql),
        checkpoint=_absolute_directory(checkpoint or ""),
        start=start if start in {"earliest", "latest"} else times.parse_instant(start),
        watermark=None if watermark is None else f"{watermark} seconds",
        mode="update" if update else "append",
        **fields,
    )
    sys.path.insert(0, os.getcwd())  # noqa: PTH109 - a text
    if not run.dry_run:
        job.check(options)  # before Spark starts, so that a wrong name is reported at once
    with run.session(options.source) as spark:
        if run.dry_run:
            _show_preview(job.preview(spark, options))
            return
        with stop_by_signals() as stop:
            done = job.run(spark, options, run.report, stop)
    _show_result(done, start)


def _show_result(result: Piped, start: str) -> None:
    read = format_count(result.messages, "message was", "messages were")
    batches = format_count(result.batches, "micro-batch", "micro-batches")
    output.show(result, f"{read} read in {batches}, and {result.rows} written (query {result.query})")
    if not result.rows:
        output.print_note(_explain_no_rows(result, start))


def _explain_no_rows(result: Piped, start: str) -> str:
    if result.messages:
        return "Nothing was written: the transform returned no rows. --dry-run shows its rows."
    if start == "latest":
        return "There were no messages. A new checkpoint begins after the last message; --from earliest reads all."
    return "There were no messages."


@contextmanager
def stop_by_signals() -> Iterator[Event]:
    """Yields an event that the first SIGTERM or SIGINT sets; a second signal raises KeyboardInterrupt."""
    stop = Event()

    def stop_or_interrupt(_number: int, _frame: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    with handle_signals(stop_or_interrupt, (signal.SIGTERM, signal.SIGINT)):
        yield stop


def _absolute_directory(text: str) -> str:
    return text if ":" in text else str(Path(text).expanduser().absolute())


def _read_sql(text: str) -> str:
    if not text.startswith("@"):
        return text
    try:
        return Path(text[1:]).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"{text[1:]} cannot be read: {error}", param_hint="--sql") from error


def _show_preview(preview: Preview) -> None:
    shuffled = "The query shuffles rows, so each task sorts its rows before it writes them."
    columns = Table(["column", "type"], [*preview.columns.items()])
    rows = Table([*preview.columns], [[*row.values()] for row in preview.rows])
    output.show(preview, [columns, *((shuffled,) if preview.sorted else ()), rows])
