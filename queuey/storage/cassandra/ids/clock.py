"""The store's clock, and whether it agrees with the cluster's.

The clock is the time since boot plus an offset. Durations and deadlines are measured on CLOCK_BOOTTIME, which neither a
step of the wall clock nor a stop of the process (SIGSTOP, a suspended laptop) can hide. The wall clock comes in only
through :meth:`Clock.accept`, after a check.

Each answer of a coordinator gives an interval in which the difference of its clock and ours lies (see
:mod:`.intervals`). The answers of one coordinator are intersected, and the medians of all that have answered within GAP
say how far our clock is off, and how exactly that is known. Two processes that serve are never more than S apart, so
each of them keeps within S/2. States::

    unknown ──(offset + error within S/2)──► sound ◄──(offset + error within S/2)── refusing
       ▲                                      │  └──(offset + error beyond S/2)────────▲
       └──(no check for GAP; the wall clock jumped against the boot time;
           the error has grown beyond S/2)────┘

When a virtual machine stands still, all its clocks stop, and only a check shows it: the new interval of a coordinator
misses the known one. If half of the coordinators compared in a round are missed, our clock has jumped, and what was
timed before may have been timed wrongly: ``wrong_until`` is set to the present, and no write whose id was made before
counts as in time. The same holds while the clock is off, and when all coordinators were last heard of before GAP. If
fewer are missed, theirs were set. A round that fewer than half have answered concludes nothing.

An acknowledgement needs a check that began after the answer to the write had come, so that a standstill between the
making of the id and that answer shows. This is a light check: all answers that have come share one question to two
coordinators (see :mod:`.light_checks`). It is good if both answers meet what was known, and were fast enough that no
jump beyond S/2 could hide in them. Otherwise all coordinators are asked.

The wall clock is accepted only when it is within 0.3 S of the median itself, and that is known to 0.1 S. So a wall
clock that is set wrongly does no harm to a running process.
"""

from __future__ import annotations

import logging
import math
import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from uuid import UUID

from queuey.errors import StoreClosed, StoreUnavailable
from queuey.ids import EPOCH_TICKS, TICKS_PER_SECOND
from queuey.storage.cassandra.driver import Driver, Request, Rows
from queuey.storage.cassandra.ids.intervals import DRIFT, Interval, measured, median_of
from queuey.storage.cassandra.ids.light_checks import NOW, WITNESSES, LightChecks, Told
from queuey.storage.cassandra.timing_in_force import TimingInForce

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boottime_ns() -> int:
    """Nanoseconds since boot, time asleep included (CLOCK_MONOTONIC where the system has no CLOCK_BOOTTIME)."""
    return time.clock_gettime_ns(_CLOCK)


class Clock:
    """Wall clock time that follows the boot time.

    When a virtual machine stands still its boot time does, too. Once the wall clock is right again and accepted,
    the time that was missed counts for ages and deadlines as well: what was read before is as old as it is.

    Args:
        boottime: Nanoseconds since boot.
        wall: Nanoseconds since 1970.
    """

    __slots__ = ("_boottime", "_missed", "_offset", "_wall")

    def __init__(self, boottime: Callable[[], int] = boottime_ns, wall: Callable[[], int] = time.time_ns) -> None:
        self._boottime = boottime
        self._wall = wall
        self._offset = wall() - boottime()
        self._missed = 0

    def boottime(self) -> float:
        """Seconds since boot, with those that it is known to have missed: for ages and deadlines."""
        return (self._boottime() + self._missed) / 1e9

    def now(self) -> int:
        """The time in ticks."""
        return (self._boottime() + self._offset) // 100 + EPOCH_TICKS

    def both(self) -> tuple[int, float]:
        """The time in ticks and the seconds since boot, of one moment."""
        boottime = self._boottime()
        return (boottime + self._offset) // 100 + EPOCH_TICKS, (boottime + self._missed) / 1e9

    def since_boot(self) -> int:
        """Nanoseconds since boot, as the machine counts them."""
        return self._boottime()

    @property
    def offset(self) -> int:
        """Nanoseconds by which the time since 1970 is ahead of that since boot, by the last accepted wall clock."""
        return self._offset

    def wall_offset(self) -> int:
        """The same by the wall clock as it is now."""
        return self._wall() - self._boottime()

    def drift(self) -> float:
        """Seconds that the wall clock has moved against the boot time since it was last accepted."""
        return (self._wall() - self._boottime() - self._offset) / 1e9

    def accept(self, offset: int, error: float = math.inf) -> None:
        """Takes over the wall clock.

        Args:
            offset: What :meth:`wall_offset` said.
            error: Seconds by which it may be ahead of this clock without any standstill.
        """
        if offset - self._offset > error * 1e9:
            self._missed += offset - self._offset
        self._offset = offset


