"""The client of RQMS, for a server of RQMS or for Queuey's facade of it: :class:`Queue`."""

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
from queuey.client.calls.call import Call, HttpAnswer, encode, nothing
from queuey.client.credentials.lookup import Credential
from queuey.client.errors import Conflict, InvalidAnswer, InvalidArgument
from queuey.client.http.attempts import RetryPolicy, Timing
from queuey.client.http.servers import leads_elsewhere, parse_servers, path_segment

if TYPE_CHECKING:
    import httpcore2
    import httpx2

__all__ = ["Item", "Queue"]

log = logging.getLogger(__name__)

PATIENT = RetryPolicy(rounds=8, base=0.5)
"""Every call may be repeated: an item is stored once under its id."""
TIMEOUT = 10.0
"""Timeout in seconds of each step."""
PAUSE = 0.5
"""Interval between two fetches without a task, in seconds."""


class Item(dict[str, Any]):
    """A task: its value and, if that is a JSON object, also its members.

    Attributes:
        value: The value that was put into the queue.
        ticket: Identifies this item and its fetch.
        until: When its lock ends, by the queue's clock.

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
        url: Of the server and the queue: ``http://localhost:7085/tasks``.
        time: Seconds for which a fetched task is yours; afterwards others get it.
        batch_size: Tasks that one request fetches, which wait here for their turn. All of them should be done within
            ``time``; one whose time is over is not returned any more.
        multiple_ok: Tasks are named (:meth:`set`): it does not matter if one was set again while it was being done.
        retry: How often a call that fails is sent again.
        transport: An httpx2 transport, or a pool of httpcore2, to use instead of the network.
        timing: The clock, the pause and the random numbers.

    Raises:
        InvalidArgument: The URL or a number cannot be.

    Every call may raise :class:`~queuey.client.ClientError`: the server could not be reached, or refused.

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
        multiple_ok: bool = False,  # noqa: FBT001, FBT002 - the same
        *,
        retry: RetryPolicy = PATIENT,
        transport: httpx2.BaseTransport | httpcore2.ConnectionPool | None = None,
        timing: Timing | None = None,
    ) -> None:
        parts = urlsplit(url)
        self._path = parts.path.rstrip("/")
        if not self._path or "?" in url or "#" in url or leads_elsewhere(self._path) or not url.isprintable():
            raise InvalidArgument(f"{url!r} does not name a queue, as http://localhost:7085/tasks does")
        if not (time > 0 and batch_size >= 1):
            raise InvalidArgument(f"time {time} and batch_size {batch_size} have to be above 0")
        self.url = url
        self.time = time
        self.batch_size = batch_size
        self.multiple_ok = multiple_ok
        self._timing = timing or Timing()
        servers = parse_servers(f"{parts.scheme}://{parts.netloc}", None)
        nobody = Credential()  # RQMS has no credentials.
        self._sender = Sender(servers, nobody, retry, self._timing, TIMEOUT, transport=transport)
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
        """Closes the connections. Tasks that were fetched and not returned are fetched again after their time."""
        self._sender.close()

    def put(self, item: Any) -> None:  # noqa: ANN401 - any JSON
        """Adds a task, under an id of its own that sorts after those before.

        Args:
            item: Any JSON value.

        Raises:
            InvalidArgument: It is none.
        """
        name = f"item-{next(self._numbers):09d}-{base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip('=')}"
        self._sender.run(Call("POST", self._path, nothing, (("id", name),), content=encode(item), repeatable=True))

    def set(self, jobid: str, item: Any) -> None:  # noqa: ANN401 - any JSON
        """Sets a named task, in place of the one of this name, also if that is being done.

        Args:
            jobid: 1 to 255 characters without ``/``.
            item: Any JSON value.

        Raises:
            InvalidArgument: One of them cannot be.
        """
        if not jobid or "/" in jobid or jobid in {".", ".."}:
            raise InvalidArgument(f"{jobid!r} is no name of a task: it is blank, has a slash, or is . or ..")
        path = f"{self._path}/{path_segment(jobid)}"
        self._sender.run(Call("PUT", path, nothing, content=encode(item), repeatable=True))

    def get(self) -> Item:
        """Returns a task; waits until there is one."""
        while (item := self._next()) is None:
            self._fetch()
        return item

    def _next(self) -> Item | None:
        """Returns a task that was fetched before and is still ours."""
        with self._lock:
            while self._waiting:
                item = self._waiting.popleft()
                if item.until > self._timing.clock():
                    return item
        return None

    def _fetch(self) -> None:
        until = self._timing.clock() + self.time
        params = (("count", str(self.batch_size)), ("time", f"{self.time:f}"))
        found = self._sender.run(Call("GET", self._path, _read, params, repeatable=True))
        with self._lock:
            self._waiting += (Item(each.ticket, each.value, until) for each in found)
        if not found:
            self._timing.sleep(PAUSE)

    def task_done(self, item: Item) -> None:
        """Acknowledges a task, so that it is not delivered again.

        Raises:
            Conflict: It was set again, or its time was over and another program got it; not with ``multiple_ok``.
        """
        try:
            self._sender.run(Call("DELETE", self._path, nothing, content=item.ticket.encode(), repeatable=True))
        except Conflict as error:
            # If the answer to an earlier attempt was lost, it may be this very call that has done it.
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
        """Calls a function with one task after another, for ever; each is done if the function raises nothing.

        Also a decorator, which begins at once: ``@queue.foreach`` or ``@queue.foreach(catch_errors=True)``.

        Args:
            process_item: The function.
            catch_errors: Log its errors and go on: others get the task after its time. False: raise them.
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


def _read(answer: HttpAnswer) -> list[_Fetched]:
    try:
        return _decode(answer.content).items
    except msgspec.MsgspecError as error:
        raise InvalidAnswer(f"the answer to a fetch has another form: {error}") from error
