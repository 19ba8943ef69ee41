"""Decides from the answers of coordinators whether the clock agrees with the cluster's clocks.

Each answer of a coordinator gives an :class:`ClockDifference` that contains the difference between its clock and ours.
It widens with age and narrows with every answer. A difference is our time since boot minus the coordinator's time, so
neither of our clocks needs to be set for it. The answers of one coordinator are intersected. The medians over all that
have answered within GAP say how far our clock is off, and how exactly that is known. Two serving processes are never
more than S apart, so each of them keeps within S/2. States::

    unknown ──(offset + error within S/2)──► sound ◄──(offset + error within S/2)── refusing
     │ ▲                                     │   └──(the clock is off)────────────────▲ ▲
     │ └──(no check for GAP; the wall clock  │                                          │
     │     jumped against the boot time; an  │                                          │
     │     inexact round, or age, has grown  │                                          │
     │     offset + error beyond S/2)────────┘                                          │
     └──(the clock is off)──────────────────────────────────────────────────────────────┘

When a virtual machine is paused, all its clocks stop and are behind afterwards. So the two ends of an interval prove
different things (``docs/architecture-cassandra.md`` has the argument):

* The **high** end holds from the answer on, whatever is paused. Known intervals prove that we are not too far ahead.
* The **low** end holds up to the moment when the node answered, and says nothing about later ones. Only answers to
  questions that were sent after a moment prove that we were not too far behind then.

A round counts as a check if the median of the low ends of its own answers is within S/2. Known intervals do not count
for that: an answer that is slow on one way meets them even if the machine was paused. A round that fewer than half of
the coordinators have answered concludes nothing.

Known intervals also show jumps. If the new intervals of at least half of the known coordinators miss the known ones,
our clock has jumped, and earlier times may have been measured wrongly: ``wrong_until`` is set to the present, and no
write with an earlier id counts as in time. It is also set while the clock is off, and if no coordinator has answered
within GAP. If fewer intervals miss, the clocks of those coordinators were set.

The clock is off if no offset that the error allows is within S/2, or if offset + error is beyond S/2 and the error
within 0.1 S. A larger error comes from slow answers, as during garbage collection of nodes, or from nodes that
disagree; it does not show whose clock is wrong. Until a better round, which the next request asks for, ids are neither
made nor acknowledged; ``wrong_until`` stays.

An acknowledgement needs a check that began after the answer to the write had arrived. This is a light check: all
answers that have arrived share one question to two coordinators (:mod:`.clock_watch`). The longest pause since the last
round is the high end known of a coordinator before that round, minus the low end of its answer. The check is good if
the clock was within S/2 in that round and still is after such a pause. Otherwise all coordinators are asked.

The wall clock is accepted only if it is within 0.3 S of the median, and the median is known to 0.1 S. So a wrong wall
clock does no harm to a running process. Nor may it hide a pause: the round counts by the clock as it was, or finds it
off. The next round judges the lower of both offsets. If only the higher one is within S/2, no earlier id counts.
"""

from __future__ import annotations

import logging
import math
import statistics
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from queuey.storage.cassandra.time.clock import SteadyClock

log = logging.getLogger(__name__)

RED_RATIO = 0.3
REFUSE_RATIO = 0.5
ERROR_RATIO = 0.1
"""Max parts of S: of the offset before health is red, of the offset before requests are refused, and of the error with
which a wall clock may be accepted."""
WITNESSES = 2
"""Number of coordinators that a light check asks at once, if that many are known."""
GAP = 10.0
"""Max seconds without a check before a new one must come first, and for which a coordinator's answer counts."""


RESOLUTION = 1_000_000
"""Max error in nanoseconds of a coordinator's time, which counts milliseconds."""
DRIFT = 1000
"""Min ratio of a time span to the drift of two clocks in it."""


