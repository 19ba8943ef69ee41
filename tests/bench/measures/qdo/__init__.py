"""The measures of Qdo."""

from tests.bench.measures.qdo import assignment, before, rebalance, throughput

__all__ = ["assignment", "before", "rebalance", "throughput"]
