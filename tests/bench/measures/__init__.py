"""The measures, in the order in which they run."""

from tests.bench.measures import over_http, peers, process, scale

__all__ = ["over_http", "peers", "process", "scale"]
