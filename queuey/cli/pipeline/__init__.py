"""``queuey pipeline``: the jobs on Spark. Each command's module is imported when that command runs."""

from __future__ import annotations

import typer

from queuey.terminal.commands import LazyGroup

COMMANDS = {
    "archive": ("archive:archive", "Archive messages as Parquet before they expire."),
    "replay": ("replay:replay", "Write an archive back into queues; each message once, even if run again."),
    "stats": ("stats:stats", "Measure queues: depth, bytes, rate and skew, and how far groups lag behind."),
    "audit": ("audit:audit", "Compare the receipts of producers with the stored and the handled messages."),
    "deadletter": ("deadletter:app", "Sort dead letters by error, and send them back in bulk."),
    "pipe": ("pipe:pipe", "Move messages from queues to a queue through SQL or Python, each exactly once."),
}
"""Maps each command, in the order shown, to its ``module:attribute`` and its line in the help."""


class PipelineJobs(LazyGroup):
    PACKAGE = "queuey.cli.pipeline"
    COMMANDS = COMMANDS


load = PipelineJobs.load

app = typer.Typer(cls=PipelineJobs, no_args_is_help=True, add_completion=False)


@app.callback()
def _jobs() -> None:
    """Run jobs over whole queues on Spark. They need the extra ``spark``."""
