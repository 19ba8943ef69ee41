"""Dead letters of messages that are given up, with retries."""

from __future__ import annotations

import logging
from itertools import count
from time import time

from qdo.worker.failure import Delivery, Failure
from qdo.worker.partition_work import FailedMessage, PartitionWork
from qdo.worker.sources import Handling
from queuey.client import AsyncClient, RetryPolicy, deadletters
from queuey.client.deadletters import Cause

_PAUSES = RetryPolicy(base=0.5, cap=30.0)
"""Pauses after a dead letter could not be stored."""


async def publish(
    client: AsyncClient, handling: Handling, work: PartitionWork, held: FailedMessage, failure: Failure
) -> bool:
    """Publishes a dead letter; tries again until it is stored, or returns False if its work is closed before."""
    queue, place = work.partition.queue.name, Delivery(work.partition, held.attempt)
    cause = Cause(attempts=held.attempt, error=failure.kind, text=failure.text, at=time())
    dead_queue, ttl = handling.settings.dead_queue, handling.settings.dead_ttl
    for failures in count(1):
        try:
            target = await deadletters.bury(client, queue, held.message, cause, dead_queue=dead_queue, ttl=ttl)
        except Exception as error:  # noqa: BLE001 - whatever it is, the message must not be lost for it
            handling.metrics.note("dead_letter_failures")
            pause = _PAUSES.pause(failures, 1.0)
            text = "its dead letter could not be stored (%s), next attempt in %g s: %s"
            handling.report(logging.ERROR, place, held.message, failure, text, error, pause)
            if not await work.pause(pause):
                return False
        else:
            break
    text = "given up after %d attempts, now in %s: %s"
    handling.report(logging.ERROR, place, held.message, failure, text, held.attempt, target)
    return True
