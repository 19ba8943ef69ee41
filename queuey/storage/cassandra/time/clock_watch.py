"""Asks the coordinators for their time: all of them in rounds, two of them in light checks.

A light check is one question for all answers to writes that have arrived in one turn of the loop; it begins in the next
turn. It never counts for an answer that arrived after it began. Several checks may be under way. States of a check::

    asking ──(all answers agree)──► passed
       ├──(an answer times out)──► asking another coordinator instead
       └──(an answer disagrees, or no coordinator is left)──► a round asks all

A check asks two coordinators because one may run on the very machine that was suspended. Everything runs in the thread
of the store's loop.
"""

from __future__ import annotations

import logging
import math
import struct
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from uuid import UUID

from queuey.model.errors import StoreClosed, StoreUnavailable
from queuey.model.ids import EPOCH_TICKS
from queuey.storage.cassandra.cluster import Driver, Encoded, Host, Rows, Statement, StatementRequest
from queuey.storage.cassandra.cluster.store_loop import wait_for_callback
from queuey.storage.cassandra.time.clock import SteadyClock
from queuey.storage.cassandra.time.clock_check import ClockCheck, ClockDifference, measure_difference
from queuey.storage.cassandra.time.timing_in_force import TimingInForce
from queuey.storage.deadlines import StoreCall

log = logging.getLogger(__name__)

MAX_ATTEMPTS = 5
RETRY_INTERVAL = 0.05
MAX_CONFIRM_TIME = 1.0
"""Max attempts at a check before an acknowledgement, seconds between them, and seconds after which no attempt
begins."""
CALLBACK_DELAY = 1.0
"""Max seconds that the driver takes to report that a node did not answer."""
STRAGGLER_TIMEOUT = 0.1
"""Timeout in seconds of a round for the remaining nodes, once more than half have answered."""


SELECT_NOW = Statement("SELECT now() FROM system_virtual_schema.keyspaces WHERE keyspace_name = 'system_views'")
"""Reads a row that every role may read. It costs a node little: the row is made in memory, not read from a table."""
CheckCallback = Callable[[StoreUnavailable | None], object]

_unpack_time = struct.Struct(">IHH").unpack_from
_FIRST_VALUE = 20
"""Number of bytes before the value, in an answer with one row of one column and without a description of it."""


def decode_time(body: bytes) -> Rows:
    low, middle, high = _unpack_time(body, _FIRST_VALUE)
    return [((high & 0x0FFF) << 48 | middle << 32 | low,)]


class _Check:
    __slots__ = ("missing", "nodes", "waiting")

    def __init__(self, waiting: list[CheckCallback], judge: ClockCheck) -> None:
        self.waiting = waiting
        self.nodes = iter(judge.fastest)
        """Coordinators that have not been asked yet."""
        self.missing = max(1, judge.witnesses)
        """Good answers that are still needed. At 0 the check has ended."""


class LightChecks:
    """The light checks of one store."""

    def __init__(
        self,
        driver: Driver,
        since_boot: Callable[[], int],
        judge: ClockCheck,
        timing: TimingInForce,
        ask_all: Callable[[CheckCallback], None],
    ) -> None:
        self._driver = driver
        self._since_boot = since_boot
        self._judge = judge
        self._timing = timing
        self._ask_all = ask_all
        self._waiting: list[CheckCallback] = []
        """Callbacks of the check that begins in the next turn."""

    def begin(self, callback: CheckCallback) -> None:
        self._waiting.append(callback)
        if len(self._waiting) == 1:
            self._driver.loop.soon(self._begin_check)

    def notify(self, waiting: Iterable[CheckCallback], error: StoreUnavailable | None) -> None:
        for callback in waiting:
            try:
                callback(error)
            except Exception:
                log.exception("The result of a write could not be delivered.")

    def _begin_check(self) -> None:
        waiting, self._waiting = self._waiting, []
        check = _Check(waiting, self._judge)
        for _ in range(check.missing):
            self._ask(check)

    def _ask(self, check: _Check) -> None:
        node = next(check.nodes, None)
        if node is None:
            self._fail(check)
            return
        timeout = self._timing.coordinator_timeout
        request = Encoded(SELECT_NOW, 0, (b"",), b"", "ONE", decode_time, timeout, node)
        done = partial(self._on_answer, check, node, self._since_boot())
        try:
            self._driver.send(request, done)
        except Exception as error:
            log.exception("Checking the clock failed.")
            done(None, StoreUnavailable(f"the clock could not be checked: {error}"))

    def _on_answer(
        self, check: _Check, node: str, sent: int, rows: Rows | None, error: StoreUnavailable | None
    ) -> None:
        is_good = False
        try:
            if rows is None or error is not None:
                self._judge.exclude_slow(node)
                self._ask(check)
                return
            theirs = (rows[0][0] - EPOCH_TICKS) * 100
            is_good = self._judge.apply_light_answer(node, measure_difference(sent, self._since_boot(), theirs))
        except Exception:
            log.exception("Checking the clock failed.")
        if not is_good:
            self._fail(check)
        elif check.missing:
            check.missing -= 1
            if not check.missing:
                self.notify(check.waiting, None)

    def _fail(self, check: _Check) -> None:
        if check.missing:
            check.missing = 0
            self._ask_all(partial(self.notify, check.waiting))


