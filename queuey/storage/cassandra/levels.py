"""What ``weak``, ``strong`` and ``very_strong`` mean on the cluster that is there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from queuey.errors import StoreUnavailable
from queuey.messages import Queue
from queuey.storage.cassandra.options import CassandraOptions


class InForce(NamedTuple):
    """A consistency level, nothing left open.

    Attributes:
        writes, reads: Cassandra's consistency levels.
        delay: Seconds that range reads stay behind the clock (D).
        deadline: Seconds within which a write must return (W).
        safe: G1 and G2 are promised.
    """

    writes: str
    reads: str
    delay: float
    deadline: float
    safe: bool


class Levels:
    """The levels in force.

    Args:
        options: What the deployment chose.
        replication: Gives the copies by data centre; raises ``StoreUnavailable`` while that is not known.
    """

    def __init__(self, options: CassandraOptions, replication: Callable[[], Mapping[str, int]]) -> None:
        self._options = options
        self._replication = replication
        self._known: dict[str, InForce] = {}

    def of(self, queue: Queue) -> InForce:
        """Returns the level of a queue."""
        return self._known.get(queue.consistency) or self._decide(queue.consistency)

    def delay(self, queue: Queue) -> float:
        """Returns the seconds that range reads of a queue stay behind the clock: its own or its level's."""
        return self.of(queue).delay if queue.read_delay is None else queue.read_delay

    def _decide(self, name: str) -> InForce:
        level = self._options.levels[name]
        try:
            usual = "LOCAL_QUORUM" if len(self._replication()) > 1 else "QUORUM"
        except StoreUnavailable:  # Nothing can be written or read now; to be decided when it can.
            return InForce(level.write or "QUORUM", level.read or "QUORUM", level.delay, level.deadline, level.safe)
        found = InForce(level.write or usual, level.read or usual, level.delay, level.deadline, level.safe)
        self._known[name] = found
        return found

    def guarantee(self, queue: Queue) -> str:
        """Says in a sentence what holds for a queue."""
        level = self.of(queue)
        how = f"written at {level.writes}, read at {level.reads}"
        if not level.safe:
            return f"weak ({how}): a reader that goes on from its cursor may miss messages, and one node can lose them"
        delay = self.delay(queue)
        if delay < level.delay:
            return (
                f"{queue.consistency} ({how}), but its read delay of {delay:g} s is shorter than the {level.delay:g} s "
                "that make reading by time safe: a reader that goes on from its cursor may miss messages"
            )
        within = (
            " within its data centre" if level.reads.startswith("LOCAL") and level.writes.startswith("LOCAL") else ""
        )
        return (
            f"{queue.consistency} ({how}){within}: a reader that goes on from its cursor misses no acknowledged "
            f"message; a 503 with outcome none left nothing; X-After orders messages; reads stay {delay:g} s behind"
        )
