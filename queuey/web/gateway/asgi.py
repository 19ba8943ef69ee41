"""Between granian's event loop (ASGI) and the WSGI application.

A thread per waiting request costs several times what a small write costs: with 64 threads most of the time goes into
handing the interpreter lock around. So there are two ways through:

* **at once**, in the loop's thread and without Pyramid's routing: small posts whose credential and queue are in memory,
  short reads that the store can begin or do without waiting, and heartbeats. The endpoint gives back a use case's call
  (:class:`~queuey.web.endpoint.Awaited`); the store reports a whole group of them with one wake-up.
* **in a thread**: everything else goes through the WSGI application in a small pool.

A long poll goes the way of any other read. If there is nothing to answer it waits on the loop, without a thread, and
goes there again when another try is worthwhile (:mod:`queuey.web.gateway.long_polls`).

Either way a request counts for a tenant, and each tenant has its share of memory, threads and places for long polls
(:mod:`queuey.web.gateway.scheduling`). A body is read only when the caller is known or has been authorized.

An endpoint that would block raises :class:`~queuey.web.endpoint.WouldBlock`. Then a thread loads into memory what was
missing, so that a thread is used for a look-up and not for a commit; if that does not help, the request is handled in a
thread. The WSGI application knows nothing of this module and runs under any other WSGI server as well.
"""

from __future__ import annotations

import asyncio
import io
import logging
import time
from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from threading import Lock, get_ident
from typing import Any
from urllib.parse import unquote

from queuey.metrics import Metrics
from queuey.service import JoinedAck
from queuey.service.core import Call, Core, GivenUp, LoopCalls
from queuey.service.reading import SHORT_BYTES
from queuey.web.authorization import Authorization
from queuey.web.endpoint import WAITER, Awaited, Endpoint, Hot, Match, WouldBlock
from queuey.web.errors import FIRST, error_response
from queuey.web.facades.facade import FACADE, Facade
from queuey.web.gateway.long_polls import Client, Clients, LongPoll, LongPolls, client_left
from queuey.web.gateway.rates import RateLimits
from queuey.web.gateway.scheduling import ANONYMOUS, Contention, FairPool, LoopScheduler, SharedQuota
from queuey.web.requests import (
    ARRIVAL,
    BODY,
    HELD,
    WSGI,
    BodyReader,
    BodyWanted,
    Receive,
    Scope,
    Unread,
    announced_length,
    decode_path,
    make_environ,
    refuse_unreadable,
)
from queuey.web.responses import PIECE, STALL, Environ, Header, Response, ResponseSender, Send, body_of, short_messages

log = logging.getLogger(__name__)

NAME = "gateway"
"""In the metrics: requests that it answers itself."""
PATIENCE = 0.05
"""Seconds that a read waits for the one before it."""
SHORT_BODY = 64 * 1024
"""Bytes of a body up to which a POST is handled at once."""
PATHS = 1024
SHORT_PATH = 200
"""How many paths of queues are kept decoded, and bytes of the longest of them."""
MEMORY = 256 * 1024 * 1024
"""Bytes of bodies and responses that may be in memory at the same moment."""
MAX_WAIT = 5.0
"""Seconds that a request waits for a thread and for memory."""
TENANT = "queuey.tenant"
"""Set in the environ: the application that the request counts for."""
RESERVED = "queuey.reserved"
"""Set in the environ of a read: bytes that its response has been counted with."""

CLIENT = "queuey.client"
"""Set in the environ of what is not answered at once, or has messages in its answer: the :class:`Client`."""
COUNTED = "queuey.counted"
"""Set in the environ: headers that say how many more requests the caller may make."""

PRESENT = "queuey.present"
"""Set in the environ of a request that waits or runs: the tenant whose presence it is."""

CREDENTIALS = "credentials"
"""The tenant for which credentials are read, so that valid ones wait for other credentials and for no answers."""

Application = Callable[[Environ, Callable[..., Any]], Iterable[bytes]]


def _begun(endpoint: Endpoint, environ: Environ, match: Match, client: Client | None) -> Response | Awaited:
    """Begins a request, unless its client has left."""
    if client is not None:
        client.check()
    return endpoint.begin(environ, match)


