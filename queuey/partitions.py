"""Which partition a message goes to. Partitions are numbered from 1."""

from __future__ import annotations

import random
import time
from hashlib import blake2b

MAX_PARTITIONS = 200


def by_key(key: str, partitions: int) -> int:
    """Returns the partition of a message key: 1 to ``partitions``, the same on every node and for ever.

    The hash is BLAKE2b-64 of the key's UTF-8 bytes, modulo the count; so a key keeps its partition until partitions
    are added.
    """
    digest = blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") % partitions + 1


class StickyChoice:
    """A uniformly random partition, kept for a few milliseconds.

    Callers that name no partition share one for ``hold`` seconds, so that the writes of one moment land in one place
    and travel as one batch. Threads may race on the state; the worst outcome is one more random choice.
    """

    __slots__ = ("_clock", "_draw", "_hold", "_random", "_until")

    def __init__(self, hold: float = 0.004, *, rng: random.Random | None = None) -> None:
        self._hold = hold
        self._clock = time.monotonic
        self._random = (rng or random.Random()).random  # noqa: S311 - spreads load, guards nothing
        self._draw = 0.0
        self._until = 0.0

    def choose(self, partitions: int) -> int:
        """Returns a partition, 1 to ``partitions``."""
        if partitions == 1:
            return 1
        now = self._clock()
        if now >= self._until:
            self._draw = self._random()
            self._until = now + self._hold
        return int(self._draw * partitions) + 1
