"""Streams of several queues: the request, the server-sent events of the answer (WHATWG HTML, 9.2), the next request."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from queuey.api.messages import ReadMessage
from queuey.client.calls.call import (
    JSON,
    Call,
    HttpAnswer,
    Point,
    decoder_of,
    encode,
    nothing,
    number_text,
    partitions_text,
    point_text,
    queue_segment,
    string,
)
from queuey.client.calls.error_answers import read_error
from queuey.client.calls.read_calls import EarlyMessages, plain_messages
from queuey.client.errors import InvalidAnswer, InvalidArgument
from queuey.client.results import StreamedMessage

LONGEST_LINE = 64 << 20
"""Max bytes of a line of an event."""


class _Data(ReadMessage, frozen=True, gc=False):
    queue_name: str = ""


class _Notice(msgspec.Struct, frozen=True):
    """An event that is no message."""

    status: int = 0


class Streaming:
    """The state of a stream. The arguments are those of :meth:`~queuey.client.Client.stream`.

    Attributes:
        cursor: The position of the last message.
        expires: The credential ends soon.
    """

    def __init__(
        self,
        queues: str | Iterable[str] | None,
        since: Point | None,
        partitions: str | int | Iterable[int],
        limit: int | None,
        cursor: str | None,
        *,
        early: bool = False,
    ) -> None:
        names = [queues] if isinstance(queues, str) else None if queues is None else list(queues)
        if names is not None and not names:
            raise InvalidArgument("a stream of no queues has no messages")
        for name in names or ():
            queue_segment(name)  # Checks the name.
        self._asked: dict[str, Any] = {"partitions": partitions_text(partitions)}
        if names is not None:
            self._asked["queues"] = names
        if since is not None:
            self._asked["since"] = since if since == "now" else point_text(since)
        if limit is not None:
            self._asked["limit"] = int(number_text("limit", limit))
        if early:
            self._asked["early"] = True
        self._early = EarlyMessages()
        self._is_of_all = names is None
        self.cursor = "" if cursor is None else string("cursor", cursor)
        self._begin()

    def _begin(self) -> None:
        self._rest = b""
        self._kind, self._id, self._data = "", "", list[bytes]()
        self.expires = False

    def call(self) -> Call[None]:
        """Returns the request for the messages after the cursor."""
        self._begin()
        headers = {**JSON, "accept": "text/event-stream", "accept-encoding": "identity"}
        if self.cursor:
            headers["last-event-id"] = self.cursor
        return Call("POST", "_stream", nothing, headers=headers, content=encode(self._asked), repeatable=True)

    def read(self, part: bytes) -> Iterator[StreamedMessage]:
        """Reads a part of the answer; yields its messages. The cursor passes one when the next is asked for.

        Raises:
            ApiError: The server has ended the stream, or a named queue was deleted.
            InvalidAnswer: It is no stream.
        """
        *lines, self._rest = (self._rest + part).split(b"\n")
        if len(self._rest) > LONGEST_LINE:
            raise InvalidAnswer("an event of the stream has no end")
        for line in lines:
            if line:
                self._read_line(line)
                continue
            kind, position, data = self._kind or "message", self._id, b"\n".join(self._data)
            self._kind, self._id, self._data = "", "", []
            if data and kind == "message":
                wire = _decoded(data, _Data)
                [message] = plain_messages([wire])
                is_new = self._early.is_new(wire.queue_name, message)
                if position:
                    self._early.forget_below(position[:32])
                if is_new:
                    yield StreamedMessage(wire.queue_name, message, position)
            elif data:
                self._read_notice(kind, data)
            self.cursor = position or self.cursor

    def _read_line(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
        elif name == b"event":
            self._kind = value.decode()
        elif name == b"id":
            self._id = value.decode()

    def _read_notice(self, kind: str, data: bytes) -> None:
        notice = _decoded(data, _Notice)
        if kind == "expiring":
            self.expires = True
        elif kind == "bye" and notice.status:
            raise read_error(HttpAnswer(notice.status, {}, data))
        elif kind == "gone" and not self._is_of_all:
            raise read_error(HttpAnswer(404, {}, data))


def _decoded(data: bytes, shape: Any) -> Any:  # noqa: ANN401 - of that shape
    try:
        return decoder_of(shape).decode(data)
    except msgspec.MsgspecError as error:
        raise InvalidAnswer(f"the stream has an event that cannot be read: {error}") from error