class Gateway:
    """An ASGI application that serves a WSGI one."""

    def __init__(  # noqa: PLR0913 - what tests make small
        self,
        application: Any,  # noqa: ANN401 - Pyramid's router
        *,
        threads: int,
        waiters: int,
        max_body: int,
        deadline: float = 15.0,
        memory: int = MEMORY,
        page_bytes: int = 8 * 1024 * 1024,
        arrival: int = ARRIVAL,
        stall: float = STALL,
        patience: float = PATIENCE,
        max_wait: float = MAX_WAIT,
        rates: RateLimits | None = None,
    ) -> None:
        """Prepares the pools; their threads start with the loop.

        Args:
            application: From :func:`queuey.web.make_app`.
            threads: For requests that may block.
            waiters: Long polls that one application alone may have.
            max_body: Bytes of the longest body that any view takes; longer ones are not read.
            deadline: Seconds after which work begun at once is given up, as the store gives up what blocks.
            memory: Bytes of bodies and responses that may be held at the same moment.
            page_bytes: Bytes that the response to a read may have.
            arrival: Seconds within which a body has to arrive.
            stall: Seconds within which a client has to take a piece of a long response.
            patience: Seconds that a read waits for the one before it, where reads take turns.
            max_wait: Seconds that a request waits for a thread and for memory.
            rates: How many requests callers may make; None: any number.
        """
        self._deadline = deadline
        self._rates = rates
        self._patience = patience
        self._max_wait = min(deadline, max_wait)
        self._application: Application = application
        self._hot: dict[str, Endpoint] = application.registry.hot
        self._facades: list[Facade] = application.registry.facades
        reads = SHORT_READS.union(*(facade.short_reads for facade in self._facades))
        # Without those of version 1 where a facade is served alone.
        self._short_reads = frozenset(read for read in reads if read[1] in self._hot)
        self._short_reads |= {("HEAD", resource) for method, resource in self._short_reads if method == "GET"}
        self._operations: dict[str, Endpoint] = application.registry.operations
        self._authorization: Authorization = application.registry.authorization
        service = application.registry.service
        self._metrics: Metrics = service.metrics
        self._core: Core = service.core
        self._reads_wait = service.store.waits_for_network
        # One reading connection is left for the next tenant.
        self._most_reads = max(1, service.store.readers - 1)
        # One tenant alone gets two thirds. The largest request fits into the rest, whatever the setting says.
        self._page_bytes = page_bytes
        self._memory = room = SharedQuota(max(memory, 3 * max(max_body, page_bytes)), alpha=2)
        self._bodies = BodyReader(max_body, room, arrival=arrival)
        self._threads = FairPool("queuey-request", threads, room, self._computing)
        self._polls = LongPolls(waiters, service.reader.watchers, application.registry.authenticate, service.stopping)
        self._clients = Clients()
        self._sender = ResponseSender(self._change_memory, self._pause, stall=stall)
        self._turn = Lock()
        self._loop: asyncio.AbstractEventLoop
        self._thread = 0
        self._tell: LoopCalls
        self._contention: Contention
        self._scheduler: LoopScheduler
        self._calls: dict[Call, float] = {}
        """Those under way, with their deadlines, in order."""

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Called before the first request, in the loop's thread."""
        self._loop = loop
        self._thread = get_ident()
        self._tell = LoopCalls(loop)
        self._contention = Contention(loop, self._threads.dispatch)
        # Where a store waits for a network, what is under way is what makes it fast.
        self._scheduler = LoopScheduler(loop, 1024 if self._reads_wait else 32)
        self._core.adopt(self._tell)
        self._threads.start(loop, self._tell)
        self._polls.start(loop, self._tell, partial(self._threads.run, CREDENTIALS))
        loop.call_later(1.0, self._look_for_late)

    def stop(self) -> None:
        """Called after the last request."""
        self._threads.stop()
        self._core.adopt(None)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Called by granian with each request."""
        environ, foreign = make_environ(scope)
        try:
            environ["PATH_INFO"] = scope["path"]
            environ["PATH_INFO"], hot = find_path(scope["raw_path"])
            for facade in self._facades:
                if facade.admit(environ):
                    hot = facade.hot(environ["PATH_INFO"])
                    break
            if foreign:
                refuse_unreadable(foreign)
            response = await self._respond(environ, hot, receive)
            poll: LongPoll | None = environ.get(WAITER)
            while poll is not None and poll.wait:
                self._change_memory(poll.tenant, -environ.pop(RESERVED, 0))
                self._leave(environ)
                scope.clear()  # All of it is in the environ; two kilobytes matter where thousands wait.
                if await self._polls.turn(poll):
                    self._enter(environ)
                    response = await self._work(environ, hot, poll.tenant)
        except Exception as error:  # noqa: BLE001 - an error of any kind must become a response
            any(facade.admit(environ) for facade in self._facades)  # unless that was done
            response = error_response(error, environ)
            if WAITER not in environ:
                self._metrics.observe(NAME, response.status, 0.0)
        finally:
            self._release(environ)
        self._complete(environ, response)
        head = environ["REQUEST_METHOD"] == "HEAD"
        if head or response.size <= PIECE:
            for message in short_messages(response, head=head):
                await send(message)
        else:
            await self._sender.send(response, send, environ.get(TENANT, ANONYMOUS), environ.get(RESERVED, 0))

    def _release(self, environ: Environ) -> None:
        """Gives back what a request has held until its response was made."""
        self._leave(environ)
        if WAITER in environ:
            self._polls.leave(environ[WAITER])
        if CLIENT in environ:
            self._clients.end(environ.pop(CLIENT))
        if HELD in environ:
            environ.pop(BODY, None)
            self._change_memory(environ[TENANT], -environ.pop(HELD))

    def _enter(self, environ: Environ) -> None:
        """Counts a request that waits or runs, until :meth:`_leave`."""
        environ[PRESENT] = tenant = environ[TENANT]
        self._contention.enter(tenant)

    def _leave(self, environ: Environ) -> None:
        """Ends what :meth:`_enter` began, if anything."""
        if (tenant := environ.pop(PRESENT, None)) is not None:
            self._contention.leave(tenant)

    def _complete(self, environ: Environ, response: Response) -> None:
        """Counts what no endpoint has counted, and says what the caller may still do."""
        if (poll := environ.pop(WAITER, None)) is not None:
            self._metrics.observe(poll.endpoint or NAME, response.status, self._loop.time() - poll.began)
        if self._rates is not None and COUNTED in environ:
            response.headers += environ[COUNTED]

    async def _respond(self, environ: Environ, hot: Hot | None, receive: Receive) -> Response:
        method = environ["REQUEST_METHOD"]
        tenant = await self._find_tenant(environ)
        if self._rates is not None and _needs_caller(environ):
            self._count(self._rates, environ)
        if tenant == ANONYMOUS and announced_length(environ) != 0:
            self._enter(environ)
            # The body of an unknown caller is read only if the view asks for it, after it has authorized the caller.
            if method not in {"POST", "PUT"}:
                return await self._try(environ, hot, receive, tenant)
            response = await self._threads.run(ANONYMOUS, partial(self._run_unread, environ), computes=True)
            if response is not None:
                return response
            self._leave(environ)
        size = await self._bodies.take(environ, receive, self._loop, tenant)
        self._enter(environ)
        endpoint = None if hot is None or size > SHORT_BODY else self._hot.get(hot.resource)
        if hot is not None and endpoint is not None and self._changes(method, hot, endpoint):
            response = await self._at_once(endpoint, environ, hot.match, size)
            if response is None and endpoint.look_up is not None:
                await self._threads.run(tenant, partial(endpoint.look_up, environ, hot.match))
                response = await self._at_once(endpoint, environ, hot.match, size)
            if response is not None:
                return response
        elif (operation := self._operation(environ)) is not None:
            response = await self._at_once(operation, environ, {}, 0)
            if response is not None:
                return response
        return await self._try(environ, hot, receive, tenant)

    async def _find_tenant(self, environ: Environ) -> str:
        """Returns the tenant of a request; reads its credential if that was not done yet."""
        # Each operation is a tenant, so that no other requests make the service appear unhealthy.
        plain = self._operation(environ) is not None
        tenant = environ["PATH_INFO"] if plain else self._authorization.tenant(environ)
        if tenant is None and _needs_caller(environ):
            # This may wait for an issuer, so it is no job that computes: of those a tenant has one at a time.
            await self._threads.run(CREDENTIALS, partial(self._authorization.know, environ))
            tenant = self._authorization.tenant(environ)
        environ[TENANT] = tenant = ANONYMOUS if tenant is None else tenant
        return tenant

    def _operation(self, environ: Environ) -> Endpoint | None:
        """Returns what answers a monitor; None for requests that need a thread, as those with other methods do."""
        operation = self._operations.get(environ["PATH_INFO"])
        if operation is None or environ["QUERY_STRING"] or announced_length(environ) != 0:
            return None
        return operation if operation.begins(environ["REQUEST_METHOD"]) else None

    def _count(self, rates: RateLimits, environ: Environ) -> None:
        """Counts a request for its caller.

        Raises:
            TooManyRequests: It is one too many.
        """
        caller = self._authorization.seen(environ)
        if caller is not None and not caller.anonymous:
            facade: Facade | None = environ.get(FACADE)
            application = environ["PATH_INFO"].split("/", 3)[2] if facade is None else facade.application
            environ[COUNTED], refusal = rates.count(caller, application)
            if refusal is not None:
                raise refusal

    def _changes(self, method: str, hot: Hot, endpoint: Endpoint) -> bool:
        """Returns whether a request may be handled at once, and its answer has no messages."""
        return endpoint.begins(method) and (method, hot.resource) not in self._short_reads

    def _computing(self) -> int:
        """Returns in how many threads a tenant may read: where reads compute, they hold up the others."""
        return 1 if self._contention.several and not self._reads_wait else self._most_reads

    async def _try(self, environ: Environ, hot: Hot | None, receive: Receive, tenant: str) -> Response:
        """Answers what is not answered at once; what may be a long poll can then wait, and be tried again."""
        # What is left unread of a body would come before the end of the connection.
        client = environ[CLIENT] = self._clients.begin(receive if BODY in environ else None)
        if _may_be_long_poll(environ, hot):
            poll = environ[WAITER] = self._polls.begin(tenant, environ.get("HTTP_AUTHORIZATION"), client)
            environ[FIRST] = JoinedAck()
            if (turn := self._polls.first_turn(poll)) is not None:
                await turn
        return await self._work(environ, hot, tenant)

    async def _work(self, environ: Environ, hot: Hot | None, tenant: str) -> Response:
        if _reads(environ["REQUEST_METHOD"], environ, hot) or self._is_short_read(environ, hot):
            return await self._read(environ, hot, tenant)
        size = len(environ.get(BODY, b""))
        # A long batch is under way like a short post: what comes behind it waits for its commit.
        weight = await self._scheduler.enter(tenant, size) if size > SHORT_BODY and self._contention.several else 0
        try:
            reads = environ["REQUEST_METHOD"] in {"GET", "HEAD"}
            return await self._threads.run(tenant, partial(self._run, environ), computes=reads)
        finally:
            if weight:
                self._scheduler.leave(tenant, weight)

    async def _read(self, environ: Environ, hot: Hot | None, tenant: str) -> Response:
        """Answers a read, whose answer may have a page of messages."""
        size = len(environ.get(BODY, b""))
        if hot is not None and size <= SHORT_BODY and self._is_short_read(environ, hot):
            response = await self._read_at_once(environ, hot, tenant, size)
            if response is not None:
                return response
        response = await self._threads.run(tenant, partial(self._run_read, environ), self._page_bytes, computes=True)
        self._release_rest(environ, tenant, response, self._page_bytes)
        return response

    def _is_short_read(self, environ: Environ, hot: Hot | None) -> bool:
        return hot is not None and (environ["REQUEST_METHOD"], hot.resource) in self._short_reads

    def _release_rest(self, environ: Environ, tenant: str, response: Response | None, reserved: int) -> None:
        """Gives back what a read has reserved, but for the response itself."""
        size = response.size if response is not None and response.size > PIECE else 0
        environ[RESERVED] = size
        self._change_memory(tenant, size - reserved)

    def _change_memory(self, tenant: str, difference: int) -> None:
        """Notes that a tenant has more or less memory than before; waiting jobs get what has become free."""
        self._memory.change(tenant, difference)
        if difference < 0:
            self._threads.dispatch()

    async def _pause(self, tenant: str) -> None:
        """Lets others have their turn between two pieces of a response."""
        self._contention.enter(tenant)
        self._contention.leave(tenant)
        if self._contention.several:
            await self._scheduler.pause(tenant)

    async def _read_at_once(self, environ: Environ, hot: Hot, tenant: str, size: int) -> Response | None:
        """Answers in the loop's thread what has messages in its answer, or returns None with the request as it was."""
        if not self._memory.take(tenant, SHORT_BYTES):
            return None
        response = None
        try:
            response = await self._at_once(self._hot[hot.resource], environ, hot.match, size)
        finally:
            self._release_rest(environ, tenant, response, SHORT_BYTES)
        return response

    # At once

    async def _at_once(self, endpoint: Endpoint, environ: Environ, match: Match, size: int) -> Response | None:
        """Answers in the loop's thread, or returns None with the request as it was."""
        tenant = environ[TENANT]
        client: Client | None = environ.get(CLIENT)
        weight = await self._scheduler.enter(tenant, size) if self._contention.several else 0
        began = time.monotonic()
        used = 0.0
        try:
            result = _begun(endpoint, environ, match, client)
            if isinstance(result, Response):
                return result
            try:
                waits_for = result.call.send(None)
            except StopIteration as end:  # There was nothing to wait for.
                return result.finish(end.value, None)
            except WouldBlock:
                raise
            except Exception as error:  # noqa: BLE001 - an error of any kind must become a response
                return result.finish(None, error)
            call = Call(result.call, waits_for)
            call.used = time.monotonic() - began
            try:
                return await self._await(call, result, client, began)
            finally:
                used = call.used
        except WouldBlock:
            return None
        finally:
            if weight:
                self._scheduler.leave(tenant, weight, used or time.monotonic() - began)

    async def _await(self, call: Call, awaited: Awaited, client: Client | None, began: float) -> Response:
        """Awaits the call of a request, unless that gives up; returns the response."""
        value: Any = None
        error: Exception | None = None
        self._calls[call] = began + self._deadline
        if client is not None:
            client.left = call.give_up
        try:
            value = await call
        except WouldBlock:
            raise
        except GivenUp as failure:
            error = client_left() if client is not None and client.has_left else failure
        except Exception as failure:  # noqa: BLE001 - an error of any kind must become a response
            error = failure
        finally:
            del self._calls[call]
        woken = time.monotonic()
        try:
            return awaited.finish(value, error)
        finally:
            call.used += time.monotonic() - woken

    def _give_up_late(self) -> None:
        """Answers requests whose work has not ended in time."""
        now = time.monotonic()
        for call, deadline in list(self._calls.items()):
            if deadline > now:
                break
            call.give_up()

    def _look_for_late(self) -> None:
        """Called every second."""
        self._give_up_late()
        self._bodies.give_up_late()
        self._clients.look()
        for line in (self._scheduler, self._threads):
            line.give_up_late(self._max_wait)
        self._loop.call_later(1.0, self._look_for_late)

    # In a thread

    def _run_unread(self, environ: Environ) -> Response | None:
        """Runs the application without the body; returns None if it has let the caller in and wants the body."""
        try:
            return self._run({**environ, "wsgi.input": Unread(), "wsgi.input_terminated": True})
        except BodyWanted:
            return None

    def _run_read(self, environ: Environ) -> Response:
        """Runs the application for a read whose client may have left while it waited for a thread."""
        environ[CLIENT].check()
        # Threads that wait for a network do not disturb each other.
        return self._run(environ) if self._reads_wait else self._run_in_turn(environ)

    def _run_in_turn(self, environ: Environ) -> Response:
        """Runs the application for a read, one at a time as long as each is short.

        Threads that read at the same time mostly wait for the interpreter lock, at twice the CPU. One that waits for
        the disk keeps the next waiting for no longer than the patience given, and that of another tenant not at all.
        """
        mine = self._turn.acquire(timeout=0 if self._contention.several else self._patience)
        try:
            return self._run(environ)
        finally:
            if mine:
                self._turn.release()

    def _run(self, environ: Environ) -> Response:
        """Runs the application and gathers its response."""
        started: list[Any] = [500, []]

        def start_response(status: str, headers: list[Header], _error: object = None) -> None:
            started[:] = int(status[:3]), headers

        try:
            body = io.BytesIO(environ.get(BODY, b""))
            result = self._application({**WSGI, "wsgi.input": body, **environ}, start_response)
            try:
                made = body_of(list(result))
            finally:
                if (close := getattr(result, "close", None)) is not None:
                    close()
        except Exception as error:  # noqa: BLE001 - an error of any kind must become a response
            return error_response(error, environ)
        headers = started[1]
        if environ["REQUEST_METHOD"] != "HEAD":
            headers = [header for header in headers if header[0].lower() != "content-length"]
        return Response(started[0], made, *headers)


