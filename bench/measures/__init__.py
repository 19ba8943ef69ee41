"""The measures, in the order in which they run."""

from bench.measures import (
    before,
    cassandra,
    claims,
    cpu,
    facades,
    fairness,
    keyed_posts,
    moves,
    open_facades,
    over_http,
    peers,
    process,
    qdo,
    scale,
    spark,
    waiting,
)

__all__ = [
    "before",
    "cassandra",
    "claims",
    "cpu",
    "facades",
    "fairness",
    "keyed_posts",
    "moves",
    "open_facades",
    "over_http",
    "peers",
    "process",
    "qdo",
    "scale",
    "spark",
    "waiting",
]
