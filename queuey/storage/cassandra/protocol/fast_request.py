"""A frequent request, and the rules for its attempts.

::

    sent ──(result)──────────────────────────────► answered
      ├──(no answer for a while)──► sent to a second node as well *; the first result wins. Nodes that do answer other
      │                             requests are spared: only a tenth of requests may be sent twice because of them
      ├──(an error that a retry would not change, from all nodes asked)──► answered
      ├──(timeout)──► answered: timed out
      ├──(the connection broke, or the node is overloaded or timed out)──► through the driver * ──► answered
      └──(no connection; a node that is starting or has forgotten the statement)──► through the driver ──► answered

* idempotent requests only. The answer to any other request is that its result is in doubt.

Everything runs in the thread of the store's loop (:mod:`..cluster.store_loop`); :mod:`..protocol` sends the attempts.
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

from queuey.model.errors import StoreClosed, StoreUnavailable
from queuey.storage.cassandra.protocol.errors import translate
from queuey.storage.cassandra.protocol.requests import Decode, Done, Rows

CHECK_INTERVAL = 0.02
"""Interval between checks for requests that have timed out, in seconds."""
RETRY_CREDIT, MAX_RETRY_CREDIT = 0.1, 20.0
"""Second attempts earned per request, and max second attempts saved up. They are spent on nodes that still answer other
requests."""
MAX_WAITING_BYTES = 64 << 20
"""Max bytes that wait for one connection; further requests are refused."""

_ERRORS_BEFORE_BEGIN = (IsBootstrappingErrorMessage, PreparedQueryNotFound)
_ERRORS_IN_DOUBT = (OverloadedErrorMessage, ReadTimeoutErrorMessage, ServerError, TruncateError)

DriverFallback = Callable[[Done, int, float], None]
"""Sends a request through the driver: the callback, the number of nodes that may have it already, and the timeout in
seconds."""


@dataclass(slots=True, kw_only=True, eq=False)
class FastRequest:
    """A request and the state of its attempts.

    Attributes:
        opcode, body: The CQL message.
        routing_key: The row's key; the nodes that have the row are asked.
        address: The only node to ask, whatever the row.
        metadata: The result's columns, for answers of an unusual shape.
        timeout: Timeout in seconds.
        decode: Decodes the rows of a usual result. Without it, the result is the time at which the answer was received.
        done: Called once with the result, in the loop's thread unless the store was closed.
        driver_fallback: Sends the request again through the driver.
        into_loop: Makes a call in the loop's thread.
        reads: The request changes nothing.
        idempotent: The request may be sent twice: to a second node when the first one does not answer.
        clock: Clock in seconds, for ``began``, ``answered_at`` and the remaining time.
        asked: Number of nodes that may have the request.
        nodes: The nodes still to be asked, in order.
        host: The connection to the node that was asked last.
        answered_at: When the last answer was received.
        is_answered: ``done`` was called.
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
    in_flight: int = 0
    host: Any = None
    has_fallen_back: bool = False
    began: float = 0.0
    answered_at: float = 0.0
    is_answered: bool = False

    def receive(self, answer: Any) -> None:  # noqa: ANN401 - a result's body, a message of the driver, an exception
        """Ends the request, or sends it through the driver if the node cannot have begun it."""
        if isinstance(answer, bytes) or hasattr(answer, "parsed_rows"):
            self.succeed(answer)
        elif isinstance(answer, _ERRORS_BEFORE_BEGIN):
            self.fall_back()
        elif not isinstance(answer, ErrorMessage):
            self.fail_in_doubt(answer)
        elif isinstance(answer, _ERRORS_IN_DOUBT):
            self.fail_in_doubt(answer.to_exception())
        else:
            self.fail(answer.to_exception())

    def begin_attempt(self, host: Any) -> None:  # noqa: ANN401 - a connection
        self.host = host
        self.asked += 1
        self.in_flight += 1

    def succeed(self, answer: Any) -> None:  # noqa: ANN401 - a result's body, or the driver's message
        """Answers with decoded rows, or for a write with the time of the answer.

        If the result is unreadable, an idempotent request is repeated through the driver; any other is in doubt.
        """
        if not isinstance(answer, bytes):
            self.finish(answer.parsed_rows or [], None)
            return
        try:
            rows = [(self.answered_at,)] if self.decode is None else self.decode(answer)
        except Exception as error:  # noqa: BLE001 - the result has an unexpected shape
            self.fail_in_doubt(error)
        else:
            self.finish(rows, None)

    def fail(self, error: BaseException) -> None:
        """Answers with the error of an attempt, unless another attempt may still succeed."""
        self.in_flight -= 1
        if not self.in_flight and not self.has_fallen_back:
            self.finish(None, translate(error, reads=self.reads, attempts=self.asked))

    def fail_in_doubt(self, error: BaseException) -> None:
        """Sends an idempotent request through the driver; answers any other one as in doubt."""
        if self.idempotent:
            self.fall_back()
        else:
            self.fail(error)

    def fall_back(self) -> None:
        """Sends the request through the driver in the remaining time, once, unless it is answered."""
        if not self.has_fallen_back and not self.is_answered:
            self.has_fallen_back = True
            remaining = self.timeout - (self.clock() - self.began)
            self.driver_fallback(self._finish_from_driver, self.asked, max(CHECK_INTERVAL, remaining))

    def finish(self, rows: Rows | None, error: StoreUnavailable | None) -> None:
        if not self.is_answered:
            self.is_answered = True
            self.done(rows, error)

    def _finish_from_driver(self, rows: Rows | None, error: StoreUnavailable | None) -> None:
        try:
            self.into_loop(self.finish, rows, error)
        except StoreClosed:
            self.finish(rows, error)


