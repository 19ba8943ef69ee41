"""The gateway: serves requests on a server's event loop, from the request to its response.

:meth:`Gateway.answer` reads from top to bottom: which resource, whose request, how many it may make, its turn, its
body, the view, errors, metrics. A view is a coroutine that never blocks, or runs in a thread of a small pool
(:mod:`queuey.web.endpoint`): a thread per waiting request costs several times what a small write costs.

A view that finds no messages may wait (:mod:`queuey.web.admission.long_polls`), and a response may continue as a stream
of events (:mod:`queuey.web.admission.event_streams`). Meanwhile the request holds nothing that others could use.

Each request counts for a tenant, and each tenant has its share of memory, threads and places for long polls
(:mod:`queuey.web.admission.scheduling`). A body is read only when the caller is known or has been authorized.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Mapping, Sequence
from functools import partial
from threading import Event, Lock
from types import MappingProxyType, coroutine
from typing import Any, Protocol, TypeVar

from queuey.model.errors import QueueyError
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
    make_client_left,
)
from queuey.web.admission.rates import RateLimits
from queuey.web.admission.scheduling import ANONYMOUS, Contention, FairPool, LoopScheduler, SharedQuota, stranger_tenant
from queuey.web.endpoint import Endpoint, Match, Resources, View
from queuey.web.errors import error_response
from queuey.web.http.heads import RequestHead
from queuey.web.origins import Origins
from queuey.web.requests import (
    BODY_TIMEOUT,
    BodyReader,
    BodyWanted,
    Request,
    announced_length,
    read_headers,
    refuse_unreadable,
)
from queuey.web.requests import Protocol as Facade
from queuey.web.responses import (
    PIECE_SIZE,
    SEND_TIMEOUT,
    Body,
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

    def find_tenant(self, request: Request) -> str | None: ...
    def stale_caller(self, request: Request) -> Caller | None: ...
    def preload_caller(self, request: Request) -> None: ...


class UseCases(Protocol):
    """What a gateway needs of the use cases (:class:`queuey.app.service.Service`)."""

    @property
    def metrics(self) -> Metrics: ...
    @property
    def core(self) -> Core: ...
    @property
    def store(self) -> Store: ...
    @property
    def reader(self) -> Watching: ...
    @property
    def stopping(self) -> Event: ...


class Watching(Protocol):
    """Has the watchers that wake waiting requests."""

    @property
    def watchers(self) -> Watchers: ...


class Served(Protocol):
    """An application, as a gateway serves it (:class:`queuey.app.service.App`)."""

    @property
    def service(self) -> UseCases: ...
    @property
    def authenticate(self) -> KnownCallers: ...
    @property
    def authorization(self) -> Callers: ...
    @property
    def facades(self) -> Sequence[Facade]: ...
    @property
    def resources(self) -> Resources: ...


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
        self._patience = patience
        self.beat = beat
        self._max_wait = min(deadline, max_wait)
        self._resources = application.resources
        self._facades = application.facades
        self._authorization = application.authorization
        service = application.service
        self._metrics = service.metrics
        self._core = service.core
        self._store = service.store
        self._reads_wait = self._store.waits_for_network
        self._max_reads = max(1, self._store.readers - 1)  # One reader is left for the next tenant.
        # One tenant alone gets two thirds. The largest request fits into the rest, whatever the setting says.
        self._page_bytes = page_bytes
        self.memory = room = SharedQuota(max(memory, 3 * max(max_body, page_bytes)), alpha=2)
        self.bodies = BodyReader(max_body, room, arrival=arrival)
        self.scheduler = LoopScheduler(1024 if self._reads_wait else 32)  # A network store carries many at a time.
        self.threads = FairPool("queuey-request", threads, room, self._max_computing)
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
        self._sender = ResponseSender(self._yield_between_pieces, stall=stall)
        self._stopping: Event = service.stopping
        self._turn = Lock()
        self._loop: asyncio.AbstractEventLoop
        self._call_in_loop: LoopCalls
        self.contention: Contention
        self.timer: IntervalTimer
        self.calls: dict[Request, float] = {}
        """Requests whose view waits, and their deadlines, in order of the deadlines."""

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Starts the threads and timers, and has the core and the store work in this loop.

        Called before the first request, in the loop's thread.
        """
        self._loop = loop
        self._call_in_loop = LoopCalls(loop)
        self.contention = Contention(loop, self.threads.dispatch)
        self._core.adopt(self._call_in_loop)
        self._store.adopt(loop)
        self.threads.start(self._call_in_loop)
        self.polls.start(loop, self._call_in_loop, partial(self.threads.run, "credentials"))
        self.timer = IntervalTimer(loop)
        self.timer.call_every(CHECK_INTERVAL, self.polls.check)
        for line in (self.scheduler, self.threads):
            self.timer.call_every(1.0, partial(line.refuse_overdue, self._max_wait))
        for call in (self._give_up_late_calls, self.bodies.cancel_late, self.clients.watch_slow):
            self.timer.call_every(1.0, call)

    def stop(self) -> None:
        """Ends the threads and timers. Called after the last request, in the loop's thread."""
        self.timer.stop()
        self.threads.stop()
        self._store.adopt(None)
        self._core.adopt(None)

    async def answer(self, head: RequestHead, exchange: Exchange) -> None:
        """Answers a request, also a CORS preflight. However it ends, everything that it has held is released."""
        cache = head.application_cache
        if not cache or cache[0] is not self._resources:
            resource = self._resources.find(head.path)
            view = resource.endpoint.view(head.method)
            cache[:] = self._resources, head.query.decode("latin-1"), read_headers(head.fields), resource, view
        _, query, fields, (path, endpoint, match), view = cache
        request = Request(self, head.method, path, query, exchange.scheme, fields.headers.copy())
        if head.key:
            request.headers["idempotency-key"] = head.key.decode()
        request.address = exchange.peer
        if fields.own:
            request.has_own_headers = True
        try:
            response = None if self._origins is None else self._origins.answer_preflight(request)
            if response is not None:
                self._metrics.count_request(GATEWAY_RESOURCE, response.status, 0.0)
            else:
                response = await self._respond(request, endpoint, view, match, exchange, fields.unreadable)
                if self._origins is not None:
                    response.headers += self._origins.make_headers(request, response.headers)
            if response.pieces is not None:
                self._mark_absent(request)
                if request.held_body_bytes:
                    self._drop_body(request)
                await self._send_stream(request, response, response.pieces, exchange)
            elif head.method == "HEAD" or response.size <= PIECE_SIZE:
                exchange.send_response(response, head=head.method == "HEAD")
            else:
                self._release(request)
                self._keep_memory(request, response.size)
                await self._sender.send(response, exchange, request.tenant)
        finally:
            if request.reserved_bytes:
                self._release_memory(request)
            self._release(request)

    async def _send_stream(
        self, request: Request, response: Response, pieces: AsyncGenerator[Body, None], exchange: Exchange
    ) -> None:
        """Sends a response, and its pieces as they come. If it ends early, the server drops the connection.

        A client that accepts no piece for a while is given up. A piece that takes too long is replaced by ``bye``.
        Streams wait here, so there are few frames and objects.
        """
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
                if request.reserved_bytes:
                    self._keep_memory(request, sum(map(len, piece)) if isinstance(piece, list) else len(piece))
                await self._sender.send_part(piece, exchange)
            await self._sender.end(exchange)
        except TimeoutError:
            return
        finally:
            await pieces.aclose()

    async def _respond(
        self,
        request: Request,
        endpoint: Endpoint,
        view: View,
        match: Match,
        exchange: Exchange,
        unreadable: list[str],
    ) -> Response:
        """Returns the response, also to a refused request; ``unreadable`` names headers that cannot be read.

        If the view wants a body that was not received because the caller was unknown, receives it and runs it again.
        """
        began = time.monotonic()
        try:
            await self._admit(request, endpoint, exchange, unreadable)
            if view.reads:
                # Unread bytes of a body would arrive before the client's disconnect.
                receive = exchange.receive if request.body is not None else None
                request.client = PollClient(receive, self.clients.unwatched)
            while True:
                request.is_present = True
                self.contention.enter(request.tenant)
                if self.contention.has_several:
                    await self._wait_for_view(request)
                try:
                    response = await self._drive(request, endpoint.answer(view, request, match))
                    break
                except BodyWanted:  # The caller was not known before.
                    await self._receive_wanted_body(request, exchange)
        except GivenUp as error:
            response = error_response(make_client_left() if request.client_has_left else error, request)
            endpoint.count(response, time.monotonic() - began)
        except Exception as error:  # noqa: BLE001 - an error of any kind must become a response
            response = error_response(error, request)
            self._metrics.count_request(GATEWAY_RESOURCE, response.status, 0.0)
        if request.reserved_bytes:
            self._keep_memory(request, 0 if request.method == "HEAD" else response.size)
        response.headers += request.rate_headers
        return response

    async def _wait_for_view(self, request: Request) -> None:
        """Waits for the request's turn to run its view. Raises InvalidRequest if the client has left meanwhile."""
        await self._wait_for_turn(request)
        if request.client_has_left:
            self._leave_turn(request)
            raise make_client_left()

    async def _receive_wanted_body(self, request: Request, exchange: Exchange) -> None:
        self._release_memory(request)
        self._mark_absent(request)
        await self.bodies.receive_body(request, exchange, self._loop)
        if request.client is not None:
            request.client.receive = exchange.receive

    async def _admit(self, request: Request, endpoint: Endpoint, exchange: Exchange, unreadable: list[str]) -> None:
        """Finds the request's tenant, verifies its signature, counts it against the caller's rate, and reads its body.

        The body of an unknown caller is not read, unless it is empty. Raises for unreadable headers.
        """
        for facade in self._facades:
            if facade.admit(request):
                break
        if unreadable:
            refuse_unreadable(unreadable)
        is_for_monitor = endpoint.operation and endpoint.is_for_monitor(request)
        tenant = request.path if is_for_monitor else self._authorization.find_tenant(request)
        if tenant is None and _is_for_api(request):
            # This may wait for an issuer, so it does not count as computing: a tenant may compute in one thread only.
            preload = partial(self._authorization.preload_caller, request)
            await self.threads.run(stranger_tenant(request.address), preload)
            tenant = self._authorization.find_tenant(request)
        if tenant and request.verify is not None:
            await self._verify(request, exchange, tenant)
        request.tenant = tenant or ANONYMOUS
        if self._rates is not None and _is_for_api(request):
            self._count_request(self._rates, request)
        if (
            request.body is None
            and (tenant or announced_length(request) == 0)
            and not self.bodies.take_received_body(request, exchange)
        ):
            request.holder = "" if (caller := self._authorization.stale_caller(request)) is None else caller.holder
            await self.bodies.receive_body(request, exchange, self._loop)

    async def _verify(self, request: Request, exchange: Exchange, tenant: str) -> None:
        """Receives the body, then checks the signature on the event loop.

        Until it is verified, the request and its body count for the sender's address; then the body counts for
        ``tenant``.
        """
        request.tenant = stranger_tenant(request.address)
        if not self.bodies.take_received_body(request, exchange):
            await self.bodies.receive_body(request, exchange, self._loop)
        if self.contention.has_several:
            await self._wait_for_turn(request)
        try:
            request.verify(request)  # type: ignore[misc] # there is one
        except QueueyError:
            self.contention.enter(request.tenant)  # Forged requests contend as those of a tenant do.
            self.contention.leave(request.tenant)
            raise
        finally:
            self._leave_turn(request)
        if request.held_body_bytes:
            if not self.memory.take(tenant, request.held_body_bytes):
                raise self.memory.make_refusal(tenant, request.held_body_bytes)
            self._change_memory(request.holder, -request.held_body_bytes)
            request.holder = tenant

    def _release(self, request: Request) -> None:
        """Drops the request's body, and no longer counts it as present; does not release reserved memory."""
        if request.is_present:
            request.is_present = False
            self.contention.leave(request.tenant)
        if request.client is not None:
            request.client.stop_listening()
            request.client = None
        if request.held_body_bytes:
            self._drop_body(request)

    def _drop_body(self, request: Request) -> None:
        request.body = None
        self._change_memory(request.holder, -request.held_body_bytes)
        request.held_body_bytes = 0

    def _mark_absent(self, request: Request) -> None:
        if request.is_present:
            request.is_present = False
            self.contention.leave(request.tenant)

    def _count_request(self, rates: RateLimits, request: Request) -> None:
        """Counts a request against its caller's rate, and keeps the headers about it. Raises if it exceeds a limit.

        A caller that is not known, or has no credential, is not counted.
        """
        caller = self._authorization.stale_caller(request)
        if caller is not None and not caller.is_anonymous:
            facade = request.facade
            application = request.path.split("/", 3)[2] if facade is None else facade.application_of(caller)
            request.rate_headers, refusal = rates.count(caller, application)
            if refusal is not None:
                raise refusal

    @coroutine
    def _drive(self, request: Request, work: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:  # noqa: C901, PLR0912
        """Runs a part of a request step by step, each with its requester set, and then ends the request's turn.

        Giving up cancels the future that the work awaits, so the work must not share it. A cancellation from outside is
        raised in the end even if the work has caught it.

        Raises:
            GivenUp: The client has left, or the part takes longer than the deadline.
        """
        error: BaseException | None = None
        cancelled: asyncio.CancelledError | None = None
        has_waited = request.is_given_up = False
        request.used = 0.0
        try:
            while True:
                request.step_began = time.monotonic()
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
                    request.used += time.monotonic() - request.step_began
                    request.step_began = None
                if not has_waited:
                    has_waited = True
                    if not request.is_paused:
                        self.calls[request] = time.monotonic() + self._deadline
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
            if request.turn is not None:
                self._leave_turn(request)
            if has_waited:
                self.calls.pop(request, None)
                if request.client is not None:
                    request.client.on_left = None

    async def _wait_for_turn(self, request: Request) -> None:
        """Waits for the request's turn, and starts to measure it. Raises TooManyRequests if it comes too late."""
        request.turn = await self.scheduler.wait_for_turn(request.tenant, len(request.body or b""))
        request.used, request.step_began = 0.0, time.monotonic()

    def _leave_turn(self, request: Request) -> None:
        """Ends the request's turn, if it has one, and charges its tenant the loop time that it has used."""
        if request.turn is not None:
            self.scheduler.leave(request.turn, request.take_used())
            request.turn = None

    def _pause(self, request: Request) -> None:
        """Gives back what a long poll holds while it sleeps, except its body; its deadline does not run meanwhile."""
        request.is_paused = True
        self._release_memory(request)
        self._mark_absent(request)
        self._leave_turn(request)
        self.calls.pop(request, None)

    async def _resume(self, request: Request) -> None:
        """Counts a request as present again, waits for its turn, and starts its deadline anew."""
        request.is_present = True
        self.contention.enter(request.tenant)
        if self.contention.has_several:
            await self._wait_for_turn(request)
        request.is_paused = False
        self.calls[request] = time.monotonic() + self._deadline

    # Services for requests

    def make_long_poll(self, request: Request, seconds: float) -> LongPoll:
        return LongPoll(self.polls, request, seconds)

    async def in_pool(self, request: Request, work: Callable[[], T], *, computes: bool, page: bool) -> T:
        """Does a request's work in a thread. Work for a caller without a credential counts as computing.

        With ``page``, the request first gives up its reserved memory and its turn, and then reserves a page.
        """
        if page:
            self._release_memory(request)
        if computes:
            self._leave_turn(request)  # From here on the request waits for a thread, not for the loop.
        size = self._page_bytes if page else 0
        in_turn = partial(self._run_in_turn, request.client, work) if computes else work
        request.has_thread = True
        try:
            # Callers without a credential are refused one at a time.
            one_by_one = computes or request.tenant == ANONYMOUS
            result = await self.threads.run(request.tenant, in_turn, size, computes=one_by_one)
        finally:
            request.has_thread = False
        request.reserved_bytes += size
        return result

    def _run_in_turn(self, client: PollClient | None, work: Callable[[], T]) -> T:
        """Does the work of a read. Reads run one at a time as long as each is short.

        Threads that read at the same time mostly wait for the interpreter lock, at twice the CPU. A read that waits for
        the disk delays the next one by at most ``patience`` seconds, and one of another tenant not at all. If the store
        waits for a network, reads do not disturb each other and run at once.
        """
        if client is not None:
            client.require_present()
        if self._reads_wait:
            return work()
        is_locked = self._turn.acquire(timeout=0 if self.contention.has_several else self._patience)
        try:
            return work()
        finally:
            if is_locked:
                self._turn.release()

    async def reserve(self, request: Request, size: int) -> None:
        """Waits until memory is free, without a turn of the loop."""
        # Other requests of its tenant may hold the memory, and wait for their turn.
        self._leave_turn(request)
        await self.threads.run(request.tenant, lambda: None, size)
        request.reserved_bytes += size

    def _keep_memory(self, request: Request, size: int) -> None:
        """Keeps ``size`` bytes of the memory reserved for the response, or none if it is sent in one piece."""
        size = size if size > PIECE_SIZE else 0
        self._change_memory(request.tenant, size - request.reserved_bytes)
        request.reserved_bytes = size

    def _release_memory(self, request: Request) -> None:
        self._change_memory(request.tenant, -request.reserved_bytes)
        request.reserved_bytes = 0

    def _change_memory(self, tenant: str, difference: int) -> None:
        """Changes what a tenant holds; if that frees memory, waiting jobs may start."""
        if difference:
            self.memory.change(tenant, difference)
        if difference < 0 and self.threads.turns.jobs:
            self.threads.dispatch()

    async def _yield_between_pieces(self, tenant: str) -> None:
        """Counts the tenant as present; waits for a turn only while several tenants are present."""
        self.contention.enter(tenant)
        self.contention.leave(tenant)
        if self.contention.has_several:
            await self.scheduler.wait_to_send_piece(tenant)

    def _max_computing(self) -> int:
        """Returns in how many threads a tenant may read: one while several tenants are present.

        Reads that compute delay other tenants; those of a store behind a network do not.
        """
        return 1 if self.contention.has_several and not self._reads_wait else self._max_reads

    def _give_up_late_calls(self) -> None:
        now = time.monotonic()
        for request, deadline in list(self.calls.items()):
            if deadline > now:
                break
            request.give_up()


def _is_for_api(request: Request) -> bool:
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
