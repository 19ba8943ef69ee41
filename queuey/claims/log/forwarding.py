"""Forwards requests to a partition's log to the worker of the service that gathers them.

Workers that append to one log at the same time refuse each other, and each of them holds the log's state. So a worker
that was refused forwards its callers' requests to the partition's home, which is the same worker for all: there the
requests of all workers share entries. This is an optimization. Each worker may append at any time, and does so if the
home does not answer. Work that the home has done by then is as if an answer to a caller had been lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import msgspec

from queuey.claims.log.log_requests import (
    ClaimDelivery,
    ClaimTotals,
    Key,
    LogRequest,
    PollRequest,
    SettleKind,
    SettleRequest,
    make_release_request,
)
from queuey.claims.rules.entry_draft import Poll
from queuey.claims.rules.receipts import ClaimReceipt, ReceiptOutcome
from queuey.model.messages import Message, Queue
from queuey.runtime.event_loop import Core
from queuey.runtime.workers import Answer, GiveUp, Topic, Workers

FORWARDING_SECONDS = 30.0
"""Number of seconds for which a worker forwards requests after it was refused."""


class _Claim(msgspec.Struct, array_like=True, frozen=True):
    """A claim sent to another worker."""

    queue: Queue
    partition: int
    limit: int
    ttl: float
    max_bytes: int
    worker: str

    def make_request(self) -> LogRequest:
        return PollRequest(self.queue, Poll(self.limit, self.ttl, self.max_bytes, self.worker))


class _Settle(msgspec.Struct, array_like=True, frozen=True):
    """Receipts sent to another worker."""

    queue: Queue
    partition: int
    kind: SettleKind
    receipts: Sequence[ClaimReceipt]
    ttl: float
    begun: bool | None

    def make_request(self) -> LogRequest:
        return SettleRequest(self.queue, self.kind, self.receipts, self.ttl, begun=self.begun)


class _Message(Message, array_like=True, gc=False):
    """A message claimed by another worker. Its body is untyped: msgspec cannot decode a union of text and bytes."""

    body: Any


class _Delivery(ClaimDelivery, array_like=True, gc=False):
    message: _Message


CLAIM_TOPIC = Topic(17, _Claim, cast("type[list[ClaimDelivery]]", list[_Delivery]))
SETTLE_TOPIC = Topic(18, _Settle, list[ReceiptOutcome])


class Forwarding:
    """Sends requests to other workers, and answers theirs."""

    def __init__(self, workers: Workers, add: Callable[..., None], core: Core, totals: ClaimTotals) -> None:
        self._workers = workers
        self._add = add
        self._core = core
        self._totals = totals
        workers.handle(CLAIM_TOPIC, self._begin_work)
        workers.handle(SETTLE_TOPIC, self._begin_work)

    def forward(self, key: Key, last_conflict: float, requests: tuple[LogRequest, ...]) -> tuple[LogRequest, ...]:
        """Sends requests to the partition's home; returns the requests to be done here.

        It sends them only if the home is another worker that is up, and an append of this worker was refused recently.
        """
        total, own_number = self._workers.identity.total, self._workers.identity.number
        if total == 1:
            return requests
        now, home = self._core.boottime(), 1 + (key[0] + key[1]) % total
        if home == own_number or now - last_conflict > FORWARDING_SECONDS or not self._workers.is_up(home):
            return requests
        return tuple(request for request in requests if not self._send(home, key, now, request))

    def _send(self, home: int, key: Key, now: float, request: LogRequest) -> bool:
        """Sends a poll or settlement to a worker, and marks it as sent; returns False for other requests."""
        on_answer = partial(self._core.call_soon, self._on_answer, key, request)
        if isinstance(request, PollRequest):
            poll = request.poll
            claim = _Claim(request.queue, key[1], poll.limit, poll.ttl, poll.max_bytes, poll.worker)
            ask = partial(self._workers.ask, home, CLAIM_TOPIC, claim, on_answer)
        elif isinstance(request, SettleRequest):
            settle = _Settle(request.queue, key[1], request.kind, request.receipts, request.ttl, request.begun)
            ask = partial(self._workers.ask, home, SETTLE_TOPIC, settle, on_answer)
        else:
            return False

        # The home chooses the claims' expiries later; whether they are late for the caller counts from now.
        request.arrived = request.decided = now
        request.sent = True
        self._totals.count_forwarding()
        ask()
        return True

    def _on_answer(self, key: Key, request: LogRequest, answer: list[Any] | None) -> None:
        """Answers the request, or does it here if no answer came. Claims for a caller that is gone are released."""
        if answer is None:
            if not request.future.done():
                request.maybe_done = True
                self._add(key, request)
        elif not request.answer(answer) and answer and isinstance(request, PollRequest) and request.poll.ttl:
            self._add(key, make_release_request(request.queue, [delivery.receipt for delivery in answer]))

    def _begin_work(self, work: _Claim | _Settle, answer: Answer[Any]) -> GiveUp:
        """Starts another worker's request, from any thread; returns a function that cancels it.

        An error is sent as no answer: the other worker then tries the request itself and finds the error.
        """
        begun: list[LogRequest] = []

        def ended(future: asyncio.Future[Any]) -> None:
            if not future.cancelled():
                answer(None if future.exception() is not None else future.result())

        def begin() -> None:
            request = work.make_request()
            begun.append(request)
            request.future.add_done_callback(ended)
            self._add((work.queue.qid, work.partition), request)

        def give_up() -> None:
            for request in begun:
                request.future.cancel()

        self._core.call_soon(begin)
        return partial(self._core.call_soon, give_up)
