"""The measures of Qdo."""

from bench.measures.qdo import assignment, before, curator, rebalance, throughput

__all__ = ["assignment", "before", "curator", "rebalance", "throughput"]
