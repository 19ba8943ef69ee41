"""Decides by the answers of coordinators whether the clock agrees with the cluster's.

Each answer of a coordinator gives an :class:`Interval` in which the difference of its clock and ours lies. It widens
with age and narrows with every answer. A difference is our time since boot less the time that a coordinator tells, so
that neither of our clocks needs to be set for it. The answers of one coordinator are intersected, and the medians of
all that have answered within GAP say how far our clock is off, and how exactly that is known. Two processes that serve
are never more than S apart, so each of them keeps within S/2. States::

    unknown ──(offset + error within S/2)──► sound ◄──(offset + error within S/2)── refusing
     │ ▲                                     │   └──(the clock is off)────────────────▲ ▲
     │ └──(no check for GAP; the wall clock  │                                          │
     │     jumped against the boot time; an  │                                          │
     │     inexact round, or age, has grown  │                                          │
     │     offset + error beyond S/2)────────┘                                          │
     └──(the clock is off)──────────────────────────────────────────────────────────────┘

When a virtual machine stands still, all its clocks stop, and afterwards they are behind. So the two ends of an interval
prove different things (``docs/architecture-cassandra.md`` has the argument):

* The **high** end holds from the answer on, whatever stands still. Known intervals prove that we are not too far ahead.
* The **low** end holds up to the moment when the node answered, and says nothing of later ones. Only answers to
  questions that were sent after a moment prove that we were not too far behind then.

A round counts as a check if the median of the low ends of its own answers is within S/2. Known intervals do not count
for that: answers that are slow on one way meet them although the machine stood still. A round that fewer than half of
the coordinators have answered concludes nothing.

Known intervals also show jumps. If the new intervals of at least half of the coordinators that were known miss them,
our clock has jumped, and what was timed before may have been timed wrongly: ``wrong_until`` is set to the present, and
no write whose id was made before counts as in time. The same holds while the clock is off, and when all coordinators
were last heard of before GAP. If fewer are missed, theirs were set.

The clock is off if no offset that the error allows is within S/2, or if offset + error is beyond S/2 and the error
within 0.1 S. A larger error comes from slow answers, as when nodes collect garbage, or from nodes that disagree, and
does not tell whose clock is wrong. Until a better round, which the next request asks for, ids are neither made nor
acknowledged; ``wrong_until`` stays.

An acknowledgement needs a check that began after the answer to the write had come. This is a light check: all answers
that have come share one question to two coordinators (:mod:`.clock_watch`). The high end of what was known of a
coordinator before the last round, less the low end of its answer, is the longest standstill since. It is good if the
clock was within S/2 in that round, and still is after such a standstill. Otherwise all coordinators are asked.

The wall clock is accepted only when it is within 0.3 S of the median itself, and that is known to 0.1 S. So a wall
clock that is set wrongly does no harm to a running process. It must not make up for a standstill unnoticed: the round
counts by the clock as it was, or finds it off. The next one judges the lower of both offsets. If only the higher one is
within S/2, no id that was made before counts.
"""

from __future__ import annotations

import logging
import math
import statistics
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from queuey.storage.cassandra.clocks.clock import Clock

log = logging.getLogger(__name__)

RED = 0.3
REFUSE = 0.5
ERROR = 0.1
"""Max parts of S: beyond which health is red, beyond which nothing is served, and how exactly the offset must be known
for the wall clock to be accepted."""
WITNESSES = 2
"""Number of coordinators that a light check asks at once, if as many are known."""
GAP = 10.0
"""Max seconds without a check after which one comes first, and for which a coordinator's answer counts."""


RESOLUTION = 1_000_000
"""Max nanoseconds that a coordinator's time may be wrong by: it counts milliseconds."""
DRIFT = 1000
"""Min ratio of a time to the change of two clocks' difference in it."""


