"""The measures, in the order in which they run."""

from tests.bench.measures import cpu, over_http, peers, process, scale

__all__ = ["cpu", "over_http", "peers", "process", "scale"]
