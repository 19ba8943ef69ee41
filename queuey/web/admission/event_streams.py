"""Streams of server-sent events: the events of a source, until the client leaves, its rights or the service end.

A stream starts with the milliseconds after which its reader reconnects once it has ended. While it is silent it sends
comments. It sends ``expiring`` before the reader's credential expires, and ``bye`` when it ends.
"""

from __future__ import annotations

import math
import time
from collections.abc import AsyncGenerator
from random import randrange, uniform
from typing import Protocol

from queuey.model.rights import Caller
from queuey.web.admission.long_polls import LongPoll
from queuey.web.responses import Body, body_of, make_event

KEEPALIVE_INTERVAL = 25.0
"""Interval of keep-alives in a silent stream, in seconds: proxies close connections after 30 or 60."""
RECONNECT_DELAY_MS, RECONNECT_SPREAD_MS = 1000, 4000
"""Min milliseconds before a reader reconnects, and the random spread that is added for each."""
NOTICE_INTERVAL = 30.0
"""Seconds before the expiry of a reader's credential at which it is notified."""
KEEPALIVE = b":\n\n"
"""A comment, as a keep-alive."""


class EventSource(Protocol):
    """The source of a stream's events."""

    async def read_first(self, poll: LongPoll) -> list[bytes]:
        """Returns the first events of a stream."""

    async def read_next(self, poll: LongPoll, *, woken: bool) -> list[bytes]:
        """Returns the events since the last call; checks the reader's rights again.

        Args:
            poll: The waiting request, which the source wakes.
            woken: The request was woken; otherwise the pause is over.
        """

    @property
    def queue_count(self) -> int:
        """Number of the queues that wake the stream."""

    @property
    def has_more(self) -> bool:
        """True if there may be more events at once."""

    @property
    def needs_polling(self) -> bool:
        """True if there may be events after a pause, without a wake-up."""

    def choose_poll_interval(self, beat: float) -> float:
        """Returns the seconds after which an unwoken source is polled again; ``beat`` is the keep-alive interval."""

    def render_error(self, error: Exception) -> Body:
        """Returns the data of the last event of a stream that ends with this error."""


async def stream_events(
    poll: LongPoll, source: EventSource, caller: Caller | None, beat: float
) -> AsyncGenerator[Body, None]:
    """Yields the events of a source: those that exist, then new ones as they arrive.

    After the first events, an error is not raised: it ends the stream with ``bye``. If the client leaves, the stream
    ends without one.

    Args:
        poll: The request, which is not entered yet.
        source: The events.
        caller: The reader, whose credential may expire.
        beat: Seconds between two keep-alives.

    Raises:
        QueueyError: The source failed before its first events, or there is no place for the stream.
    """
    ends = None if caller is None else caller.expires
    async with poll:
        events = await source.read_first(poll)
        poll.begin_stream(caller, source.queue_count)
        poll.end_attempt()
        retry = b"retry: %d\n" % (RECONNECT_DELAY_MS + randrange(RECONNECT_SPREAD_MS))  # noqa: S311 - not for security
        yield body_of([retry, *events])
        last_sent = time.monotonic()
        while True:
            remaining = math.inf if ends is None else ends - time.time() - NOTICE_INTERVAL
            # Streams that began together do not all send at the same moment.
            pause = min(source.choose_poll_interval(beat), beat * uniform(0.6, 1))  # noqa: S311 - see above
            try:
                woken = await poll.next(max(0.0, min(pause, remaining)), more=source.has_more)
                if poll.is_stopped:
                    yield make_event("bye", {"detail": "The service ends. Ask again: another one may answer."})
                    return
                if poll.client.is_leaving:
                    return
                events = [] if woken or time.monotonic() - last_sent < beat / 3 else [KEEPALIVE]
                if not woken and ends is not None and ends - time.time() <= NOTICE_INTERVAL:
                    events, ends = [make_event("expiring", {"expires": ends})], None
                elif woken or source.needs_polling:
                    if not woken:
                        await poll.resume()
                    events = await source.read_next(poll, woken=woken) or events
            except Exception as error:  # noqa: BLE001 - of any kind, it ends the stream
                yield make_event("bye", source.render_error(error))
                return
            if events:
                poll.end_attempt()  # The client may take long to receive them.
                yield body_of(events)
                last_sent = time.monotonic()
