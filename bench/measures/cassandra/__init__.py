"""The measures on Cassandra."""

from bench.measures.cassandra import claims, over_driver, over_http, scale, timing

__all__ = ["claims", "over_driver", "over_http", "scale", "timing"]
