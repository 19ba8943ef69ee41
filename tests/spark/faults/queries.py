"""The common part of the drivers that are to be killed."""

from __future__ import annotations

from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.readwriter import DataStreamWriter


def until_done(writing: DataStreamWriter) -> None:
    """Runs a query to its end, in the driver; restarts it if Spark gave up waiting for a Python process.

    Spark waits ten seconds for the start of such a process, without a setting; on a busy machine that is too short.
    """
    while True:
        try:
            writing.start().awaitTermination()
        except StreamingQueryException as error:
            if "failed to connect back" not in str(error):
                raise
        else:
            return
