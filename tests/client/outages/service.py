"""A service that fails in one way, for good or until a moment, and answers every request from then on."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator
from math import inf

import httpx2

from tests.client.scripted import Script, busy, claims, message_id, ok, page, receipts, refuse_connection, settlement

FIRST = message_id(1)
STREAM = f"retry: 4000\nid: c0\n\nid: c1\ndata: {json.dumps(page(1).json()['messages'][0] | {'queue_name': 'q'})}\n\n"


class BrokenStream(httpx2.SyncByteStream, httpx2.AsyncByteStream):
    """The body of an answer that breaks off after its first bytes."""

    def __init__(self, begin: bytes = b'{"sta') -> None:
        self._begin = begin

    def __iter__(self) -> Iterator[bytes]:
        yield self._begin
        raise httpx2.ReadError("broken off")

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for part in self:
            yield part


class Outage(Script):
    """A fake service, whose clock the client's pauses and its own silence move.

    Args:
        fault: One of ``FAULTS``.
        until: When it works again, in seconds from the begin.

    Attributes:
        times: When each request came, in seconds from the begin.
    """

    def __init__(self, fault: str, until: float = inf) -> None:
        super().__init__()
        self._fault = FAULTS[fault]
        self._begin, self._end = self.now, self.now + until
        self.times: list[float] = []

    @property
    def elapsed(self) -> float:
        return self.now - self._begin

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.requests.append(request)
        self.times.append(self.elapsed)
        if self.now < self._end:
            return self._fault(self, request)
        return self.answer(request)

    def silence(self, request: httpx2.Request) -> httpx2.Response:
        self.now += request.extensions["timeout"]["read"]
        raise httpx2.ReadTimeout("timed out", request=request)

    def answer(self, request: httpx2.Request) -> httpx2.Response:
        path, method = request.url.path.removeprefix("/v1/acme/"), request.method
        answers: dict[str, Callable[[], httpx2.Response]] = {
            "_stream": lambda: httpx2.Response(200, content=STREAM.encode()),
            "_read": lambda: ok(queues=[]),
            "_unread": lambda: ok(queues=[]),
            "_heartbeat": ok,
            "offsets": lambda: ok(groups=[]),
            "claims": lambda: claims(1),
            "ack": settlement,
            "renew": settlement,
            "release": settlement,
            "read": lambda: ok(read={}, pending=0),
        }
        if "/jobs/" in path:
            return ok(jobs=[{"message_id": FIRST, "partition": 1, "status": "done", "result": 5}])
        last = path.rsplit("/", 1)[-1]
        if path.startswith("_moves/"):
            return httpx2.Response(
                200, json={"move": last, "from": "q", "to": "r", "state": "done", "moved": 1, **ENDED}
            )
        return answers.get(last, receipts if method == "POST" else lambda: page(1))()


ENDED = {"total": 1, "left": 0, "began": 1.0, "updated": 2.0, "ended": 3.0, "error": None}

FAULTS: dict[str, Callable[[Outage, httpx2.Request], httpx2.Response]] = {
    "refuses": lambda _, request: refuse_connection(request),
    "accepts and breaks": lambda _, __: httpx2.Response(200, stream=BrokenStream()),
    "is silent": Outage.silence,
    "is busy": lambda _, __: busy(outcome="none"),
}
