"""The RQMS client, for an RQMS server or Queuey's RQMS facade: :class:`Queue`."""

from __future__ import annotations

import base64
import itertools
import logging
import threading
import uuid
from collections import deque
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self, overload
from urllib.parse import urlsplit

import msgspec

from queuey.client._sync.sender import Sender
from queuey.client.calls.call import Call, HttpAnswer, encode, ignore_answer, path_segment
from queuey.client.credentials.lookup import Credential
from queuey.client.errors import Conflict, InvalidAnswer, InvalidArgument
from queuey.client.http.attempts import RetryPolicy, Timing
from queuey.client.http.servers import has_unsafe_segments, parse_servers

if TYPE_CHECKING:
    import httpcore2
    import httpx2

__all__ = ["Item", "Queue"]

log = logging.getLogger(__name__)

RETRY_POLICY = RetryPolicy(base=0.5)
"""All calls are idempotent, because an item is stored once under its id. So all are repeated."""
STEP_TIMEOUT = 10.0
"""Timeout of each step, in seconds."""
FETCH_INTERVAL = 0.5


class Item(dict[str, Any]):
    """A task. If its value is a JSON object, its members are the items of this dict.

    Attributes:
        value: The value that was put into the queue.
        ticket: Identifies this item and its fetch.
        until: When the lock ends, in seconds of the queue's clock.

    Example:
        >>> from queuey.client.rqms import Item
        >>> item = Item('["item-1","7"]', {"page": 7})
        >>> item["page"], item.value
        (7, {'page': 7})
    """

    def __init__(self, ticket: str, value: Any, until: float = 0.0) -> None:  # noqa: ANN401 - any JSON
        super().__init__(value if isinstance(value, dict) else ())
        self.ticket = ticket
        self.value = value
        self.until = until


class _Fetched(msgspec.Struct):
    ticket: str
    value: Any


class _Items(msgspec.Struct):
    items: list[_Fetched]


_decode = msgspec.json.Decoder(_Items).decode


