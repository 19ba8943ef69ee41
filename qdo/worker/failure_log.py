"""What the log says of a message that failed."""

from __future__ import annotations

import logging

from qdo.worker.failure import Delivery, Failure
from queuey.client import Message

logger = logging.getLogger("qdo.worker")


def report(level: int, place: Delivery, message: Message, failure: Failure, text: str, *arguments: object) -> None:
    """Logs something about a failure; ``queue``, ``partition``, ``message_id``, ``attempt``, ``error`` are fields.

    The error may have been raised in another process, so that only the text of its traceback is at hand. It goes with
    the first attempt and with errors, where logging's own formatters show it.

    Args:
        level: Of the record.
        place: Where the message comes from, and the attempt.
        message: The message.
        failure: What it met with.
        text: In the manner of logging; the failure itself is its last argument.
        *arguments: The others.
    """
    if not logger.isEnabledFor(level):
        return
    fields = {
        "queue": place.partition.queue.name,
        "partition": place.partition.number,
        "message_id": message.id,
        "attempt": place.attempt,
        "error": failure.kind,
    }
    file, line, function, _ = logger.findCaller(stacklevel=2)
    record = logger.makeRecord(
        logger.name, level, file, line, text, (*arguments, failure), None, function, extra=fields
    )
    if place.attempt == 1 or level >= logging.ERROR:
        record.exc_text = failure.trace.rstrip() or None
    logger.handle(record)
