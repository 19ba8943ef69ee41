"""Between granian's event loop (ASGI) and the WSGI application.

A thread per waiting request costs several times what a small write costs: with 64 threads most of the time goes into
handing the interpreter lock around. So there are two ways through:

* **at once**, in the loop's thread and without Pyramid's routing: small posts whose credential and queue are in memory,
  short reads that the store can begin or do without waiting, and heartbeats. The endpoint starts the work and gives
  back a :class:`~queuey.web.later.Later`; the store tells of a whole group of them with one wake.
* **in a thread**: everything else goes through the WSGI application in a small pool; long polls in a pool of their own,
  so that they hold nobody up.

Whichever way, a request counts for an application, and each has its share of memory, threads and places to wait
(:mod:`queuey.web.shares`). A body is taken in only from whoever is known or has been let in.

An endpoint that finds that it would block says so (:class:`~queuey.web.later.WouldBlock`). Then a thread brings into
memory what was missing, so that a thread is held for a look-up and not for a commit; if that does not help, the request
takes the other way. The application knows nothing of this module and runs under any other WSGI server just as well.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any
from urllib.parse import unquote

from queuey.errors import Outcome, QueueyError, StoreUnavailable
from queuey.metrics import Metrics
from queuey.service.reading import SHORT_BYTES
from queuey.web.answers import PIECE, Answer, Environ, Header, body_of
from queuey.web.bodies import BodyWanted, Unread
from queuey.web.endpoint import Endpoint
from queuey.web.errors import error_answer
from queuey.web.gate import Gate
from queuey.web.incoming import ARRIVAL, HELD, WSGI, Intake, Receive, Scope, announced_length, make_environ, unreadable
from queuey.web.later import PLACE, Later, WouldBlock
from queuey.web.outgoing import STALL, Outlet, Send
from queuey.web.paths import decode_path
from queuey.web.shares import NOBODY, Room
from queuey.web.threads import Calls, Crowd, LoopTime, Pool

NAME = "gateway"
"""In the metrics: requests that it answers itself."""
PATIENCE = 0.05
"""Seconds that a read waits for the one before it."""
SMALL = 64 * 1024
"""Bytes of a body up to which a POST is handled at once."""
MEMORY = 256 * 1024 * 1024
"""Bytes of bodies and answers that may be in memory at the same moment."""
ROOM_SECONDS = 5.0
"""Seconds that a request waits for a thread and for memory."""
HOLDER = "queuey.holder"
"""Set in the environ: the application that the request counts for."""
KEPT = "queuey.kept"
"""Set in the environ of a read: bytes that its answer has been counted with."""

OPERATIONS = ("/__", "/metrics")
"""Begin the paths that monitors ask without a credential."""
MONITOR = "/"
"""The holder that they are together, so that other strangers do not make a service look ill."""

Application = Callable[[Environ, Callable[..., Any]], Iterable[bytes]]


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
    ) -> None:
        """Prepares the pools; their threads start with the loop.

        Args:
            application: From :func:`queuey.web.make_app`.
            threads: For requests that may block.
            waiters: Long polls that one application alone may have.
            max_body: Bytes of the longest body that any view takes; longer ones are not read.
            deadline: Seconds after which work begun at once is given up, as the store gives up what blocks.
            memory: Bytes of bodies and answers that may be held at the same moment.
            page_bytes: Bytes of bodies that the answer to a read may have.
            arrival: Seconds within which a body has to arrive.
            stall: Seconds within which a client has to take a piece of a long answer.
            patience: Seconds that a read waits for the one before it, where reads take turns.
        """
        self._deadline = deadline
        self._patience = patience
        self._application: Application = application
        self._hot: Endpoint = application.registry.hot
        self._operations: dict[str, Endpoint] = application.registry.operations
        self._gate: Gate = application.registry.gate
        service = application.registry.service
        self._metrics: Metrics = service.metrics
        self._reads_wait = service.store.waits_for_network
        # One alone gets two thirds. What it leaves has room for the largest request, whatever the setting says.
        self._page_bytes = page_bytes
        self._memory = room = Room(max(memory, 3 * max(max_body, page_bytes)), alpha=2)
        self._intake = Intake(max_body, room, arrival=arrival)
        self._work = Pool("queuey-request", threads, room, self._computing)
        # One application alone gets two thirds of the places, so that there are some for whoever comes then.
        self._places = Room(waiters + (waiters + 1) // 2, alpha=2)
        self._waits = Pool("queuey-wait", self._places.total, room)
        self._outlet = Outlet(self._hold, self._pause, stall=stall)
        self._turn = threading.Lock()
        self._loop: asyncio.AbstractEventLoop
        self._thread = 0
        self._tell: Calls
        self._crowd: Crowd
        self._time: LoopTime
        self._begun: dict[asyncio.Future[Answer], tuple[float, Callable[[], Outcome], Later, str]] = {}

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Is called before the first request, in the loop's thread."""
        self._loop = loop
        self._thread = threading.get_ident()
        self._tell = Calls(loop)
        self._crowd = Crowd(loop, self._work.dispatch)
        # Where a store waits for a network, what is under way is what makes it fast.
        self._time = LoopTime(loop, 1024 if self._reads_wait else 32)
        for pool in (self._work, self._waits):
            pool.start(loop, self._tell)
        loop.call_later(1.0, self._look_for_late)

    def stop(self) -> None:
        """Is called after the last request."""
        for pool in (self._work, self._waits):
            pool.stop()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Is called by granian with each request."""
        environ, foreign = make_environ(scope)
        try:
            environ["PATH_INFO"] = decode_path(scope["raw_path"])
            answer = await self._answer(environ, receive, foreign)
        except Exception as error:  # noqa: BLE001 - an error of any kind must become an answer
            answer = error_answer(error, environ)
            self._metrics.observe(NAME, answer.status, 0.0)
        finally:
            if HELD in environ:
                environ.pop("wsgi.input", None)
                self._hold(environ[HOLDER], -environ.pop(HELD))
        kept = environ.get(KEPT, 0)
        await self._outlet.send(answer, send, environ.get(HOLDER, NOBODY), kept, head=scope["method"] == "HEAD")

    async def _answer(self, environ: Environ, receive: Receive, foreign: list[str]) -> Answer:
        if foreign:
            raise unreadable(foreign)
        method = environ["REQUEST_METHOD"]
        holder = self._count(environ)
        if holder in {NOBODY, MONITOR} and announced_length(environ) != 0:
            # The body of a caller who is not known is taken in only if the view, which lets callers in, asks for it.
            if method in {"POST", "PUT"}:
                answer = await self._work.run(NOBODY, partial(self._run_unread, environ), computes=True)
                if answer is not None:
                    return answer
                holder = self._count(environ)
            else:
                receive = _no_body
        size = await self._intake.take(environ, receive, self._loop, holder)
        if method == "POST" and size <= SMALL and (match := hot_match(environ["PATH_INFO"])):
            answer = await self._at_once(self._hot, environ, match, size)
            if answer is None and self._hot.look_up is not None:
                await self._work.run(holder, partial(self._hot.look_up, environ, match))
                answer = await self._at_once(self._hot, environ, match, size)
            if answer is not None:
                return answer
        elif not environ["QUERY_STRING"] and (endpoint := self._operations.get(environ["PATH_INFO"])):
            answer = await self._at_once(endpoint, environ, {}, 0)
            if answer is not None:
                return answer
        return await self._wait_or_work(environ, holder)

    def _count(self, environ: Environ) -> str:
        """Returns whom a request counts for."""
        holder = self._gate.holder(environ)
        if holder is None:
            # Who that is will be known when the credential has been looked at.
            holder = NOBODY
        else:
            if holder == NOBODY and environ["PATH_INFO"].startswith(OPERATIONS):
                holder = MONITOR
            if holder != self._crowd.last:
                self._crowd.saw(holder)
        environ[HOLDER] = holder
        return holder

    def _computing(self) -> bool:
        """Tells whether threads that make long answers would keep others waiting."""
        return self._crowd.several and not self._reads_wait

    async def _wait_or_work(self, environ: Environ, holder: str) -> Answer:
        """Answers in a thread, for reads if it has to be one."""
        if _may_wait(environ):
            if self._places.take(holder, 1):
                environ[PLACE] = True
                try:
                    return await self._waits.run(holder, partial(self._run, environ))
                finally:
                    self._places.change(holder, -1)
            environ[PLACE] = False
        if _reads(environ["REQUEST_METHOD"], environ["PATH_INFO"]):
            return await self._read(environ, holder)
        return await self._work.run(holder, partial(self._run, environ))

    async def _read(self, environ: Environ, holder: str) -> Answer:
        """Answers a read, whose answer may have a page of bodies."""
        if environ["REQUEST_METHOD"] == "GET" and (match := hot_match(environ["PATH_INFO"])):
            answer = await self._read_at_once(environ, match, holder)
            if answer is not None:
                return answer
        # Threads that wait for a network do not disturb each other.
        run = self._run if self._reads_wait or PLACE in environ else self._run_in_turn
        answer = await self._work.run(holder, partial(run, environ), self._page_bytes, computes=True)
        self._keep(environ, holder, answer, self._page_bytes)
        return answer

    def _keep(self, environ: Environ, holder: str, answer: Answer | None, reserved: int) -> None:
        """Gives back what a read has reserved, but for the answer itself."""
        size = answer.size if answer is not None and answer.size > PIECE else 0
        environ[KEPT] = size
        self._hold(holder, size - reserved)

    def _hold(self, holder: str, difference: int) -> None:
        """Notes that a holder has more or less memory than before; whoever waits gets what has become free."""
        self._memory.change(holder, difference)
        if difference < 0:
            self._work.dispatch()

    async def _pause(self, holder: str) -> None:
        """Lets others have their turn between two pieces of an answer."""
        if self._crowd.several:
            await self._time.pause(holder)

    async def _read_at_once(self, environ: Environ, match: dict[str, str], holder: str) -> Answer | None:
        """Answers a read in the loop's thread, or returns None with the request as it was."""
        if not self._memory.take(holder, SHORT_BYTES):
            return None
        answer = None
        try:
            answer = await self._at_once(self._hot, environ, match, 0)
        finally:
            self._keep(environ, holder, answer, SHORT_BYTES)
        return answer

    # At once

    async def _at_once(self, endpoint: Endpoint, environ: Environ, match: dict[str, str], size: int) -> Answer | None:
        """Answers in the loop's thread, or returns None with the request as it was."""
        holder = environ[HOLDER]
        weight = await self._time.enter(holder, size) if self._crowd.several else 0
        began = time.monotonic()
        used = 0.0
        try:
            result = endpoint.begin(environ, match)
            if not isinstance(result, Later):
                return result
            ended: list[tuple[Any, Exception | None]] = []
            future: asyncio.Future[Answer] = self._loop.create_future()

            def done(value: object, error: Exception | None) -> None:
                if threading.get_ident() == self._thread:
                    ended.append((value, error))
                else:
                    self._tell(self._finish, future, result, value, error)

            try:
                withdraw = result.begin(done)
            except QueueyError as error:
                return result.finish(None, error)
            if ended:
                return result.finish(*ended[0])
            self._begun[future] = (began + self._deadline, withdraw, result, holder)
            if weight:
                used = time.monotonic() - began
            return await future
        except WouldBlock:
            environ["wsgi.input"].seek(0)
            return None
        finally:
            if weight:
                self._time.leave(holder, weight, used or time.monotonic() - began)

    def _finish(
        self,
        future: asyncio.Future[Answer],
        later: Later,
        value: Any,  # noqa: ANN401 - what an endpoint began to get
        error: Exception | None,
    ) -> None:
        """Gives a request what ``later`` makes of its work's end."""
        begun = self._begun.pop(future, None)
        if begun is None or future.done():
            return
        began = time.monotonic() if self._crowd.several else 0.0
        try:
            future.set_result(later.finish(value, error))
        except Exception as failure:  # noqa: BLE001 - whoever awaits the future gets it
            future.set_exception(failure)
        if began:
            self._time.charge(begun[3], time.monotonic() - began)

    def _give_up_late(self) -> None:
        """Answers requests whose work has not ended in time."""
        now = time.monotonic()
        for future, (deadline, withdraw, later, _) in list(self._begun.items()):
            if deadline > now:
                break
            error = StoreUnavailable("the store did not answer in time", outcome=withdraw())
            self._finish(future, later, None, error)

    def _look_for_late(self) -> None:
        """Is called every second."""
        self._give_up_late()
        self._intake.give_up_late()
        for line in (self._time, self._work, self._waits):
            line.give_up_late(min(self._deadline, ROOM_SECONDS))
        self._loop.call_later(1.0, self._look_for_late)

    # In a thread

    def _run_unread(self, environ: Environ) -> Answer | None:
        """Runs the application without the body; returns None if it has let the caller in and wants the body."""
        try:
            return self._run({**environ, "wsgi.input": Unread(), "wsgi.input_terminated": True})
        except BodyWanted:
            return None

    def _run_in_turn(self, environ: Environ) -> Answer:
        """Runs the application for a read, one at a time as long as each is short.

        Threads that read at the same time mostly wait for the interpreter lock, at twice the CPU. One that waits for
        the disk keeps the next waiting for no longer than the patience given.
        """
        mine = self._turn.acquire(timeout=self._patience)
        try:
            return self._run(environ)
        finally:
            if mine:
                self._turn.release()

    def _run(self, environ: Environ) -> Answer:
        """Runs the application and gathers its answer."""
        started: list[Any] = [500, []]

        def start_response(status: str, headers: list[Header], _error: object = None) -> None:
            started[:] = int(status[:3]), headers

        try:
            result = self._application({**WSGI, **environ}, start_response)
            try:
                body = body_of(list(result))
            finally:
                if (close := getattr(result, "close", None)) is not None:
                    close()
        except Exception as error:  # noqa: BLE001 - an error of any kind must become an answer
            return error_answer(error, environ)
        headers = started[1]
        if environ["REQUEST_METHOD"] != "HEAD":
            headers = [header for header in headers if header[0].lower() != "content-length"]
        return Answer(started[0], body, *headers)


