"""Between granian's event loop (ASGI) and the WSGI application.

A thread per waiting request costs several times what a small write costs: with 64 threads most of the time goes into
handing the interpreter lock around. So there are two ways through:

* **at once**, in the loop's thread and without Pyramid's routing: small posts whose credential and queue are in memory,
  and, where the store waits for a network, reads that need nothing else than it has in memory. The endpoint starts the
  work and gives back a :class:`~queuey.web.later.Later`; the store tells of a whole group of them with one wake.
* **in a thread**: everything else goes through the WSGI application in a small pool; long polls in a pool of their own,
  so that they hold nobody up.

An endpoint that finds that it would block says so (:class:`~queuey.web.later.WouldBlock`). Then a thread brings into
memory what was missing, so that a thread is held for a look-up and not for a commit; if that does not help, the request
takes the other way. The application knows nothing of this module and runs under any other WSGI server just as well.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar
from urllib.parse import unquote

from queuey.errors import Outcome, QueueyError, StoreUnavailable
from queuey.metrics import Metrics
from queuey.web.answers import Answer, Environ, Header
from queuey.web.endpoint import Endpoint
from queuey.web.errors import error_answer
from queuey.web.incoming import HELD, Intake, Receive, Scope, make_environ, unreadable
from queuey.web.later import Later, WouldBlock
from queuey.web.outgoing import Send, send_answer
from queuey.web.paths import decode_path

log = logging.getLogger(__name__)

NAME = "gateway"
"""In the metrics: requests that it answers itself."""
PATIENCE = 0.05
"""Seconds that a read waits for the one before it."""
SMALL = 64 * 1024
"""Bytes of a body up to which a POST is handled at once."""

T = TypeVar("T")
Application = Callable[[Environ, Callable[..., Any]], Iterable[bytes]]
Finished = tuple["asyncio.Future[Answer]", Later | None, Any, Exception | None]
Job = tuple[Callable[[], Any], "asyncio.Future[Any]"]


class Gateway:
    """An ASGI application that serves a WSGI one."""

    def __init__(
        self,
        application: Any,  # noqa: ANN401 - Pyramid's router
        *,
        threads: int,
        waiters: int,
        intake: Intake,
        deadline: float = 15.0,
        patience: float = PATIENCE,
    ) -> None:
        """Prepares the pools; their threads start with the loop.

        Args:
            application: From :func:`queuey.web.make_app`.
            threads: For requests that may block.
            waiters: For long polls.
            intake: Takes in the bodies.
            deadline: Seconds after which work begun at once is given up, as the store gives up what blocks.
            patience: Seconds that a read waits for the one before it.
        """
        self._deadline = deadline
        self._patience = patience
        self._application: Application = application
        self._hot: Endpoint = application.registry.hot
        self._reads_at_once = self._hot.begins("GET")
        self._metrics: Metrics = application.registry.service.metrics
        self._intake = intake
        self._work: SimpleQueue[Job | None] = SimpleQueue()
        self._waits: SimpleQueue[Job | None] = SimpleQueue()
        self._pools = [(self._work, threads, "queuey-request"), (self._waits, waiters, "queuey-wait")]
        self._turn = threading.Lock()
        self._loop: asyncio.AbstractEventLoop
        self._finished: deque[Finished] = deque()
        self._waking = False
        self._begun: dict[asyncio.Future[Answer], tuple[float, Callable[[], Outcome], Later]] = {}

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Is called before the first request."""
        self._loop = loop
        for jobs, count, name in self._pools:
            for number in range(count):
                threading.Thread(target=self._serve, args=(jobs,), name=f"{name}-{number}", daemon=True).start()
        loop.call_later(1.0, self._look_for_late)

    def stop(self) -> None:
        """Is called after the last request."""
        for jobs, count, _ in self._pools:
            for _ in range(count):
                jobs.put(None)

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
                self._intake.let_go(environ)
        await send_answer(answer, send, head=scope["method"] == "HEAD")

    async def _answer(self, environ: Environ, receive: Receive, foreign: list[str]) -> Answer:
        if foreign:
            raise unreadable(foreign)
        size = await self._intake.take(environ, receive, self._loop)
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        if method == "POST" and size <= SMALL and (match := hot_match(path)):
            answer = await self._post(environ, match)
            if answer is not None:
                return answer
        if _may_wait(environ):
            return await self._in_thread(self._waits, partial(self._run, environ))
        if method == "GET" and self._reads_at_once and (match := hot_match(path)):
            answer = await self._at_once(environ, match)
            if answer is not None:
                return answer
        run = self._run_in_turn if method == "GET" else self._run
        return await self._in_thread(self._work, partial(run, environ))

    # At once

    async def _post(self, environ: Environ, match: dict[str, str]) -> Answer | None:
        """Answers a post in the loop's thread if at all possible; returns None with the request as it was."""
        answer = await self._at_once(environ, match)
        if answer is None and self._hot.look_up is not None:
            await self._in_thread(self._work, partial(self._hot.look_up, environ, match))
            answer = await self._at_once(environ, match)
        return answer

    async def _at_once(self, environ: Environ, match: dict[str, str]) -> Answer | None:
        """Answers in the loop's thread, or returns None with the request as it was."""
        try:
            result = self._hot.begin(environ, match)
            if not isinstance(result, Later):
                return result
            future: asyncio.Future[Answer] = self._loop.create_future()

            def done(value: object, error: Exception | None) -> None:
                self._finished.append((future, result, value, error))
                self._wake()

            try:
                self._begun[future] = (time.monotonic() + self._deadline, result.begin(done), result)
            except QueueyError as error:
                return result.finish(None, error)
            return await future
        except WouldBlock:
            environ["wsgi.input"].seek(0)
            return None

    def _finish(
        self,
        future: asyncio.Future[Answer],
        later: Later | None,
        value: Any,  # noqa: ANN401 - an answer, or what an endpoint began to get
        error: Exception | None,
    ) -> None:
        """Gives a request its answer: ``value``, or what ``later`` makes of it."""
        if later is not None and self._begun.pop(future, None) is None:
            return
        if future.done():
            return
        if later is None and error is not None:
            future.set_exception(error)
            return
        try:
            future.set_result(value if later is None else later.finish(value, error))
        except Exception as failure:  # noqa: BLE001 - whoever awaits the future gets it
            future.set_exception(failure)

    def _give_up_late(self) -> None:
        """Answers requests whose work has not ended in time."""
        now = time.monotonic()
        for future, (deadline, withdraw, later) in list(self._begun.items()):
            if deadline > now:
                break
            error = StoreUnavailable("the store did not answer in time", outcome=withdraw())
            self._finish(future, later, None, error)

    def _look_for_late(self) -> None:
        """Is called every second."""
        self._give_up_late()
        self._intake.give_up_late()
        self._loop.call_later(1.0, self._look_for_late)

    # In a thread

    async def _in_thread(self, jobs: SimpleQueue[Job | None], work: Callable[[], T]) -> T:
        """Has a thread of a pool do some work; returns its result."""
        future: asyncio.Future[T] = self._loop.create_future()
        jobs.put((work, future))
        return await future

    def _serve(self, jobs: SimpleQueue[Job | None]) -> None:
        """Is one thread of a pool."""
        while (job := jobs.get()) is not None:
            work, future = job
            try:
                result, error = work(), None
            except Exception as failure:  # noqa: BLE001 - whoever waits gets it
                result, error = None, failure
            self._finished.append((future, None, result, error))
            self._wake()
            del job, work, future, result, error

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
            result = self._application(environ, start_response)
            try:
                body = b"".join(result)
            finally:
                if (close := getattr(result, "close", None)) is not None:
                    close()
        except Exception as error:  # noqa: BLE001 - an error of any kind must become an answer
            return error_answer(error, environ)
        headers = started[1]
        if environ["REQUEST_METHOD"] != "HEAD":
            headers = [header for header in headers if header[0].lower() != "content-length"]
        return Answer(started[0], body, *headers)

    # The loop

    def _wake(self) -> None:
        """Has the loop look at what is finished; one wake serves all that finish until then."""
        if not self._waking:
            self._waking = True
            try:
                self._loop.call_soon_threadsafe(self._drain)
            except RuntimeError:
                log.debug("The loop has ended; nobody waits for the answer any more.")

    def _drain(self) -> None:
        self._waking = False
        finished = self._finished
        while finished:
            self._finish(*finished.popleft())


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
