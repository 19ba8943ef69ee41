"""What TTL will take before a consumer group reads it. Pure arithmetic on one partition.

The model: the backlog's messages lie evenly between the age of the oldest and the age of the newest; each goes when its
age reaches the TTL. New ones keep arriving at an even rate. The group reads the oldest that is there, at an even rate,
and passes over what has gone. So two fronts run along the messages in the order of their ids: the reader's, and that of
expiry. Messages are lost where the second is ahead, and the reader then goes on from there.

Both fronts are made of a few straight pieces, so losses are summed piece by piece, whatever the number of messages.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec

_EVER = math.inf


class Backlog(msgspec.Struct, frozen=True, kw_only=True):
    """One partition as a group has left it.

    Attributes:
        count: Messages unread.
        oldest: Age of the oldest of them, in seconds.
        newest: Age of the newest of them.
        ttl: Seconds that messages live.
        arriving: Messages a second that are stored.
        reading: Messages a second that the group reads; 0: it stands still.
    """

    count: int
    oldest: float
    newest: float
    ttl: float
    arriving: float = 0.0
    reading: float = 0.0

    def __post_init__(self) -> None:
        if self.count < 0 or self.ttl <= 0 or not 0 <= self.newest <= self.oldest:
            raise ValueError("a backlog has no negative count or age, and its oldest is not younger than its newest")
        if self.arriving < 0 or self.reading < 0:
            raise ValueError("rates are not negative")


class Forecast(msgspec.Struct, frozen=True):
    """What is going to be lost.

    Attributes:
        first: Seconds until the first message expires unread; None: none does in the forecast.
        lost: How many go in that time.
        rate: Messages a second that are being lost at its end.
    """

    first: float | None = None
    lost: int = 0
    rate: float = 0.0


class _Piece(msgspec.Struct, frozen=True):
    """A stretch of time in which both fronts move evenly.

    Attributes:
        end: When it ends.
        jump: Messages that expire together as it begins.
        expiring: Messages a second that expire in it.
    """

    end: float
    jump: float
    expiring: float


def forecast(backlog: Backlog, within: float) -> Forecast:
    """Foretells what a group loses from now on.

    Args:
        backlog: The partition.
        within: Seconds of the forecast.
    """
    run = _Run(backlog)
    for piece in _pieces(backlog):
        run.meet(piece.jump)
        run.advance(min(piece.end, within), piece.expiring)
        if piece.end > within:
            break
    if run.lost < 0.5:  # noqa: PLR2004 - no whole message
        return Forecast()
    return Forecast(run.first, round(run.lost), run.rate)


def _pieces(backlog: Backlog) -> Iterator[_Piece]:
    """Divides the future by how fast messages expire: the backlog's, none, then those that arrive from now on."""
    begin = max(0.0, backlog.ttl - backlog.oldest)
    end = max(begin, backlog.ttl - backlog.newest)
    fresh = max(backlog.ttl, end)
    if backlog.count:
        even = (backlog.count - 1) / (end - begin) if end > begin else 0.0
        yield _Piece(begin, 0, 0)
        # The first goes at once, and then one with every step; without any width all go together.
        yield _Piece(end, 1 if even else backlog.count, even)
    yield _Piece(fresh, 0, 0)
    yield _Piece(_EVER, 0, backlog.arriving)


class _Run:
    """The two fronts as time goes on: ``read`` and ``gone`` count messages from the oldest on.

    The reader's front is never behind that of expiry: what goes unread it passes over.
    """

    def __init__(self, backlog: Backlog) -> None:
        self._count = backlog.count
        self._arriving = backlog.arriving
        self._reading = backlog.reading
        self._now = 0.0
        self._read = 0.0
        self._gone = 0.0
        self.first: float | None = None
        self.lost = 0.0
        self.rate = 0.0

    def meet(self, jump: float) -> None:
        """Lets messages expire all at once."""
        self._gone += jump
        if self._gone > self._read:
            self._lose(self._gone - self._read)

    def advance(self, until: float, expiring: float) -> None:
        """Lets time pass in which messages expire evenly."""
        self.rate = 0.0
        while self._now < until:
            stored = self._count + self._arriving * self._now
            caught_up = self._read >= stored
            speed = min(self._reading, self._arriving) if caught_up else self._reading
            pushed = self._read <= self._gone and expiring > speed
            step = until - self._now
            if pushed:
                self._pass(step, expiring, expiring)
                self._lose((expiring - speed) * step, self._now - step)
                self.rate = expiring - speed
                continue
            catches = (stored - self._read) / (speed - self._arriving) if speed > self._arriving else _EVER
            overtaken = (self._read - self._gone) / (expiring - speed) if expiring > speed else _EVER
            step = min(step, overtaken, _EVER if caught_up else catches)
            self._pass(step, speed, expiring)
            # Fronts that meet are made equal, so that rounding leaves no gap to be closed again and again.
            if step == overtaken:
                self._gone = self._read
            elif step == catches:
                self._read = self._count + self._arriving * self._now

    def _pass(self, step: float, speed: float, expiring: float) -> None:
        self._now += step
        self._read += speed * step
        self._gone += expiring * step

    def _lose(self, count: float, since: float | None = None) -> None:
        if self.first is None:
            self.first = self._now if since is None else since
        self.lost += count
        self._read = max(self._read, self._gone)
