"""Between granian's event loop (RSGI) and the WSGI application.

A thread per waiting request costs several times what a small write costs: with 64 threads most of the time goes into
handing the interpreter lock around. So there are two ways through:

* **at once**, in the loop's thread and without Pyramid's routing: small posts whose credential and queue are in memory.
  The endpoint starts the write and gives back a :class:`~queuey.web.later.Later`; the store's writer tells of a whole
  group of them with one wake.
* **in a thread**: everything else goes through the WSGI application in a small pool; long polls in a pool of their own,
  so that they hold nobody up.

An endpoint that finds that it would block after all says so (:class:`~queuey.web.later.WouldBlock`) and the request
takes the other way. The application knows nothing of this module and runs under any other WSGI server just as well.
"""

from __future__ import annotations

import asyncio
import io
import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from queue import SimpleQueue
from typing import Any, Protocol

from queuey.errors import Outcome, QueueyError, StoreUnavailable
from queuey.web.answers import NO_OWN_HEADERS, OWN_HEADER, Answer, Environ, Header, text_answer
from queuey.web.endpoint import Endpoint
from queuey.web.later import Later, WouldBlock

log = logging.getLogger(__name__)

SMALL = 64 * 1024
"""Bytes of a body up to which a POST is handled at once."""
DEADLINE = 20.0
"""Seconds after which a write begun at once is given up; the store's own deadline is shorter."""

Application = Callable[[Environ, Callable[..., Any]], Iterable[bytes]]
Finished = tuple["asyncio.Future[Answer]", Later | None, Any, Exception | None]
Job = tuple[Environ, "asyncio.Future[Answer]"]


class Headers(Protocol):
    """Request headers as RSGI has them."""

    def get(self, key: str) -> str | None:
        """Returns a header's value."""

    def items(self) -> list[tuple[str, str]]:
        """Returns all headers, lower-case names, in the order received."""


class Scope(Protocol):
    """A request without its body, as RSGI has it."""

    method: str
    path: str
    query_string: str
    scheme: str
    headers: Headers