QUEUE, CLAIMS = "", "/claims"
"""Resources of a queue, as the end of their paths: the queue itself, and its claims."""
SHORT_READS = frozenset({("GET", QUEUE), ("POST", CLAIMS)})
"""Methods and resources whose responses have messages and may be begun at once."""
RESOURCES = frozenset({QUEUE, CLAIMS, "/claims/ack", "/claims/renew", "/claims/release"})


def hot_match(path: str) -> Hot | None:
    """Returns what the path of a queue, or of something below it, says (as WSGI has it); None for any other path."""
    parts = path.removesuffix("/").split("/", 4)
    if len(parts) < 4 or parts[1] != "v1" or not parts[2] or not parts[3] or parts[3][0] == "_":  # noqa: PLR2004
        return None
    application, queue, *rest = parts[2:]
    resource = f"/{rest[0]}" if rest else QUEUE
    if resource not in RESOURCES:
        return None
    if not path.isascii():
        try:
            application, queue = (name.encode("latin-1").decode() for name in (application, queue))
        except UnicodeDecodeError:
            return None
    return Hot(resource, {"app": application, "queue": queue})


@lru_cache(PATHS)
def _known_path(raw: bytes) -> tuple[str, Hot | None]:
    path = decode_path(raw)
    return path, hot_match(path)


