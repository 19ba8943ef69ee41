"""A request, and the rules for its attempts.

::

    sent ──(result)──────────────────────────────► answered
      ├──(no answer for a while)──► sent to a second node as well *; the first result wins. Nodes that do answer other
      │                             requests are spared: only a tenth of requests may be sent twice because of them
      ├──(an error that a retry would not change, from all nodes asked)──► answered
      ├──(timeout)──► answered: timed out
      ├──(the connection broke, or the node is overloaded or timed out)──► sent to the next node *
      ├──(the node is starting, or does not keep the statement)──► sent to the next node
      └──(no node is left, or MAX_ATTEMPTS have been asked)──► answered: the last error

* idempotent requests only. The answer to any other request is that its result is in doubt.

A request waits while nodes are being connected for the first time and none is usable. When the client is closed, an
idempotent request goes to the client of the store's next loop. Everything runs in the thread of the store's loop
(:mod:`..cluster.store_loop`); :mod:`..protocol` sends the attempts.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from cassandra import OperationTimedOut
from cassandra.cluster import NoHostAvailable
from cassandra.protocol import (
    ErrorMessage,
    IsBootstrappingErrorMessage,
    OverloadedErrorMessage,
    PreparedQueryNotFound,
    ReadTimeoutErrorMessage,
    ServerError,
    TruncateError,
)

from queuey.model.errors import StoreUnavailable
from queuey.storage.cassandra.protocol.errors import InDoubt, translate
from queuey.storage.cassandra.protocol.requests import Decode, Done, Rows

CHECK_INTERVAL = 0.02
"""Interval between checks for requests that have timed out, in seconds."""
RETRY_CREDIT, MAX_RETRY_CREDIT = 0.1, 20.0
"""Second attempts earned per request, and max second attempts saved up. They are spent on nodes that still answer other
requests."""
MAX_ATTEMPTS = 3
"""Max nodes that one request is sent to."""
MAX_WAITING_BYTES = 64 << 20
"""Max bytes that wait for one connection; further requests are refused."""

_ERRORS_BEFORE_BEGIN = (IsBootstrappingErrorMessage, PreparedQueryNotFound)
_ERRORS_IN_DOUBT = (OverloadedErrorMessage, ReadTimeoutErrorMessage, ServerError, TruncateError)


@dataclass(slots=True, kw_only=True, eq=False)
class CqlRequest:
    """A request and the state of its attempts.

    Attributes:
        opcode, body: The CQL message.
        routing_key: The row's key; the nodes that have the row are asked first. None if there is no single row.
        address: The only node to ask, whatever the row.
        metadata: The result's columns, for answers of an unusual shape.
        decode: Decodes the rows of a usual result. Without it, the result is the time at which the answer was received.
        done: Called once with the result, in the loop's thread unless the store was closed.
        resend: Sends the request over the client of the store's next loop.
        on_page: Called instead of ``done`` with rows that are not all, and the state to ask for the next page with.
        reads: The request changes nothing.
        idempotent: The request may be sent twice: to a second node when the first one does not answer.
        ask_next: Sends the request to its next node; returns False if no node is left.
        attempts: Number of nodes that may have the request.
        nodes: The nodes still to be asked, in order.
    """

    opcode: int
    body: bytes
    routing_key: bytes | None
    timeout: float
    done: Done
    resend: Callable[[CqlRequest], object]
    reads: bool
    address: str | None = None
    metadata: Any = None
    decode: Decode | None = None
    on_page: Callable[[Rows, bytes], object] | None = None
    idempotent: bool = True
    ask_next: Callable[[CqlRequest], bool] = field(init=False)
    nodes: Iterator[Any] = field(init=False)
    attempts: int = 0
    in_flight: int = 0
    host: Any = None
    began: float = 0.0
    answered_at: float = 0.0
    is_answered: bool = False

    def receive(self, answer: Any) -> None:  # noqa: ANN401 - a result's body, a message of the driver, an exception
        if isinstance(answer, bytes) or hasattr(answer, "parsed_rows"):
            self.succeed(answer)
        elif isinstance(answer, _ERRORS_BEFORE_BEGIN):
            self.fail_before_begin(answer.to_exception())
        elif not isinstance(answer, ErrorMessage):
            self.fail_in_doubt(answer)
        elif isinstance(answer, _ERRORS_IN_DOUBT):
            self.fail_in_doubt(answer.to_exception())
        else:
            self.fail(answer.to_exception())

    def begin_attempt(self, host: Any) -> None:  # noqa: ANN401 - a connection
        self.host = host
        self.attempts += 1
        self.in_flight += 1

    def succeed(self, answer: Any) -> None:  # noqa: ANN401 - a result's body, or the driver's message
        """Answers with decoded rows, for a write with the time of the answer, for a PREPARE with the message.

        If the result is unreadable, an idempotent request is repeated; any other is in doubt.
        """
        if not isinstance(answer, bytes):
            rows = [answer] if answer.query_id else answer.parsed_rows or []
            if answer.paging_state and self.on_page is not None and not self.is_answered:
                self.is_answered = True
                self.on_page(rows, answer.paging_state)
            self.finish(rows, None)
            return
        try:
            rows = [(self.answered_at,)] if self.decode is None else self.decode(answer)
        except Exception as error:  # noqa: BLE001 - the result has an unexpected shape
            self.fail_in_doubt(error)
        else:
            self.finish(rows, None)

    def fail(self, error: BaseException) -> None:
        self.in_flight -= 1
        if not self.in_flight:
            self.finish(None, translate(error, reads=self.reads, attempts=self.attempts))

    def fail_in_doubt(self, error: BaseException) -> None:
        if self.idempotent:
            self.retry(error)
        else:
            self.fail(error)

    def fail_before_begin(self, error: BaseException) -> None:
        self.attempts -= 1
        self.retry(error)

    def retry(self, error: BaseException) -> None:
        if not self.is_answered and self.ask_next(self):
            self.in_flight -= 1
        else:
            self.fail(error)

    def finish(self, rows: Rows | None, error: StoreUnavailable | None) -> None:
        if not self.is_answered:
            self.is_answered = True
            self.done(rows, error)

    def refuse(self, error: StoreUnavailable) -> None:
        self.finish(None, error if self.reads or not self.attempts else InDoubt(str(error)))


class InFlight:
    """Requests that wait for an answer. One check every CHECK_INTERVAL seconds handles all of them.

    Args:
        ask: Sends a request to its next node; returns False if no node accepts it.
        last_answer: Returns when a connection last received an answer to any request.
        patience: Seconds after which an idempotent request goes to a second node as well; a quarter of its timeout if
            that is less.
    """

    def __init__(self, ask: Callable[[CqlRequest], bool], last_answer: Callable[[Any], float], patience: float) -> None:
        self._ask = ask
        self._last_answer = last_answer
        self._patience = round(patience / CHECK_INTERVAL)
        self._sent: defaultdict[int, deque[CqlRequest]] = defaultdict(deque)
        """By number of checks before a second node is asked; there are few different numbers."""
        self._late: deque[CqlRequest] = deque()
        self._spare = MAX_RETRY_CREDIT
        """Second attempts that may be sent now although the first node answers other requests."""

    def __bool__(self) -> bool:
        return bool(self._late) or any(self._sent.values())

    def add(self, request: CqlRequest) -> None:
        """Begins to watch a request, which earns ``RETRY_CREDIT`` of a second attempt.

        An idempotent one may also go to a second node before it times out.
        """
        self._spare = min(MAX_RETRY_CREDIT, self._spare + RETRY_CREDIT)
        waits = min(self._patience, int(request.timeout / 4 / CHECK_INTERVAL))
        queue = self._sent[waits] if request.idempotent and waits else self._late
        queue.append(request)

    def check(self, now: float) -> None:
        for waits, sent in list(self._sent.items()):
            while sent and (sent[0].is_answered or sent[0].began < now - waits * CHECK_INTERVAL):
                request = sent.popleft()
                if not request.is_answered:
                    self._late.append(request)
                    if request.attempts and self._may_ask_another(request):
                        self._ask(request)
        for _ in range(len(self._late)):
            request = self._late.popleft()
            if request.is_answered:
                continue
            if now - request.began < request.timeout:
                self._late.append(request)
            else:
                error = OperationTimedOut("no answer in time") if request.attempts else NoHostAvailable("no node", {})
                request.finish(None, translate(error, reads=request.reads, attempts=request.attempts))

    def _may_ask_another(self, request: CqlRequest) -> bool:
        """Returns whether to send a request to a second node: always if the first node answers nothing at all.

        Otherwise spends a second attempt that was saved up, if there is one.
        """
        if self._last_answer(request.host) < request.began:
            return True
        if self._spare < 1.0:
            return False
        self._spare -= 1.0
        return True
