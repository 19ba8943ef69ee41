"""A caller that uses as much of the service as it can get, in its own process.

Run it as ``python -m bench.load.greedy PORT KIND``; it runs until it is stopped. It accepts any answer of the service.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from bench.load.traffic import KEY, bodies, request

CONNECTIONS = 64
SHORT_BODY_BYTES = 8 * 1024 * 1024 - 1
"""Bytes of a body that is one byte shorter than its Content-Length."""
PIECE_BYTES = 64 * 1024


Send = Callable[[str, str, dict[str, Any]], Awaitable[Any]]
"""Sends a request with a JSON object; returns the object of the answer, or None if that is not a success."""


@dataclass(frozen=True)
class Kind:
    """The behaviour of each connection, which is repeated.

    Attributes:
        ask: The request.
        body: Number of additional bytes to send after the request.
        reads: Whether answers are read; otherwise the connection stays open until the server closes it.
        pause: Seconds before a repetition; the connections begin evenly over this time.
        act: What a connection does again and again with a function that sends a request, instead of ``ask``.
    """

    ask: str
    body: int = 0
    reads: bool = True
    pause: float = 0.0
    act: Callable[[Send, int], Awaitable[None]] | None = None


def without_key(text: str) -> str:
    return text.replace(f"Authorization: Application {KEY}\r\n", "")


def with_long_content_length(text: str) -> str:
    return text.replace("Content-Length: 0", f"Content-Length: {SHORT_BODY_BYTES + 1}")


def batch(path: str, messages: list[dict[str, object]]) -> str:
    return request("POST", path, json.dumps({"messages": messages}), {"Content-Type": "application/json"})


PATH = "/v1/queuey/bench"
BRIEF_PATH = "/v1/queuey/brief"
"""A queue for messages with a TTL of seconds, which would otherwise fill the disk."""
WIDE_PATH = "/v1/queuey/wide"
PARTITIONS = 200
"""Partitions of the queue ``wide``, which everybody may read."""
LISTED_QUEUES = 200
"""Number of queues of the list with counts."""
MERGED_PATH = f"{WIDE_PATH}?partitions=*&merge=true&limit=1000"
PATTERNS, HEARTBEATS = 20, 5
"""Patterns of a member, and heartbeats after which it joins anew."""
SUBSCRIBED_QUEUES = 1000
"""Queues whose names the patterns of members are compared with."""
GROUPS = 4
"""Groups that the members join."""


async def use_groups(send: Send, number: int) -> None:
    """Joins a group with patterns that take long to compare, sends heartbeats, looks at the group, and leaves."""
    group = f"{PATH.rpartition('/')[0]}/_groups/greedy{number % GROUPS}"
    patterns = [f"*{'[a-z]' * 15}[!a]{number}-{pattern}" for pattern in range(PATTERNS - 1)]
    joined = await send("POST", f"{group}/members", {"patterns": [*patterns, "subscribed*"], "session": 6})
    if joined is not None:
        for _ in range(HEARTBEATS):
            await send("POST", f"{group}/members/{joined['member']}", {"wait": 1})
        await send("GET", f"{group}?lag=1", {})
        await send("DELETE", f"{group}/members/{joined['member']}", {})


DELAYED_MESSAGES: list[dict[str, object]] = [
    {"body": "x", "ttl": 60, "delay": 0.5 + number / 64} for number in range(500)
]
"""A batch that is sent four times a second (64 connections, 16 s pause): 2,000 messages come due per second."""
KINDS: dict[str, Kind] = {
    "posts": Kind(request("POST", PATH, bodies(1)[0], {"Content-Type": "text/plain"})),
    "long posts": Kind(request("POST", BRIEF_PATH, "x" * 60_000, {"Content-Type": "text/plain", "X-TTL": "2"})),
    "batches of 8 MiB": Kind(batch(BRIEF_PATH, [{"body": "x" * 250_000, "ttl": 2}] * 33)),
    "delayed messages": Kind(batch(PATH, DELAYED_MESSAGES), pause=16),
    "reads of 100": Kind(request("GET", f"{PATH}?limit=100")),
    "pages of 8 MiB": Kind(request("GET", "/v1/queuey/pages?limit=1000")),
    "merges": Kind(request("GET", MERGED_PATH)),
    "merges without a key": Kind(without_key(request("GET", MERGED_PATH))),
    "lists with counts": Kind(request("GET", "/v1/queuey?include_count=1&limit=1000")),
    "info of 200 partitions": Kind(request("GET", f"{WIDE_PATH}/info")),
    "explanations": Kind(request("GET", f"{WIDE_PATH}/explain")),
    "exports": Kind(request("GET", f"{WIDE_PATH}?partitions=*&limit=1000")),
    "groups with patterns": Kind("", act=use_groups),
    "pages not read": Kind(request("GET", "/v1/queuey/pages?limit=1000"), reads=False),
    "bodies one byte short": Kind(
        with_long_content_length(request("POST", PATH, "")), body=SHORT_BODY_BYTES, reads=False
    ),
    "bodies without a key": Kind(
        with_long_content_length(without_key(request("POST", PATH, ""))), body=SHORT_BODY_BYTES
    ),
    "long polls": Kind(request("GET", "/v1/queuey/empty?wait=20")),
    "heartbeats": Kind(without_key(request("GET", "/__heartbeat__"))),
}
SPREAD_SECONDS = 1.0
"""Seconds over which connections without a pause begin."""


async def use_connections(port: int, kind: Kind, number: int) -> None:
    """Opens one connection after another, forever, and exhausts each; ignores failed and closed connections.

    The first one begins after a share of the pause (of :data:`SPREAD_SECONDS` without a pause).
    """
    await asyncio.sleep((kind.pause or SPREAD_SECONDS) * number / CONNECTIONS)
    while True:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=PIECE_BYTES)
            try:
                if kind.act is not None:
                    await kind.act(make_send(reader, writer), number)
                else:
                    await exhaust_connection(reader, writer, kind)
            finally:
                writer.close()
        await asyncio.sleep(0.01)


async def exhaust_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, kind: Kind) -> None:
    """Sends the request over and over, at the kind's pace, until the connection or a body ends.

    A kind that does not read never goes on after its request.
    """
    ask = kind.ask.encode("latin-1")
    while True:
        writer.write(ask)
        await writer.drain()
        if kind.body:
            sending = asyncio.create_task(send_body(writer, kind.body))
        if not kind.reads:
            await asyncio.sleep(3600)
        head = await reader.readuntil(b"\r\n\r\n")
        remaining = read_length(head)
        while remaining:
            remaining -= len(await reader.readexactly(min(remaining, PIECE_BYTES)))
        if kind.body:
            sending.cancel()
            return
        await asyncio.sleep(kind.pause)
        if not head.startswith(b"HTTP/1.1 2"):
            await asyncio.sleep(0.1)  # a short wait after a refusal, less than the server asks for


def make_send(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Send:
    async def send(method: str, path: str, body: dict[str, Any]) -> Any:  # noqa: ANN401 - an object of JSON
        text = json.dumps(body) if method == "POST" else ""
        writer.write(request(method, path, text, {"Content-Type": "application/json"} if text else None).encode())
        head = await reader.readuntil(b"\r\n\r\n")
        content = await reader.readexactly(read_length(head))
        if not head.startswith(b"HTTP/1.1 2"):
            await asyncio.sleep(0.1)
            return None
        return json.loads(content)

    return send


def read_length(head: bytes) -> int:
    return next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))


async def send_body(writer: asyncio.StreamWriter, size: int) -> None:
    """Sends ``size`` spaces; ends silently if the connection fails."""
    with contextlib.suppress(OSError):
        for _ in range(size // PIECE_BYTES):
            writer.write(b" " * PIECE_BYTES)
            await writer.drain()
        writer.write(b" " * (size % PIECE_BYTES))
        await writer.drain()


async def main(port: int, name: str) -> None:
    kind = KINDS[name]
    await asyncio.gather(*(use_connections(port, kind, number) for number in range(CONNECTIONS)))


if __name__ == "__main__":
    # This process stands for another machine, so it only gets the CPU that the service and the other caller leave.
    os.nice(15)
    asyncio.run(main(int(sys.argv[1]), sys.argv[2]))
