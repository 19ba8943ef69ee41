"""The handlers of the experiments: they write down that they were called, and rest a little."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from qdo.worker.handlers import delivery
from queuey.client import Message
from tests.harness.checking.records import Handled, place_of
from tests.harness.history import Journal, now
from tests.qdo.faults.job import from_environment

UNLUCKY = 97
"""One message in so many fails at the first attempt."""


class Unlucky(Exception):
    """A first attempt that fails."""


class Notes(NamedTuple):
    """What handlers need."""

    journal: Journal
    worker: str
    rest: float

    def claim(self, message: Message) -> None:
        """Writes down that a message is being handled; some fail before that when they are tried first.

        Raises:
            Unlucky: The message is one of those.
        """
        if delivery().attempt == 1 and not crc32(message.body.encode()) % UNLUCKY:
            raise Unlucky
        place = place_of(delivery().partition)
        self.journal.add(Handled(now(), self.worker, place, message.id, message.body))


@contextlib.contextmanager
def notes() -> Iterator[Notes]:
    """The handlers' context."""
    job = from_environment()
    journal = Journal(Path(job.journal))
    try:
        yield Notes(journal, job.worker, job.rest)
    finally:
        journal.close()


def plain(message: Message, context: Notes) -> None:
    """For threads and processes."""
    context.claim(message)
    time.sleep(context.rest)


async def waiting(message: Message, context: Notes) -> None:
    """For tasks."""
    context.claim(message)
    await asyncio.sleep(context.rest)
