"""The protocol of a worker and its child processes, over a socket that only they have.

The parent sends frames: a ``ChildSetup`` first, then a ``ChildTask`` for each run, and ``b""``, which asks to end the
run after the present message. The child answers ``READY``, or ``UNFIT`` and a frame with the reason; then for each run
one ``HANDLED`` a message, ``STATE`` with a frame whenever the handler sets one, and ``ENDED`` with a frame that holds a
``RunResult``. So the parent knows at any moment which message is being handled, also if the child dies.

Frames hold pickles: both ends are one program of one user, and no other process has the socket.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

from qdo.worker.failure import Delivery
from queuey.client import Message

READY = b"r"
UNFIT = b"x"
HANDLED = b"."
STATE = b"#"
ENDED = b"="
LENGTH = struct.Struct("!I")


class ChildSetup(NamedTuple):
    """The setup of a child.

    Attributes:
        path: Module search path.
        before_import: Called before anything is imported for the handler.
        handler: ``module:function``.
        context: ``module:factory``.
        seconds: Time after which a run ends before its last message.
    """

    path: list[str]
    before_import: Callable[[], object] | None
    handler: str
    context: str | None
    seconds: float


class ChildTask(NamedTuple):
    messages: tuple[Message, ...]
    place: Delivery


def frame(value: object) -> bytes:
    data = pickle.dumps(value, pickle.HIGHEST_PROTOCOL) if value is not None else b""
    return LENGTH.pack(len(data)) + data


def value(data: bytes) -> Any:  # noqa: ANN401 - whatever the other end put in
    """Returns the value of a frame without its length."""
    return pickle.loads(data) if data else None  # noqa: S301 - see the module


def receive(read: Callable[[int], bytes]) -> Any:  # noqa: ANN401 - whatever the other end sent
    """Reads a frame. ``read`` returns exactly the number of bytes asked for, or raises EOFError."""
    (length,) = LENGTH.unpack(read(LENGTH.size))
    return value(read(length) if length else b"")