def find_path(raw: bytes) -> tuple[str, Hot | None]:
    """Decodes the path of a request as it was sent; returns it as WSGI has it, and what may be handled at once.

    Raises:
        NoSuchResource: See :func:`~queuey.web.requests.decode_path`.
    """
    return _known_path(raw) if len(raw) <= SHORT_PATH else _known_path.__wrapped__(raw)


def _needs_caller(environ: Environ) -> bool:
    """Returns whether a request is one for which its caller has to be known."""
    return FACADE in environ or environ["PATH_INFO"].startswith("/v1/")


def _reads(method: str, environ: Environ, hot: Hot | None) -> bool:
    """Returns whether the response of a request may have many bodies of messages."""
    if FACADE in environ:
        return False  # A facade says it of its resources.
    path: str = environ["PATH_INFO"]
    if method == "POST":
        return path.startswith("/v1/") and (
            path.rstrip("/").endswith("/_read") or (hot is not None and hot.resource == CLAIMS)
        )
    return method in {"GET", "HEAD"} and path.startswith("/v1/")


def _may_be_long_poll(environ: Environ, hot: Hot | None) -> bool:
    """Returns whether a request may be a long poll, however its wait is written."""
    facade: Facade | None = environ.get(FACADE)
    if facade is not None:
        return hot is not None and (environ["REQUEST_METHOD"], hot.resource) in facade.long_polls
    query: str = environ["QUERY_STRING"]
    if "wait=" in (unquote(query) if "%" in query else query):
        return True
    path: str = environ["PATH_INFO"]
    if environ["REQUEST_METHOD"] != "POST" or not path.rstrip("/").endswith("/_read"):
        return False
    body: bytes = environ.get(BODY, b"")
    return b'"wait"' in body or b"\\u" in body
