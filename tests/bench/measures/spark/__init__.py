"""The measures on Spark."""

from tests.bench.measures.spark import reads_and_writes, stats, streams

__all__ = ["reads_and_writes", "stats", "streams"]
