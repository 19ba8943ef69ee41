"""The measures on Spark."""

from bench.measures.spark import reads_and_writes, stats, streams

__all__ = ["reads_and_writes", "stats", "streams"]
