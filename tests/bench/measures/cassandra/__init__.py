"""The measures on Cassandra."""

from tests.bench.measures.cassandra import over_driver, over_http, scale

__all__ = ["over_driver", "over_http", "scale"]
