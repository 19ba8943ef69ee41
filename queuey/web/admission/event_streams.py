"""Streams of server-sent events: what comes of a source, as long as there are its client, its rights and this service.

A stream begins with the milliseconds after which its reader comes again once it has ended. While it is silent it sends
comments. Before the reader's credential ends it says ``expiring``, and at its own end ``bye``.
"""

from __future__ import annotations

import math
import time
from collections.abc import AsyncGenerator
from random import randrange, uniform
from typing import Protocol

from queuey.access import Caller
from queuey.web.admission.long_polls import LongPoll
from queuey.web.responses import Body, body_of, event

KEEPALIVE_INTERVAL = 25.0
"""Interval of keep-alives in a silent stream, in seconds: proxies close connections after 30 or 60."""
RETRY, SPREAD = 1000, 4000
"""Milliseconds after which readers whose stream has ended come again, at least, and what is drawn for each."""
NOTICE_INTERVAL = 30.0
"""Interval between the notice to a reader and the end of its credential, in seconds."""
SILENCE = b":\n\n"
"""A comment."""


class Source(Protocol):
    """What a stream's events come from."""

    async def first(self, turn: LongPoll) -> list[bytes]:
        """Returns the events that a stream begins with."""

    async def further(self, turn: LongPoll, *, woken: bool) -> list[bytes]:
        """Returns the events since; it checks the reader's rights again.

        Args:
            turn: The waiting request, which the source makes wake.
            woken: Whether it was woken; otherwise the pause is over.
        """

    @property
    def queues(self) -> int:
        """Number of the queues that wake the stream."""

    @property
    def more(self) -> bool:
        """True if there may be more at once."""

    @property
    def looks_unwoken(self) -> bool:
        """True if there may be events after a pause, without a wake-up."""

    def pause(self, beat: float) -> float:
        """Returns the seconds after which it looks again unless it is woken, given those between two keep-alives."""

    def explain(self, error: Exception) -> Body:
        """Returns why the stream ends, as data of its last event."""


async def stream_events(
    turn: LongPoll, source: Source, caller: Caller | None, beat: float
) -> AsyncGenerator[Body, None]:
    """Gives events: those that there are, and then those that come.

    Args:
        turn: The request, which is not entered yet.
        source: The events.
        caller: The reader, whose credential may have an end.
        beat: Seconds between two signs of life.

    Raises:
        QueueyError: The stream does not begin.
    """
    ends = None if caller is None else caller.expires
    async with turn:
        events = await source.first(turn)
        turn.begin_stream(caller, source.queues)
        turn.end_try()
        retry = b"retry: %d\n" % (RETRY + randrange(SPREAD))  # noqa: S311 - it only spreads them
        yield body_of([retry, *events])
        spoke = time.monotonic()
        while True:
            left = math.inf if ends is None else ends - time.time() - NOTICE_INTERVAL
            # Streams that began together do not all speak at the same moment.
            pause = min(source.pause(beat), beat * uniform(0.6, 1))  # noqa: S311 - see above
            try:
                woken = await turn.next(max(0.0, min(pause, left)), more=source.more)
                if turn.is_stopped:
                    yield event("bye", {"detail": "The service ends. Ask again: another one may answer."})
                    return
                if turn.client.is_leaving:
                    return
                events = [] if woken or time.monotonic() - spoke < beat / 3 else [SILENCE]
                if not woken and ends is not None and ends - time.time() <= NOTICE_INTERVAL:
                    events, ends = [event("expiring", {"expires": ends})], None
                elif woken or source.looks_unwoken:
                    if not woken:
                        await turn.resume()
                    events = await source.further(turn, woken=woken) or events
            except Exception as error:  # noqa: BLE001 - of any kind, it ends the stream
                yield event("bye", source.explain(error))
                return
            if events:
                turn.end_try()  # Its client may take long for them.
                yield body_of(events)
                spoke = time.monotonic()
