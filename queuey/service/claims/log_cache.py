"""The claim logs in a process's memory, bounded by their weight, and the way to those of other workers.

Workers that append to one log at the same time refuse each other, and each holds the log's state. So a worker that was
refused forwards its callers' requests to the partition's home, which is the same worker for all: there the requests of
all workers share entries. This is an optimization. Each worker may append at any time, and does so if the home does not
answer: work that the home did then is as if an answer to a caller had been lost.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec

from queuey.claims.drafts import Poll
from queuey.claims.receipts import ClaimReceipt, ReceiptStatus, Settlement
from queuey.messages import Message, Meta, Queue
from queuey.service.claims.partition_log import PartitionLog
from queuey.service.claims.requests import ClaimTotals, Given, Kind, PollRequest, Request, SettleRequest, giving_back
from queuey.service.core import Core
from queuey.service.workers import Answer, Topic, Workers

SHARED = 30.0
"""Number of seconds for which a worker asks the home after it was refused."""
Key = tuple[int, int]
"""A queue's ``qid``, and a partition."""

Elsewhere = Callable[[Key, float, Sequence[Request]], Sequence[Request]]
"""Called with a log's key, the boot time at which another process was last found at work on it, and requests."""


class LogCache:
    """Finds logs, makes those that are missing, and drops the least recently used ones.

    Args:
        make: Makes a log; its argument is called after each round of the log.
        bound: Max bytes of all states together, about. Logs in use may go beyond it.
    """

    def __init__(self, make: Callable[[Key, Callable[[PartitionLog], None]], PartitionLog], bound: int) -> None:
        self._make = make
        self._bound = bound
        self._logs: OrderedDict[Key, PartitionLog] = OrderedDict()
        self._weights: dict[Key, int] = {}
        self.weight = 0
        """Bytes of all states together, about."""
        self.elsewhere: Elsewhere = lambda _key, _refused, requests: requests
        """Forwards requests to another worker, perhaps; returns the others."""

    def __len__(self) -> int:
        return len(self._logs)

    def add(self, key: Key, *requests: Request) -> None:
        """Passes requests to a log, or to another worker."""
        log = self._logs.get(key)
        if log is not None and log.refused >= 0:
            requests = tuple(self.elsewhere(key, log.refused, requests))
            if not requests:
                return
        self.add_here(key, *requests)

    def add_here(self, key: Key, *requests: Request) -> None:
        log = self._logs.get(key)
        if log is None:
            log = self._logs[key] = self._make(key, self._note)
        self._logs.move_to_end(key)
        log.add(*requests)

    def knows(self, key: Key, receipts: Sequence[ClaimReceipt]) -> bool:
        """Returns whether the entries that receipts name are in memory, so that none names one that never was."""
        log = self._logs.get(key)
        return log is not None and all(receipt.number <= log.state.number for receipt in receipts)

    def refused(self, key: Key) -> float:
        """Returns the boot time at which another process was last found at work on a log; very long ago if never."""
        log = self._logs.get(key)
        return -1e9 if log is None else log.refused

    def done(self, key: Key) -> tuple[int, int]:
        """Returns ``freed`` and ``vacated`` of a state."""
        log = self._logs.get(key)
        return (0, 0) if log is None else (log.state.freed, log.state.vacated)

    def load(self, key: Key) -> int:
        """Returns the number of ids in the present requests to a log."""
        log = self._logs.get(key)
        return 0 if log is None else log.load

    def measure(self) -> dict[str, float]:
        """Returns the sizes of these logs, by the names of the metrics; from any thread."""
        states = [log.state for log in list(self._logs.values())]
        return {
            "claims_outstanding": sum(len(state.outstanding) for state in states),
            "claims_covers": sum(state.covers.count for state in states),
            "claims_memory_bytes": self.weight,
        }

    def _note(self, log: PartitionLog) -> None:
        """Weighs a log after a round, and drops others if all are too heavy together."""
        weight = log.weight
        if weight == self._weights.get(log.key) and self.weight <= self._bound:
            return
        if self._logs.get(log.key) is not log:
            return
        self.weight += weight - self._weights.get(log.key, 0)
        self._weights[log.key] = weight
        if self.weight > self._bound:
            self._evict()

    def _evict(self) -> None:
        for _ in range(len(self._logs)):
            if self.weight <= self._bound:
                return
            key = next(iter(self._logs))
            if self._logs[key].idle:
                del self._logs[key]
                self.weight -= self._weights.pop(key, 0)
            else:
                self._logs.move_to_end(key)


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
    """Asks other workers to carry out requests, and carries out theirs."""

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