class Gateway:
    """An RSGI application that serves a WSGI one."""

    def __init__(self, application: Any, *, threads: int, waiters: int, max_body: int) -> None:  # noqa: ANN401
        """Prepares the pools; their threads start with the loop.

        Args:
            application: From :func:`queuey.web.make_app`.
            threads: For requests that may block.
            waiters: For long polls.
            max_body: Bytes of the longest body that any view takes; longer ones are not read.
        """
        self._application: Application = application
        self._hot: Endpoint = application.registry.hot
        self._max_body = max_body
        self._work: SimpleQueue[Job | None] = SimpleQueue()
        self._waits: SimpleQueue[Job | None] = SimpleQueue()
        self._pools = [(self._work, threads, "queuey-request"), (self._waits, waiters, "queuey-wait")]
        self._loop: asyncio.AbstractEventLoop
        self._finished: deque[Finished] = deque()
        self._waking = False
        self._begun: dict[asyncio.Future[Answer], tuple[float, Callable[[], Outcome], Later]] = {}

    def __rsgi_init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Is called by granian before the first request."""
        self._loop = loop
        for jobs, count, name in self._pools:
            for number in range(count):
                threading.Thread(target=self._serve, args=(jobs,), name=f"{name}-{number}", daemon=True).start()
        loop.call_later(1.0, self._give_up_late)

    def __rsgi_del__(self, _loop: asyncio.AbstractEventLoop) -> None:
        """Is called by granian after the last request."""
        for jobs, count, _ in self._pools:
            for _ in range(count):
                jobs.put(None)

    async def __rsgi__(self, scope: Scope, protocol: Any) -> None:  # noqa: ANN401 - granian's, compiled
        """Is called by granian with each request."""
        environ = make_environ(scope)
        try:
            size = await self._take_body(environ, protocol)
            answer = None
            if scope.method == "POST" and size <= SMALL and (match := hot_match(scope.path)):
                answer = await self._at_once(environ, match)
            if answer is None:
                answer = await self._in_thread(environ)
        except Exception:
            log.exception("A request failed outside of the application.")
            answer = text_answer("Internal error", 500)
        body = answer.body
        if not body or environ["REQUEST_METHOD"] == "HEAD":
            protocol.response_empty(answer.status, [*answer.headers, ("content-length", str(len(body)))])
        else:
            protocol.response_bytes(answer.status, list(answer.headers), body)

    async def _take_body(self, environ: Environ, protocol: Any) -> int:  # noqa: ANN401 - granian's, compiled
        """Reads the body into the environ as far as any view may want it; returns its size."""
        length = environ.get("CONTENT_LENGTH")
        if length is not None:
            wanted = int(length)
            # A view refuses a body that is too long by its length alone, so that one is left unread.
            body = await protocol() if 0 < wanted <= self._max_body else b""
            environ["wsgi.input"] = io.BytesIO(body)
            return wanted
        if "HTTP_TRANSFER_ENCODING" not in environ:
            environ["wsgi.input"] = io.BytesIO()
            return 0
        pieces, size = [], 0
        async for piece in protocol:
            pieces.append(piece)
            size += len(piece)
            if size > self._max_body:
                break
        environ["wsgi.input"] = io.BytesIO(b"".join(pieces))
        environ["wsgi.input_terminated"] = True
        return size

    # At once

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
                self._begun[future] = (time.monotonic() + DEADLINE, result.begin(done), result)
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
        try:
            future.set_result(value if later is None else later.finish(value, error))
        except Exception as failure:  # noqa: BLE001 - whoever awaits the future gets it
            future.set_exception(failure)

    def _give_up_late(self) -> None:
        """Answers requests whose write has not ended in time."""
        now = time.monotonic()
        for future, (deadline, withdraw, later) in list(self._begun.items()):
            if deadline > now:
                break
            error = StoreUnavailable("the store did not finish the write in time", outcome=withdraw())
            self._finish(future, later, None, error)
        self._loop.call_later(1.0, self._give_up_late)

    # In a thread

    async def _in_thread(self, environ: Environ) -> Answer:
        future: asyncio.Future[Answer] = self._loop.create_future()
        jobs = self._waits if "wait=" in environ["QUERY_STRING"] or _may_wait(environ) else self._work
        jobs.put((environ, future))
        return await future

    def _serve(self, jobs: SimpleQueue[Job | None]) -> None:
        """Is one thread of a pool."""
        while (job := jobs.get()) is not None:
            environ, future = job
            answer = self._run(environ)
            self._finished.append((future, None, answer, None))
            self._wake()
            del job, environ, future, answer

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
        except Exception:
            log.exception("The application failed.")
            return text_answer("Internal error", 500)
        headers = [header for header in started[1] if header[0].lower() != "content-length"]
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
    """Returns application and queue of the path of a queue, None for any other."""
    parts = path.split("/")
    if len(parts) == 5 and not parts[4]:  # noqa: PLR2004 - a trailing slash
        parts.pop()
    if len(parts) != 4 or parts[1] != "v1" or not parts[2] or not parts[3] or parts[3][0] == "_":  # noqa: PLR2004
        return None
    return {"app": parts[2], "queue": parts[3]}


def _may_wait(environ: Environ) -> bool:
    """Tells whether a request may be a long poll that names its wait in the body."""
    path: str = environ["PATH_INFO"]
    return environ["REQUEST_METHOD"] == "POST" and path.rstrip("/").endswith("/_read")


def make_environ(scope: Scope) -> Environ:
    """Returns the WSGI environ of a request, without its body.

    Headers whose names hold an underscore are left out: WSGI could not tell ``X_User`` from ``X-User``.
    """
    path = scope.path
    environ: Environ = {
        **_CONSTANT,
        "REQUEST_METHOD": scope.method,
        "PATH_INFO": path if path.isascii() else path.encode("utf-8", "replace").decode("latin-1"),
        "QUERY_STRING": scope.query_string,
        "wsgi.url_scheme": scope.scheme,
    }
    own = False
    for name, value in scope.headers.items():
        key = _HEADER_KEYS.get(name)
        if key is None:
            if "_" in name:
                continue
            key = "HTTP_" + name.upper().replace("-", "_")
            own = own or key.startswith(OWN_HEADER)
        environ[key] = f"{environ[key]},{value}" if key in environ else value
    if not own:
        environ[NO_OWN_HEADERS] = True
    return environ


_CONSTANT: Environ = {
    "SCRIPT_NAME": "",
    "SERVER_NAME": "queuey",
    "SERVER_PORT": "0",
    "SERVER_PROTOCOL": "HTTP/1.1",
    "wsgi.version": (1, 0),
    "wsgi.errors": sys.stderr,
    "wsgi.multithread": True,
    "wsgi.multiprocess": True,
    "wsgi.run_once": False,
}
"""What nobody asks for, but WSGI promises. The address is in the Host header."""

_HEADER_KEYS = {
    "content-length": "CONTENT_LENGTH",
    "content-type": "CONTENT_TYPE",
    "authorization": "HTTP_AUTHORIZATION",
    "host": "HTTP_HOST",
    "accept": "HTTP_ACCEPT",
    "accept-encoding": "HTTP_ACCEPT_ENCODING",
    "user-agent": "HTTP_USER_AGENT",
    "connection": "HTTP_CONNECTION",
    "x-ttl": "HTTP_X_TTL",
    "x-partition": "HTTP_X_PARTITION",
    "x-message-key": "HTTP_X_MESSAGE_KEY",
}
