"""W, U, S, D and C: limits for writes, undo writes, clock differences, read delays and the age of rows.

They are stored in the keyspace, so that all processes use the same. A process reads them again every second, and serves
nothing with values whose read began more than LEASE ago. During a change two sets are stored::

    kept     what every process keeps: W of its writes, S of its clock, C of the rows that it uses, and D for its undo
             writes. Always the lower of the old and the new value
    assumed  what it assumes of other processes: D of its reads, S between its clock and theirs, C of the rows that they
             use. Always the higher value

So every promise under the old set holds for processes that use the new set, and the other way round. After LEASE, every
process keeps the lower values. D + S later, nothing that began before is under way, and the new set may replace both.
The stored values are safe at every step, wherever a change stops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Annotated

import msgspec
from msgspec import Meta

from queuey.model.errors import SettingsError

LEASE = 10.0
"""Max seconds (boot time) for which a process may use the values that it has read."""
FORMAT = 1

Seconds = Annotated[float, Meta(gt=0, le=3600)]


class LevelTiming(msgspec.Struct, frozen=True):
    """Timing of one consistency level, in seconds.

    Attributes:
        deadline: Limit for a write to return and be acknowledged (W).
        undo: Limit for undoing a failed write, which nearly always suffices (U).
        delay: Delay of range reads behind the clock (D).
    """

    deadline: Seconds
    undo: Annotated[float, Meta(ge=0, le=3600)]
    delay: Seconds


class KeyspaceTiming(msgspec.Struct, frozen=True):
    """Timing of a keyspace, in seconds.

    Attributes:
        clock_difference: Max difference between the clocks of two processes (S).
        row_age: Max age of a queue's row and its bucket index when they are used (C).
        levels: Timing by consistency level, for the levels with guarantees.
    """

    clock_difference: Seconds
    row_age: Seconds
    levels: Mapping[str, LevelTiming]

    def check(self) -> KeyspaceTiming:
        """Returns itself. Raises SettingsError unless D is at least W + U + S, and C at most D - S, at each level."""
        spare = 1e-9  # 0.4 + 0.35 + 0.25 may be a little more than 1.
        for name, level in self.levels.items():
            min_delay = level.deadline + level.undo + self.clock_difference
            if level.delay < min_delay - spare:
                raise SettingsError(
                    f"{name}: a read delay of {level.delay:g} s is shorter than the write deadline "
                    f"({level.deadline:g} s), the time for undo writes ({level.undo:g} s) and the clock difference "
                    f"({self.clock_difference:g} s) together; readers would miss messages."
                )
            if self.row_age > level.delay - self.clock_difference + spare:
                raise SettingsError(
                    f"{name}: queue rows may be used for {self.row_age:g} s, which must not exceed the read delay "
                    f"minus the clock difference ({level.delay - self.clock_difference:g} s)."
                )
        return self

    def merge(self, other: KeyspaceTiming, choose: Callable[[float, float], float]) -> KeyspaceTiming:
        """Returns timing with ``choose`` applied to each pair of values; a level in one of them only is kept."""
        levels = {
            name: LevelTiming(
                *map(choose, msgspec.structs.astuple(level), msgspec.structs.astuple(other.levels.get(name, level)))
            )
            for name, level in {**other.levels, **self.levels}.items()
        }
        first = choose(self.clock_difference, other.clock_difference), choose(self.row_age, other.row_age)
        return KeyspaceTiming(*first, levels)

    def unseen(self) -> dict[str, float]:
        """Returns by level the seconds after minting in which no reader has passed an id: D - S."""
        return {name: round(level.delay - self.clock_difference, 9) for name, level in self.levels.items()}


def _make_timing(level: LevelTiming, clock_difference: float, row_age: float) -> KeyspaceTiming:
    return KeyspaceTiming(clock_difference, row_age, {"strong": level, "very_strong": level})


ONE_CENTRE_TIMING = _make_timing(LevelTiming(0.4, 0.35, 1.0), 0.25, 0.75)
"""Timing of a new keyspace in one data centre."""
MANY_CENTRES_TIMING = _make_timing(LevelTiming(3.0, 1.0, 5.0), 1.0, 1.0)
"""Timing of a new keyspace in several data centres."""


MAX_CLAIM_SECONDS = 43_200.0
"""Max seconds that a claim may last."""


class StoredTiming(msgspec.Struct, frozen=True):
    """The timing of a keyspace, as it is stored.

    Attributes:
        change: Unique id of the change that stored it.
        kept, assumed: The two sets; see the module.
        unseen: By consistency level, the seconds after minting in which no reader has passed an id: the lower D - S of
            the old and the new set.
        claimed_by, claimed_until: S when the claims were made that may still last, and the end of the last one (seconds
            since 1970). A clock may have been off by that S when a claim's end was chosen.
        format: Version of this format.
    """

    change: str
    kept: KeyspaceTiming
    assumed: KeyspaceTiming
    unseen: Mapping[str, float]
    claimed_by: float = 0.0
    claimed_until: float = 0.0
    format: int = FORMAT

    @property
    def settled(self) -> bool:
        return self.kept == self.assumed

    def claim_margin(self, now: float) -> float:
        """Returns S for claims at a time in seconds since 1970: the highest by which a lasting claim was made."""
        difference = self.assumed.clock_difference
        return max(difference, self.claimed_by) if now < self.claimed_until else difference


def make_settled(timing: KeyspaceTiming, change: str = "") -> StoredTiming:
    return StoredTiming(change, timing, timing, timing.unseen())


def make_step(old: StoredTiming, new: KeyspaceTiming, change: str, now: float) -> StoredTiming:
    """Returns what is stored while a change is under way: the lower values are kept, the higher ones assumed.

    Raises SettingsError if the lower values together do not keep the guarantees.
    """
    kept, assumed = old.kept.merge(new, min).check(), old.assumed.merge(new, max)
    unseen = {name: min(value, new.unseen().get(name, value)) for name, value in old.unseen.items()}
    return StoredTiming(change, kept, assumed, unseen, old.claim_margin(now), now + MAX_CLAIM_SECONDS)


def make_final(step: StoredTiming, new: KeyspaceTiming, change: str, now: float) -> StoredTiming:
    """Returns what is stored after a change: only the new set, and S of the claims that may still last."""
    return StoredTiming(
        change, new, new, new.unseen(), max(step.claimed_by, step.assumed.clock_difference), now + MAX_CLAIM_SECONDS
    )


_decode = msgspec.json.Decoder(StoredTiming).decode


def decode(text: str) -> StoredTiming:
    try:
        stored = _decode(text)
    except msgspec.DecodeError as error:
        raise SettingsError(f"the timing of the keyspace cannot be read: {error}") from error
    if stored.format > FORMAT:
        raise SettingsError("the timing of the keyspace was written by a newer version of Queuey")
    return stored


def encode(stored: StoredTiming) -> str:
    return msgspec.json.encode(stored).decode()


MAX_ROW_AGE = 1.0
"""Default C in seconds: a change of a queue is answered after it."""


def change_values(base: KeyspaceTiming, levels: Iterable[str], named: Mapping[str, float]) -> KeyspaceTiming:
    """Returns timing with the named values replaced: W, U and D only of the given levels.

    Unless it is named, D becomes the least value that the others allow, and C the greatest, at most a second. Raises
    SettingsError if the values do not keep the guarantees.
    """
    difference = named.get("clock_difference", base.clock_difference)
    level_timings = dict(base.levels)
    for name, level in base.levels.items():
        fields = {field: value for field, value in named.items() if name in levels and field in ("deadline", "undo")}
        new = msgspec.structs.replace(level, **fields)
        delay = named.get("delay") if name in levels else None
        min_delay = round(new.deadline + new.undo + difference, 6)
        level_timings[name] = msgspec.structs.replace(new, delay=min_delay if delay is None else delay)
    max_age = min(level.delay for level in level_timings.values()) - difference
    age = named.get("row_age", min(MAX_ROW_AGE, round(max_age, 6)))
    if difference <= 0 or age <= 0 or any(level.deadline <= 0 or level.undo < 0 for level in level_timings.values()):
        raise SettingsError("W, S and C must be above 0, and U must not be negative.")
    return KeyspaceTiming(difference, age, level_timings).check()
