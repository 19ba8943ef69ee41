"""Long polls on the event loop: a waiting request needs a place, a connection and a few kilobytes, but no thread.

A long poll is tried like any other read. If there is nothing to answer, it waits here until another try is worthwhile,
and is tried again. Each try authorizes the caller again, so it notices a queue that was purged or deleted and a right
that was taken away. The client gets the answer of the last try.

If one message wakes thousands, they take turns: few tries are under way at a time, and the application that has used
less goes first.

A client may leave before it is answered. The server says so only to whoever listens (:class:`Client`).
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from time import monotonic
from typing import Any, Protocol

from queuey.access import ANYBODY, Caller
from queuey.errors import InvalidRequest, QueueyError, TooManyWaiters
from queuey.service.watching import Waiter, Watchers
from queuey.web.admission.scheduling import FairQueue, SharedQuota
from queuey.web.http.connection import LEFT

Receive = Callable[[], Awaitable[dict[str, Any]]]
"""Gives the next piece of the body, or says that the client is gone, as ASGI has it."""

KEEPALIVE_INTERVAL = 25.0
"""Interval of keep-alives in a silent stream, in seconds: proxies close connections after 30 or 60."""
MAX_USER_STREAMS = 20
"""Max streams of one user of an application in this process."""
QUEUES_A_PLACE = 16
"""Max queues of a stream per place: it is woken by all of them."""
RETRY, SPREAD = 1000, 4000
"""Milliseconds after which readers whose stream has ended come again, at least, and what is drawn for each."""
LISTING_INTERVAL = 0.3
"""Interval before the next try of a stream that has to list its queues, in seconds."""
NOTICE_INTERVAL = 30.0
"""Interval between the notice to a reader and the end of its credential, in seconds."""
SILENCE = b":\n\n"
"""A comment."""
CHECK_INTERVAL = 0.25
"""Interval between checks of credentials and of shutdown, in seconds."""
MAX_CREDENTIALS = 500
"""Max credentials checked in one tick."""
MAX_TRIES = 64
"""Max tries of one application under way; further ones wait and are never refused."""
MAX_STARTED = 8
"""Max waiting tries that one turn of the loop starts."""
LISTEN_AFTER = 1.0
"""Interval before a request's client is watched, in seconds: watching costs more than most requests."""


def client_left() -> InvalidRequest:
    """Returns the error of a request whose client has left before the answer. Nobody gets it."""
    return InvalidRequest({"connection": "Was closed before the answer"})


class Client:
    """The other end of a request. Used in the loop's thread.

    Attributes:
        began: Time of the request, by the monotonic clock.
        has_left: It is known that nobody waits for the answer any more.
        is_leaving: It sends no more. It may still read, but nobody waits for long for one that may be gone.
        receive: Reports that it has left, once its body was taken in; None: nothing does.
        left, leaving: Called when it has left, and when it begins to.
    """

    __slots__ = ("_heard", "began", "has_left", "is_leaving", "leaving", "left", "receive")

    def __init__(self, receive: Receive | None) -> None:
        self.receive = receive
        self._heard: asyncio.Future[Any] | None = None
        self.began = monotonic()
        self.has_left = self.is_leaving = False
        self.left: Callable[[], None] | None = None
        self.leaving: Callable[[], None] | None = None

    def listen(self, events: int = 3) -> None:
        """Starts watching for a disconnect; the body was received, perhaps but for its end. Idempotent."""
        if self._heard is None and self.receive is not None:
            # The server's own future, without a task around it; an ordinary coroutine gets one.
            self._heard = asyncio.ensure_future(self.receive())
            self._heard.add_done_callback(partial(self._hear, events))

    def _hear(self, events: int, heard: asyncio.Future[Any]) -> None:
        if self._heard is None or heard.cancelled():
            return
        self._heard = None
        message = LEFT if heard.exception() is not None else heard.result()
        if message["type"] == LEFT["type"]:
            self.is_leaving = True
            self.has_left = not message.get("half_closed")
            for call in (self.left if self.has_left else None, self.leaving):
                if call is not None:
                    call()
        if not self.has_left and events > 1:
            self.listen(events - 1)

    def forget(self) -> None:
        if self._heard is not None:
            self._heard.cancel()
        self._heard = self.receive = self.left = self.leaving = None

    def check(self) -> None:
        """Makes sure that somebody may still wait for the answer.

        Raises:
            InvalidRequest: It has left. Nobody gets this error.
        """
        if self.has_left:
            raise client_left()


