"""A frequent request, and the rules for its attempts.

::

    sent ──(result)──────────────────────────────► answered
      ├──(no answer for a while)──► sent to another node as well *; the first result counts. Of requests to nodes
      │                             that do answer others only a tenth: what is slow everywhere must not become more
      ├──(an error that asking again would not change, of all that were asked)──► answered
      ├──(no answer in time)──► answered: timed out
      ├──(a connection that broke, a node that is overloaded or had no time)──► through the driver * ──► answered
      └──(no connection; a node that is starting or has forgotten the statement)──► through the driver ──► answered

* only what is idempotent. Anything else is answered: it is in doubt.

All of it runs in the thread of the store's loop (:mod:`.store_loop`); :mod:`.cql` sends the attempts.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from cassandra import OperationTimedOut
from cassandra.protocol import (
    ErrorMessage,
    IsBootstrappingErrorMessage,
    OverloadedErrorMessage,
    PreparedQueryNotFound,
    ReadTimeoutErrorMessage,
    ServerError,
    TruncateError,
)

from queuey.errors import StoreClosed, StoreUnavailable
from queuey.storage.cassandra.driver.errors import translate
from queuey.storage.cassandra.driver.requests import Decode, Done, Rows

LOOK_EVERY = 0.02
"""Interval between checks for requests whose time is over, in seconds."""
SPARED, MOST_SPARE = 0.1, 20.0
"""Max part of requests that are sent to another node as well although their node answers others, and max at once."""
MOST_WAITING = 64 << 20
"""Max bytes that wait for one connection; further requests are refused."""

_NOT_BEGUN = (IsBootstrappingErrorMessage, PreparedQueryNotFound)
_PERHAPS_DONE = (OverloadedErrorMessage, ReadTimeoutErrorMessage, ServerError, TruncateError)

DriverFallback = Callable[[Done, int, float], None]
"""Sends through the driver: the callback, how many nodes may have the request already, and the timeout in seconds."""


@dataclass(slots=True, kw_only=True, eq=False)
class FastRequest:
    """One request, and how its attempts fare.

    Attributes:
        opcode, body: As they are sent.
        routing_key: Of its row; the nodes that have it are asked.
        address: The only node to ask, whatever the row.
        metadata: The result's columns, for answers of an unusual shape.
        timeout: Timeout in seconds.
        decode: Makes rows of a result of the usual shape. Without it the result is when the answer was received.
        done: Called once with the result, in the loop's thread unless the store was closed.
        driver_fallback: Sends it again through the driver.
        into_loop: Makes a call in the loop's thread.
        reads: It changes nothing.
        idempotent: It may be sent twice: to another node as well when the first keeps it waiting.
        clock: Seconds, for ``began``, ``answered_at`` and the time that is left.
        asked: Nodes that may have got it.
        nodes: The nodes that are still to be asked, in turn.
        host: The connection to the node that was asked last.
        answered_at: When the last answer was received.
        is_answered: Its ``done`` was called.
    """

    opcode: int
    body: bytes
    routing_key: bytes
    timeout: float
    done: Done
    driver_fallback: DriverFallback
    into_loop: Callable[..., object]
    reads: bool
    address: str | None = None
    metadata: Any = None
    decode: Decode | None = None
    idempotent: bool = True
    clock: Callable[[], float] = time.monotonic
    nodes: Iterator[Any] = field(init=False)
    asked: int = 0
    flying: int = 0
    host: Any = None
    turned: bool = False
    began: float = 0.0
    answered_at: float = 0.0
    is_answered: bool = False

    def receive(self, answer: Any) -> None:  # noqa: ANN401 - a result's body, a message of the driver, an exception
        """Goes on with the end of one attempt."""
        if isinstance(answer, bytes) or hasattr(answer, "parsed_rows"):
            self.succeed(answer)
        elif isinstance(answer, _NOT_BEGUN):
            self.turn()
        elif not isinstance(answer, ErrorMessage):
            self.lose(answer)
        elif isinstance(answer, _PERHAPS_DONE):
            self.lose(answer.to_exception())
        else:
            self.refuse(answer.to_exception())

    def begin_attempt(self, host: Any) -> None:  # noqa: ANN401 - a connection
        """Records that it is sent to a node."""
        self.host = host
        self.asked += 1
        self.flying += 1

    def succeed(self, answer: Any) -> None:  # noqa: ANN401 - a result's body, or the driver's message
        if not isinstance(answer, bytes):
            self.tell(answer.parsed_rows or [], None)
            return
        try:
            rows = [(self.answered_at,)] if self.decode is None else self.decode(answer)
        except Exception as error:  # noqa: BLE001 - of another shape than expected
            self.lose(error)
        else:
            self.tell(rows, None)

    def refuse(self, error: BaseException) -> None:
        """Answers with the error of an attempt unless another attempt may still succeed."""
        self.flying -= 1
        if not self.flying and not self.turned:
            self.tell(None, translate(error, reads=self.reads, attempts=self.asked))

    def lose(self, error: BaseException) -> None:
        """Finds out by another attempt what became of this one, or answers as in doubt."""
        if self.idempotent:
            self.turn()
        else:
            self.refuse(error)

    def turn(self) -> None:
        """Sends it through the driver in the time that is left, unless that was done or it is answered."""
        if not self.turned and not self.is_answered:
            self.turned = True
            left = self.timeout - (self.clock() - self.began)
            self.driver_fallback(self._tell_from_driver, self.asked, max(LOOK_EVERY, left))

    def tell(self, rows: Rows | None, error: StoreUnavailable | None) -> None:
        if not self.is_answered:
            self.is_answered = True
            self.done(rows, error)

    def _tell_from_driver(self, rows: Rows | None, error: StoreUnavailable | None) -> None:
        try:
            self.into_loop(self.tell, rows, error)
        except StoreClosed:
            self.tell(rows, error)


class InFlight:
    """Requests that wait for an answer. One check sees to all of them, as often as LOOK_EVERY says.

    Args:
        ask: Sends a request to the next of its nodes; returns False if none has taken it.
        last_answer: Returns when a node last answered anything.
        patience: Seconds after which an idempotent request goes to another node as well; a quarter of its timeout if
            that is less.
    """

    def __init__(
        self, ask: Callable[[FastRequest], bool], last_answer: Callable[[Any], float], patience: float
    ) -> None:
        self._ask = ask
        self._last_answer = last_answer
        self._patience = round(patience / LOOK_EVERY)
        self._sent: defaultdict[int, deque[FastRequest]] = defaultdict(deque)
        """By how many checks they wait before another node is asked; few different numbers."""
        self._late: deque[FastRequest] = deque()
        self._spare = MOST_SPARE
        """Second requests to nodes that do answer, which may be sent at once."""

    def __bool__(self) -> bool:
        return bool(self._late) or any(self._sent.values())

    def add(self, request: FastRequest) -> None:
        self._spare = min(MOST_SPARE, self._spare + SPARED)
        waits = min(self._patience, int(request.timeout / 4 / LOOK_EVERY))
        queue = self._sent[waits] if request.idempotent and waits else self._late
        queue.append(request)

    def check(self, now: float) -> None:
        """Sends what has waited for long to another node as well, and ends what has waited for too long."""
        for waits, sent in list(self._sent.items()):
            while sent and (sent[0].is_answered or sent[0].began < now - waits * LOOK_EVERY):
                request = sent.popleft()
                if not request.is_answered:
                    self._late.append(request)
                    if self._may_ask_another(request):
                        self._ask(request)
        for _ in range(len(self._late)):
            request = self._late.popleft()
            if request.is_answered:
                continue
            if now - request.began < request.timeout:
                self._late.append(request)
            else:
                error = OperationTimedOut("no answer in time")
                request.tell(None, translate(error, reads=request.reads, attempts=request.asked))

    def _may_ask_another(self, request: FastRequest) -> bool:
        """Returns whether a request that waits is sent to another node as well: a silent node is not spared."""
        if self._last_answer(request.host) < request.began:
            return True
        if self._spare < 1.0:
            return False
        self._spare -= 1.0
        return True
