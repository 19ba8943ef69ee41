"""Queues to be archived, and the expected content of their archives."""

from __future__ import annotations

import time
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from queuey.model import ids
from queuey.model.messages import Message, Meta, Queue
from queuey.pipeline.archive.verify import CheckOptions, CheckReport, check
from queuey.pipeline.options import ArchiveOptions
from queuey.spark.options import Pattern
from queuey.storage import bridge
from tests.spark.kept import METAS, Kept, quiet

HOUR = 3600


@cache
def last_hour() -> int:
    """Returns the start of the hour of the test's first call, in seconds since 1970, even after that hour has ended.

    Everything before it is in closed buckets.
    """
    return int(time.time()) // HOUR * HOUR


def make_past_queue(
    kept: Kept, name: str, count: int, *, hours: int, partitions: int = 2, ttl: int | None = None
) -> Queue:
    """Creates a queue with messages spread evenly over the hours before the last full hour."""
    queue = kept.queue(name, partitions=partitions, ttl=ttl)
    begin, low = last_hour() - hours * HOUR, ids.random_low()
    bridge.run(
        kept.store.bulk.load(
            queue, [message(n, begin + n * hours * HOUR / count, low, partitions) for n in range(count)]
        )
    )
    return queue


def message(number: int, seconds: float, low: int, partitions: int) -> Message:
    """Returns a message; its kind and its expiry follow from its number."""
    meta = METAS[number % len(METAS)]
    body: str | bytes = f"text {number} ä" if number % 3 else b"\x00\xff" + str(number).encode()
    if meta == METAS[-1]:
        body = f'{{"n": {number}}}'
    expires = ids.seconds_to_ticks(time.time() + 90_000 + number)
    return Message(ids.seconds_to_ticks(seconds), low, number % partitions + 1, expires, body, meta)


def options(kept: Kept, to: Path, **more: Any) -> ArchiveOptions:  # noqa: ANN401 - fields of the options
    return msgspec.structs.replace(
        ArchiveOptions(store=kept.store_options, selection=Pattern(".*"), to=str(to)), **more
    )


def read_content(row: Any) -> tuple[Any, ...]:  # noqa: ANN401 - a row of Spark's
    headers = tuple((pair.key, bytes(pair.value).decode()) for pair in row.headers or ())
    meta = row.contentType, headers, row.valueType
    return row.partition, row.id, bytes(row.value), meta, round(row.expires.timestamp() * 1_000_000)


def list_contents(messages: Iterable[Message]) -> list[tuple[Any, ...]]:
    return sorted(map(_make_content, messages))


def _make_content(message: Message) -> tuple[Any, ...]:
    meta = message.meta or Meta()
    kind = "json" if meta.json else "text" if isinstance(message.body, str) else "bytes"
    body = message.body.encode() if isinstance(message.body, str) else message.body
    expires = (message.expires - ids.EPOCH_TICKS) // 10
    return message.partition, message.id, body, (meta.content_type, meta.headers, kind), expires


def delete_all(kept: Kept, queue: Queue, share: int = 1) -> None:
    """Deletes every ``share``-th message, as TTL would."""
    deleted = kept.all(queue)[::share]
    bridge.run(kept.store.messages.delete(queue, [(one.partition, one.position) for one in deleted]))


def check_archive(spark: Any, kept: Kept, to: Path, **more: Any) -> CheckReport:  # noqa: ANN401 - of the options
    return check(spark, CheckOptions(store=kept.store_options, selection=Pattern(".*"), archive=str(to), **more), quiet)
