"""The movable clock of a store in tests. It moves the time of ids and the service's boot time together."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import TYPE_CHECKING

from queuey.model import ids
from queuey.runtime.event_loop import Core
from queuey.schedules.schedule_states import KIND, decode
from queuey.schedules.schedules import MAX_SCHEDULES
from queuey.storage import bridge

if TYPE_CHECKING:
    from queuey.app.service import Service

FIRE_TIMEOUT = 60.0
"""Max real seconds to wait until a due schedule has fired."""
_INTERVAL = 0.002


class Clock:
    """The clock of a store in this process. A test can move it forward.

    Delays, backoffs, claims, schedules, TTLs and read delays use this clock. Times that the client measures itself,
    such as its timeouts and the ``wait`` of a claim, are real time.

    Attributes:
        ahead: Seconds by which the clock is ahead of real time.
        application: The application of the test.
    """

    def __init__(self) -> None:
        self.ahead = 0.0
        self.application = ""
        self._service: Service | None = None

    def __repr__(self) -> str:
        return f"Clock(ahead={self.ahead})"

    def of(self, service: Service) -> None:
        self._service = service

    def ticks(self) -> int:
        return ids.now_ticks() + int(self.ahead * ids.TICKS_PER_SECOND)

    def move(self, **duration: float) -> None:
        """Moves the time forward. Every schedule of the test's application fires as often as it becomes due on the way.

        At the end, moves and searches for expired messages start, too.

        Example:
            >>> def test_reminder(queuey, queuey_clock):
            ...     queuey.create_queue("mails")
            ...     queuey.send("mails", "a reminder", delay=3600)
            ...     queuey_clock.move(hours=1)
            ...     assert [job.body for job in queuey.job_queue("mails").claim(idle=0)] == ["a reminder"]

        Args:
            duration: Arguments of :class:`datetime.timedelta`: ``days``, ``hours``, ``minutes``, ``seconds``.

        Raises:
            ValueError: The duration is negative. Ids only grow.
            TimeoutError: A due schedule did not fire within 60 real seconds.
        """
        seconds = timedelta(**duration).total_seconds()
        if seconds < 0:
            raise ValueError(f"time cannot be moved back: {duration}")
        assert self._service is not None  # noqa: S101 - set by the fixture
        until = self.ahead + seconds
        while (due := self._find_next_due(until)) is not None:
            self.ahead = max(self.ahead, due)
            self._wait_until_fired(self._service)
        self.ahead = until
        self._service.start_background_work()

    def _find_next_due(self, until: float) -> float | None:
        now = ids.now_ticks()
        end = now + int(until * ids.TICKS_PER_SECOND)
        assert self._service is not None  # noqa: S101 - as above
        rows = bridge.run(self._service.store.records.due_records(KIND, end, application=self.application, limit=1))
        return (rows[0].due + 1 - now) / ids.TICKS_PER_SECOND if rows else None

    def _wait_until_fired(self, service: Service) -> None:
        end = time.monotonic() + FIRE_TIMEOUT
        service.schedules.start_background_work()
        while (name := self._find_firing(service)) is not None:
            if time.monotonic() > end:
                raise TimeoutError(f"schedule {name!r} has not fired in {FIRE_TIMEOUT:.0f} s")
            time.sleep(_INTERVAL)

    def _find_firing(self, service: Service) -> str | None:
        """Returns the name of a schedule that is due or is posting its message, or None.

        While a schedule is posting its message, its record is already due later.
        """
        now = self.ticks()
        for record in bridge.run(service.store.records.records(KIND, self.application, start="", limit=MAX_SCHEDULES)):
            if record.due <= now or decode(record.value).firing is not None:
                return record.name
        return None


class MovedCore(Core):
    """A core whose boot time is moved with a test's clock."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    def boottime(self) -> float:
        return super().boottime() + self._clock.ahead