def ticks(seconds: float) -> int:
    """Returns a duration in ticks."""
    return round(seconds * TICKS_PER_SECOND)


log = logging.getLogger(__name__)

RED = 0.3
REFUSE = 0.5
ERROR = 0.1
"""Parts of S: beyond which health is red, beyond which nothing is served, and how exactly the offset must be known for
the wall clock to be accepted."""
GAP = 10.0
"""Seconds without a check after which one comes first, and for which a coordinator's answer counts."""

ATTEMPTS = 5
AGAIN = 0.05
LONGEST = 1.0
"""Attempts at a check that an acknowledgement waits for, seconds between them, and seconds after which none begins."""
LATE = 1.0
"""Seconds by which the driver may be late in reporting that a node did not answer."""
REST = 0.1
"""Seconds that a round waits for one more node when most have answered."""


class ClockCheck:
    """The state, and the decisions; :class:`ClockWatch` asks the nodes.

    Args:
        clock: The clock that ids are made with.
        difference: Returns S in seconds.
    """

    def __init__(self, clock: Clock, difference: Callable[[], float]) -> None:
        self._clock = clock
        self._difference = difference
        self._lock = threading.Lock()
        self._known: dict[str, Interval] = {}
        """By the address of the coordinator."""
        self._median: Interval | None = None
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
        """Is called when what was timed before may be older than it seems."""

    def note(self, answers: Mapping[str, Interval], began: float | None = None, there: int = 1) -> None:
        """Takes a round of answers into account.

        Args:
            answers: By the address of the coordinator.
            began: Boot time at which the round began; None: now.
            there: How many coordinators there are. Unless half of them answered, nothing is concluded: one may be on
                this very machine.
        """
        if not answers:
            return
        before = self.wrong_until
        self._note(answers, began, there)
        if self.wrong_until != before:
            self.jumped()

    def _note(self, answers: Mapping[str, Interval], began: float | None, there: int) -> None:
        with self._lock:
            hidden = self._learn(answers)
            if 2 * len(answers) >= there:
                self._conclude(answers, began, hidden)
            self._judge()

    def _conclude(self, answers: Mapping[str, Interval], began: float | None, hidden: float) -> None:
        """Decides by a round that enough have answered whether the clock is right."""
        self._rank(answers)
        if self.offset_bound > self.limit:
            self.wrong_until = self._clock.boottime()
        self._accept_wall()
        refusing = self.offset_bound > self.limit
        if refusing != self._refusing:
            log.log(
                logging.ERROR if refusing else logging.WARNING,
                "The clock is %+.3f s (give or take %.3f s) off the Cassandra nodes': %s.",
                self.median,
                self.error,
                "nothing is served until it is right" if refusing else "serving again",
            )
        self._refusing = refusing
        if refusing or self.offset_bound + hidden <= self.limit:
            self._checked, self._drift = self._clock.boottime(), self._clock.drift()
            self._began = self._checked if began is None else began

    def _judge(self) -> None:
        """Finds how long what is known will do: until it is old, or too inexact to stay within the limit."""
        self._judged_by = self._difference()
        if self._checked is None or self._refusing:
            self._sound_until = -1
            return
        left = min(GAP - (self._clock.boottime() - self._checked), (self.limit - self.offset_bound) * DRIFT)
        self._sound_until = self._clock.since_boot() + round(left * 1e9)

    def agrees(self, coordinator: str, answer: Interval) -> bool:
        """Takes the answer to a light check into account; returns whether it shows that the clock is right.

        Args:
            coordinator: Its address.
            answer: What it says.
        """
        with self._lock:
            known = self._known.get(coordinator)
            if known is None or self._checked is None:
                return False
            if not known.meets(answer):
                self._began = -math.inf  # Whose clock has jumped, a round finds out that begins now.
                return False
            self._known[coordinator] = known.and_also(answer)
        return self.sound() and self.offset_bound + answer.beyond(known) / 1e9 <= self.limit

    def slow(self, coordinator: str) -> None:
        """Has a coordinator that did not answer be asked for no light check until it has answered in a round."""
        self.fastest = tuple(one for one in self.fastest if one != coordinator)

    def sound(self, since: float = -math.inf) -> bool:
        """Returns whether the last round still says that ids and horizons may be made.

        Args:
            since: Boot time; the round must have begun then or later.
        """
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
        """Whether the clock was found to be off."""
        return self._refusing

    @property
    def median(self) -> float:
        """Seconds by which the id clock is ahead of the coordinators' median."""
        return 0.0 if self._median is None else (self._median.middle + self._clock.offset) / 1e9

    @property
    def error(self) -> float:
        """Seconds by which that may be wrong."""
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
        """Says what makes health red, None if nothing does."""
        if self._checked is None:
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
        """Seconds that the id clock may be off."""
        return REFUSE * self._difference()

    def _learn(self, answers: Mapping[str, Interval]) -> float:
        """Adds answers to what is known; returns the seconds of a jump that would not show in them."""
        now = self._clock.since_boot()
        known = {node: one for node, one in self._known.items() if now - one.at <= GAP * 1e9}
        both = [(known[node], answer) for node, answer in answers.items() if node in known]
        self._set = {node for node, answer in answers.items() if node in known and not known[node].meets(answer)}
        jumped = 0 < len(both) <= 2 * len(self._set)
        if jumped:
            self.wrong_until = self._clock.boottime()
            known, self._set = dict(answers), set()
        elif not both:
            # Nobody is left who knew the clock before. What is made from now on is as right as this round says.
            self.wrong_until = math.nextafter(self._clock.boottime(), -math.inf)
            known = dict(answers)
        else:
            # A clock that few have jumped against is right: theirs were set.
            known |= {
                node: known[node].and_also(one) if node in known and node not in self._set else one
                for node, one in answers.items()
            }
        self._known, self._median = known, median_of(known.values(), now)
        return 0.0 if jumped or not both else _median_hidden(both)

    def _rank(self, answers: Mapping[str, Interval]) -> None:
        """Finds the coordinators that are off, and the order in which to ask the others."""
        usual = statistics.median(one.middle for one in self._known.values())
        red = RED * self._difference() * 1e9
        self.off = tuple(node for node, one in self._known.items() if abs(one.middle - usual) > red + one.error)
        right = [node for node in answers if node not in self.off and node not in self._set]
        self.fastest = tuple(sorted(right, key=lambda node: answers[node].error))
        self.witnesses = min(WITNESSES, len(right))

    def _accept_wall(self) -> None:
        offset, difference = self._clock.wall_offset(), self._difference()
        ahead = self.median + (offset - self._clock.offset) / 1e9
        self.wall_off = abs(ahead) > RED * difference
        if not self.wall_off and self.error <= ERROR * difference:
            self._clock.accept(offset, ERROR * difference)


