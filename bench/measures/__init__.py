"""The measures, in the order in which they run."""

from bench.measures import (
    before,
    cassandra,
    claims,
    fairness,
    jobs,
    keyed_posts,
    layouts,
    memory,
    moves,
    over_http,
    peers,
    spark,
    sqs,
    streams,
    worker,
)

__all__ = [
    "before",
    "cassandra",
    "claims",
    "fairness",
    "jobs",
    "keyed_posts",
    "layouts",
    "memory",
    "moves",
    "over_http",
    "peers",
    "spark",
    "sqs",
    "streams",
    "worker",
]