async def _no_body() -> dict[str, Any]:
    """Stands for a body that no view asks for and that is left unread."""
    return {"type": "http.request", "body": b"", "more_body": False}


def hot_match(path: str) -> dict[str, str] | None:
    """Returns application and queue of the path of a queue (as WSGI has it), None for any other."""
    parts = path.split("/")
    if len(parts) == 5 and not parts[4]:  # noqa: PLR2004 - a trailing slash
        parts.pop()
    if len(parts) != 4 or parts[1] != "v1" or not parts[2] or not parts[3] or parts[3][0] == "_":  # noqa: PLR2004
        return None
    application, queue = parts[2:]
    if not path.isascii():
        try:
            application, queue = (name.encode("latin-1").decode() for name in (application, queue))
        except UnicodeDecodeError:
            return None
    return {"app": application, "queue": queue}


def _reads(method: str, path: str) -> bool:
    """Tells whether the answer of a request may have many bodies of messages."""
    return path.startswith("/v1/") and (method == "GET" or (method == "POST" and path.rstrip("/").endswith("/_read")))


def _may_wait(environ: Environ) -> bool:
    """Tells whether a request may be a long poll, in whatever way its wait is written."""
    query: str = environ["QUERY_STRING"]
    if "wait=" in (unquote(query) if "%" in query else query):
        return True
    path: str = environ["PATH_INFO"]
    if environ["REQUEST_METHOD"] != "POST" or not path.rstrip("/").endswith("/_read"):
        return False
    body: bytes = environ["wsgi.input"].getvalue()
    return b'"wait"' in body or b"\\u" in body