class Clients:
    """The clients of requests under way. Those of requests that take long are listened to."""

    def __init__(self) -> None:
        self._unheard: dict[Client, None] = {}

    def begin(self, receive: Receive | None) -> Client:
        """Returns the client of a new request; :meth:`end` ends it.

        Args:
            receive: Reports that it has left; None: nothing does.
        """
        client = Client(receive)
        self._unheard[client] = None
        return client

    def end(self, client: Client) -> None:
        """Notes that a request has its answer."""
        self._unheard.pop(client, None)
        client.forget()

    def look(self) -> None:
        """Begins to listen to the clients of requests that are no longer short. Called every second."""
        begun = monotonic() - LISTEN_AFTER
        for client in list(self._unheard):
            if client.began > begun:
                break
            del self._unheard[client]
            client.listen()


class LongPoll(Waiter):
    """One request that may wait. Used in the loop's thread, but for what a :class:`Waiter` does while it is tried.

    Attributes:
        client: The client that waits.
        tenant: The tenant that it counts for.
        header: Its credential.
        began: Loop time.
        places: Number of places that it has.
        user: For whom it is counted as a stream; None: it is not.
    """

    __slots__ = (
        "_polls",
        "began",
        "client",
        "future",
        "header",
        "news",
        "places",
        "queued",
        "tenant",
        "timer",
        "trying",
        "user",
    )

    def __init__(self, polls: LongPolls, tenant: str, header: str | None, client: Client) -> None:
        super().__init__(polls.watchers)
        self._polls = polls
        self.client = client
        self.tenant = tenant
        self.header = header
        self.began = polls.loop.time()
        self.future: asyncio.Future[bool] | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.places = 0
        self.news = False
        self.queued = False
        self.trying = False
        self.user: frozenset[str] | None = None

    def wake(self, qid: int | None = None) -> None:
        self.note_woken(qid)
        self.news = True
        self._polls.line_up(self)

    def begin_to_wait(self) -> asyncio.Future[bool]:
        """Returns what :meth:`settle` ends; so does its client, when it leaves."""
        self.future = self._polls.loop.create_future()
        self.client.leaving = partial(self.settle, again=False)
        if self.client.is_leaving:
            self.settle(again=False)
        return self.future

    def settle(self, *, again: bool) -> None:
        """Ends its waiting: it is to be tried again, or answered as it is."""
        if self.future is not None and not self.future.done():
            self.news = self.news and not again
            self.wait = 0.0
            self.future.set_result(again)

    def expire(self) -> None:
        """Ends its waiting when its time is over, unless it is about to be tried again anyway."""
        if not self.news:
            self.settle(again=False)


class _SameCredential:
    """The long polls that came with the same credential, and its caller."""

    __slots__ = ("caller", "polls")

    def __init__(self, caller: Caller | None) -> None:
        self.caller = caller
        self.polls: set[LongPoll] = set()


class KnownCallers(Protocol):
    """Knows the callers of credentials (:class:`queuey.web.authorization.Authenticator`)."""

    def __call__(self, header: str | None) -> Caller:
        """Returns the caller; blocks if it is not in memory."""

    def remembered(self, header: str) -> Caller | None:
        """Returns the caller if it is known without reading its credentials."""

    def seen_caller(self, header: str) -> Caller | None:
        """Returns the caller as it was last known, however long ago."""