class ClockDifference(NamedTuple):
    """Bounds of the difference between two clocks, in nanoseconds.

    At another time, the bounds are wider by the drift. ``max_pause_since`` returns the max nanoseconds for which this
    machine can have been paused since ``known``.

    Attributes:
        low, high: The bounds.
        at: Time since boot at which they held.
    """

    low: int
    high: int
    at: int

    def at_time(self, now: int) -> ClockDifference:
        drift = -(-abs(now - self.at) // DRIFT)
        return ClockDifference(self.low - drift, self.high + drift, now)

    def is_consistent_with(self, other: ClockDifference) -> bool:
        """Returns whether both may hold if no clock was set and no machine paused between them."""
        drift = -(-abs(other.at - self.at) // DRIFT)
        return self.low - drift <= other.high and other.low <= self.high + drift

    def intersect(self, other: ClockDifference) -> ClockDifference:
        now = max(self.at, other.at)
        mine, theirs = self.at_time(now), other.at_time(now)
        return ClockDifference(max(mine.low, theirs.low), min(mine.high, theirs.high), now)

    def max_pause_since(self, known: ClockDifference) -> int:
        drift = -(-abs(self.at - known.at) // DRIFT)
        return known.high + drift - self.low

    @property
    def middle(self) -> int:
        return (self.low + self.high) // 2

    @property
    def error(self) -> int:
        return (self.high - self.low + 1) // 2


def measure_difference(sent: int, received: int, theirs: int) -> ClockDifference:
    """Returns the bounds of our time minus theirs, from a question sent and answered at these times since boot."""
    return ClockDifference(sent - theirs - RESOLUTION, received - theirs + RESOLUTION, sent)


def median_of(intervals: Iterable[ClockDifference], now: int) -> ClockDifference:
    """Returns the medians of the lows and of the highs; for an even number, the outer ones.

    When one node of three does not answer and another's clock is off, a mean of the two would accept a clock that is
    off by as much.
    """
    current = [interval.at_time(now) for interval in intervals]
    lows, highs = sorted(interval.low for interval in current), sorted(interval.high for interval in current)
    return ClockDifference(lows[(len(current) - 1) // 2], highs[len(current) // 2], now)


class ClockCheck:
    """The state and the decisions. :class:`.clock_watch.ClockWatch` asks the nodes.

    ``limit`` is S/2 in seconds. ``error`` is that of ``median``, in seconds; 0 before the first round. ``refusing``:
    the clock is certainly off, so requests are refused.
    """

    def __init__(self, clock: SteadyClock, difference: Callable[[], float]) -> None:
        self._clock = clock
        self._difference = difference
        self._lock = threading.Lock()
        self._known: dict[str, ClockDifference] = {}
        """Intervals by the coordinator's address."""
        self._median: ClockDifference | None = None
        self._last_round = ClockDifference(0, 0, 0)
        """Median of the answers of the last round that counts, without known intervals."""
        self._known_before: dict[str, ClockDifference] = {}
        """The known intervals when that round began, unless it found a jump."""
        self._offset_before = math.inf
        """The clock's offset before that round. Ids may have been made by it that the round does not vouch for."""
        self._accepted_at = -math.inf
        """Boot time up to which such ids may have been made."""
        self._checked: float | None = None
        self._began = -math.inf
        self._drift = 0.0
        self.refusing = False
        self._sound_until = -1
        """Nanoseconds since boot up to which the last round counts, by the S in force then."""
        self._judged_by = 0.0
        self.wrong_until = -math.inf
        """Boot time of the last check that found a jump or a wrong clock: earlier ids may have been late."""
        self.fastest: tuple[str, ...] = ()
        """Coordinators for light checks, fastest first."""
        self.witnesses = 0
        """Number of coordinators that a light check needs."""
        self._set: set[str] = set()
        """Coordinators whose clocks were set before the last round, or are being slewed."""
        self.off: tuple[str, ...] = ()
        """Coordinators whose clocks are more than 0.3 S off the median."""
        self.wall_off = False
        self.on_jump: Callable[[], None] = lambda: None
        """Called when values that were timed before may be older than they seem."""

    def apply_round(
        self, answers: Mapping[str, ClockDifference], began: float | None = None, node_count: int = 1
    ) -> None:
        """Applies a round of answers by coordinator; ``node_count``: number of coordinators.

        Concludes nothing unless half of them answered: one may run on this very machine. Calls ``on_jump`` if ids made
        before may have been late.
        """
        if not answers:
            return
        before = self.wrong_until
        self._apply_round(answers, began, node_count)
        if self.wrong_until != before:
            self.on_jump()

    def _apply_round(self, answers: Mapping[str, ClockDifference], began: float | None, node_count: int) -> None:
        with self._lock:
            known_before = self._add_answers(answers)
            if 2 * len(answers) >= node_count:
                self._rank_coordinators(answers, node_count)
                self._conclude(answers, began, known_before)
            self._set_sound_until()

    def _conclude(
        self, answers: Mapping[str, ClockDifference], began: float | None, known: dict[str, ClockDifference]
    ) -> None:
        """Judges a round that at least half of the coordinators answered.

        Sets ``wrong_until`` if earlier ids may have been late, adopts a right wall clock, and refuses or serves again.
        The round counts as a check only if ids were too low by at most ``limit``.
        """
        median = median_of(answers.values(), self._clock.raw_boottime_ns())
        if self._is_off():
            self.wrong_until, self._offset_before = self._clock.boottime(), math.inf
            self._accept_wall()
        elif self._bound_seconds_behind(median) <= self.limit:
            self._offset_before = self._clock.offset
            self._accept_wall()
            self._accepted_at = self._clock.boottime()
        elif self._bound_seconds_behind(median, before=False) <= self.limit:
            self.wrong_until, self._offset_before = max(self.wrong_until, self._accepted_at), math.inf
        refusing = self._is_off() or (self.refusing and self.offset_bound > self.limit)
        if refusing != self.refusing:
            log.log(
                logging.ERROR if refusing else logging.WARNING,
                "The clock is %+.3f s (give or take %.3f s) off the clocks of the Cassandra nodes: %s.",
                self.median,
                self.error,
                "requests are refused until it is right" if refusing else "serving again",
            )
        self.refusing = refusing
        if self._bound_seconds_behind(median) <= self.limit:
            self._last_round, self._known_before = median, known
            self._checked, self._drift = self._clock.boottime(), self._clock.drift()
            self._began = self._checked if began is None else began

    def _bound_seconds_behind(self, median: ClockDifference, *, before: bool = True) -> float:
        """Returns the seconds that ids were too low at most, up to when the nodes gave the answers of a median.

        ``before``: includes ids that were made before the wall clock was last accepted.
        """
        drift = -(-abs(self._clock.raw_boottime_ns() - median.at) // DRIFT)
        offset = min(self._clock.offset, self._offset_before) if before else self._clock.offset
        return -(median.low - drift + offset) / 1e9

    def _is_off(self) -> bool:
        """Returns True only if it is certainly off, not if an inexact round merely allows it."""
        offset_at_least = abs(self.median) - self.error
        exact = self.error <= ERROR_RATIO * self._difference()
        return self.offset_bound > self.limit and (exact or offset_at_least > self.limit)

    def _set_sound_until(self) -> None:
        """Sets until when the last round counts: for GAP, but not longer than drift keeps the offset within S/2."""
        self._judged_by = self._difference()
        if self._checked is None or self.refusing:
            self._sound_until = -1
            return
        remaining = min(GAP - (self._clock.boottime() - self._checked), (self.limit - self.offset_bound) * DRIFT)
        self._sound_until = self._clock.raw_boottime_ns() + round(remaining * 1e9)

    def apply_light_answer(self, coordinator: str, answer: ClockDifference) -> bool:
        """Applies the answer to a light check; returns whether it proves the clock right.

        If a clock has jumped, the clock is not sound until the next round.
        """
        with self._lock:
            before = self._known_before.get(coordinator)
            if before is None:
                return False
            if not before.is_consistent_with(answer):
                self._began = -math.inf  # Some clock has jumped; the round that is now required finds out which.
                return False
            behind = self._bound_seconds_behind(self._last_round) + max(0, answer.max_pause_since(before)) / 1e9
        return self.sound() and behind <= self.limit

    def exclude_slow(self, coordinator: str) -> None:
        self.fastest = tuple(node for node in self.fastest if node != coordinator)

    def sound(self, since: float = -math.inf) -> bool:
        """Returns whether the last round still allows ids and horizons.

        ``since``: boot time at which the round must have begun, or later.
        """
        difference = self._difference()
        if difference != self._judged_by:
            with self._lock:
                self._set_sound_until()
        clock = self._clock
        now = clock.raw_boottime_ns()
        drift = (clock.wall_ns() - now - clock.offset) / 1e9  # As ``clock.drift``, of the same moment.
        return (
            now <= self._sound_until and self._began >= since and abs(drift - self._drift) <= ERROR_RATIO * difference
        )

    @property
    def median(self) -> float:
        return 0.0 if self._median is None else (self._median.middle + self._clock.offset) / 1e9

    @property
    def error(self) -> float:
        median = self._median
        if median is None:
            return 0.0
        drift = -(-abs(self._clock.raw_boottime_ns() - median.at) // DRIFT)
        return ((median.high - median.low + 2 * drift + 1) // 2) / 1e9

    @property
    def offset_bound(self) -> float:
        """Max seconds that the id clock may be off; infinite before the first round."""
        if self._median is None:
            return math.inf
        low, high, _ = self._median.at_time(self._clock.raw_boottime_ns())
        offset = self._clock.offset
        return max(-low - offset, high + offset) / 1e9

    def problem(self) -> str | None:
        """Returns why health is red, or None. Red begins at 0.3 S off, before requests are refused (0.5 S)."""
        if self._median is None or (self._checked is None and self.offset_bound <= self.limit):
            return "the clock has not been compared with the clocks of the Cassandra nodes yet"
        if self.offset_bound > self.limit or abs(self.median) > RED_RATIO * self._difference() + self.error:
            return (
                f"the clock is {self.median:+.3f} s (give or take {self.error:.3f} s) off the clocks of the Cassandra "
                "nodes"
            )
        if self.wall_off:
            return "the wall clock of this machine is off the clocks of the Cassandra nodes"
        if self.off:
            return f"the clocks of these Cassandra nodes are off: {', '.join(self.off)}"
        return None

    @property
    def limit(self) -> float:
        return REFUSE_RATIO * self._difference()

    def _add_answers(self, answers: Mapping[str, ClockDifference]) -> dict[str, ClockDifference]:
        """Adds answers to the known intervals, and returns the intervals known before.

        Returns none if our clock has jumped, or if no coordinator that answered was known before.
        """
        now = self._clock.raw_boottime_ns()
        before = {node: interval for node, interval in self._known.items() if now - interval.at <= GAP * 1e9}
        both = [node for node in answers if node in before]
        self._set = {node for node in both if not before[node].is_consistent_with(answers[node])}
        if not both or len(both) <= 2 * len(self._set):
            # Our clock has jumped, or no coordinator knew it before: ids made from now on are as right as this round.
            self.wrong_until = self._clock.boottime() if both else math.nextafter(self._clock.boottime(), -math.inf)
            self._set, self._known, before = set(), dict(answers), {}
        else:
            # At most a minority disagrees, so the clocks of those coordinators were set.
            self._known = before | {
                node: before[node].intersect(interval) if node in before and node not in self._set else interval
                for node, interval in answers.items()
            }
        self._median = median_of(self._known.values(), now)
        return before

    def _rank_coordinators(self, answers: Mapping[str, ClockDifference], node_count: int) -> None:
        median = statistics.median(interval.middle for interval in self._known.values())
        red = RED_RATIO * self._difference() * 1e9
        self.off = tuple(
            node for node, interval in self._known.items() if abs(interval.middle - median) > red + interval.error
        )
        right = [node for node in answers if node not in self.off and node not in self._set]
        self.fastest = tuple(sorted(right, key=lambda node: answers[node].error))
        self.witnesses = min(WITNESSES, node_count)

    def _accept_wall(self) -> None:
        offset, difference = self._clock.wall_offset(), self._difference()
        ahead = self.median + (offset - self._clock.offset) / 1e9
        self.wall_off = abs(ahead) > RED_RATIO * difference
        if not self.wall_off and self.error <= ERROR_RATIO * difference:
            self._clock.accept(offset)
