"""Following queues by a stream, without I/O: what is asked, what its events say, and where the next one goes on.

The bytes of an answer are server-sent events (WHATWG HTML, 9.2).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

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
from queuey.client.calls.read_calls import GivenEarly, WireMessage, plain_messages
from queuey.client.errors import ClientError, InvalidAnswer, InvalidArgument, NotAuthenticated
from queuey.client.http.attempts import Patience
from queuey.client.results import StreamedMessage

LONGEST_LINE = 64 << 20
"""Bytes of a line of an event."""


class _Data(WireMessage, frozen=True, gc=False):
    queue_name: str = ""


class _Told(msgspec.Struct, frozen=True):
    """What an event says that is no message."""

    status: int = 0


class Streaming:
    """The state of a stream.

    Args:
        queues: One queue, several, or (None) all that the credential may read.
        since: Where to begin; None: at the oldest message, ``now``: with what comes.
        partitions: Of the queues.
        limit: Messages of a partition that the server reads together; None: its default.
        cursor: Where an earlier stream of the same queues has come to; it wins over ``since``.
        patience: Decides how long failures are put up with.
        early: Give as well what lies above the horizon, and each message once.

    Attributes:
        cursor: Where to go on.
        renews: The credential ends soon.
    """

    def __init__(
        self,
        queues: str | Iterable[str] | None,
        since: Point | None,
        partitions: str | int | Iterable[int],
        limit: int | None,
        cursor: str | None,
        patience: Patience,
        *,
        early: bool = False,
    ) -> None:
        names = [queues] if isinstance(queues, str) else None if queues is None else list(queues)
        if names is not None and not names:
            raise InvalidArgument("a stream of no queues has no messages")
        for name in names or ():
            queue_segment(name)  # It is checked.
        self._asked: dict[str, Any] = {"partitions": partitions_text(partitions)}
        if names is not None:
            self._asked["queues"] = names
        if since is not None:
            self._asked["since"] = since if since == "now" else point_text(since)
        if limit is not None:
            self._asked["limit"] = int(number_text("limit", limit))
        if early:
            self._asked["early"] = True
        self._given = GivenEarly()
        self._is_of_all = names is None
        self._patience = patience
        self._renewed = False
        self.cursor = "" if cursor is None else string("cursor", cursor)
        self._begin()

    def _begin(self) -> None:
        self._rest = b""
        self._kind, self._id, self._data = "", "", list[bytes]()
        self.renews = False

    def call(self) -> Call[None]:
        """Returns the request that goes on."""
        self._begin()
        headers = {**JSON, "accept": "text/event-stream", "accept-encoding": "identity"}
        if self.cursor:
            headers["last-event-id"] = self.cursor
        return Call("POST", "_stream", nothing, headers=headers, content=encode(self._asked), repeatable=True)

    def take(self, part: bytes) -> Iterator[StreamedMessage]:
        """Takes bytes as they came; gives messages. Each counts as given once the next one is asked for.

        Raises:
            ApiError: The stream has ended for a reason, or a queue that was named is not there any more.
            InvalidAnswer: It is no stream.
        """
        self._patience.restored()
        self._renewed = False
        *lines, self._rest = (self._rest + part).split(b"\n")
        if len(self._rest) > LONGEST_LINE:
            raise InvalidAnswer("an event of the stream has no end")
        for line in lines:
            if line:
                self._take_line(line)
                continue
            kind, position, data = self._kind or "message", self._id, b"\n".join(self._data)
            self._kind, self._id, self._data = "", "", []
            if data and kind == "message":
                wire = _decoded(data, _Data)
                [message] = plain_messages([wire])
                is_new = self._given.is_new(wire.queue_name, message)
                if position:
                    self._given.pass_over(position[:32])
                if is_new:
                    yield StreamedMessage(wire.queue_name, message, position)
            elif data:
                self._heed(kind, data)
            self.cursor = position or self.cursor

    def asks_for_token(self, error: ClientError) -> bool:
        """Returns whether another token may help after a failure: once in a row."""
        asks = isinstance(error, NotAuthenticated) and not self._renewed
        self._renewed = self._renewed or asks
        return asks

    def pause_after(self, error: ClientError) -> float | None:
        """Returns the seconds to pause after a failure; None: it is to be raised."""
        return self._patience.pause_after(error)

    def _take_line(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
        elif name == b"event":
            self._kind = value.decode()
        elif name == b"id":
            self._id = value.decode()

    def _heed(self, kind: str, data: bytes) -> None:
        """Takes notice of an event that is no message."""
        told = _decoded(data, _Told)
        if kind == "expiring":
            self.renews = True
        elif kind == "bye" and told.status:
            raise read_error(HttpAnswer(told.status, {}, data))
        elif kind == "gone" and not self._is_of_all:
            raise read_error(HttpAnswer(404, {}, data))


def _decoded(data: bytes, shape: Any) -> Any:  # noqa: ANN401 - of that shape
    try:
        return decoder_of(shape).decode(data)
    except msgspec.MsgspecError as error:
        raise InvalidAnswer(f"the stream has an event that cannot be read: {error}") from error
