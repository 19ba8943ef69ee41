"""The measures of Qdo."""

from bench.measures.qdo import assignment, before, curator, group_requests, groups, rebalance, throughput

__all__ = ["assignment", "before", "curator", "group_requests", "groups", "rebalance", "throughput"]
