"""The handlers of the experiments: they record their calls, and wait a little."""

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
"""One message in this many fails at the first attempt."""


class Unlucky(Exception):
    """The error of a first attempt that fails."""


class Notes(NamedTuple):
    """The context of the handlers."""

    journal: Journal
    worker: str
    rest: float

    def claim(self, message: Message) -> None:
        """Records that a message is being handled; some messages fail before that at their first attempt.

        Raises:
            Unlucky: The message fails at its first attempt.
        """
        if delivery().attempt == 1 and not crc32(message.body.encode()) % UNLUCKY:
            raise Unlucky
        place = place_of(delivery().partition)
        self.journal.add(Handled(now(), self.worker, place, message.id, message.body))


@contextlib.contextmanager
def notes() -> Iterator[Notes]:
    job = from_environment()
    journal = Journal(Path(job.journal))
    try:
        yield Notes(journal, job.worker, job.rest)
    finally:
        journal.close()


def plain(message: Message, context: Notes) -> None:
    context.claim(message)
    time.sleep(context.rest)


async def waiting(message: Message, context: Notes) -> None:
    context.claim(message)
    await asyncio.sleep(context.rest)
