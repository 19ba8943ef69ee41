"""The measures on Cassandra."""

from bench.measures.cassandra import claims, costs, over_driver, over_http, scale, timing

__all__ = ["claims", "costs", "over_driver", "over_http", "scale", "timing"]
