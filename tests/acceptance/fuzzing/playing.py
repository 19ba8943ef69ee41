"""Sends streams of bytes to a server, and checks the answers against HTTP and the API's documentation."""

from __future__ import annotations

import asyncio
import json
import math
import re
import socket
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from tests.acceptance.fuzzing.streams import Stream

QUIET_SECONDS = 0.25
"""Seconds without an answer after which a client that waits for one stops sending."""
ANSWER_TIMEOUT = 25.0
"""Seconds after its client's last byte within which a connection has to end: the head of a request has 10."""
DOCUMENTED = {200, 201, 204, 400, 401, 403, 404, 405, 408, 409, 413, 414, 415, 429, 431, 503}
"""Statuses of the API, and of invalid requests."""
EARLY_ENDS = {"reset", "close"}
LONG_STREAM_BYTES = 32 << 10
"""Bytes of an answer that the server library may not finish for a client that sends no more: it takes it for gone."""
_HEAD = re.compile(rb"HTTP/1\.[01] ([1-5][0-9]{2}) [ -~]*\r\n((?:[!#-'*+.^_`|~0-9A-Za-z-]+: ?[ -~]*\r\n)*)\r\n")


class Answer(NamedTuple):
    status: int
    headers: dict[bytes, bytes]
    body: bytes


class Defect(Exception):
    """The server violated HTTP or its documentation."""


def parse(data: bytes, *, heads: bool = False, whole: bool = True, longest: float = math.inf) -> list[Answer]:
    """Parses the answers of one connection.

    Args:
        data: All bytes received.
        heads: Some requests may be HEAD, whose answers have no body whatever their headers say.
        whole: The connection ended in order, so the last answer must be complete; else its body may be missing here.
        longest: Max bytes of a body that must be complete even then.

    Raises:
        Defect: The bytes are not a sequence of answers.
    """
    answers = []
    while data:
        head = _HEAD.match(data)
        if head is None:
            if whole or b"\r\n\r\n" in data:
                raise Defect(f"This is no answer: {data[:300]!r}")
            break
        pairs = [line.partition(b":") for line in head[2].splitlines()]
        headers = {name.lower(): value.strip() for name, _, value in pairs}
        if len(headers) < len(pairs):
            raise Defect(f"A header stands twice: {head[0]!r}")
        status, remaining = int(head[1]), data[head.end() :]
        if status not in {100, 204} and b"content-length" not in headers:
            raise Defect(f"Nobody knows how long this is: {data[:300]!r}")
        length = 0 if status in {100, 204} else int(headers[b"content-length"])
        if heads and (not remaining or remaining.startswith(b"HTTP/1.")):
            length = 0
        if len(remaining) < length and whole and length <= longest:
            raise Defect(f"An answer ends early: {data[:300]!r}")
        answers.append(Answer(status, headers, remaining[:length] if len(remaining) >= length else b""))
        data = remaining[length:]
    return answers


def check(answer: Answer) -> None:
    """Checks one answer against the documentation.

    Raises:
        Defect: The answer contradicts it.
    """
    status, headers, body = answer
    if status == 100:
        return
    if status not in DOCUMENTED:
        raise Defect(f"Nobody promises {answer}")
    if status in {429, 503} and b"retry-after" not in headers:
        raise Defect(f"No Retry-After: {answer}")
    # The type of a single raw message is what its poster said.
    if b"json" in headers.get(b"content-type", b"") and body and b"x-message-id" not in headers:
        try:
            json.loads(body)
        except ValueError as error:
            raise Defect(f"This is no JSON: {answer}") from error


async def _send(stream: Stream, writer: asyncio.StreamWriter) -> None:
    """Sends the pieces of a stream one after another; stops quietly if the server closes the connection."""
    with suppress(ConnectionError):  # refused while it is sent
        for piece in stream.pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.002)


def _end(stream: Stream, writer: asyncio.StreamWriter) -> None:
    """Ends a stream as `stream.end` says; ``stay`` leaves the connection open."""
    with suppress(OSError):  # the server has closed it already
        if stream.end == "reset":
            option = socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0"
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, *option)
        if stream.end in EARLY_ENDS:
            writer.transport.abort()
        elif stream.end != "stay":
            writer.write_eof()


async def play_connection(stream: Stream, port: int, patience: float = ANSWER_TIMEOUT) -> list[Answer]:
    """Plays one connection to its end, and checks and returns every answer; none if the client leaves early.

    Raises:
        Defect: The server hung, or an answer is wrong.
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    received = bytearray()

    async def receive() -> bool:
        try:
            while piece := await reader.read(1 << 16):
                received.extend(piece)
        except ConnectionError:
            return False
        return True

    reading = asyncio.create_task(receive())
    try:
        await _send(stream, writer)
        size = -1
        while stream.end == "answer" and size < len(received) and not reading.done():
            size = len(received)
            await asyncio.wait([reading], timeout=QUIET_SECONDS)
        longest = math.inf if reading.done() else LONG_STREAM_BYTES
        _end(stream, writer)
        whole = await asyncio.wait_for(asyncio.shield(reading), patience)
    except TimeoutError:
        raise Defect(f"The connection hung; until then came {bytes(received)[:300]!r}") from None
    finally:
        writer.transport.abort()
        reading.cancel()
    if stream.end in EARLY_ENDS:
        return []
    sent = b"".join(stream.pieces)
    answers = parse(bytes(received), heads=b"HEAD" in sent, whole=whole, longest=longest)
    for answer in answers:
        check(answer)
    return answers


async def play(streams: Sequence[Stream], port: int, patience: float = ANSWER_TIMEOUT) -> Counter[int]:
    """Plays several connections at the same time; returns how often each status was answered.

    Raises:
        Defect: A connection showed a defect; the text has the exact bytes that were sent.
    """
    results = await asyncio.gather(
        *(play_connection(stream, port, patience) for stream in streams), return_exceptions=True
    )
    statuses: Counter[int] = Counter()
    for stream, result in zip(streams, results, strict=True):
        if isinstance(result, BaseException):
            raise Defect(f"{result}\nafter {stream!r}") from result
        statuses.update(answer.status for answer in result)
    return statuses