class LongPolls:
    """All requests of this process that wait for messages.

    Args:
        places: For one tenant; others have half as many more.
        watchers: Wake them.
        authenticate: Finds the caller of a credential.
        stopping: Set when the service ends.
    """

    def __init__(self, places: int, watchers: Watchers, authenticate: KnownCallers, stopping: threading.Event) -> None:
        # One application alone gets two thirds of the places, so that some are left for the next one.
        self.places = SharedQuota(places + (places + 1) // 2, alpha=2)
        self.trying = SharedQuota(2 * MAX_TRIES, alpha=1)
        self.loop: asyncio.AbstractEventLoop
        self._timer: asyncio.TimerHandle
        self.watchers = watchers
        self._authenticate = authenticate
        self._stopping = stopping
        self._turns: FairQueue[LongPoll] = FairQueue()
        self._dispatching = False
        self._waiting: dict[str | None, _SameCredential] = {}
        self._looking: asyncio.Future[None] | None = None
        self._streams: Counter[frozenset[str]] = Counter()
        self._run: Callable[[Callable[[], None]], Awaitable[None]]

    def start(
        self,
        loop: asyncio.AbstractEventLoop,
        tell: Callable[..., None],
        run: Callable[[Callable[[], None]], Awaitable[None]],
    ) -> None:
        """Called in the loop's thread, before the first request.

        Args:
            loop: The loop.
            tell: Makes a call in the loop; for threads of the store.
            run: Runs work that may block in a thread.
        """
        self.loop = loop
        self._run = run
        self.watchers.tell = tell
        self._timer = loop.call_later(CHECK_INTERVAL, self._tick)

    def stop(self) -> None:
        """Called after the last request."""
        self._timer.cancel()

    def begin(self, tenant: str, header: str | None, client: Client) -> LongPoll:
        """Returns the long poll of a request that may wait; :meth:`leave` ends it.

        Args:
            tenant: The tenant that it counts for.
            header: Its credential.
            client: The client that waits.
        """
        return LongPoll(self, tenant, header, client)

    def first_turn(self, poll: LongPoll) -> asyncio.Future[bool] | None:
        """Returns what a poll has to wait for before its first try; None: nothing."""
        if self.trying.take(poll.tenant, 1):
            poll.trying = True
            return None
        if not self._enter(poll):
            return None
        future = poll.begin_to_wait()
        poll.wake()
        return future

    def next_turn(self, poll: LongPoll, wait: float, *, more: bool) -> asyncio.Future[bool]:
        """:meth:`turn` after each further try, with a new deadline.

        Args:
            poll: The poll.
            wait: Seconds.
            more: Another try is worthwhile at once.

        Raises:
            TooManyWaiters: It has no place, and there is none for it.
        """
        poll.began, poll.wait = self.loop.time(), wait
        poll.news = poll.news or more
        if poll.timer is not None:
            poll.timer.cancel()
            poll.timer = None
        return self.turn(poll)

    def turn(self, poll: LongPoll) -> asyncio.Future[bool]:
        """Waits after a try that found nothing; returns what says whether to try again.

        Raises:
            TooManyWaiters: It has no place, and there is none for it.
        """
        self._tried(poll)
        self.require_places(poll)
        until = poll.began + poll.wait
        if poll.timer is None:
            poll.timer = self.loop.call_at(until, poll.expire)
        future = poll.begin_to_wait()
        if self._stopping.is_set() or self.loop.time() >= until:
            poll.settle(again=False)
        elif poll.news:
            self.line_up(poll)
        return future

    def count_stream(self, poll: LongPoll, user: frozenset[str], most: int) -> None:
        """Counts a poll that goes on for its user.

        Raises:
            TooManyWaiters: The user has so many already.
        """
        if self._streams[user] >= most:
            raise TooManyWaiters(f"This user has {most} streams already, as many as one may have. End one of them.")
        self._streams[user] += 1
        poll.user = user

    def require_places(self, poll: LongPoll, count: int = 1) -> None:
        """Gives a poll more places, up to ``count``.

        Raises:
            TooManyWaiters: There are not enough for it.
        """
        if not self._enter(poll, count):
            raise TooManyWaiters("Too many readers are waiting for messages; try again without waiting.")

    def _enter(self, poll: LongPoll, count: int = 1) -> bool:
        """Gives a poll more places; returns whether it has ``count`` of them."""
        if poll.places >= count:
            return True
        if not self.places.take(poll.tenant, count - poll.places):
            return False
        if not poll.places:
            same = self._waiting.get(poll.header)
            if same is None:
                same = self._waiting[poll.header] = _SameCredential(self._caller(poll.header))
            same.polls.add(poll)
            poll.client.listen()
        poll.places = count
        return True

    def leave(self, poll: LongPoll) -> None:
        """Ends a poll, in whatever way."""
        poll.close()
        self._tried(poll)
        if poll.places:
            self.places.change(poll.tenant, -poll.places)
            poll.places = 0
            same = self._waiting[poll.header]
            same.polls.discard(poll)
            if not same.polls:
                del self._waiting[poll.header]
        if poll.user is not None:
            self._streams[poll.user] -= 1
            if not self._streams[poll.user]:
                del self._streams[poll.user]
            poll.user = None
        if poll.timer is not None:
            poll.timer.cancel()
        poll.future = poll.timer = None

    def line_up(self, poll: LongPoll) -> None:
        """Queues a waiting poll for its turn."""
        if poll.future is not None and not poll.future.done() and not poll.queued:
            poll.queued = True
            self._turns.put(poll.tenant, poll)
            self._dispatch_soon()

    def _dispatch_soon(self) -> None:
        if self._turns and not self._dispatching:
            self._dispatching = True
            self.loop.call_soon(self._dispatch)

    def _dispatch(self) -> None:
        """Starts the tries whose turn it is."""
        self._dispatching = False
        begun = 0
        while begun < MAX_STARTED and self.trying.free > 0 and (poll := self._turns.take(self._fits)) is not None:
            poll.queued = False
            if poll.future is not None and not poll.future.done():
                self.trying.change(poll.tenant, 1)
                poll.trying = True
                self._turns.charge(poll.tenant, 1)
                poll.settle(again=True)
                begun += 1
        if begun:
            self._dispatch_soon()

    def _fits(self, tenant: str, _poll: LongPoll) -> bool:
        return self.trying.fits(tenant, 1)

    def _tried(self, poll: LongPoll) -> None:
        if poll.trying:
            poll.trying = False
            self.trying.change(poll.tenant, -1)
            self._dispatch_soon()

    def _tick(self) -> None:
        if self._stopping.is_set():
            for same in self._waiting.values():
                for poll in same.polls:
                    poll.settle(again=False)
        elif self._looking is None or self._looking.done():
            some = list(islice(self._waiting, MAX_CREDENTIALS))
            for header in some:  # The rest is for the next tick.
                self._waiting[header] = self._waiting.pop(header)
            self._compare(some)
            old = [header for header in some if header is not None and self._authenticate.remembered(header) is None]
            if old:
                self._looking = asyncio.ensure_future(self._look(old))
        self._turns.forget()
        self._timer = self.loop.call_later(CHECK_INTERVAL, self._tick)

    def _caller(self, header: str | None) -> Caller | None:
        return ANYBODY if header is None else self._authenticate.seen_caller(header)

    def _compare(self, headers: Iterable[str | None]) -> None:
        """Wakes the polls whose rights have changed."""
        for header in headers:
            same = self._waiting.get(header)
            if same is not None and (caller := self._caller(header)) != same.caller:
                same.caller = caller
                for poll in same.polls:
                    poll.wake()

    async def _look(self, headers: Sequence[str]) -> None:
        """Checks credentials again."""
        with suppress(QueueyError):
            await self._run(partial(self._know, headers))
        self._compare(headers)

    def _know(self, headers: Iterable[str]) -> None:
        for header in headers:
            with suppress(QueueyError):
                self._authenticate(header)
