"""The measures on Cassandra."""

from bench.measures.cassandra import claims, over_driver, over_http, scale

__all__ = ["claims", "over_driver", "over_http", "scale"]
