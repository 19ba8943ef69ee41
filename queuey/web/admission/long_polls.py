"""Long polls on the event loop: a waiting request needs a place, a connection and a few kilobytes, but no thread.

A view that may wait attempts to answer. If there is nothing to answer with, it awaits its next turn
(:meth:`LongPoll.next`), which comes when another attempt is worthwhile. Meanwhile the request holds no memory, thread
or time of the loop. Each attempt authorizes the caller again, so it notices a queue that was purged or deleted and a
right that was revoked. The client gets the result of the last attempt.

If one message wakes thousands, they take turns: few attempts are under way at a time, and the application that has used
less goes first.

A client may leave before it is answered. The server reports that only to a request that listens (:class:`PollClient`).
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from itertools import islice
from time import monotonic
from typing import Any, Protocol, Self, TypeVar

from queuey.model.errors import InvalidRequest, QueueyError, TooManyWaiters
from queuey.model.rights import ANYBODY, USERS_TENANT_PREFIX, Caller
from queuey.runtime.waiters import Waiter, Watchers
from queuey.web.admission.scheduling import FairGate, ScheduledWork, Share, SharedQuota
from queuey.web.http.connection import DISCONNECTED
from queuey.web.responses import Exchange

T = TypeVar("T")
Receive = Callable[[], Awaitable[dict[str, Any]]]
"""Returns the next ASGI message: a piece of the body, or the disconnect."""

MAX_USER_STREAMS = 20
"""Max streams of one user of an application in this process."""
QUEUES_PER_PLACE = 16
"""Max queues of a stream per place: each queue wakes it."""
CHECK_INTERVAL = 0.25
"""Interval between checks of credentials and of shutdown, in seconds."""
MAX_CREDENTIALS = 500
"""Max credentials checked in one tick."""
MAX_ATTEMPTS = 64
"""Max attempts of one application under way; further ones wait and are never refused."""
MAX_STARTED = 8
"""Max waiting attempts that one turn of the loop starts."""
MIN_WATCHED_AGE = 1.0
"""Age of a request at which its client is watched, in seconds: watching costs more than most requests."""


def make_client_left() -> InvalidRequest:
    return InvalidRequest({"connection": "Was closed before the answer"})


class PollClient:
    """The client of a request. Used in the loop's thread.

    Attributes:
        began: Time of the request, by the monotonic clock.
        has_left: The client has disconnected.
        is_leaving: The client sends no more. It may still read, but a long poll ends, because the client may be gone.
        receive: Reports the disconnect, once the body has been received, or None if nothing does.
        on_left, on_leaving: Called when the client has left, and when it starts to.
    """

    __slots__ = (
        "_message",
        "_remaining_messages",
        "_unwatched",
        "began",
        "has_left",
        "is_leaving",
        "on_leaving",
        "on_left",
        "receive",
    )

    def __init__(self, exchange: Exchange, body: bytes | None, unwatched: dict[PollClient, None]) -> None:
        # Unread bytes of a body would arrive before the client's disconnect.
        self.receive: Receive | None = None if body is None else exchange.receive
        self._unwatched = unwatched
        unwatched[self] = None
        self._message: asyncio.Future[Any] | None = None
        self._remaining_messages = 3
        """Messages that it receives until it stops listening."""
        self.began = monotonic()
        self.has_left = self.is_leaving = False
        self.on_left: Callable[[], None] | None = None
        self.on_leaving: Callable[[], None] | None = None

    def listen(self) -> None:
        """Starts watching for a disconnect; at most the end of the body may still be missing. Idempotent."""
        if self._message is None and self.receive is not None:
            # Our own server returns a future, which needs no task; an ordinary coroutine gets one.
            self._message = asyncio.ensure_future(self.receive())
            self._message.add_done_callback(self._on_message)

    def _on_message(self, future: asyncio.Future[Any]) -> None:
        """Notes whether the client has left or sends no more, and calls the functions for that.

        An error of ``receive`` counts as a disconnect. Listens again a few times.
        """
        if self._message is None or future.cancelled():
            return
        self._message = None
        message = DISCONNECTED if future.exception() is not None else future.result()
        if message["type"] == DISCONNECTED["type"]:
            self.is_leaving = True
            self.has_left = not message.get("half_closed")
            for call in (self.on_left if self.has_left else None, self.on_leaving):
                if call is not None:
                    call()
        self._remaining_messages -= 1
        if not self.has_left and self._remaining_messages:
            self.listen()

    def stop_listening(self) -> None:
        self._unwatched.pop(self, None)
        if self._message is not None:
            self._message.cancel()
        self._message = self.receive = self.on_left = self.on_leaving = None

    def require_present(self) -> None:
        if self.has_left:
            raise make_client_left()


class Clients:
    """The clients of requests under way. A client is watched for a disconnect once its request is a second old."""

    def __init__(self) -> None:
        self.unwatched: dict[PollClient, None] = {}

    def watch_slow(self) -> None:
        """Watches the clients of requests that are older than :data:`MIN_WATCHED_AGE`. Called every second."""
        latest = monotonic() - MIN_WATCHED_AGE
        for client in list(self.unwatched):
            if client.began > latest:
                break
            del self.unwatched[client]
            client.listen()


class WaitingRequest(Protocol):
    """The part of a request that a long poll uses."""

    share: Share
    headers: dict[str, str]
    client: PollClient | None


class LongPoll(Waiter):
    """A request that may wait. Used in the loop's thread, but for the :class:`Waiter` methods during an attempt.

    It is entered (``async with``) before its first attempt, and left after its last. Entering waits for the first turn,
    and raises if the client has left meanwhile.

    Attributes:
        client: The client that waits.
        tenant: The tenant that the request counts for.
        header: The Authorization header.
        places: Number of places that the request holds.
        holder: Name under which it holds them.
        has_news: Another attempt is worthwhile.
        timer: Ends the wait when its time is over.
        attempt_work: Its next attempt, as work of the gate. True ends the wait for another attempt, False without one.
        user: The user for whom it is counted as a stream, or None.
        is_heartbeat: The request is a heartbeat of a group member. Heartbeats get at most half of their tenant's
            places.
    """

    __slots__ = (
        "_polls",
        "_request",
        "_until",
        "attempt_work",
        "client",
        "has_news",
        "header",
        "holder",
        "is_heartbeat",
        "places",
        "tenant",
        "timer",
        "user",
    )

    def __init__(self, polls: LongPolls, request: WaitingRequest, seconds: float) -> None:
        assert request.client is not None  # noqa: S101 - the view ends with its client
        super().__init__(polls.watchers)
        self._polls = polls
        self._request = request
        self._until = polls.loop.time() + seconds
        self.client = request.client
        self.tenant = self.holder = request.share.tenant
        self.header = request.headers.get("authorization")
        self.attempt_work = ScheduledWork(self.tenant, polls.needs)
        self.timer: asyncio.TimerHandle | None = None
        self.places = 0
        self.has_news = False
        self.user: frozenset[str] | None = None
        self.is_heartbeat = False

    async def __aenter__(self) -> Self:
        try:
            if (wait := self._polls.first_wait(self)) is not None:
                await self._wait_paused(wait)
                self.client.require_present()
        except BaseException:
            self._polls.leave(self)
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self._polls.leave(self)

    def next(self, seconds: float | None = None, *, more: bool = False) -> Awaitable[bool]:
        """Waits after an attempt until another one is worthwhile. Returns False if the last result is the answer.

        That is so when the time is over, when the client leaves, and when the service ends.

        Args:
            seconds: Max time from now, or None for the rest of the time that the request may wait.
            more: Another attempt is worthwhile at once.

        Raises:
            TooManyRequests, StoreUnavailable: The request did not get its turn in time.
            TooManyWaiters: There is no place for it.
        """
        self.attempt_failed()
        if seconds is not None:
            self._until = self._polls.loop.time() + seconds
            self.stop_timer()
        self.has_news = self.has_news or more
        return self._wait_paused(self._polls.begin_next_wait(self, self._until))

    async def _wait_paused(self, wait: asyncio.Future[bool]) -> bool:
        """Waits for the next attempt, holding nothing that others could use. Returns whether to attempt again.

        Resumes the request only for another attempt. Returns False also if the client has left, whatever the wait says.
        """
        self._polls.pause(self._request)
        again = await wait
        if again:
            self.has_news = False
            await self.resume()
        return again and not self.client.has_left

    def end_attempt(self) -> None:
        self._polls.attempts.leave(self.attempt_work)

    async def resume(self) -> None:
        await self._polls.resume(self._request)

    @property
    def is_stopped(self) -> bool:
        return self._polls.stopping.is_set()

    def begin_stream(self, caller: Caller | None, queues: int) -> None:
        """Counts the request as a stream of this many queues, which may need more places.

        Raises:
            TooManyWaiters: There is no place for it, or the user has too many streams already.
        """
        self._polls.begin_stream(self, caller, queues)

    def wake(self, qid: int | None = None) -> None:
        # Puts another attempt in line because of news in a queue, or in any queue if None.
        self.record_wake(qid)
        self.has_news = True
        self._polls.attempts.line_up(self.attempt_work)

    def begin_to_wait(self) -> asyncio.Future[bool]:
        """Returns a future: True for the next turn, False to answer with the last result, as when the client leaves."""
        future = self.attempt_work.begin_to_wait()
        self.client.on_leaving = self.give_up
        if self.client.is_leaving:
            self.give_up()
        return future

    def give_up(self) -> None:
        self.attempt_work.settle(result=False)

    def expire(self) -> None:
        """Ends the wait when its time is over, unless another attempt is in line anyway."""
        if not self.has_news:
            self.give_up()

    def stop_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class _CredentialPolls:
    """The long polls with the same credential, and their caller."""

    __slots__ = ("caller", "polls")

    def __init__(self, caller: Caller | None) -> None:
        self.caller = caller
        self.polls: set[LongPoll] = set()


class KnownCallers(Protocol):
    """Authenticates callers (:class:`queuey.access.authorization.Authenticator`)."""

    async def __call__(self, header: str | None) -> Caller:
        """Returns the caller; reads its credentials if it is not cached."""

    def cached_caller(self, header: str) -> Caller | None:
        """Returns the caller if it is cached and its entry has not expired."""

    def known_tenant(self, header: str | None) -> str | None:
        """Returns the tenant of a cached caller, also shortly after its entry expired."""

    def known_caller(self, header: str) -> Caller | None:
        """Returns the cached caller, however old its entry is."""


class LongPolls:
    """All requests of this process that wait for messages.

    Args:
        places: Places of one tenant; the other tenants together have half as many more.
        stopping: Set when the service ends.
        pause: Releases what a request holds, when it begins to wait.
        resume: Waits until the request may go on.
        user_streams: Max streams of one user of an application.
    """

    def __init__(
        self,
        places: int,
        watchers: Watchers,
        authenticate: KnownCallers,
        stopping: threading.Event,
        pause: Callable[[Any], None],
        resume: Callable[[Any], Awaitable[None]],
        user_streams: int = MAX_USER_STREAMS,
    ) -> None:
        # One application alone gets two thirds of the places, so that some are left for the next one.
        self.places = SharedQuota(places + (places + 1) // 2, alpha=2)
        self.heartbeats = SharedQuota(self.places.total // 2, alpha=2)
        """Places of heartbeats: half of all, so a tenant's heartbeats take at most half of its share."""
        self.attempt_quota = SharedQuota(2 * MAX_ATTEMPTS, alpha=1)
        self.needs = self.attempt_quota, 1
        """The quota that an attempt needs."""
        self.attempts: FairGate[ScheduledWork] = FairGate(MAX_STARTED, price=1, bound=self.attempt_quota)
        self.loop: asyncio.AbstractEventLoop
        self.watchers = watchers
        self._authenticate = authenticate
        self.stopping = stopping
        self.pause, self.resume = pause, resume
        self._user_streams = user_streams
        self.waiting: dict[str | None, _CredentialPolls] = {}
        self._reauthentication: asyncio.Future[None] | None = None
        self.streams: Counter[frozenset[str]] = Counter()

    def start(self, loop: asyncio.AbstractEventLoop, call_in_loop: Callable[..., None]) -> None:
        """Called in the loop's thread, before the first request. Threads of the store use ``call_in_loop``."""
        self.loop = loop
        self.watchers.adopt(call_in_loop)

    def first_wait(self, poll: LongPoll) -> asyncio.Future[bool] | None:
        """Returns the future of a poll's first attempt, or None if it may begin at once.

        The attempt waits only in a place. Without a free place it begins at once, without its quota.
        """
        if self.attempts.try_acquire(poll.attempt_work) or not self._take_places(poll):
            return None
        future = poll.begin_to_wait()
        poll.wake()
        return future

    def begin_next_wait(self, poll: LongPoll, until: float) -> asyncio.Future[bool]:
        """Ends a poll's attempt, and returns the future of the next: True to attempt again, False to answer.

        Gives the poll a place and a timer if it has none. The future is False at once if the wait is over or the
        service ends; a poll with news is lined up at once. ``until`` is the loop time at which the wait ends.

        Raises:
            TooManyWaiters: There is no place for the poll.
        """
        self.attempts.leave(poll.attempt_work)
        self._require_places(poll)
        if poll.timer is None:
            poll.timer = self.loop.call_at(until, poll.expire)
        future = poll.begin_to_wait()
        if self.stopping.is_set() or self.loop.time() >= until:
            poll.give_up()
        elif poll.has_news:
            self.attempts.line_up(poll.attempt_work)
        return future

    def begin_stream(self, poll: LongPoll, caller: Caller | None, queues: int) -> None:
        if caller is not None and caller.tenant.startswith(USERS_TENANT_PREFIX):
            user, limit = caller.names, self._user_streams
            if self.streams[user] >= limit:
                raise TooManyWaiters(f"This user has {limit} streams already, the maximum for a user. End one of them.")
            self.streams[user] += 1
            poll.user = user
        self._require_places(poll, 1 + queues // QUEUES_PER_PLACE)

    def _require_places(self, poll: LongPoll, count: int = 1) -> None:
        if not self._take_places(poll, count):
            raise TooManyWaiters("Too many readers are waiting for messages; try again without waiting.")

    def _take_places(self, poll: LongPoll, count: int = 1) -> bool:
        """Gives a poll more places; returns whether it now has ``count``.

        With its first place, its credential is checked from now on, and its client is watched.
        """
        if poll.places >= count:
            return True
        if not poll.places:
            caller = self._find_cached_caller(poll.header)
            poll.holder = poll.tenant if caller is None else caller.holder
        if poll.is_heartbeat and not self.heartbeats.fits(poll.holder, count - poll.places):
            return False
        if not self.places.take(poll.holder, count - poll.places):
            return False
        if poll.is_heartbeat:
            self.heartbeats.change(poll.holder, count - poll.places)
        if not poll.places:
            group = self.waiting.get(poll.header)
            if group is None:
                group = self.waiting[poll.header] = _CredentialPolls(self._find_cached_caller(poll.header))
            group.polls.add(poll)
            poll.client.listen()
        poll.places = count
        return True

    def leave(self, poll: LongPoll) -> None:
        poll.close()
        self.attempts.leave(poll.attempt_work)
        if poll.places:
            self.places.change(poll.holder, -poll.places)
            if poll.is_heartbeat:
                self.heartbeats.change(poll.holder, -poll.places)
            poll.places = 0
            group = self.waiting[poll.header]
            group.polls.discard(poll)
            if not group.polls:
                del self.waiting[poll.header]
        if poll.user is not None:
            self.streams[poll.user] -= 1
            if not self.streams[poll.user]:
                del self.streams[poll.user]
            poll.user = None
        poll.stop_timer()
        poll.attempt_work.future = None

    def check(self) -> None:
        """Ends all polls once the service stops; else wakes those whose rights changed. Called every 0.25 s.

        A call checks up to :data:`MAX_CREDENTIALS` credentials, in rotation. Expired cache entries are read again;
        meanwhile nothing is checked.
        """
        if self.stopping.is_set():
            for group in self.waiting.values():
                for poll in group.polls:
                    poll.give_up()
        elif self._reauthentication is None or self._reauthentication.done():
            headers = list(islice(self.waiting, MAX_CREDENTIALS))
            for header in headers:  # They move to the end: the next tick checks others.
                self.waiting[header] = self.waiting.pop(header)
            self._wake_changed(headers)
            expired = [h for h in headers if h is not None and self._authenticate.cached_caller(h) is None]
            if expired:
                self._reauthentication = asyncio.ensure_future(self._reauthenticate(expired))
        self.attempts.forget_idle_tenants()

    def _find_cached_caller(self, header: str | None) -> Caller | None:
        return ANYBODY if header is None else self._authenticate.known_caller(header)

    def _wake_changed(self, headers: Iterable[str | None]) -> None:
        for header in headers:
            group = self.waiting.get(header)
            if group is not None and (caller := self._find_cached_caller(header)) != group.caller:
                group.caller = caller
                for poll in group.polls:
                    poll.wake()

    async def _reauthenticate(self, headers: Sequence[str]) -> None:
        for header in headers:
            with suppress(QueueyError):
                await self._authenticate(header)
        self._wake_changed(headers)
