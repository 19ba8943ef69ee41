"""Hands claims and receipts of a partition to one of the service's workers, where several have met.

Workers that append to one log at the same time refuse each other, and each holds the log's state. So once a worker was
refused it asks the partition's home, which is the same worker for all, to do what callers want: there the requests of
all workers share entries. Nothing depends on it. Each worker may append at any time, and does so if the home does not
answer: what the home did then is as if an answer to a caller had been lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec

from queuey.claims import ClaimReceipt, ClaimTiming, Poll, ReceiptStatus, Settlement
from queuey.messages import Message, Meta, Queue
from queuey.service.claims.log_cache import Key
from queuey.service.claims.requests import Kind, PollRequest, Request, SettleRequest, giving_back, too_late
from queuey.service.claims.runtime import Done, Runtime
from queuey.service.claims.totals import ClaimTotals
from queuey.service.workers import Answer, Topic, Workers

SHARED = 30.0
"""Seconds for which a worker asks the home after it was refused."""


class _Claim(msgspec.Struct, array_like=True, frozen=True):
    """A claim that another worker was asked for."""

    queue: Queue
    partition: int
    limit: int
    ttl: float
    max_bytes: int


class _Settle(msgspec.Struct, array_like=True, frozen=True):
    """Receipts that another worker was given; each of ticks, low part, number and secret."""

    queue: Queue
    partition: int
    kind: Kind
    receipts: list[tuple[int, int, int, int]]
    ttl: float


class _Given(msgspec.Struct, array_like=True, gc=False):
    """A message that was claimed, in the order of :class:`~queuey.messages.Message`, and its claim."""

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
    """Asks other workers, and answers them.

    Args:
        workers: This one and the others.
        add: Passes requests to a log of this process, which does them.
        runtime: Clocks.
        timing: When claims are over.
        totals: Counts what other workers are asked for.
    """

    def __init__(
        self, workers: Workers, add: Callable[..., None], runtime: Runtime, timing: ClaimTiming, totals: ClaimTotals
    ) -> None:
        self._workers = workers
        self._add = add
        self._runtime = runtime
        self._timing = timing
        self._totals = totals
        workers.handle(Topic.CLAIM, self._claim)
        workers.handle(Topic.SETTLE, self._settle)

    def forward(self, key: Key, refused: float, requests: Sequence[Request]) -> Sequence[Request]:
        """Hands requests to the partition's home, if that is another worker and there is a reason to.

        Args:
            key: The partition.
            refused: When (boot time) another process was last found at work there.
            requests: To its log.

        Returns:
            Those that are to be done here.
        """
        total, own = self._workers.identity.total, self._workers.identity.number
        if total == 1:
            return requests
        now, home = self._runtime.boottime(), 1 + (key[0] + key[1]) % total
        if home == own or now - refused > SHARED or not self._workers.is_up(home):
            return requests
        return [request for request in requests if not self._ask(home, key, now, request)]

    def _ask(self, home: int, key: Key, now: float, request: Request) -> bool:
        """Asks another worker for what a request wants, if it can do that; returns whether it is asked."""
        told: Callable[[bytes], None]
        if isinstance(request, PollRequest):
            poll = request.poll
            claim = _Claim(request.queue, key[1], poll.limit, poll.ttl, poll.max_bytes)
            topic, question, told = Topic.CLAIM, _encode(claim), partial(self._given, key, request, now)
        elif isinstance(request, SettleRequest):
            receipts = [(one.ticks, one.low, one.number, one.secret) for one in request.receipts]
            settle = _Settle(request.queue, key[1], request.kind, receipts, request.ttl)
            topic, question, told = Topic.SETTLE, _encode(settle), partial(self._settled, request, now)
        else:
            return False

        def heard(answer: bytes | None) -> None:
            if answer is not None:
                told(answer)
            elif not request.answered:
                request.doubtful = True
                self._add(key, request)

        request.asked, request.sent = now, True
        self._totals.forwarded()
        self._workers.ask(home, topic, question, heard)
        return True

    def _given(self, key: Key, request: PollRequest, asked: float, answer: bytes) -> None:
        """Gives a caller the messages that were claimed for it, or releases them again."""
        ttl = request.poll.ttl
        given = [
            (
                Message(one.ticks, one.low, one.partition, one.expires, one.body, one.meta),
                one.deliveries,
                ClaimReceipt(key[1], one.ticks, one.low, one.number, one.secret),
                one.until,
            )
            for one in _read_given(answer)
        ]
        if not (given and ttl):
            request.answer(given)
            return
        if not request.tell(given, late=self._is_late(asked, ttl)):
            self._add(key, giving_back(request.queue, [receipt for _, _, receipt, _ in given]))

    def _settled(self, request: SettleRequest, asked: float, answer: bytes) -> None:
        if request.kind == "renew" and self._is_late(asked, request.ttl):
            request.answer(None, too_late())
            return
        pairs = zip(request.receipts, _read_settled(answer), strict=request.kind != "check")
        request.answer([Settlement(receipt, status, expires) for receipt, (status, expires) in pairs])

    def _is_late(self, asked: float, ttl: float) -> bool:
        """Returns whether a claim may be over when the caller hears of it. Its expiry was chosen after the question."""
        return self._runtime.boottime() - asked > self._timing.answer_within(ttl)

    # Questions of other workers

    def _claim(self, question: bytes, answer: Answer) -> Callable[[], object]:
        asked = _read_claim(question)
        poll = Poll(asked.limit, asked.ttl, asked.max_bytes)
        return self._begin(asked, PollRequest(asked.queue, _answered(answer, _write_given), poll))

    def _settle(self, question: bytes, answer: Answer) -> Callable[[], object]:
        asked = _read_settle(question)
        receipts = [ClaimReceipt(asked.partition, *receipt) for receipt in asked.receipts]
        done = _answered(answer, lambda settled: _encode([(one.status, one.expires) for one in settled]))
        return self._begin(asked, SettleRequest(asked.queue, done, asked.kind, receipts, asked.ttl))

    def _begin(self, asked: _Claim | _Settle, request: Request) -> Callable[[], object]:
        self._add((asked.queue.qid, asked.partition), request)
        return request.give_up


def _answered(answer: Answer, encode: Callable[[Any], bytes]) -> Done:
    """Returns what answers a worker. An error is none: the worker does it by itself and finds out what is wrong."""
    return lambda value, error: answer(None if error is not None else encode(value))


def _write_given(given: list[tuple[Message, int, ClaimReceipt, int]]) -> bytes:
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
