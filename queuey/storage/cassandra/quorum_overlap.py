"""Decides where every read meets every acknowledged write, by the copies of a keyspace and two consistency levels.

An adversary chooses which copies a write reached and which a read asks, as far as the levels let it. If it finds a way
for them to have none in common, the read misses the write.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Literal

Copies = Mapping[str, int]
"""How many, by data centre."""
Meeting = Literal["everywhere", "locally", "never"]
"""``locally``: only if both go through the same data centre."""

_COUNTED = {"ONE": 1, "TWO": 2, "THREE": 3}


def meeting(write: str, read: str, copies: Copies) -> Meeting:
    """Returns where reads at one level meet all writes at another."""
    ways = {(one, other): _misses(write, one, read, other, copies) for one, other in product(copies, repeat=2)}
    if not any(ways.values()):
        return "everywhere"
    return "never" if any(ways[name, name] for name in copies) else "locally"


def satisfies(level: str, reached: Copies, copies: Copies, local: str) -> bool:
    """Returns whether the copies that were reached are enough, by data centre; ``local``: that of the coordinator."""
    match level:
        case "ALL":
            return reached == copies
        case "QUORUM":
            return sum(reached.values()) >= quorum(sum(copies.values()))
        case "LOCAL_QUORUM":
            return reached[local] >= quorum(copies[local])
        case "EACH_QUORUM":
            return all(reached[name] >= quorum(count) for name, count in copies.items())
        case "LOCAL_ONE":
            return reached[local] >= 1
        case _:
            return sum(reached.values()) >= _COUNTED[level]


def quorum(copies: int) -> int:
    return copies // 2 + 1


def _misses(write: str, writer: str, read: str, reader: str, copies: Copies) -> bool:
    return any(
        satisfies(write, written, copies, writer)
        and satisfies(read, {name: count - written[name] for name, count in copies.items()}, copies, reader)
        for written in _choices(copies)
    )


def _choices(copies: Copies) -> Iterator[dict[str, int]]:
    for counts in product(*(range(count + 1) for count in copies.values())):
        yield dict(zip(copies, counts, strict=True))
