"""Asks the coordinators for their time, in rounds and when an acknowledgement needs it."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable
from concurrent.futures import Executor
from uuid import UUID

from queuey.errors import StoreClosed, StoreUnavailable
from queuey.ids import EPOCH_TICKS
from queuey.storage.cassandra.clocks.clock import Clock
from queuey.storage.cassandra.clocks.clock_check import ClockCheck
from queuey.storage.cassandra.clocks.intervals import Interval, measured
from queuey.storage.cassandra.clocks.light_checks import NOW, LightChecks, Told
from queuey.storage.cassandra.clocks.timing_in_force import TimingInForce
from queuey.storage.cassandra.driver import Driver, Request, Rows

log = logging.getLogger(__name__)

ATTEMPTS = 5
AGAIN = 0.05
LONGEST = 1.0
"""Max attempts at a check that an acknowledgement waits for, seconds between them, and seconds after which none
begins."""
LATE = 1.0
"""Max seconds by which the driver may be late in reporting that a node did not answer."""
REST = 0.1
"""Timeout in seconds of a round that waits for one more node when most have answered."""


class ClockWatch:
    """Asks the coordinators again and again."""

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
        self._ended.set()
        if self._thread is not None:
            self._thread.join(5.0)

    def check(self, timeout: float = 1.0, *, since: float | None = None) -> bool:
        """Asks now and returns whether the clock is sound; several callers share a round.

        ``since``: a round that began at this boot time or later will do; None: a new one.
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

    def sound(self, now: float | None = None) -> bool:
        """Returns whether the clock may be trusted, by the last check, and the times are known.

        ``now``: the boot time, for a caller that has just read it.
        """
        return self._clock_check.sound() and self._timing.fresh(self._clock.boottime() if now is None else now)

    def refusing(self) -> bool:
        return self._clock_check.refusing

    @property
    def hidden(self) -> float:
        """Longest suspend of the machine, in seconds, that no check would have revealed."""
        return 2 * self._clock_check.error

    @property
    def wrong_until(self) -> float:
        """Boot time up to which ages count from too late, for a clock has jumped since."""
        return self._clock_check.wrong_until

    def timed_correctly_since(self, minted: float) -> bool:
        """Returns whether the time since an id was made (boot time) was measured correctly, by the last check."""
        return self._clock_check.sound() and minted > self._clock_check.wrong_until

    def require(self) -> None:
        """Makes sure that the clock is sound, by asking if need be."""
        if not self._clock_check.sound() and not self.check():
            raise self.refusal()
        if not self._timing.fresh(self._clock.boottime()) and self._timing.renew(self._driver) is not None:
            raise self._timing.refusal()

    def confirm(self, arrived: float) -> None:
        """Makes sure of the clock before a write is acknowledged, by asking all nodes."""
        for _ in range(ATTEMPTS):
            if self._clock_check.sound(arrived) or self.check(since=arrived):
                return
            if self._clock_check.refusing or self._clock.boottime() - arrived > LONGEST or self._ended.wait(AGAIN):
                break
        raise self.refusal()

    def confirm_soon(self, told: Told) -> None:
        """The same for an answer that has just come, without waiting: one question for all answers that have."""
        self._light.begin(told)

    def _ask_for_all(self, waiting: list[Told]) -> None:
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
        self._driver.loop.call(self._light.tell, waiting, error)

    def refusal(self) -> StoreUnavailable:
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