@dataclass(slots=True, eq=False)
class _Round:
    """A question to all coordinators that are up."""

    began: float
    hosts: Sequence[Host]
    missing: int
    waiting: Sequence[CheckCallback]
    answers: dict[str, ClockDifference] = field(default_factory=dict)


class ClockWatch:
    """Compares the clock with the coordinators' at regular intervals."""

    timeout = 1.0

    def __init__(
        self,
        driver: Driver,
        clock: SteadyClock,
        skew: ClockCheck,
        interval: float | None,
        *,
        timing: TimingInForce,
        beat: Callable[[], None],
    ) -> None:
        self._timing = timing
        self._beat = beat
        self._driver = driver
        self._clock = clock
        self.clock_check = skew
        self._interval = interval
        ask_all = lambda done: self._confirm_since(clock.boottime(), MAX_ATTEMPTS, done)  # noqa: E731 - short
        self._light = LightChecks(driver, clock.raw_boottime_ns, skew, timing, ask_all)
        self._loop = driver.loop
        self._round: _Round | None = None
        self._waiting: list[CheckCallback] = []
        """Callbacks of the next round."""
        if interval is not None:
            self._loop.call(self._compare_again)

    async def check(self, *, since: float | None = None) -> bool:
        """Asks all coordinators and returns whether the clock is sound. Concurrent callers share a round.

        ``since``: a round that began at this boot time or later is enough; None asks for a new one.
        """
        if since is None or not self.clock_check.sound(since):
            await wait_for_callback(lambda done: self._join_round(partial(done, None)))
        return self.clock_check.sound(-math.inf if since is None else since)

    def sound(self, now: float | None = None) -> bool:
        """Returns whether the clock is sound by the last check, and the stored times are fresh.

        ``now``: the boot time, for a caller that has just read it.
        """
        return self.clock_check.sound() and self._timing.is_fresh(self._clock.boottime() if now is None else now)

    @property
    def wrong_until(self) -> float:
        """Boot time up to which ids count as late, because a clock has jumped since."""
        return self.clock_check.wrong_until

    def is_timed_correctly_since(self, id_boottime: float) -> bool:
        return self.clock_check.sound() and id_boottime > self.clock_check.wrong_until

    async def require_sound(self) -> None:
        """Makes sure that the clock is sound and the stored times are fresh: asks if necessary, and raises if not."""
        if not self.clock_check.sound() and not await self.check():
            raise self.refusal()
        if not self._timing.is_fresh(self._clock.boottime()) and await self._timing.renew(self._driver) is not None:
            raise self._timing.refusal()

    async def confirm(self, arrived: float) -> None:
        """Checks the clock before a write is acknowledged, by a round that began after ``arrived``.

        Begins or joins a round if none that was good has begun since. Raises if the clock is wrong.
        """
        await wait_for_callback(lambda done: self._confirm_since(arrived, MAX_ATTEMPTS, partial(done, None)))

    def confirm_soon(self, done: CheckCallback) -> None:
        """Checks the clock for an answer that has just arrived, without waiting; see :class:`LightChecks`."""
        self._light.begin(done)

    def now_ticks(self) -> int:
        if not self.sound():
            raise self.refusal()
        return self._clock.now()

    def refusal(self) -> StoreUnavailable:
        if (problem := self._driver.problem()) is not None:
            return StoreUnavailable(problem)
        return StoreUnavailable(
            self.clock_check.problem() or "the clock could not be compared with the clocks of the Cassandra nodes"
        )

    def _confirm_since(self, arrived: float, attempts: int, done: CheckCallback) -> None:
        if self.clock_check.sound(arrived):
            done(None)
        else:
            self._join_round(partial(self._conclude, arrived, attempts - 1, done))

    def _conclude(self, arrived: float, attempts: int, done: CheckCallback, _error: StoreUnavailable | None) -> None:
        """Answers after a round that was good, or with the refusal; otherwise begins another round after a pause.

        Refuses if attempts or time are used up, or if the clock is off.
        """
        if self.clock_check.sound(arrived):
            done(None)
        elif not attempts or self.clock_check.refusing or self._clock.boottime() - arrived > MAX_CONFIRM_TIME:
            done(self.refusal())
        else:
            self._loop.later(RETRY_INTERVAL, partial(self._confirm_since, arrived, attempts, done))

    def _compare_again(self) -> None:
        # Compares again soon after the start, so that requests need not wait for the first round.
        seconds = self._interval if self._interval is not None and self._driver.problem() is None else 0.2
        self._loop.later(seconds, self._compare_again)
        try:
            self._beat()
            if self._round is None:
                self._begin_round()
        except Exception:
            log.exception("Comparing the clock with the clocks of the Cassandra nodes failed.")

    def _join_round(self, done: CheckCallback) -> None:
        self._waiting.append(done)
        if self._round is None:
            self._begin_round()

    def _begin_round(self) -> None:
        hosts = self._driver.hosts()
        nodes = [host.address for host in hosts if host.up]
        waiting, self._waiting = self._waiting, []
        current = self._round = _Round(self._clock.boottime(), hosts, len(nodes), waiting)
        # Not part of the call that asks: other calls share the round, and that one may have no time left.
        with self._driver.calls.deadline.running(StoreCall()):
            for node in nodes:
                request = StatementRequest(SELECT_NOW, consistency="ONE", timeout=self.timeout, host=node)
                self._driver.send(request, partial(self._measure_answer, current, node, self._clock.raw_boottime_ns()))
        # Without a callback if a node has stopped or the driver is closed.
        self._loop.later(self.timeout + CALLBACK_DELAY if nodes else 0.0, partial(self._end_round, current))

    def _measure_answer(
        self, current: _Round, node: str, sent: int, rows: Rows | None, error: StoreUnavailable | None
    ) -> None:
        answer = None
        if error is None and rows:
            theirs: UUID = rows[0][0]
            answer = measure_difference(sent, self._clock.raw_boottime_ns(), (theirs.time - EPOCH_TICKS) * 100)
        with suppress(StoreClosed):
            self._loop.call(self._receive_answer, current, node, answer)

    def _receive_answer(self, current: _Round, node: str, answer: ClockDifference | None) -> None:
        current.missing = missing = current.missing - 1
        if answer is not None:
            current.answers[node] = answer
        if not missing:
            self._end_round(current)
        elif 2 * len(current.answers) > sum(host.up for host in current.hosts):
            self._loop.later(
                STRAGGLER_TIMEOUT, lambda: self._end_round(current) if current.missing == missing else None
            )

    def _end_round(self, current: _Round) -> None:
        """Applies a round. Data centres without any answer do not count: they may be cut off."""
        if current is not self._round:
            return
        self._round = None
        centres = {host.dc for host in current.hosts if host.address in current.answers}
        try:
            self.clock_check.apply_round(
                current.answers, current.began, sum(host.dc in centres for host in current.hosts)
            )
        finally:
            self._light.notify(current.waiting, None)
            if self._waiting and self._round is None:
                self._begin_round()
