"""The meaning of ``weak``, ``strong`` and ``very_strong`` on a given cluster.

Whether every read meets every acknowledged write depends on the copies of a keyspace and two consistency levels. An
adversary chooses which copies a write reaches and which a read asks, as far as the levels allow. If these can have no
copy in common, the read may miss the write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from itertools import product
from shlex import quote
from typing import Literal, NamedTuple

from queuey.model.errors import StoreUnavailable
from queuey.model.ids import LOW_MIN, Position
from queuey.model.messages import Queue
from queuey.storage.cassandra.cluster.options import CassandraOptions
from queuey.storage.cassandra.cluster.timing import StoredTiming
from queuey.storage.cassandra.time.clock import ticks
from queuey.storage.cassandra.time.timing_in_force import TimingInForce

Copies = Mapping[str, int]
Meeting = Literal["everywhere", "locally", "never"]
"""``locally``: only if the write and the read use the same data centre."""

_COUNTED = {"ONE": 1, "TWO": 2, "THREE": 3}


def find_meeting(write: str, read: str, copies: Copies) -> Meeting:
    """Returns where every read at one level meets every write acknowledged at the other."""
    misses = {
        (writer, reader): _can_miss(write, writer, read, reader, copies) for writer, reader in product(copies, repeat=2)
    }
    if not any(misses.values()):
        return "everywhere"
    return "never" if any(misses[name, name] for name in copies) else "locally"


def satisfies(level: str, reached: Copies, copies: Copies, coordinator_dc: str) -> bool:
    match level:
        case "ALL":
            return reached == copies
        case "QUORUM":
            return sum(reached.values()) >= quorum(sum(copies.values()))
        case "LOCAL_QUORUM":
            return reached[coordinator_dc] >= quorum(copies[coordinator_dc])
        case "EACH_QUORUM":
            return all(reached[name] >= quorum(count) for name, count in copies.items())
        case "LOCAL_ONE":
            return reached[coordinator_dc] >= 1
        case _:
            return sum(reached.values()) >= _COUNTED[level]


def quorum(copies: int) -> int:
    return copies // 2 + 1


def _can_miss(write: str, writer: str, read: str, reader: str, copies: Copies) -> bool:
    return any(
        satisfies(write, written, copies, writer)
        and satisfies(read, {name: count - written[name] for name, count in copies.items()}, copies, reader)
        for written in _list_choices(copies)
    )


def _list_choices(copies: Copies) -> Iterator[dict[str, int]]:
    for counts in product(*(range(count + 1) for count in copies.values())):
        yield dict(zip(copies, counts, strict=True))


class ResolvedLevel(NamedTuple):
    """A queue's consistency level, such as ``strong``, with ``auto`` resolved and the times that apply.

    Attributes:
        writes, reads: Cassandra's consistency levels.
        delay: Delay in seconds of range reads behind the clock (D).
        deadline: Limit in seconds for a write to return (W).
        undone_within: Seconds after minting in which a write must be undone so that no reader has seen it (D - S).
        safe: The level has the guarantees G1 and G2.
    """

    writes: str
    reads: str
    delay: float
    deadline: float
    undone_within: float
    safe: bool


def auto_level(copies: Copies) -> str:
    return "LOCAL_QUORUM" if len(copies) > 1 else "QUORUM"


def is_empty_read_proof(reads: str, options: CassandraOptions, copies: Copies) -> bool:
    """Returns whether a read without results proves that no acknowledged message is there.

    It does if every read meets every acknowledged write of every data centre. That includes writes at the other safe
    levels, since the queue may have had another level before.
    """
    writes = {level.write or auto_level(copies) for level in options.levels.values() if level.safe}
    return all(_meets_everywhere(write, reads, copies) for write in writes)


def _meets_everywhere(write: str, read: str, copies: Copies) -> bool:
    return _meets_everywhere_cached(write, read, tuple(copies.items()))


@lru_cache(1024)
def _meets_everywhere_cached(write: str, read: str, copies: tuple[tuple[str, int], ...]) -> bool:
    return find_meeting(write, read, dict(copies)) == "everywhere"


class ConsistencyLevels:
    """The levels in force, with the timing of the keyspace.

    The meaning of ``auto`` is decided once. Whether an empty read proves anything depends on the present copies: the
    driver reads the schema again whenever it changes. A queue's own read delay takes precedence over its level's.
    """

    def __init__(
        self, options: CassandraOptions, replication: Callable[[], Mapping[str, int]], timing: TimingInForce
    ) -> None:
        self._options = options
        self._timing = timing
        self._replication = replication
        self._known: tuple[StoredTiming, dict[str, ResolvedLevel]] = timing.stored, {}
        """The timing, and the levels resolved with it. One value, so that threads do not mix them."""
        self._concluding: tuple[Copies, dict[str, bool]] = {}, {}
        """The copies, and for them by read level whether it concludes. One value, so that threads do not mix them."""

    def resolve(self, queue: Queue) -> ResolvedLevel:
        stored, by_level = self._known
        if stored is not self._timing.stored:
            stored, by_level = self._known = self._timing.stored, {}
        return by_level.get(queue.consistency) or self._resolve_level(queue.consistency, stored, by_level)

    def delay(self, queue: Queue) -> float:
        return self.resolve(queue).delay if queue.read_delay is None else queue.read_delay

    def is_empty_read_proof(self, level: ResolvedLevel) -> bool:
        """Returns whether an empty read at a level may be remembered, stored or trusted.

        It proves that no acknowledged message is there. False for weak levels, and while the keyspace's copies are
        unknown.
        """
        # All conclusions from empty reads use this: low watermarks and the empty-range cache.
        if not level.safe:
            return False
        try:
            copies = self._replication()
        except StoreUnavailable:
            return False
        known_copies, by_level = self._concluding
        if known_copies is not copies and known_copies != copies:
            by_level = {}
            self._concluding = copies, by_level
        if level.reads not in by_level:
            by_level[level.reads] = is_empty_read_proof(level.reads, self._options, copies)
        return by_level[level.reads]

    def claims_refusal(self, queue: Queue) -> str | None:
        """Returns why messages of a queue must not be claimed, and which consistency level to choose; None if they may.

        Claims continue from what a read did not show, so reads must meet every data centre's acknowledged writes.
        Appends to claim logs must be compared by all data centres together.
        """
        copies = self._replication()
        if (refusal := self._serial_refusal(copies, "to claim messages")) is not None:
            return refusal
        if self._is_claimable(queue.consistency, copies):
            return None
        level = self.resolve(queue)
        why = (
            f"Queue {queue.name!r} is {queue.consistency!r}, written at {level.writes} and read at {level.reads}: "
            f"a read may miss acknowledged messages{' of other data centres' if level.safe else ''}, so they cannot be "
            "claimed exactly."
        )
        choices = [name for name in self._options.levels if self._is_claimable(name, copies)]
        if not choices:
            return f"{why} No consistency level of this store allows claims: set one to read and write at QUORUM."
        best = "strong" if "strong" in choices else choices[0]
        return f"{why} Choose consistency {best!r}: queuey queue update {quote(queue.name)} --consistency {best}"

    def groups_refusal(self) -> str | None:
        """Returns why groups cannot have members, None if they can.

        Group states must be compared by all data centres together, and every read must meet a session that was written.
        """
        copies = self._replication()
        write, read = self._options.catalogue_write, self._options.catalogue_read
        if (refusal := self._serial_refusal(copies, "to have groups with members")) is not None:
            return refusal
        if _meets_everywhere(write, read, copies):
            return None
        return (
            f"consistency.catalogue is written at {write} and read at {read}: a read may miss a member's heartbeat. "
            "Set both to QUORUM to have groups with members."
        )

    def _serial_refusal(self, copies: Copies, purpose: str) -> str | None:
        if len(copies) == 1 or self._options.catalogue_serial == "SERIAL":
            return None
        return (
            f"consistency.catalogue compares at {self._options.catalogue_serial}, within one data centre, and this "
            f"store has several. Set its serial level to SERIAL {purpose}."
        )

    def row_serial_level(self) -> str:
        """Returns the serial consistency level of the rows of idempotency keys and names.

        A post may be repeated in any data centre, so all of them compare, even if catalogue changes are compared within
        one.
        """
        return "SERIAL" if len(self._replication()) > 1 else self._options.catalogue_serial

    def log_read_level(self) -> str:
        """Returns the consistency level of claim log reads that must show why an append was refused.

        An accepted entry may be committed at a majority of all copies only, whatever level was requested. If catalogue
        reads ask one data centre and so may miss it, logs are read at the option ``catalogue_serial``.
        """
        reads = self._options.catalogue_read
        return reads if _meets_everywhere("QUORUM", reads, self._replication()) else self._options.catalogue_serial

    def _is_claimable(self, name: str, copies: Copies) -> bool:
        level, auto = self._options.levels[name], auto_level(copies)
        return level.safe and _meets_everywhere(level.write or auto, level.read or auto, copies)

    def empty_below(self, level: ResolvedLevel, now: int) -> Position | None:
        return (now - ticks(level.delay), LOW_MIN) if self.is_empty_read_proof(level) else None

    def _resolve_level(self, name: str, stored: StoredTiming, by_level: dict[str, ResolvedLevel]) -> ResolvedLevel:
        try:
            auto = auto_level(self._replication())
        except StoreUnavailable:  # Reads and writes fail now anyway. Not cached, so it is decided later.
            return self._make_level(name, "QUORUM", stored)
        level = by_level[name] = self._make_level(name, auto, stored)
        return level

    def _make_level(self, name: str, auto: str, stored: StoredTiming) -> ResolvedLevel:
        level = self._options.levels[name]
        delay, deadline = level.delay, level.deadline
        undone_within = max(0.0, delay - stored.assumed.clock_difference)
        if level.safe:
            delay, deadline = stored.assumed.levels[name].delay, stored.kept.levels[name].deadline
            undone_within = stored.unseen[name]
        return ResolvedLevel(level.write or auto, level.read or auto, delay, deadline, undone_within, level.safe)

    def guarantee(self, queue: Queue) -> str:
        level = self.resolve(queue)
        how = f"written at {level.writes}, read at {level.reads}"
        if not level.safe:
            return f"weak ({how}): a reader continuing from its cursor may miss messages, and one node can lose them"
        delay = self.delay(queue)
        if delay < level.delay:
            return (
                f"{queue.consistency} ({how}), but its read delay of {delay:g} s is shorter than the {level.delay:g} s "
                "that make reading by time safe: a reader that continues from its cursor may miss messages"
            )
        within = (
            " within its data centre" if level.reads.startswith("LOCAL") and level.writes.startswith("LOCAL") else ""
        )
        return (
            f"{queue.consistency} ({how}){within}: a reader that continues from its cursor misses no acknowledged "
            f"message; a 503 with outcome none left nothing; X-After orders messages; reads stay {delay:g} s behind"
        )
