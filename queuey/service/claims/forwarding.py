"""Forwards requests to a partition's log to one of the service's workers, where several have met.

Workers that append to one log at the same time refuse each other, and each holds the log's state. So a worker that was
refused forwards its callers' requests to the partition's home, which is the same worker for all: there the requests of
all workers share entries. This is an optimization. Each worker may append at any time, and does so if the home does not
answer: work that the home did then is as if an answer to a caller had been lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec

from queuey.claims.drafts import Poll
from queuey.claims.receipts import ClaimReceipt, ReceiptStatus, Settlement
from queuey.messages import Message, Meta, Queue
from queuey.service.claims.log_cache import Key
from queuey.service.claims.requests import ClaimTotals, Given, Kind, PollRequest, Request, SettleRequest, giving_back
from queuey.service.core import Core
from queuey.service.workers import Answer, Topic, Workers

SHARED = 30.0
"""Number of seconds for which a worker asks the home after it was refused."""


class _Claim(msgspec.Struct, array_like=True, frozen=True):
    """A claim for another worker."""

    queue: Queue
    partition: int
    limit: int
    ttl: float
    max_bytes: int
    worker: str = ""


class _Settle(msgspec.Struct, array_like=True, frozen=True):
    """Receipts for another worker; each of ticks, low part, number and secret."""

    queue: Queue
    partition: int
    kind: Kind
    receipts: list[tuple[int, int, int, int]]
    ttl: float


class _Given(msgspec.Struct, array_like=True, gc=False):
    """A claimed message, in the order of :class:`~queuey.messages.Message`, and its claim."""

    ticks: int
    low: int
    partition: int
    expires: int
    body: Any
    meta: Meta | None
    deliveries: int
    number: int
    secret: int
    until: int


_encode = msgspec.msgpack.Encoder().encode
_read_claim = msgspec.msgpack.Decoder(_Claim).decode
_read_settle = msgspec.msgpack.Decoder(_Settle).decode
_read_given = msgspec.msgpack.Decoder(list[_Given]).decode
_read_settled = msgspec.msgpack.Decoder(list[tuple[ReceiptStatus, float]]).decode


class Forwarding:
    """Asks other workers, and answers them."""

    def __init__(self, workers: Workers, add: Callable[..., None], core: Core, totals: ClaimTotals) -> None:
        self._workers = workers
        self._add = add
        self._core = core
        self._totals = totals
        workers.handle(Topic.CLAIM, self._claim)
        workers.handle(Topic.SETTLE, self._settle)

    def forward(self, key: Key, refused: float, requests: Sequence[Request]) -> Sequence[Request]:
        """Sends requests to the partition's home, if that is another worker and this one was refused lately.

        Returns the requests that are to be done here.
        """
        total, own = self._workers.identity.total, self._workers.identity.number
        if total == 1:
            return requests
        now, home = self._core.boottime(), 1 + (key[0] + key[1]) % total
        if home == own or now - refused > SHARED or not self._workers.is_up(home):
            return requests
        return [request for request in requests if not self._ask(home, key, now, request)]

    def _ask(self, home: int, key: Key, now: float, request: Request) -> bool:
        """Sends a request to another worker, if its kind can be; returns whether it was sent."""
        read: Callable[[bytes], list[Any]]
        if isinstance(request, PollRequest):
            poll = request.poll
            claim = _Claim(request.queue, key[1], poll.limit, poll.ttl, poll.max_bytes, poll.worker)
            topic, question, read = Topic.CLAIM, _encode(claim), partial(_given, key[1])
        elif isinstance(request, SettleRequest):
            receipts = [(one.ticks, one.low, one.number, one.secret) for one in request.receipts]
            settle = _Settle(request.queue, key[1], request.kind, receipts, request.ttl)
            topic, question, read = Topic.SETTLE, _encode(settle), partial(_settled, request)
        else:
            return False

        # The expiries of claims are chosen after this, and the caller's clock for them begins now.
        request.asked = request.decided = now
        request.sent = True
        self._totals.forwarded()
        self._workers.ask(home, topic, question, partial(self._core.tell, self._heard, key, request, read))
        return True

    def _heard(self, key: Key, request: Request, read: Callable[[bytes], list[Any]], answer: bytes | None) -> None:
        """Answers a caller; without an answer of the worker the request is done here."""
        if answer is None:
            if not request.future.done():
                request.doubtful = True
                self._add(key, request)
            return
        found = read(answer)
        if not request.answer(found) and found and isinstance(request, PollRequest) and request.poll.ttl:
            self._add(key, giving_back(request.queue, [receipt for _, _, receipt, _ in found]))

    # Questions of other workers

    def _claim(self, question: bytes, answer: Answer) -> Callable[[], object]:
        asked = _read_claim(question)
        poll = Poll(asked.limit, asked.ttl, asked.max_bytes, asked.worker)
        return self._begin(asked, lambda: PollRequest(asked.queue, poll), answer, _write_given)

    def _settle(self, question: bytes, answer: Answer) -> Callable[[], object]:
        asked = _read_settle(question)
        receipts = [ClaimReceipt(asked.partition, *receipt) for receipt in asked.receipts]
        return self._begin(
            asked,
            lambda: SettleRequest(asked.queue, asked.kind, receipts, asked.ttl),
            answer,
            lambda settled: _encode([(one.status, one.expires) for one in settled]),
        )

    def _begin(
        self,
        asked: _Claim | _Settle,
        make: Callable[[], Request],
        answer: Answer,
        encode: Callable[[Any], bytes],
    ) -> Callable[[], object]:
        """Starts another worker's request, from any thread; returns a function that gives it up.

        An error is no answer: the worker does it by itself and finds out what is wrong.
        """
        begun: list[Request] = []

        def ended(future: asyncio.Future[Any]) -> None:
            if not future.cancelled():
                answer(None if future.exception() is not None else encode(future.result()))

        def begin() -> None:
            request = make()
            begun.append(request)
            request.future.add_done_callback(ended)
            self._add((asked.queue.qid, asked.partition), request)

        def give_up() -> None:
            for request in begun:
                request.future.cancel()

        self._core.tell(begin)
        return partial(self._core.tell, give_up)


def _given(partition: int, answer: bytes) -> list[Given]:
    return [
        (
            Message(one.ticks, one.low, one.partition, one.expires, one.body, one.meta),
            one.deliveries,
            ClaimReceipt(partition, one.ticks, one.low, one.number, one.secret),
            one.until,
        )
        for one in _read_given(answer)
    ]


def _settled(request: SettleRequest, answer: bytes) -> list[Settlement]:
    pairs = zip(request.receipts, _read_settled(answer), strict=request.kind != "check")
    return [Settlement(receipt, status, expires) for receipt, (status, expires) in pairs]


def _write_given(given: list[Given]) -> bytes:
    return _encode(
        [
            _Given(
                one.ticks,
                one.low,
                one.partition,
                one.expires,
                one.body,
                one.meta,
                deliveries,
                receipt.number,
                receipt.secret,
                until,
            )
            for one, deliveries, receipt, until in given
        ]
    )
