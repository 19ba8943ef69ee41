"""The meaning of ``weak``, ``strong`` and ``very_strong`` on the cluster that is there.

Where every read meets every acknowledged write is decided by the copies of a keyspace and two consistency levels: an
adversary chooses which copies a write reached and which a read asks, as far as the levels let it. If it finds a way for
them to have none in common, the read misses the write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from itertools import product
from shlex import quote
from typing import Literal, NamedTuple

from queuey.errors import StoreUnavailable
from queuey.ids import LOW_MIN, Position
from queuey.messages import Queue
from queuey.storage.cassandra.clocks.clock import ticks
from queuey.storage.cassandra.clocks.timing_in_force import TimingInForce
from queuey.storage.cassandra.options import CassandraOptions
from queuey.storage.cassandra.timing import StoredTiming

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


class InForce(NamedTuple):
    """A consistency level, nothing left open.

    Attributes:
        writes, reads: Cassandra's consistency levels.
        delay: Seconds that range reads stay behind the clock (D).
        deadline: Seconds within which a write must return (W).
        undone_within: Seconds after minting in which a write must be undone for no reader to have seen it (D - S).
        safe: G1 and G2 are promised.
    """

    writes: str
    reads: str
    delay: float
    deadline: float
    undone_within: float
    safe: bool


def usual(copies: Copies) -> str:
    """Returns the consistency level that one left open means."""
    return "LOCAL_QUORUM" if len(copies) > 1 else "QUORUM"


def concludes(reads: str, options: CassandraOptions, copies: Copies) -> bool:
    """Returns whether a read that finds nothing proves that nothing acknowledged is there.

    So it is where every read meets every acknowledged write of every data centre. That includes writes at the other
    safe levels, since a queue may have had another level before.
    """
    writes = {level.write or usual(copies) for level in options.levels.values() if level.safe}
    return all(_everywhere(write, reads, copies) for write in writes)


def _everywhere(write: str, read: str, copies: Copies) -> bool:
    """Returns whether all reads at one level meet all writes at another; requests ask, so it is worked out once."""
    return _known_meeting(write, read, tuple(copies.items()))


@lru_cache(1024)
def _known_meeting(write: str, read: str, copies: tuple[tuple[str, int], ...]) -> bool:
    return meeting(write, read, dict(copies)) == "everywhere"


class ConsistencyLevels:
    """The levels in force; their times are those that stand in the keyspace.

    What ``auto`` means is decided once. Whether emptiness proves anything is decided by the copies as they are now: the
    driver reads the schema again whenever it changes.
    """

    def __init__(
        self, options: CassandraOptions, replication: Callable[[], Mapping[str, int]], timing: TimingInForce
    ) -> None:
        self._options = options
        self._timing = timing
        self._replication = replication
        self._known: tuple[StoredTiming, dict[str, InForce]] = timing.stored, {}
        """Levels by times. One value: threads must not mix them."""
        self._concluding: tuple[Copies, dict[str, bool]] = {}, {}
        """Copies, and what was found for them by consistency level of reads. One value: threads must not mix them."""

    def of(self, queue: Queue) -> InForce:
        stored, known = self._known
        if stored is not self._timing.stored:
            stored, known = self._known = self._timing.stored, {}
        return known.get(queue.consistency) or self._decide(queue.consistency, stored, known)

    def delay(self, queue: Queue) -> float:
        """Returns the seconds that range reads of a queue stay behind the clock: its own or its level's."""
        return self.of(queue).delay if queue.read_delay is None else queue.read_delay

    def concludes(self, queue: Queue) -> bool:
        """Returns whether emptiness that a read of a queue finds may be remembered, stored or trusted."""
        return self._concludes(self.of(queue))

    def _concludes(self, level: InForce) -> bool:
        # Everything that is concluded from an empty read goes through here: low watermarks and the empty-range cache.
        if not level.safe:
            return False
        try:
            copies = self._replication()
        except StoreUnavailable:
            return False
        known, found = self._concluding
        if known is not copies and known != copies:
            found = {}
            self._concluding = copies, found
        if level.reads not in found:
            found[level.reads] = concludes(level.reads, self._options, copies)
        return found[level.reads]

    def claims_refusal(self, queue: Queue) -> str | None:
        """Returns why messages of a queue must not be claimed, and which consistency level to choose; None: they may.

        Claims go on from what a read did not show, so reads must meet every data centre's acknowledged writes.
        Appends to claim logs must be compared by all data centres together.
        """
        copies = self._replication()
        if (refusal := self._serial_refusal(copies, "to claim messages")) is not None:
            return refusal
        if self._claimable(queue.consistency, copies):
            return None
        level = self.of(queue)
        why = (
            f"Queue {queue.name!r} is {queue.consistency!r}, written at {level.writes} and read at {level.reads}: "
            f"a read may miss acknowledged messages{' of other data centres' if level.safe else ''}, so they cannot be "
            "claimed exactly."
        )
        choices = [name for name in self._options.levels if self._claimable(name, copies)]
        if not choices:
            return f"{why} No consistency level of this store can be: set one to be read and written at QUORUM."
        best = "strong" if "strong" in choices else choices[0]
        return f"{why} Choose consistency {best!r}: queuey queue update {quote(queue.name)} --consistency {best}"

    def groups_refusal(self) -> str | None:
        """Returns why groups cannot have members, None if they can.

        Their states are compared by all data centres together, and a session that was written is met by every read.
        """
        copies = self._replication()
        write, read = self._options.catalogue_write, self._options.catalogue_read
        if (refusal := self._serial_refusal(copies, "to have groups with members")) is not None:
            return refusal
        if _everywhere(write, read, copies):
            return None
        return (
            f"consistency.catalogue is written at {write} and read at {read}: a read may miss that a member was seen. "
            "Set both to QUORUM to have groups with members."
        )

    def _serial_refusal(self, copies: Copies, purpose: str) -> str | None:
        if len(copies) == 1 or self._options.catalogue_serial == "SERIAL":
            return None
        return (
            f"consistency.catalogue compares at {self._options.catalogue_serial}, within one data centre, and this "
            f"store has several. Set its serial level to SERIAL {purpose}."
        )

    def row_serial(self) -> str:
        """Returns the serial consistency level of the rows of idempotency keys and names.

        A post may be repeated in any data centre, so all of them compare, also where the catalogue's changes are
        compared within one.
        """
        return "SERIAL" if len(self._replication()) > 1 else self._options.catalogue_serial

    def log_reads(self) -> str:
        """Returns the consistency level of reads of a claim log that must show what an append was refused for.

        An entry that was accepted may be committed at a majority of all copies only, whatever level was asked for.
        Where reads of the catalogue need not meet that, because they ask one data centre, logs are read serially.
        """
        reads = self._options.catalogue_read
        return reads if _everywhere("QUORUM", reads, self._replication()) else self._options.catalogue_serial

    def _claimable(self, name: str, copies: Copies) -> bool:
        level, auto = self._options.levels[name], usual(copies)
        return level.safe and _everywhere(level.write or auto, level.read or auto, copies)

    def empty_below(self, queue: Queue, now: int) -> Position | None:
        """Returns the position below which what a read finds empty stays empty; None: nowhere."""
        level = self.of(queue)
        return (now - ticks(level.delay), LOW_MIN) if self._concludes(level) else None

    def _decide(self, name: str, stored: StoredTiming, known: dict[str, InForce]) -> InForce:
        try:
            auto = usual(self._replication())
        except StoreUnavailable:  # Nothing can be written or read now; to be decided when it can.
            return self._in_force(name, "QUORUM", stored)
        found = known[name] = self._in_force(name, auto, stored)
        return found

    def _in_force(self, name: str, auto: str, stored: StoredTiming) -> InForce:
        level = self._options.levels[name]
        delay, deadline = level.delay, level.deadline
        within = max(0.0, delay - stored.assumed.clock_difference)
        if level.safe:
            delay, deadline = stored.assumed.levels[name].delay, stored.kept.levels[name].deadline
            within = stored.unseen[name]
        return InForce(level.write or auto, level.read or auto, delay, deadline, within, level.safe)

    def guarantee(self, queue: Queue) -> str:
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
