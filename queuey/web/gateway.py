"""The gateway: serves requests on a server's event loop, from the request to its response.

:meth:`Gateway.answer` reads from top to bottom: resource, caller, rate limit, body, turn, view, errors, metrics. A view
is a coroutine that never blocks; what takes long, it runs in a thread of a small pool (:mod:`queuey.web.endpoint`): a
thread per waiting request costs several times what a small write costs.

A view that finds no messages may wait (:mod:`queuey.web.admission.long_polls`), and a response may continue as a stream
of events (:mod:`queuey.web.admission.event_streams`). Meanwhile the request holds nothing that others could use.

Each request counts for a tenant, and each tenant has its share of memory, threads and places for long polls
(:mod:`queuey.web.admission.scheduling`). A body is read only when the caller is known or has been authorized.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from functools import partial
from threading import Event
from types import MappingProxyType, coroutine
from typing import Any, Protocol, TypeVar

from queuey.model.errors import InvalidRequest, QueueyError
from queuey.model.rights import Caller
from queuey.runtime.event_loop import Core
from queuey.runtime.metrics import Metrics
from queuey.runtime.waiters import Watchers
from queuey.settings import Settings, origins_of
from queuey.storage import Store
from queuey.storage.deadlines import GivenUp, LoopCalls
from queuey.web.admission.event_streams import KEEPALIVE_INTERVAL
from queuey.web.admission.long_polls import (
    CHECK_INTERVAL,
    MAX_USER_STREAMS,
    Clients,
    KnownCallers,
    LongPoll,
    LongPolls,
    PollClient,
)
from queuey.web.admission.rates import RateLimits
from queuey.web.admission.scheduling import ANONYMOUS, Share, Shares, stranger_tenant
from queuey.web.endpoint import MAX_CACHED_PATH_BYTES, Endpoint, Resources, add_warnings, record_ignored_headers
from queuey.web.errors import error_response
from queuey.web.http.heads import RequestHead
from queuey.web.origins import Origins
from queuey.web.requests import (
    BODY_TIMEOUT,
    BodyReader,
    BodyWanted,
    PathProtocol,
    Request,
    read_headers,
    read_query,
)
from queuey.web.responses import (
    PIECE_SIZE,
    SEND_TIMEOUT,
    Exchange,
    Response,
    ResponseSender,
    make_event,
)

GATEWAY_RESOURCE = "gateway"
"""Resource in the metrics for requests that the gateway answers itself."""
TURN_TIMEOUT = 0.05
"""Timeout for the running read to finish before the next one starts anyway, in seconds."""
MAX_MEMORY = 256 * 1024 * 1024
"""Max bytes of bodies and responses in memory."""
MAX_WAIT = 5.0
"""Max time that a request waits for a thread or for memory, in seconds."""

T = TypeVar("T")

TICK_INTERVAL = 0.25
"""Interval of the timer, in seconds; other intervals are multiples of it."""


class Callers(Protocol):
    """Knows the callers of requests (:class:`queuey.access.authorization.Authorization`)."""

    def known_caller(self, request: Request) -> Caller | None: ...
    async def identify(self, request: Request) -> Caller: ...


class UseCases(Protocol):
    """What a gateway needs of the use cases (:class:`queuey.app.service.Service`)."""

    metrics: Metrics
    core: Core
    store: Store
    stopping: Event

    @property
    def reader(self) -> Watching: ...


class Watching(Protocol):
    """Has the watchers that wake waiting requests."""

    watchers: Watchers


class Served(Protocol):
    """An application, as a gateway serves it (:class:`queuey.app.service.App`)."""

    facades: list[PathProtocol]
    resources: Resources

    @property
    def service(self) -> UseCases: ...
    @property
    def authenticate(self) -> KnownCallers: ...
    @property
    def authorization(self) -> Callers: ...


class Gateway:
    """Serves the application that :func:`queuey.app.application.make_app` makes."""

    def __init__(  # noqa: PLR0913 - what tests make small
        self,
        application: Served,
        *,
        threads: int,
        waiters: int,
        max_body: int,
        deadline: float = 15.0,
        memory: int = MAX_MEMORY,
        page_bytes: int = 8 * 1024 * 1024,
        arrival: int = BODY_TIMEOUT,
        stall: float = SEND_TIMEOUT,
        beat: float = KEEPALIVE_INTERVAL,
        patience: float = TURN_TIMEOUT,
        max_wait: float = MAX_WAIT,
        rates: RateLimits | None = None,
        origins: Mapping[str, Sequence[str]] = MappingProxyType({}),
        user_streams: int = MAX_USER_STREAMS,
    ) -> None:
        """Creates the pools; their threads start in :meth:`start`.

        Args:
            application: From :func:`queuey.app.application.make_app`.
            threads: Threads for requests that may block.
            waiters: Max long polls of one application.
            max_body: Bytes of the longest body that any view accepts; longer ones are not read.
            deadline: Seconds after which a coroutine's work is given up, as the store gives up blocking work.
            memory: Max bytes of all bodies and responses at a time.
            page_bytes: Max bytes of the response to a read.
            arrival: Timeout for a body to arrive, in seconds.
            stall: Timeout for a client to accept a piece of a long response, in seconds.
            beat: Seconds without an event after which a stream sends a keep-alive.
            patience: Seconds that a read waits for the running one, where reads take turns.
            max_wait: Seconds that a request waits for a thread and for memory.
            rates: Rate limits of callers, or None for no limits.
            origins: Origins whose pages may use an application, by application.
            user_streams: Max streams of one user of an application.
        """
        self._deadline = deadline
        self._rates = rates
        self._origins = Origins(origins) if origins else None
        self.beat = beat
        self._max_wait = min(deadline, max_wait)
        self._resources = application.resources
        self._protocols = application.facades  # The console is one of them.
        self._authorization = application.authorization
        self._known_tenant = application.authenticate.known_tenant
        service = application.service
        self._metrics = service.metrics
        self._core = service.core
        self._store = service.store
        self.shares = Shares(
            threads,
            max(memory, 3 * max(max_body, page_bytes)),  # The largest request fits into the third of other tenants.
            page_bytes=page_bytes,
            patience=patience,
            readers=self._store.readers,
            reads_wait=self._store.waits_for_network,
        )
        self.bodies = BodyReader(max_body, arrival=arrival)
        self.polls = LongPolls(
            waiters,
            service.reader.watchers,
            application.authenticate,
            service.stopping,
            self._pause,
            self._resume,
            user_streams,
        )
        self.clients = Clients()
        self._sender = ResponseSender(stall=stall)
        self._loop: asyncio.AbstractEventLoop
        self.timer: IntervalTimer
        self.calls: dict[Request, float] = {}
        """Requests whose view waits, and their deadlines, in order of the deadlines."""

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Starts the threads and timers, and has the core and the store work in this loop.

        Called before the first request, in the loop's thread.
        """
        self._loop = loop
        calls = LoopCalls(loop)
        self._core.adopt(calls)
        self._store.adopt(loop)
        self.shares.start(loop, calls)
        self.polls.start(loop, calls)
        self.timer = IntervalTimer(loop)
        self.timer.call_every(CHECK_INTERVAL, self.polls.check)
        self.timer.call_every(1.0, partial(self.shares.refuse_overdue, self._max_wait))
        for call in (self._give_up_late_calls, self.bodies.cancel_late, self.clients.watch_slow):
            self.timer.call_every(1.0, call)

    def stop(self) -> None:
        """Ends the threads and timers. Called after the last request, in the loop's thread."""
        self.timer.stop()
        self.shares.threads.stop()
        self._store.adopt(None)
        self._core.adopt(None)

    async def answer(self, head: RequestHead, exchange: Exchange) -> None:  # noqa: C901, PLR0912, PLR0915
        """Answers a request, also a CORS preflight. However it ends, it gives back its share.

        If the view wants a body that was not received because the caller was unknown, receives it and runs it again.
        """
        form = head.form
        fields = form.headers
        if fields is None:
            fields = form.headers = read_headers(form.fields)
        # `find_cached` is `find` behind a cache of its latest results.
        find = self._resources.find_cached if len(head.path) <= MAX_CACHED_PATH_BYTES else self._resources.find
        # Views come from app/version_1.py (Operation.bind), the facades and console/resources.py.
        path, endpoint, match, view = find(head.method, head.path)
        query = head.query.decode("latin-1")
        request = Request(self, head.method, path, query, exchange.scheme, fields.headers.copy())
        if head.key:
            request.headers["idempotency-key"] = head.key.decode()
        request.address, request.length, request.has_own_headers = exchange.peer, fields.length, fields.own
        request.refuses_unknown = endpoint.refuses_unknown
        if self._origins is not None and (preflight := self._origins.answer_preflight(request)) is not None:
            self._metrics.count_request(GATEWAY_RESOURCE, preflight.status, 0.0)
            exchange.send_response(preflight, head=False)
            return
        share = request.share = Share(self.shares)
        began = 0.0  # Until the view has begun: the gateway itself answers then.
        try:
            try:
                await self._prepare(request, endpoint, exchange, fields.unreadable)
                request.exchange = exchange if view.ends_with_client else None
                while True:
                    if request.exchange is not None and request.client is None and self.shares.has_several:
                        request.client = PollClient(request.exchange, request.body, self.clients.unwatched)
                    await share.enter(len(request.body or b""))
                    if request.client is not None and self.shares.has_several:
                        request.client.require_present()  # It may have left while the request waited for its turn.
                    began = time.monotonic()
                    if request.query and not view.reads_query:
                        read_query(request)  # Records the unknown fields.
                    if view.headers is not None and not view.headers.issuperset(request.headers):
                        record_ignored_headers(request, view.headers)
                    try:
                        response = await self._drive(request, view.handler(request, match))
                        break
                    except BodyWanted:
                        # Without a known caller, the body is received only after the view has authorized the request.
                        began = 0.0
                        await self._receive_wanted_body(request, exchange)
            except Exception as error:  # noqa: BLE001 - an error of any kind must become a response
                response = endpoint.make_refusal(request, error) if began else error_response(error, request)
            if request.ignored:
                response.headers = add_warnings(response.headers, request.ignored)
            if began:
                self._metrics.count_request(endpoint.name, response.status, time.monotonic() - began)
            else:
                self._metrics.count_request(GATEWAY_RESOURCE, response.status, 0.0)
            response.headers += request.rate_headers
            if self._origins is not None:
                response.headers += self._origins.make_headers(request, response.headers)
            if response.pieces is None and (head.method == "HEAD" or response.size <= PIECE_SIZE):
                exchange.send_response(response, head=head.method == "HEAD")
            else:
                await self._send_long(request, response, exchange)
        finally:
            if request.client is not None:
                request.client.stop_listening()
            share.release()

    async def _receive_wanted_body(self, request: Request, exchange: Exchange) -> None:
        request.share.release()
        await self.bodies.receive_body(request, exchange, self._loop)
        if request.client is not None:
            request.client.receive = exchange.receive

    async def _send_long(self, request: Request, response: Response, exchange: Exchange) -> None:
        """Sends a long response, or one that continues. If it ends early, the server drops the connection.

        A client that accepts no piece for a while is given up. In a stream, a piece that takes too long is replaced by
        ``bye``. Streams wait here, so there are few frames and objects.
        """
        share, pieces = request.share, response.pieces
        request.body = None
        share.release(response=response.size)
        if pieces is None:
            await self._sender.send(response, exchange, share.wait_to_send_piece)
            return
        try:
            await exchange.send_head(response, None)
            await self._sender.send_part(response.body, exchange)
            while True:
                try:
                    piece = await self._drive(request, anext(pieces))
                except StopAsyncIteration:
                    break
                except GivenUp as error:
                    piece = make_event("bye", error_response(error, request).body)
                if share.reserved_bytes:
                    share.keep_reserved(sum(map(len, piece)) if isinstance(piece, list) else len(piece))
                await self._sender.send_part(piece, exchange)
            await self._sender.end(exchange)
        except TimeoutError:
            return
        finally:
            await pieces.aclose()

    async def _prepare(
        self, request: Request, endpoint: Endpoint, exchange: Exchange, unreadable: dict[str, str]
    ) -> None:
        """Finds the request's tenant, verifies its signature, counts it against the caller's rate, and reads its body.

        The body of an unknown caller is not read, unless it is empty. Raises for unreadable headers.
        """
        for protocol in self._protocols:
            if protocol.prepare(request):
                break
        if unreadable:
            raise InvalidRequest(dict(unreadable))
        is_for_monitor = endpoint.for_monitors and endpoint.is_for_monitor(request)
        header = request.headers.get("authorization")
        # None if the credential was not read yet or is not accepted, blank without a credential.
        tenant = request.path if is_for_monitor else self._known_tenant(header)
        if tenant is None and _counts_for_caller(request):
            # Reading a credential may wait for an issuer, which counts for the sender's address.
            request.share.tenant = stranger_tenant(request.address)
            try:
                tenant = (await self._drive(request, self._authorization.identify(request))).tenant
            except QueueyError as error:
                request.credential_error = error
        if tenant and request.verify is not None:
            await self._verify(request, exchange, tenant)
        request.share.tenant = tenant or ANONYMOUS
        if self._rates is not None and _counts_for_caller(request):
            self._count_request(self._rates, request)
        if request.length == 0:
            request.body = b""
        elif tenant and request.body is None and not self.bodies.take_received_body(request, exchange):
            request.share.holder = (
                "" if (caller := self._authorization.known_caller(request)) is None else caller.holder
            )
            await self.bodies.receive_body(request, exchange, self._loop)

    async def _verify(self, request: Request, exchange: Exchange, tenant: str) -> None:
        """Receives the body, then checks the signature on the event loop.

        Until it is verified, the request and its body count for the sender's address; then the body counts for
        ``tenant``.
        """
        share = request.share
        share.tenant = stranger_tenant(request.address)
        await self.bodies.receive_body(request, exchange, self._loop)
        if self.shares.has_several:
            await share.wait_for_turn(len(request.body or b""))
        try:
            request.verify(request)  # type: ignore[misc] # there is one
        except QueueyError:
            self.shares.record_presence(share.tenant)  # Forged requests contend as those of a tenant do.
            raise
        finally:
            share.end_turn()
        share.move_body(tenant)

    def _count_request(self, rates: RateLimits, request: Request) -> None:
        """Counts a request against its caller's rate, and keeps the headers about it. Raises if it exceeds a limit.

        A caller that is not known, or has no credential, is not counted.
        """
        caller = self._authorization.known_caller(request)
        if caller is not None and not caller.is_anonymous:
            facade = request.facade
            application = request.path.split("/", 3)[2] if facade is None else facade.application_of(caller)
            request.rate_headers, refusal = rates.count(caller, application)
            if refusal is not None:
                raise refusal

    @coroutine
    def _drive(self, request: Request, work: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:  # noqa: C901, PLR0912, PLR0915
        """Runs a part of a request step by step, each with its requester set, and then ends the request's turn.

        Giving up cancels the future that the work awaits, so the work must not share it. A cancellation from outside is
        raised in the end even if the work has caught it.

        Raises:
            GivenUp: The client has left, or the part takes longer than the deadline.
        """
        error: BaseException | None = None
        cancelled: asyncio.CancelledError | None = None
        has_waited = request.is_given_up = False
        share = request.share
        share.used = 0.0
        try:
            while True:
                share.step_began = time.monotonic()
                self._core.requester = request
                try:
                    request.waits_for = work.send(None) if error is None else work.throw(error)
                except StopIteration as end:
                    if cancelled is None:
                        return end.value  # type: ignore[no-any-return] # it has no type
                    raise cancelled from None
                except asyncio.CancelledError:
                    if cancelled is None and request.is_given_up:
                        raise GivenUp("unknown") from None
                    raise
                except Exception:
                    if cancelled is None:
                        raise
                    raise cancelled from None
                finally:
                    error = None  # The error refers to this frame: the cycle would keep the request's body in memory.
                    self._core.requester = None
                    share.used += time.monotonic() - share.step_began
                    share.step_began = None
                if not has_waited:
                    has_waited = True
                    if not share.is_paused:
                        self.calls[request] = time.monotonic() + self._deadline
                    if request.exchange is not None and request.client is None:
                        request.client = PollClient(request.exchange, request.body, self.clients.unwatched)
                    if request.client is not None:
                        request.client.on_left = request.give_up
                try:
                    yield request.waits_for
                except BaseException as thrown:  # noqa: BLE001 - the work gets it
                    error = thrown
                    if isinstance(thrown, asyncio.CancelledError) and not request.is_given_up:
                        cancelled = thrown
                request.waits_for = None
        finally:
            if share.turn is not None:
                share.end_turn()
            if has_waited:
                self.calls.pop(request, None)
                if request.client is not None:
                    request.client.on_left = None

    def _pause(self, request: Request) -> None:
        """Gives back what a long poll holds while it sleeps, except its body; its deadline does not run meanwhile."""
        request.share.is_paused = True
        request.share.release(keeps_body=True)
        self.calls.pop(request, None)

    async def _resume(self, request: Request) -> None:
        """Counts a request as present again, waits for its turn, and starts its deadline anew."""
        await request.share.enter(len(request.body or b""))
        request.share.is_paused = False
        self.calls[request] = time.monotonic() + self._deadline

    # Services for requests

    def make_long_poll(self, request: Request, seconds: float) -> LongPoll:
        assert request.exchange is not None  # noqa: S101 - the view ends with its client
        request.client = request.client or PollClient(request.exchange, request.body, self.clients.unwatched)
        return LongPoll(self.polls, request, seconds)

    def _give_up_late_calls(self) -> None:
        now = time.monotonic()
        for request, deadline in list(self.calls.items()):
            if deadline > now:
                break
            request.give_up()


def _counts_for_caller(request: Request) -> bool:
    return request.facade is not None or request.path.startswith("/v1/")


def make_gateway(application: Served, settings: Settings) -> Gateway:
    return Gateway(
        application,
        threads=settings.threads,
        # Other applications get half as many more, so a quarter of the connections is left for short requests.
        waiters=min(settings.wait_slots, settings.connections // 2),
        max_body=settings.longest_body(max(settings.max_body, settings.max_batch_bytes)),
        deadline=settings.deadline,
        memory=settings.memory,
        page_bytes=settings.page_bytes,
        rates=RateLimits(settings.rates) if settings.rates.is_limited else None,
        origins=origins_of(settings.users),
    )


class IntervalTimer:
    """Calls functions at intervals, each in its own callback: if one raises, the others are still called."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._ticks = 0
        self.calls: list[tuple[int, Callable[[], object]]] = []
        self._timer = loop.call_later(TICK_INTERVAL, self._tick)

    def call_every(self, seconds: float, call: Callable[[], object]) -> None:
        """Calls a function at once, and from then on at intervals, rounded to ticks."""
        self.calls.append((round(seconds / TICK_INTERVAL), call))
        call()

    def stop(self) -> None:
        self._timer.cancel()

    def _tick(self) -> None:
        self._timer = self._loop.call_later(TICK_INTERVAL, self._tick)
        self._ticks += 1
        for ticks, call in self.calls:
            if self._ticks % ticks == 0:
                self._loop.call_soon(call)
