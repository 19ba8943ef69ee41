"""Servers that answer by a script, and time that passes only when the client sleeps."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from threading import Thread
from typing import Any

import httpx2

from queuey.client import (
    AsyncClient,
    AsyncConsumerGroups,
    AsyncJob,
    AsyncJobQueue,
    AsyncMoving,
    AsyncNamedMessages,
    AsyncSchedules,
    AsyncTiming,
    Client,
    RetryPolicy,
    Timing,
)

KEY = "s3cret-key-that-must-never-show"
ONE = "http://one.example:5000/v1/acme/"
TWO = "http://two.example:5000/v1/acme/"

END = object()

Reply = httpx2.Response | Exception | Callable[[httpx2.Request], httpx2.Response]


def ok(status: int = 200, **fields: object) -> httpx2.Response:
    return httpx2.Response(status, json={"status": "ok", **fields})


def receipts(count: int = 1, first: int = 1) -> httpx2.Response:
    rows = [{"key": message_id(n), "timestamp": "1.0000000", "partition": 1} for n in range(first, first + count)]
    return ok(201, messages=rows)


def message_id(number: int) -> str:
    """Returns a message id; a higher number is a later id."""
    return f"{number:08x}000010008000000000000001"


def page(*numbers: int, more: bool = False, **fields: object) -> httpx2.Response:
    messages = [
        {"message_id": message_id(n), "timestamp": f"{n}.0000000", "partition": 1, "body": f"m{n}"} for n in numbers
    ]
    after = message_id(max(numbers, default=0) + 1)
    body: dict[str, Any] = {
        "messages": messages,
        "horizon": message_id(99),
        "next": {"1": after},
        "cursor": f"1:{after}",
        "more": more,
    }
    return ok(**body | fields)


def claims(
    *numbers: int, deliveries: int = 1, superseded: Sequence[int] = (), suspected: bool = False
) -> httpx2.Response:
    """Returns the answer to a claim: messages of partition 1, and the receipts that it could not acknowledge."""
    messages = [
        {
            "message_id": message_id(n),
            "timestamp": f"{n}.0000000",
            "partition": 1,
            "body": f"m{n}",
            "receipt": f"r{n}",
            "deliveries": deliveries,
            "expires": 1030.0,
            "suspected": suspected,
        }
        for n in numbers
    ]
    acknowledged = [{"receipt": f"r{n}", "status": "superseded"} for n in superseded]
    return ok(messages=messages, acknowledged=acknowledged)


def settlement(*superseded: int) -> httpx2.Response:
    """Returns the answer to an acknowledgement, a renewal or a release: a 409 with the refused receipts, else a 200."""
    results = [{"receipt": f"r{n}", "status": "superseded"} for n in superseded]
    if not results:
        return ok(results=[])
    body = {"status": "error", "error_msg": {"ClaimLost": "handed out again"}, "results": results}
    return httpx2.Response(409, json=body)


def refuse_connection(request: httpx2.Request) -> httpx2.Response:
    raise httpx2.ConnectError("Connection refused", request=request)


def break_connection(request: httpx2.Request) -> httpx2.Response:
    raise httpx2.RemoteProtocolError("Server disconnected without sending a response.", request=request)


def time_out(request: httpx2.Request) -> httpx2.Response:
    raise httpx2.ReadTimeout("timed out", request=request)


def busy(retry_after: int | None = None, **fields: object) -> httpx2.Response:
    headers = {} if retry_after is None else {"retry-after": str(retry_after)}
    body = {"status": "error", "error_msg": {"StoreBusy": "locked"}, **fields}
    return httpx2.Response(503, json=body, headers=headers)


def too_many(retry_after: int, **fields: object) -> httpx2.Response:
    body = {"status": "error", "error_msg": {"TooManyRequests": "too many"}, **fields}
    return httpx2.Response(429, json=body, headers={"retry-after": str(retry_after)})


def in_use(retry_after: int) -> httpx2.Response:
    body = {"status": "error", "error_msg": {"IdempotencyKeyInUse": "in use"}}
    return httpx2.Response(409, json=body, headers={"retry-after": str(retry_after)})


class Script:
    """Replies in order, the last one repeated for ever, with the requests and sleeps recorded.

    An exception is raised, and a function is called with the request.
    """

    def __init__(self, *replies: Reply) -> None:
        self._replies = list(replies)
        self.requests: list[httpx2.Request] = []
        self.slept: list[float] = []
        self.now = 1000.0

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.requests.append(request)
        reply = self._replies.pop(0) if len(self._replies) > 1 else self._replies[0]
        if isinstance(reply, Exception):
            raise reply
        if isinstance(reply, httpx2.Response):
            return httpx2.Response(reply.status_code, headers=reply.headers, content=reply.content)
        return reply(request)

    @property
    def hosts(self) -> list[str]:
        return [request.url.host.partition(".")[0] for request in self.requests]

    def sent(self, number: int = -1) -> Any:  # noqa: ANN401 - whatever was sent
        """Returns the JSON body of a request, by default of the last one."""
        return json.loads(self.requests[number].content)

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    async def async_sleep(self, seconds: float) -> None:
        self.sleep(seconds)


class BlockingClient:
    """An async client that is called like the sync one, so that one suite runs on both; its loop has a thread.

    What it returns is wrapped in the same way, where its methods are async.
    """

    def __init__(self, client: Any, loop: asyncio.AbstractEventLoop | None = None) -> None:  # noqa: ANN401 - and its jobs
        self._client = client
        if loop is None:
            loop = asyncio.new_event_loop()
            self._thread = Thread(target=loop.run_forever, daemon=True)
            self._thread.start()
        self._loop = loop

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - a method of the client
        value = getattr(self._client, name)
        if isinstance(value, AsyncSchedules | AsyncConsumerGroups):
            return BlockingClient(value, self._loop)
        if not callable(value):
            return value

        def call(*args: Any, **options: Any) -> Any:  # noqa: ANN401 - passed on
            result = value(*args, **options)
            if hasattr(result, "__anext__"):
                return self._iterate(result)
            if asyncio.iscoroutine(result):
                result = self._wait(result)
            if isinstance(result, AsyncClient | AsyncJobQueue | AsyncMoving | AsyncNamedMessages):
                return BlockingClient(result, self._loop)
            return result

        return call

    def __repr__(self) -> str:
        return repr(self._client)

    def shut(self) -> None:
        self._wait(self._client.close())
        self._wait(self._loop.shutdown_asyncgens())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)
        self._loop.close()

    def _wait(self, coroutine: Coroutine[Any, Any, Any]) -> Any:  # noqa: ANN401 - its result
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(300)

    def _iterate(self, values: AsyncGenerator[Any]) -> Iterator[Any]:
        async def following() -> Any:  # noqa: ANN401 - one of the values
            return await anext(values, END)

        try:
            while (value := self._wait(following())) is not END:
                yield BlockingClient(value, self._loop) if isinstance(value, AsyncJob) else value
        finally:
            if not self._loop.is_closed():
                self._wait(values.aclose())


CREDENTIALS = {"key", "token", "token_file", "token_command"}


def _options(
    script: Script,
    timing: Timing | AsyncTiming,
    *,
    scripted_time: bool = True,
    **options: Any,  # noqa: ANN401 - the client's
) -> dict[str, Any]:
    key = {} if options.keys() & CREDENTIALS else {"key": KEY}
    transport = httpx2.MockTransport(script)
    return {"transport": transport, "timing": timing if scripted_time else None, **key, **options}


def sync_client(
    script: Script,
    url: Any = ONE,  # noqa: ANN401 - one address or several
    retry: RetryPolicy | None = None,
    receipts: Path | None = None,
    **options: Any,  # noqa: ANN401 - the client's
) -> Client:
    timing = Timing(clock=script.clock, sleep=script.sleep, draw=lambda: 1.0)
    return Client(url, retry=retry, receipts=receipts, **_options(script, timing, **options))


def async_client(
    script: Script,
    url: Any = ONE,  # noqa: ANN401 - one address or several
    retry: RetryPolicy | None = None,
    receipts: Path | None = None,
    **options: Any,  # noqa: ANN401 - the client's
) -> AsyncClient:
    timing = AsyncTiming(clock=script.clock, sleep=script.async_sleep, draw=lambda: 1.0)
    return AsyncClient(url, retry=retry, receipts=receipts, **_options(script, timing, **options))