class Interval(NamedTuple):
    """Where a difference of two clocks lies; all values are nanoseconds.

    Attributes:
        low, high: Its bounds.
        at: The time since boot at which that held.
    """

    low: int
    high: int
    at: int

    def at_time(self, now: int) -> Interval:
        """Returns where it lies at another time: wider by the drift."""
        more = -(-abs(now - self.at) // DRIFT)
        return Interval(self.low - more, self.high + more, now)

    def meets(self, other: Interval) -> bool:
        """Returns whether both may hold, if no clock was set and no machine stood still between them."""
        more = -(-abs(other.at - self.at) // DRIFT)
        return self.low - more <= other.high and other.low <= self.high + more

    def and_also(self, other: Interval) -> Interval:
        now = max(self.at, other.at)
        mine, theirs = self.at_time(now), other.at_time(now)
        return Interval(max(mine.low, theirs.low), min(mine.high, theirs.high), now)

    def standstill_since(self, known: Interval) -> int:
        """Returns the longest standstill of our machine, from when ``known`` held to this answer."""
        return known.at_time(self.at).high - self.low

    @property
    def middle(self) -> int:
        return (self.low + self.high) // 2

    @property
    def error(self) -> int:
        return (self.high - self.low + 1) // 2


def measured(sent: int, received: int, theirs: int) -> Interval:
    """Returns what an answer says."""
    return Interval(sent - theirs - RESOLUTION, received - theirs + RESOLUTION, sent)


def median_of(intervals: Iterable[Interval], now: int) -> Interval:
    """Returns the medians of the lows and of the highs, of an even number those that are further apart.

    When one node of three does not answer and another's clock is off, the mean of two would let a clock pass that is
    off by as much.
    """
    found = [interval.at_time(now) for interval in intervals]
    lows, highs = sorted(one.low for one in found), sorted(one.high for one in found)
    return Interval(lows[(len(found) - 1) // 2], highs[len(found) // 2], now)


class ClockCheck:
    """The state, and the decisions; :class:`.clock_watch.ClockWatch` asks the nodes."""

    def __init__(self, clock: Clock, difference: Callable[[], float]) -> None:
        self._clock = clock
        self._difference = difference
        self._lock = threading.Lock()
        self._known: dict[str, Interval] = {}
        """By the address of the coordinator."""
        self._median: Interval | None = None
        self._last_round = Interval(0, 0, 0)
        """Median of the answers of the last round that counts, without what was known."""
        self._known_before: dict[str, Interval] = {}
        """What was known when that round began, unless it has found a jump."""
        self._offset_before = math.inf
        """The clock's offset before that round, by which ids may have been made that it does not vouch for."""
        self._accepted_at = -math.inf
        """Boot time up to which they may have been made."""
        self._checked: float | None = None
        self._began = -math.inf
        self._drift = 0.0
        self._refusing = False
        self._sound_until = -1
        """Nanoseconds since boot up to which the last round counts, by S as it was then."""
        self._judged_by = 0.0
        self.wrong_until = -math.inf
        """Boot time of the last check that found a jump, or the clock off: ids made up to then may have been late."""
        self.fastest: tuple[str, ...] = ()
        """Coordinators to ask for a light check, the one that answered fastest first."""
        self.witnesses = 0
        """How many of them a light check needs."""
        self._set: set[str] = set()
        """Coordinators whose clocks were set before the last round, or are being slewed."""
        self.off: tuple[str, ...] = ()
        """Coordinators whose own clocks are beyond 0.3 S of the median."""
        self.wall_off = False
        self.jumped: Callable[[], None] = lambda: None
        """Called when what was timed before may be older than it seems."""

    def note(self, answers: Mapping[str, Interval], began: float | None = None, there: int = 1) -> None:
        """Applies a round of answers, by coordinator, of ``there`` coordinators.

        Unless half of them answered, nothing is concluded: one may be on this very machine.
        """
        if not answers:
            return
        before = self.wrong_until
        self._note(answers, began, there)
        if self.wrong_until != before:
            self.jumped()

    def _note(self, answers: Mapping[str, Interval], began: float | None, there: int) -> None:
        with self._lock:
            known_before = self._learn(answers)
            if 2 * len(answers) >= there:
                self._rank(answers, there)
                self._conclude(answers, began, known_before)
            self._judge()

    def _conclude(self, answers: Mapping[str, Interval], began: float | None, known: dict[str, Interval]) -> None:
        median = median_of(answers.values(), self._clock.since_boot())
        if self._is_off():
            self.wrong_until, self._offset_before = self._clock.boottime(), math.inf
            self._accept_wall()
        elif self._behind(median) <= self.limit:
            self._offset_before = self._clock.offset
            self._accept_wall()
            self._accepted_at = self._clock.boottime()
        elif self._behind(median, before=False) <= self.limit:
            self.wrong_until, self._offset_before = max(self.wrong_until, self._accepted_at), math.inf
        refusing = self._is_off() or (self._refusing and self.offset_bound > self.limit)
        if refusing != self._refusing:
            log.log(
                logging.ERROR if refusing else logging.WARNING,
                "The clock is %+.3f s (give or take %.3f s) off the Cassandra nodes': %s.",
                self.median,
                self.error,
                "nothing is served until it is right" if refusing else "serving again",
            )
        self._refusing = refusing
        if self._behind(median) <= self.limit:
            self._last_round, self._known_before = median, known
            self._checked, self._drift = self._clock.boottime(), self._clock.drift()
            self._began = self._checked if began is None else began

    def _behind(self, median: Interval, *, before: bool = True) -> float:
        """Returns the seconds that ids were too low at most, up to when the nodes gave the answers of a median.

        ``before``: includes ids that were made before the wall clock was accepted last.
        """
        low = median.at_time(self._clock.since_boot()).low
        return -(low + min(self._clock.offset, self._offset_before if before else math.inf)) / 1e9

    def _is_off(self) -> bool:
        """Returns whether the clock is off; one that an inexact round leaves possible is not."""
        offset_at_least = abs(self.median) - self.error
        exact = self.error <= ERROR * self._difference()
        return self.offset_bound > self.limit and (exact or offset_at_least > self.limit)

    def _judge(self) -> None:
        """Finds how long what is known will do: until it is old, or too inexact to stay within the limit."""
        self._judged_by = self._difference()
        if self._checked is None or self._refusing:
            self._sound_until = -1
            return
        left = min(GAP - (self._clock.boottime() - self._checked), (self.limit - self.offset_bound) * DRIFT)
        self._sound_until = self._clock.since_boot() + round(left * 1e9)

    def agrees(self, coordinator: str, answer: Interval) -> bool:
        """Applies the answer to a light check; returns whether it shows that the clock is right."""
        with self._lock:
            known = self._known_before.get(coordinator)
            if known is None:
                return False
            if not known.meets(answer):
                self._began = -math.inf  # Whose clock has jumped, a round finds out that begins now.
                return False
            behind = self._behind(self._last_round) + max(0, answer.standstill_since(known)) / 1e9
        return self.sound() and behind <= self.limit

    def slow(self, coordinator: str) -> None:
        """Excludes a coordinator that did not answer from light checks until it has answered in a round."""
        self.fastest = tuple(one for one in self.fastest if one != coordinator)

    def sound(self, since: float = -math.inf) -> bool:
        """Returns whether the last round, begun at boot time ``since`` or later, still allows ids and horizons."""
        difference = self._difference()
        if difference != self._judged_by:
            with self._lock:
                self._judge()
        return (
            self._clock.since_boot() <= self._sound_until
            and self._began >= since
            and abs(self._clock.drift() - self._drift) <= ERROR * difference
        )

    @property
    def refusing(self) -> bool:
        return self._refusing

    @property
    def median(self) -> float:
        """Seconds by which the id clock is ahead of the coordinators' median."""
        return 0.0 if self._median is None else (self._median.middle + self._clock.offset) / 1e9

    @property
    def error(self) -> float:
        return 0.0 if self._median is None else self._median.at_time(self._clock.since_boot()).error / 1e9

    @property
    def offset_bound(self) -> float:
        """Seconds that the id clock is off at most."""
        if self._median is None:
            return math.inf
        low, high, _ = self._median.at_time(self._clock.since_boot())
        offset = self._clock.offset
        return max(-low - offset, high + offset) / 1e9

    def complaint(self) -> str | None:
        """Returns what makes health red, None if nothing does."""
        if self._median is None or (self._checked is None and self.offset_bound <= self.limit):
            return "the clock has not been compared with the Cassandra nodes' yet"
        if self.offset_bound > self.limit or abs(self.median) > RED * self._difference() + self.error:
            return f"the clock is {self.median:+.3f} s (give or take {self.error:.3f} s) off the Cassandra nodes'"
        if self.wall_off:
            return "the wall clock of this machine is off the Cassandra nodes'"
        if self.off:
            return f"the clocks of these Cassandra nodes are off: {', '.join(self.off)}"
        return None

    @property
    def limit(self) -> float:
        return REFUSE * self._difference()

    def _learn(self, answers: Mapping[str, Interval]) -> dict[str, Interval]:
        """Adds answers to what is known; returns what was known before, unless our clock has jumped."""
        now = self._clock.since_boot()
        before = {node: one for node, one in self._known.items() if now - one.at <= GAP * 1e9}
        both = [node for node in answers if node in before]
        self._set = {node for node in both if not before[node].meets(answers[node])}
        if not both or len(both) <= 2 * len(self._set):
            # Ours has jumped, or nobody is left who knew it before: what is made from now on is as right as this says.
            self.wrong_until = self._clock.boottime() if both else math.nextafter(self._clock.boottime(), -math.inf)
            self._set, self._known, before = set(), dict(answers), {}
        else:
            # A clock that few have jumped against is right: theirs were set.
            self._known = before | {
                node: before[node].and_also(one) if node in before and node not in self._set else one
                for node, one in answers.items()
            }
        self._median = median_of(self._known.values(), now)
        return before

    def _rank(self, answers: Mapping[str, Interval], nodes: int) -> None:
        usual = statistics.median(one.middle for one in self._known.values())
        red = RED * self._difference() * 1e9
        self.off = tuple(node for node, one in self._known.items() if abs(one.middle - usual) > red + one.error)
        right = [node for node in answers if node not in self.off and node not in self._set]
        self.fastest = tuple(sorted(right, key=lambda node: answers[node].error))
        self.witnesses = min(WITNESSES, nodes)

    def _accept_wall(self) -> None:
        offset, difference = self._clock.wall_offset(), self._difference()
        ahead = self.median + (offset - self._clock.offset) / 1e9
        self.wall_off = abs(ahead) > RED * difference
        if not self.wall_off and self.error <= ERROR * difference:
            self._clock.accept(offset)
