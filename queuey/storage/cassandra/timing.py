"""W, U, S, D and C: how long writes, undo writes and reads take, how far clocks may differ, how old a row may be.

They stand in the keyspace, so that all processes go by the same. A process reads them again every second, and serves
nothing by what it began to read longer than LEASE ago. While they are being changed two sets stand there::

    kept     what every process keeps: W of its writes, S of its clock, C of the rows that it uses, and D for its undo
             writes. Of the old value and the new one always the lower
    assumed  what it assumes of the others: D of its reads, S between it and them, C of the rows that they use. Always
             the higher

So whatever was promised under the old set holds for those who go by the new one, and the other way round. When LEASE
is over every process keeps the lower values, and D + S later nothing is on its way that was begun before; then the new
set may stand alone. What stands there is safe at every step, wherever a change stops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Annotated

import msgspec
from msgspec import Meta

from queuey.errors import SettingsError

LEASE = 10.0
"""Max seconds (boot time) for which a process may go by what it has read."""
FORMAT = 1

Seconds = Annotated[float, Meta(gt=0, le=3600)]


class LevelTiming(msgspec.Struct, frozen=True):
    """The times of one consistency level, in seconds.

    Attributes:
        deadline: Within which a write must have returned to be acknowledged (W).
        undo: Within which a write that failed is undone for certain, nearly always (U).
        delay: That range reads stay behind the clock (D).
    """

    deadline: Seconds
    undo: Annotated[float, Meta(ge=0, le=3600)]
    delay: Seconds


class Timing(msgspec.Struct, frozen=True):
    """The times of a keyspace, in seconds.

    Attributes:
        clock_difference: By which the clocks of two processes differ at most (S).
        row_age: For which a queue's row and its bucket index may be used unread (C).
        levels: By consistency level, those that promise anything.
    """

    clock_difference: Seconds
    row_age: Seconds
    levels: Mapping[str, LevelTiming]

    def check(self) -> Timing:
        """Returns itself if it keeps the promises."""
        spare = 1e-9  # 0.4 + 0.35 + 0.25 may be a little more than 1.
        for name, level in self.levels.items():
            least = level.deadline + level.undo + self.clock_difference
            if level.delay < least - spare:
                raise SettingsError(
                    f"{name}: a read delay of {level.delay:g} s is shorter than the write deadline "
                    f"({level.deadline:g} s), the time for undo writes ({level.undo:g} s) and the clock difference "
                    f"({self.clock_difference:g} s) together; readers would miss messages."
                )
            if self.row_age > level.delay - self.clock_difference + spare:
                raise SettingsError(
                    f"{name}: queue rows may be used for {self.row_age:g} s, which must not be longer than the read "
                    f"delay less the clock difference ({level.delay - self.clock_difference:g} s)."
                )
        return self

    def merged(self, other: Timing, choose: Callable[[float, float], float]) -> Timing:
        levels = {
            name: LevelTiming(
                *map(choose, msgspec.structs.astuple(level), msgspec.structs.astuple(other.levels.get(name, level)))
            )
            for name, level in {**other.levels, **self.levels}.items()
        }
        first = choose(self.clock_difference, other.clock_difference), choose(self.row_age, other.row_age)
        return Timing(*first, levels)

    def unseen(self) -> dict[str, float]:
        """Returns, by level, the seconds after minting in which no reader has passed an id: D - S."""
        return {name: round(level.delay - self.clock_difference, 9) for name, level in self.levels.items()}

    def values(self) -> dict[str, float]:
        """Returns each value by the name of its setting."""
        found = {"cassandra_clock_difference": self.clock_difference, "cassandra_row_age": self.row_age}
        for name, level in self.levels.items():
            found |= {f"consistency.{name}.{field}": value for field, value in msgspec.structs.asdict(level).items()}
        return found


def _both(level: LevelTiming, clock_difference: float, row_age: float) -> Timing:
    return Timing(clock_difference, row_age, {"strong": level, "very_strong": level})


SOON = _both(LevelTiming(0.4, 0.35, 1.0), 0.25, 0.75)
"""Times of a new keyspace in one data centre."""
PATIENT = _both(LevelTiming(3.0, 1.0, 5.0), 1.0, 1.0)
"""Times of a new keyspace in several data centres."""


LONGEST_CLAIM = 43_200.0
"""Max seconds that a claim may live."""


class StoredTiming(msgspec.Struct, frozen=True):
    """The times of a keyspace, as they are stored.

    Attributes:
        change: Differs from that of any other.
        kept, assumed: See the module.
        unseen: By consistency level, seconds after minting in which no reader has passed an id: D - S, the least of
            the old set and the new one.
        claimed_by, claimed_until: S when the claims were made that may still live, and until when that is so (seconds
            since 1970): a clock may have been off by as much when a claim's end was chosen.
        format: Of this.
    """

    change: str
    kept: Timing
    assumed: Timing
    unseen: Mapping[str, float]
    claimed_by: float = 0.0
    claimed_until: float = 0.0
    format: int = FORMAT

    @property
    def settled(self) -> bool:
        return self.kept == self.assumed

    def claim_margin(self, now: float) -> float:
        """Returns S for claims, given the seconds since 1970."""
        difference = self.assumed.clock_difference
        return max(difference, self.claimed_by) if now < self.claimed_until else difference


def settled(timing: Timing, change: str = "") -> StoredTiming:
    return StoredTiming(change, timing, timing, timing.unseen())


def between(old: StoredTiming, new: Timing, change: str, now: float) -> StoredTiming:
    """Returns what stands there while other times are brought in."""
    kept, assumed = old.kept.merged(new, min).check(), old.assumed.merged(new, max)
    unseen = {name: min(value, new.unseen().get(name, value)) for name, value in old.unseen.items()}
    return StoredTiming(change, kept, assumed, unseen, old.claim_margin(now), now + LONGEST_CLAIM)


def after(step: StoredTiming, new: Timing, change: str, now: float) -> StoredTiming:
    return StoredTiming(
        change, new, new, new.unseen(), max(step.claimed_by, step.assumed.clock_difference), now + LONGEST_CLAIM
    )


_decode = msgspec.json.Decoder(StoredTiming).decode


def decode(text: str) -> StoredTiming:
    try:
        found = _decode(text)
    except msgspec.DecodeError as error:
        raise SettingsError(f"the times that stand in the keyspace cannot be read: {error}") from error
    if found.format > FORMAT:
        raise SettingsError("the times that stand in the keyspace were written by a newer version of Queuey")
    return found


def encode(stored: StoredTiming) -> str:
    return msgspec.json.encode(stored).decode()


LONGEST_ROW_AGE = 1.0
"""Default C in seconds, after which changes of queues answer."""


def changed(base: Timing, levels: Iterable[str], named: Mapping[str, float]) -> Timing:
    """Returns times in which some are others; D is the least that the others allow, unless it is named.

    C is as long as it may be, a second at most, unless it is named.
    """
    difference = named.get("clock_difference", base.clock_difference)
    found = dict(base.levels)
    for name, level in base.levels.items():
        own = {field: value for field, value in named.items() if name in levels and field in ("deadline", "undo")}
        new = msgspec.structs.replace(level, **own)
        delay = named.get("delay") if name in levels else None
        least = round(new.deadline + new.undo + difference, 6)
        found[name] = msgspec.structs.replace(new, delay=least if delay is None else delay)
    longest = min(level.delay for level in found.values()) - difference
    age = named.get("row_age", min(LONGEST_ROW_AGE, round(longest, 6)))
    if difference <= 0 or age <= 0 or any(level.deadline <= 0 or level.undo < 0 for level in found.values()):
        raise SettingsError("W, S and C must be above 0, and U must not be below.")
    return Timing(difference, age, found).check()


def stated_in(base: Timing, stated: Mapping[str, float]) -> Timing:
    """Returns times with what settings name in the place of theirs; what a delay leaves is for undo writes."""
    difference = stated.get("cassandra_clock_difference", base.clock_difference)
    levels = {}
    for name, level in base.levels.items():
        deadline = stated.get(f"consistency.{name}.deadline", level.deadline)
        delay = stated.get(f"consistency.{name}.delay", level.delay)
        is_same = (deadline, delay, difference) == (level.deadline, level.delay, base.clock_difference)
        undo = level.undo if is_same else max(0.0, round(delay - deadline - difference, 6))
        levels[name] = LevelTiming(deadline, undo, delay)
    longest = min(level.delay for level in levels.values()) - difference
    return Timing(difference, min(base.row_age, round(longest, 6)), levels).check()