class Queue:
    """A queue of tasks. Safe to use from several threads. Close it, or use it as a context manager.

    Args:
        url: URL of the server and the queue, such as ``http://localhost:7085/tasks``.
        time: Seconds for which a fetched task is locked. Afterwards others may get it.
        batch_size: Number of tasks that one request fetches. They wait in memory until they are returned; a task whose
            lock has ended is dropped. All of them should be done within ``time``.
        multiple_ok: Do not raise if a task was set again (:meth:`set`) or fetched by others before it was done.
        retry: The retry policy.
        transport: An httpx2 transport, or an httpcore2 pool, to use instead of the network.
        timing: The clock, the sleep function and the random numbers.

    Raises:
        InvalidArgument: The URL, ``time`` or ``batch_size`` is not valid.

    Every call may raise :class:`~queuey.client.ClientError` if the server is unreachable or refuses the call.

    Example:
        >>> from queuey.client.rqms import Queue
        >>> with Queue("http://localhost:7085/tasks", time=60, batch_size=5) as queue:
        ...     print(queue)
        <Queue http://localhost:7085/tasks>
    """

    def __init__(
        self,
        url: str,
        time: float = 30.0,
        batch_size: int = 1,
        multiple_ok: bool = False,  # noqa: FBT001, FBT002 - the original's
        *,
        retry: RetryPolicy = RETRY_POLICY,
        transport: httpx2.BaseTransport | httpcore2.ConnectionPool | None = None,
        timing: Timing | None = None,
    ) -> None:
        parts = urlsplit(url)
        self._path = parts.path.rstrip("/")
        if not self._path or "?" in url or "#" in url or has_unsafe_segments(self._path) or not url.isprintable():
            raise InvalidArgument(f"{url!r} does not name a queue, as http://localhost:7085/tasks does")
        if not (time > 0 and batch_size >= 1):
            raise InvalidArgument(f"time {time} and batch_size {batch_size} must be above 0")
        self.url = url
        self.time = time
        self.batch_size = batch_size
        self.multiple_ok = multiple_ok
        self._timing = timing or Timing()
        servers = parse_servers(f"{parts.scheme}://{parts.netloc}", None)
        no_credential = Credential()  # RQMS does not use credentials.
        self._sender = Sender(servers, no_credential, retry, self._timing, STEP_TIMEOUT, transport=transport)
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._waiting: deque[Item] = deque()

    def __repr__(self) -> str:
        return f"<Queue {self.url}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections. Fetched tasks that were not returned are delivered again after their lock ends."""
        self._sender.close()

    def put(self, item: Any) -> None:  # noqa: ANN401 - any JSON
        """Adds a task under a new id, which sorts after the earlier ones of this object.

        Args:
            item: Any JSON value.

        Raises:
            InvalidArgument: The item is not a JSON value.
        """
        name = f"item-{next(self._numbers):09d}-{base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip('=')}"
        self._sender.run(
            Call("POST", self._path, ignore_answer, (("id", name),), content=encode(item), repeatable=True)
        )

    def set(self, jobid: str, item: Any) -> None:  # noqa: ANN401 - any JSON
        """Sets a named task. Replaces a task with the same name, even if it is being processed.

        Args:
            jobid: 1 to 255 characters without ``/``.
            item: Any JSON value.

        Raises:
            InvalidArgument: The name is not valid, or the item is not a JSON value.
        """
        if not jobid or "/" in jobid or jobid in {".", ".."}:
            raise InvalidArgument(f"{jobid!r} is not a valid name of a task: it is empty, has a slash, or is . or ..")
        path = f"{self._path}/{path_segment(jobid)}"
        self._sender.run(Call("PUT", path, ignore_answer, content=encode(item), repeatable=True))

    def get(self) -> Item:
        """Waits until a task is available and returns it."""
        while (item := self._pop_waiting()) is None:
            self._fetch()
        return item

    def _pop_waiting(self) -> Item | None:
        with self._lock:
            while self._waiting:
                item = self._waiting.popleft()
                if item.until > self._timing.clock():
                    return item
        return None

    def _fetch(self) -> None:
        until = self._timing.clock() + self.time
        params = (("count", str(self.batch_size)), ("time", f"{self.time:f}"))
        fetched = self._sender.run(Call("GET", self._path, _read_items, params, repeatable=True))
        with self._lock:
            self._waiting += (Item(f.ticket, f.value, until) for f in fetched)
        if not fetched:
            self._timing.sleep(FETCH_INTERVAL)

    def task_done(self, item: Item) -> None:
        """Acknowledges a task, so that it is not delivered again.

        Raises:
            Conflict: The task was set again, or its lock ended and another program got it. Not with ``multiple_ok``.
        """
        try:
            self._sender.run(Call("DELETE", self._path, ignore_answer, content=item.ticket.encode(), repeatable=True))
        except Conflict as error:
            # If the answer to an earlier attempt was lost, that attempt may have acknowledged the task.
            if not (self.multiple_ok or error.in_doubt):
                raise

    @overload
    def foreach(self, process_item: Callable[[Item], object], catch_errors: bool = False) -> NoReturn: ...  # noqa: FBT001, FBT002

    @overload
    def foreach(
        self,
        process_item: None = None,
        catch_errors: bool = False,  # noqa: FBT001, FBT002
    ) -> Callable[[Callable[[Item], object]], NoReturn]: ...

    def foreach(
        self,
        process_item: Callable[[Item], object] | None = None,
        catch_errors: bool = False,  # noqa: FBT001, FBT002 - the original's
    ) -> Any:
        """Calls a function with one task after another, forever. Acknowledges a task when the function returns.

        As a decorator, it starts at once: ``@queue.foreach`` or ``@queue.foreach(catch_errors=True)``.

        Args:
            process_item: The function.
            catch_errors: Log an error of the function and continue; the task is delivered again when its lock ends. If
                False, the error is raised.
        """
        if process_item is None:
            return partial(self.foreach, catch_errors=catch_errors)
        while True:
            item = self.get()
            try:
                process_item(item)
            except Exception:
                if not catch_errors:
                    raise
                log.exception("A task failed; it is delivered again in %s seconds.", self.time)
            else:
                self.task_done(item)


def _read_items(answer: HttpAnswer) -> list[_Fetched]:
    try:
        return _decode(answer.content).items
    except msgspec.MsgspecError as error:
        raise InvalidAnswer(f"the answer to a fetch is not valid: {error}") from error
