"""The handler of the Qdo workers: it appends the number of each message to a file. A complete line was handled."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from queuey.client import Message

RECORD = "SOAK_RECORD"
"""The environment variable with the path of the file."""


@contextmanager
def record() -> Iterator[int]:
    file = os.open(os.environ[RECORD], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        yield file
    finally:
        os.close(file)


def handle(message: Message, file: int) -> None:
    os.write(file, f"{number_of(message.body)}\n".encode())


def number_of(body: str) -> int:
    return int(body.partition(" ")[0])
