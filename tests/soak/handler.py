"""What Qdo workers do with a message: they write its number down. A line that is whole was handled."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from queuey.client import Message

RECORD = "SOAK_RECORD"
"""Variable with the path of the file."""


@contextmanager
def record() -> Iterator[int]:
    """Opens the file for the handler."""
    file = os.open(os.environ[RECORD], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        yield file
    finally:
        os.close(file)


def handle(message: Message, file: int) -> None:
    """Appends the number of a message."""
    os.write(file, f"{number_of(message.body)}\n".encode())


def number_of(body: str) -> int:
    """Returns the number with which a body begins."""
    return int(body.partition(" ")[0])
