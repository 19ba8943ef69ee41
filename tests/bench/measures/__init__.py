"""The measures, in the order in which they run."""

from tests.bench.measures import (
    assignment,
    before,
    cpu,
    fairness,
    over_cassandra,
    over_driver,
    over_http,
    over_spark,
    peers,
    process,
    qdo_rebalance,
    qdo_throughput,
    scale,
    scale_on_cassandra,
    spark_stats,
    spark_streams,
)

__all__ = [
    "assignment",
    "before",
    "cpu",
    "fairness",
    "over_cassandra",
    "over_driver",
    "over_http",
    "over_spark",
    "peers",
    "process",
    "qdo_rebalance",
    "qdo_throughput",
    "scale",
    "scale_on_cassandra",
    "spark_stats",
    "spark_streams",
]