class InFlight:
    """Requests that wait for an answer. One check every CHECK_INTERVAL seconds handles all of them.

    Args:
        ask: Sends a request to its next node; returns False if no node accepts it.
        last_answer: Returns when a connection last received an answer to any request.
        patience: Seconds after which an idempotent request goes to a second node as well; a quarter of its timeout if
            that is less.
    """

    def __init__(
        self, ask: Callable[[FastRequest], bool], last_answer: Callable[[Any], float], patience: float
    ) -> None:
        self._ask = ask
        self._last_answer = last_answer
        self._patience = round(patience / CHECK_INTERVAL)
        self._sent: defaultdict[int, deque[FastRequest]] = defaultdict(deque)
        """By number of checks before a second node is asked; there are few different numbers."""
        self._late: deque[FastRequest] = deque()
        self._spare = MAX_RETRY_CREDIT
        """Second attempts that may be sent now although the first node answers other requests."""

    def __bool__(self) -> bool:
        return bool(self._late) or any(self._sent.values())

    def add(self, request: FastRequest) -> None:
        """Begins to watch a request, which earns ``RETRY_CREDIT`` of a second attempt.

        An idempotent one may also go to a second node before it times out.
        """
        self._spare = min(MAX_RETRY_CREDIT, self._spare + RETRY_CREDIT)
        waits = min(self._patience, int(request.timeout / 4 / CHECK_INTERVAL))
        queue = self._sent[waits] if request.idempotent and waits else self._late
        queue.append(request)

    def check(self, now: float) -> None:
        """Sends requests that have waited long to a second node as well, and fails those that have timed out."""
        for waits, sent in list(self._sent.items()):
            while sent and (sent[0].is_answered or sent[0].began < now - waits * CHECK_INTERVAL):
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
                request.finish(None, translate(error, reads=request.reads, attempts=request.asked))

    def _may_ask_another(self, request: FastRequest) -> bool:
        """Returns whether to send a request to a second node: always if the first node answers nothing at all.

        Otherwise spends a second attempt that was saved up, if there is one.
        """
        if self._last_answer(request.host) < request.began:
            return True
        if self._spare < 1.0:
            return False
        self._spare -= 1.0
        return True
