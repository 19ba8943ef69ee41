"""A caller who takes what it can get, in a process of its own.

Run as ``python -m bench.load.greedy PORT KIND``; it goes on until it is ended. Any answer of the service is fine.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import ssl
import sys
from dataclasses import dataclass

from bench.load.traffic import KEY, bodies, request
from queuey.settings import Settings

CONNECTIONS = 64
LONG = 8 * 1024 * 1024 - 1
"""Bytes of a body that is one byte short of what was announced."""
PIECE = 64 * 1024


@dataclass(frozen=True)
class Kind:
    """What is done on each connection, again and again.

    Attributes:
        ask: The request.
        body: Bytes to send after it that the request has not.
        reads: Whether answers are read; otherwise the connection is kept until the other end closes it.
        pause: Seconds before it is done again; the connections begin evenly over as long.
        connections: How many there are at a time.
        each: Seconds between two bytes of the request; 0: it is sent whole.
        scheme: https: with a handshake. Otherwise bytes are sent as they are, whatever the service expects.
    """

    ask: str
    body: int = 0
    reads: bool = True
    pause: float = 0.0
    connections: int = CONNECTIONS
    each: float = 0.0
    scheme: str = "http"


def without_key(text: str) -> str:
    """Returns a request of somebody without a credential."""
    return text.replace(f"Authorization: Application {KEY}\r\n", "")


def announced(text: str) -> str:
    """Returns a request that announces a long body."""
    return text.replace("Content-Length: 0", f"Content-Length: {LONG + 1}")


def batch(path: str, messages: list[dict[str, object]]) -> str:
    """Returns a post of many messages."""
    return request("POST", path, json.dumps({"messages": messages}), {"Content-Type": "application/json"})


PATH = "/v1/queuey/bench"
BRIEF = "/v1/queuey/brief"
"""For what would fill the disk: it lives for seconds."""
WIDE = "/v1/queuey/wide"
PARTITIONS = 200
"""Of the queue ``wide``, which everybody may read."""
LISTED = 200
"""Queues that a list counts."""
MERGED = f"{WIDE}?partitions=*&merge=true&limit=1000"
DELAYED: list[dict[str, object]] = [{"body": "x", "ttl": 60, "delay": 0.5 + number / 64} for number in range(500)]
"""A batch that 64 connections send four times a second: 2,000 messages come due in a second, after up to eight."""
KINDS: dict[str, Kind] = {
    "posts": Kind(request("POST", PATH, bodies(1)[0], {"Content-Type": "text/plain"})),
    "long posts": Kind(request("POST", BRIEF, "x" * 60_000, {"Content-Type": "text/plain", "X-TTL": "2"})),
    "batches of 8 MiB": Kind(batch(BRIEF, [{"body": "x" * 250_000, "ttl": 2}] * 33)),
    "delayed messages": Kind(batch(PATH, DELAYED), pause=16),
    "reads of 100": Kind(request("GET", f"{PATH}?limit=100")),
    "pages of 8 MiB": Kind(request("GET", "/v1/queuey/pages?limit=1000")),
    "merges": Kind(request("GET", MERGED)),
    "merges without a key": Kind(without_key(request("GET", MERGED))),
    "lists with counts": Kind(request("GET", "/v1/queuey?include_count=1&limit=1000")),
    "info of 200 partitions": Kind(request("GET", f"{WIDE}/info")),
    "pages not read": Kind(request("GET", "/v1/queuey/pages?limit=1000"), reads=False),
    "bodies one byte short": Kind(announced(request("POST", PATH, "")), body=LONG, reads=False),
    "bodies without a key": Kind(announced(without_key(request("POST", PATH, ""))), body=LONG),
    "long polls": Kind(request("GET", "/v1/queuey/empty?wait=20")),
    "heartbeats": Kind(without_key(request("GET", "/__heartbeat__"))),
}
MANY = 1000
HANDSHAKES = 500
"""A second."""
SILENT, HANDSHAKING = "silent connections", f"{HANDSHAKES} handshakes a second"
STRANGERS: dict[str, Kind] = {
    SILENT: Kind("", connections=Settings().connections + 1),
    f"{MANY} slow heads": Kind(without_key(request("GET", PATH)), connections=MANY, each=0.5),
    f"{MANY} slow readers": Kind(request("GET", "/v1/queuey/pages?limit=1000"), connections=MANY, reads=False),
    HANDSHAKING: Kind("", connections=HANDSHAKES, pause=1, scheme="https"),
}
"""Of these the number of connections is what is greedy."""
SPREAD = 1.0
"""Seconds in which the connections begin."""
UNCHECKED = ssl._create_unverified_context()


async def use(port: int, kind: Kind, number: int) -> None:
    """Opens a connection again whenever it ends."""
    await asyncio.sleep((kind.pause or SPREAD) * number / kind.connections)
    secure = UNCHECKED if kind.scheme == "https" else None
    while True:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=PIECE, ssl=secure)
            try:
                await exhaust(reader, writer, kind)
            finally:
                writer.close()
        await asyncio.sleep(0.01)


async def exhaust(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, kind: Kind) -> None:
    """Uses one connection until it ends."""
    ask = kind.ask.encode("latin-1")
    if not ask:
        await (asyncio.sleep(kind.pause) if kind.pause else reader.read())
        return
    while True:
        await say(writer, ask, kind.each)
        if kind.body:
            sending = asyncio.create_task(send(writer, kind.body))
        if not kind.reads:
            await asyncio.sleep(3600)
        head = await reader.readuntil(b"\r\n\r\n")
        left = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        while left:
            left -= len(await reader.readexactly(min(left, PIECE)))
        if kind.body:
            sending.cancel()
            return
        await asyncio.sleep(kind.pause)
        if not head.startswith(b"HTTP/1.1 2"):
            await asyncio.sleep(0.1)  # even the greedy wait a little when they are told to


async def say(writer: asyncio.StreamWriter, ask: bytes, each: float) -> None:
    """Sends a request, perhaps a byte at a time."""
    for piece in (ask[at : at + 1] for at in range(len(ask))) if each else (ask,):
        writer.write(piece)
        await asyncio.sleep(each)
        await writer.drain()


async def send(writer: asyncio.StreamWriter, size: int) -> None:
    """Sends that many bytes."""
    with contextlib.suppress(OSError):
        for _ in range(size // PIECE):
            writer.write(b" " * PIECE)
            await writer.drain()
        writer.write(b" " * (size % PIECE))
        await writer.drain()


async def main(port: int, name: str) -> None:
    """Goes on until it is ended."""
    kind = (KINDS | STRANGERS)[name]
    await asyncio.gather(*(use(port, kind, number) for number in range(kind.connections)))


if __name__ == "__main__":
    # It stands for another machine, so it has what the service and the other application leave of this one.
    os.nice(15)
    asyncio.run(main(int(sys.argv[1]), sys.argv[2]))
