"""What the drivers that are to be killed have in common."""

from __future__ import annotations

from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.readwriter import DataStreamWriter


def until_done(writing: DataStreamWriter) -> None:
    """Runs a query to its end, in the driver; starts it again when Spark gave up on a Python process of its own.

    Spark waits for ten seconds until such a process has started, which no setting changes and a busy machine exceeds.
    """
    while True:
        try:
            writing.start().awaitTermination()
        except StreamingQueryException as error:
            if "failed to connect back" not in str(error):
                raise
        else:
            return