def _median_hidden(both: Sequence[tuple[Interval, Interval]]) -> float:
    """Returns the seconds of a jump that answers which meet what was known would not show."""
    return statistics.median_high(answer.beyond(one) for one, answer in both if one.meets(answer)) / 1e9


class ClockWatch:
    """Asks the coordinators again and again.

    Args:
        driver: The way to them.
        clock: The clock that ids are made with.
        skew: Gets the answers.
        interval: Seconds between rounds; None: only when :meth:`check` is called.
        timing: Without it nothing is served either; a light check asks another coordinator after a quarter of W.
        beat: Is called in each round; never blocks.
        pool: Runs what has to wait.
    """

    def __init__(
        self,
        driver: Driver,
        clock: Clock,
        skew: ClockCheck,
        interval: float | None,
        *,
        timing: TimingInForce,
        beat: Callable[[], None],
        pool: Executor,
    ) -> None:
        self._timing = timing
        self._beat = beat
        self._driver = driver
        self._clock = clock
        self._clock_check = skew
        self._interval = interval
        self._pool = pool
        self._light = LightChecks(driver, clock.since_boot, skew, timing.patience, self._ask_for_all)
        self._ended = threading.Event()
        self._asking = threading.Lock()
        self._thread: threading.Thread | None = None
        if interval is not None:
            self._thread = threading.Thread(target=self._run, name="queuey-clock-check", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Ends the rounds."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join(5.0)

    def check(self, timeout: float = 1.0, *, since: float | None = None) -> bool:
        """Asks now and returns whether the clock is sound; several callers share a round.

        Args:
            timeout: Seconds to wait for the nodes.
            since: Boot time; a round that began then or later will do, and no other. None: a new one.
        """
        wanted = -math.inf if since is None else since
        if not self._asking.acquire(timeout=timeout):
            return self._clock_check.sound(wanted)
        try:
            if since is None or not self._clock_check.sound(since):
                began = self._clock.boottime()
                self._clock_check.note(*self._ask(timeout, began))
        finally:
            self._asking.release()
        return self._clock_check.sound(wanted)

    def sound(self) -> bool:
        """Returns whether the clock may be trusted, by the last check, and the times are known."""
        return self._clock_check.sound() and self._timing.fresh(self._clock.boottime())

    def refusing(self) -> bool:
        """Returns whether the clock was found to be off."""
        return self._clock_check.refusing

    @property
    def hidden(self) -> float:
        """Seconds that the machine may have stood still for without that a check has shown it."""
        return 2 * self._clock_check.error

    @property
    def wrong_until(self) -> float:
        """Boot time up to which ages count from too late, for a clock has jumped since."""
        return self._clock_check.wrong_until

    def vouches(self, minted: float) -> bool:
        """Returns whether the time since an id was made (boot time) was measured correctly, by the last check."""
        return self._clock_check.sound() and minted > self._clock_check.wrong_until

    def require(self) -> None:
        """Makes sure that the clock is sound, by asking if need be.

        Raises:
            StoreUnavailable: It is off, or no node said that it is not.
        """
        if not self._clock_check.sound() and not self.check():
            raise self.refusal()
        if not self._timing.fresh(self._clock.boottime()) and self._timing.renew(self._driver) is not None:
            raise self._timing.refusal()

    def confirm(self, arrived: float) -> None:
        """Makes sure of the clock before a write is acknowledged, by asking all nodes.

        Args:
            arrived: Boot time at which the answer to the write came.

        Raises:
            StoreUnavailable: It is off, or no node said that it is not.
        """
        for _ in range(ATTEMPTS):
            if self._clock_check.sound(arrived) or self.check(since=arrived):
                return
            if self._clock_check.refusing or self._clock.boottime() - arrived > LONGEST or self._ended.wait(AGAIN):
                break
        raise self.refusal()

    def confirm_soon(self, told: Told) -> None:
        """The same for an answer that has just come, without waiting: one question for all answers that have.

        Args:
            told: Called once, in any thread, with None or what :meth:`confirm` raises.
        """
        self._light.begin(told)

    def _ask_for_all(self, waiting: list[Told]) -> None:
        """Makes sure in a thread that may wait."""
        try:
            self._pool.submit(self._confirm_all, waiting, self._clock.boottime())
        except RuntimeError:
            self._light.tell(waiting, StoreClosed("the store is closed"))

    def _confirm_all(self, waiting: list[Told], arrived: float) -> None:
        error: StoreUnavailable | None = None
        try:
            self.confirm(arrived)
        except StoreUnavailable as refused:
            error = refused
        except Exception as failed:
            log.exception("The clock could not be checked.")
            error = StoreUnavailable(f"the clock could not be checked: {failed}")
        self._light.tell(waiting, error)

    def refusal(self) -> StoreUnavailable:
        """Says, without asking, why nothing is served."""
        if (problem := self._driver.problem()) is not None:
            return StoreUnavailable(problem)
        return StoreUnavailable(
            self._clock_check.complaint() or "the clock could not be compared with the Cassandra nodes'"
        )

    def _run(self) -> None:
        self._driver.ready(0.0)
        while not self._ended.is_set():
            try:
                self._beat()
                self.check()
            except Exception:
                log.exception("The clock could not be compared with the Cassandra nodes'.")
            # A second comparison soon after the start, so that requests need not wait for the first round.
            self._ended.wait(self._interval if self._driver.problem() is None else 0.2)

    def _ask(self, timeout: float, began: float) -> tuple[dict[str, Interval], float, int]:
        """Asks all coordinators that are up; returns the answers, when that began, and how many there are.

        Those of data centres that do not answer at all do not count: they may be cut off.
        """
        answers: dict[str, Interval] = {}
        waiting = threading.Semaphore(0)
        hosts = self._driver.hosts()
        nodes = [host.address for host in hosts if host.up]
        for node in nodes:
            request = Request(NOW, consistency="ONE", timeout=timeout, host=node)
            self._driver.send(request, self._taker(node, answers, waiting))
        for _ in nodes:
            most = 2 * len(answers) > len(nodes)
            if not waiting.acquire(timeout=REST if most else timeout + LATE):
                break  # That node has stopped, or the driver was closed: no callback comes any more.
        found = dict(answers)
        centres = {host.dc for host in hosts if host.address in found}
        return found, began, sum(host.dc in centres for host in hosts)

    def _taker(self, node: str, answers: dict[str, Interval], waiting: threading.Semaphore) -> Callable[..., None]:
        sent = self._clock.since_boot()

        def done(rows: Rows | None, error: StoreUnavailable | None) -> None:
            if error is None and rows:
                theirs: UUID = rows[0][0]
                answers[node] = measured(sent, self._clock.since_boot(), (theirs.time - EPOCH_TICKS) * 100)
            waiting.release()

        return done
