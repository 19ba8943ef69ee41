"""``queuey pipeline``: the jobs on Spark. Each command's module is imported when that command runs."""

from __future__ import annotations

import typer

from queuey.terminal.commands import LazyGroup

COMMANDS = {
    "archive": "Keep messages as Parquet before their TTL takes them.",
    "replay": "Write an archive back into queues, each message once however often it is run.",
    "stats": "Measure queues: depth, bytes, rate and skew, and how far groups lag behind.",
    "audit": "Compare the receipts of producers with what is stored and what was handled.",
    "deadletter": "Sort dead letters by error, and send them back in bulk.",
    "pipe": "Move messages from queues to a queue through SQL or Python, each exactly once.",
}
"""The commands in the order shown, each with its line in the list."""


class Jobs(LazyGroup):
    LISTED = COMMANDS
    MODULES = {name: f"queuey.cli.pipeline.{name}:app" for name in COMMANDS}  # noqa: RUF012 - as its parent declares it


load = Jobs.load

app = typer.Typer(
    cls=Jobs,
    no_args_is_help=True,
    add_completion=False,
    help="Run jobs over whole queues on Spark: archive, replay, stats, audit, deadletter, pipe.",
)


@app.callback()
def _jobs() -> None:
    """Run jobs over whole queues on Spark. They need the extra ``spark``."""
